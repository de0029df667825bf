package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Provider is the provider "shm", made by New. Its methods are safe for
// concurrent use.
type Provider struct {
	opts       Options
	hub        *hub
	secret     provide.Secret                                                    // of the cluster
	dialSocket func(ctx context.Context, network, addr string) (net.Conn, error) // net.Dialer's, or a test's

	mu struct {
		sync.Mutex
		links map[destination]*dialing
	}
}

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.Impersonator = (*Provider)(nil)
)

// destination is the address of a link's server and the role of its client. The
// connections of one process in several roles have separate links.
type destination struct {
	addr string
	role rdma.Role
}

// SetSecret sets the secret that only the data servers of a cluster know. The
// endpoints of this provider require a proof of it from peers that dial as data
// servers, and the provider gives that proof when it dials as one. Before
// SetSecret the provider has a random secret, so that only the provider itself
// can dial its endpoints as a data server. SetSecret must be called before
// Listen and Dial.
func (p *Provider) SetSecret(secret []byte) {
	p.secret.Set(secret)
}

// As returns the provider with another role for its dials. The name is not
// carried. Dials with a restriction to tables fail, because the processes of one
// user cannot be distinguished.
func (p *Provider) As(who rdma.Identity) rdma.Provider { return &member{p, who} }

// member is a provider whose dials have a role.
type member struct {
	*Provider
	who rdma.Identity
}

// Dial is Provider.Dial in the member's role.
func (m *member) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	if m.who.Restricted() || m.who.Role == rdma.RoleNone {
		return nil, fmt.Errorf("shm: dial %q as %v: processes of one user cannot be distinguished: %w", addr, &m.who, rdma.ErrUnsupported)
	}
	return m.dial(ctx, addr, m.who.Role)
}

// dialing is the cached link to one address. turn is a lock that a context
// can interrupt; it serialises connecting, and is not held under p.mu.
type dialing struct {
	turn chan struct{}
	link *link // nil or dead: connect anew. Guarded by p.mu.
}

// Name returns "shm".
func (p *Provider) Name() string { return "shm" }

// Dial connects to the endpoint at a socket path, or @ and an abstract name, as
// a client that may do all that clients may.
func (p *Provider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return p.dial(ctx, addr, rdma.RoleLoader)
}

func (p *Provider) dial(ctx context.Context, addr string, role rdma.Role) (rdma.Conn, error) {
	if err := checkAddress(addr); err != nil {
		return nil, err
	}
	p.mu.Lock()
	if p.mu.links == nil {
		p.mu.links = make(map[destination]*dialing)
	}
	to := destination{addr, role}
	d := p.mu.links[to]
	if d == nil {
		d = &dialing{turn: make(chan struct{}, 1)}
		p.mu.links[to] = d
	}
	p.mu.Unlock()

	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for {
		l, cached, err := p.linkTo(ctx, d, to)
		if err != nil {
			return nil, err
		}
		c, err := l.open(ctx)
		if err == nil {
			return c, nil
		}
		p.unref(l)
		// The cached link may belong to a server that has restarted.
		if !cached || !l.dead.Load() || ctx.Err() != nil {
			return nil, err
		}
	}
}

// linkTo returns the link to a destination, with a reference taken, and whether
// it was cached.
func (p *Provider) linkTo(ctx context.Context, d *dialing, to destination) (l *link, cached bool, err error) {
	p.mu.Lock()
	l = d.link
	if l != nil && !l.dead.Load() {
		l.refs++
		p.mu.Unlock()
		return l, true, nil
	}
	p.mu.Unlock()
	if l, err = connect(ctx, p, to); err != nil {
		return nil, false, err
	}
	l.dialing, l.refs = d, 1
	p.mu.Lock()
	d.link = l
	p.hub.add(l)
	p.mu.Unlock()
	return l, false, nil
}

// unref drops a reference; the last one closes the link.
func (p *Provider) unref(l *link) {
	p.mu.Lock()
	l.refs--
	last := l.refs == 0
	if last {
		p.hub.remove(l)
		if l.dialing.link == l {
			l.dialing.link = nil
		}
	}
	p.mu.Unlock()
	if last {
		l.close()
	}
}

// link is the client side of a link. See the package documentation.
type link struct {
	p       *Provider
	dialing *dialing
	addr    string
	role    rdma.Role
	refs    int // guarded by p.mu
	sock    socket
	dead    atomic.Bool // the peer is gone
	left    atomic.Bool // see leave
	done    chan struct{}

	seg       *mem.Control
	requests  mem.Span
	responses mem.Span
	pollers   int
	bells     []serverBell // of each poller
	pollPage  *mem.Region
	wordsUsed atomic.Int32 // doorbell words of each poller that have slots in use
	conns     []atomic.Pointer[conn]

	regions atomic.Pointer[[]*mem.Region] // by rkey-1; nil where not known; copied on change

	ask     chan struct{} // held by the goroutine that waits for an answer on the control socket
	answers chan message
	lastID  uint32 // guarded by ask
}

// serverBell wakes one poller of a server.
type serverBell struct {
	asleep  mem.Span // word 0: odd while the poller sleeps, a new value each time
	woken   atomic.Uint64
	eventfd *os.File
	fd      int
}

// ring wakes the poller if it has announced that it sleeps: once for each sleep
// and process.
func (b *serverBell) ring() {
	seq := b.asleep.Load(0)
	if seq&1 == 0 {
		return
	}
	old := b.woken.Load()
	if old == seq || !b.woken.CompareAndSwap(old, seq) {
		return
	}
	// The counter would overflow after 2^64 sleeps; it is never read.
	_, _ = unix.Write(b.fd, eventOne)
}

var eventOne = []byte{1, 0, 0, 0, 0, 0, 0, 0} // any value but zero rings, on either byte order

func connect(ctx context.Context, p *Provider, to destination) (*link, error) {
	addr := to.addr
	dctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	nc, err := p.connectSocket(dctx, addr)
	if err != nil {
		if e := provide.Ended(ctx); e != nil {
			return nil, fmt.Errorf("shm: dial %q: %w: %w", addr, e, err)
		}
		return nil, fmt.Errorf("shm: dial %q: %w", addr, err)
	}
	l := &link{
		p: p, addr: addr, role: to.role, sock: socket{nc.(*net.UnixConn)},
		done: make(chan struct{}), ask: make(chan struct{}, 1), answers: make(chan message),
	}
	l.regions.Store(new([]*mem.Region))
	stop := context.AfterFunc(dctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	err = l.handshake()
	if !stop() || err != nil {
		nc.Close()
		l.closeBells()
		if e := ctx.Err(); e != nil {
			return nil, e
		}
		return nil, fmt.Errorf("shm: dial %q: %w", addr, handshakeError(err))
	}
	go l.receive()
	return l, nil
}

// busyRetry is how often a dial tries again whether the accept queue has room.
const busyRetry = 2 * time.Millisecond

// connectSocket connects to addr. The kernel refuses at once if the accept queue
// is full, so connectSocket tries again until ctx ends.
func (p *Provider) connectSocket(ctx context.Context, addr string) (net.Conn, error) {
	var busy error
	for {
		nc, err := p.dialSocket(ctx, network, addr)
		if err == nil {
			return nc, nil
		}
		err = rdma.DialError(err)
		if busy != nil && (ctx.Err() != nil || errors.Is(err, rdma.ErrTimeout)) {
			return nil, busy
		}
		if !errors.Is(err, rdma.ErrBusy) {
			return nil, err
		}
		busy = err
		select {
		case <-time.After(busyRetry):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// handshakeError returns typed errors as they are, and any other as ErrPeerDown.
func handshakeError(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: handshake", rdma.ErrTimeout)
	}
	for _, typed := range []error{rdma.ErrUnsupported, rdma.ErrTooLarge, rdma.ErrAddress, rdma.ErrAccess, rdma.ErrExhausted, rdma.ErrRole} {
		if errors.Is(err, typed) {
			return err
		}
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: handshake: %w", rdma.ErrExhausted, err)
	}
	return fmt.Errorf("%w: handshake: %v", rdma.ErrPeerDown, err)
}

// handshake sends the hello and adopts what the server sends. The caller sets
// the deadline of the socket.
func (l *link) handshake() error {
	if _, err := l.sock.checkPeer(); err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrAddress, err)
	}
	if err := l.sock.send(&message{kind: msgHello, version: wireVersion, role: l.role}, l.p.hub.page.File()); err != nil {
		return err
	}
	m, files, err := l.sock.receive(true)
	if err == nil && m.kind == msgChallenge && l.role == rdma.RoleServer {
		closeFiles(files)
		if err := l.sock.send(&message{kind: msgProof, blob: l.p.secret.Proof("shm", m.blob[:])}); err != nil {
			return err
		}
		m, files, err = l.sock.receive(true)
	}
	if err != nil {
		return err
	}
	defer func() { closeFiles(files) }()
	if m.kind == msgRefuse && m.reason != reasonNone {
		return m.reason.err()
	}
	if m.kind != msgWelcome || m.version != wireVersion || m.pollers == 0 || len(files) != 2+int(m.pollers) {
		return fmt.Errorf("%w: kind %d, %d descriptors", errWire, m.kind, len(files))
	}
	if err := l.adopt(int(m.pollers), files); err != nil {
		return err
	}
	files = files[:2]
	for range m.regions {
		m, fs, err := l.sock.receive(true)
		if err == nil {
			err = l.adoptRegion(&m, fs)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// adopt maps the segment and the page of the pollers, and keeps the eventfds.
func (l *link) adopt(pollers int, files []*os.File) (err error) {
	if l.seg, err = mem.OpenControl(files[0], linkBytes); err != nil {
		return err
	}
	if l.pollPage, err = mem.Open(pageBytes, pageBytes); err != nil {
		return err
	}
	if _, err = l.pollPage.Attach(0, files[1]); err != nil {
		return err
	}
	l.pollers = pollers
	l.requests = l.seg.Span(requestBells, doorbellWords*mem.WordBytes)
	l.responses = l.seg.Span(responseBells, doorbellWords*mem.WordBytes)
	l.conns = make([]atomic.Pointer[conn], slotsFor(pollers))
	l.bells = make([]serverBell, pollers)
	for i := range l.bells {
		b := &l.bells[i]
		b.eventfd = files[2+i]
		b.fd = int(b.eventfd.Fd())
		var ok bool
		if b.asleep, ok = l.pollPage.Span(uint64(i)*mem.LineBytes, mem.LineBytes); !ok {
			return fmt.Errorf("%w: poller page", errWire)
		}
	}
	return nil
}

// adoptRegion maps the files of a region that the server has sent. The first
// mapping stays: another goroutine may be reading it. Only the goroutine that
// receives calls adoptRegion.
func (l *link) adoptRegion(m *message, files []*os.File) error {
	defer closeFiles(files)
	if m.kind != msgRegion || m.rkey == 0 || m.rkey > regionsMax {
		return fmt.Errorf("%w: region", errWire)
	}
	r := l.region(m.rkey)
	known := r != nil
	if !known {
		var err error
		if r, err = mem.Open(m.segment, m.max); err != nil {
			return err
		}
	}
	for off, i := m.first, 0; i < len(files); i++ {
		var err error
		if off, err = r.Attach(off, files[i]); err != nil {
			return err
		}
	}
	if known {
		return nil
	}
	old := *l.regions.Load()
	regions := make([]*mem.Region, max(len(old), int(m.rkey)))
	copy(regions, old)
	regions[m.rkey-1] = r
	l.regions.Store(&regions)
	return nil
}

// receive is the goroutine that reads the control socket. The link ends with the
// socket.
func (l *link) receive() {
	defer close(l.done)
	_ = l.sock.SetReadDeadline(time.Time{})
	for {
		m, files, err := l.sock.receive(true)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				l.leave()
			}
			break
		}
		switch m.kind {
		case msgRegion:
			if m.reason == reasonNone {
				// What cannot be mapped stays unknown, as fetch finds.
				_ = l.adoptRegion(&m, files)
				files = nil
			}
			l.answer(m)
		case msgOpened:
			l.answer(m)
		case msgClosed:
			if int(m.slot) < len(l.conns) {
				// The slot may have another connection by now.
				if c := l.conns[m.slot].Load(); c != nil && c.id == m.id {
					c.fail()
				}
			}
		}
		closeFiles(files)
	}
	l.dead.Store(true)
	for i := range l.conns {
		if c := l.conns[i].Load(); c != nil {
			l.p.hub.nudge(c)
		}
	}
}

// leave closes the socket, upon which the server clears the segment. Connections may be
// reading responses there: each looks at left when it has copied one.
func (l *link) leave() {
	l.left.Store(true) // first
	l.sock.Close()
}

// answer delivers m to the waiting caller, if it is still waiting.
func (l *link) answer(m message) {
	select {
	case l.answers <- m:
		return
	default:
	}
	// The caller may not be listening yet, or may have given up.
	for len(l.ask) > 0 {
		select {
		case l.answers <- m:
			return
		case <-time.After(time.Millisecond):
		}
	}
	if m.kind == msgOpened && m.reason == reasonNone {
		_ = l.sock.send(&message{kind: msgClose, slot: m.slot})
	}
}

// request sends m and waits for the answer with the same id.
func (l *link) request(ctx context.Context, m message) (message, error) {
	select {
	case l.ask <- struct{}{}:
		defer func() { <-l.ask }()
	case <-ctx.Done():
		return message{}, ctx.Err()
	case <-l.done:
		return message{}, l.downError()
	}
	l.lastID++
	m.id = l.lastID
	if err := l.sock.send(&m); err != nil {
		l.dead.Store(true)
		l.leave() // receive ends
		return message{}, l.downError()
	}
	for {
		select {
		case a := <-l.answers:
			if a.id == m.id {
				return a, nil
			}
			if a.kind == msgOpened && a.reason == reasonNone {
				_ = l.sock.send(&message{kind: msgClose, slot: a.slot})
			}
		case <-ctx.Done():
			return message{}, ctx.Err()
		case <-l.done: // dead is set
			return message{}, l.downError()
		}
	}
}

func (l *link) downError() error {
	return fmt.Errorf("shm: connection to %q: %w", l.addr, rdma.ErrPeerDown)
}

// open makes a connection on the link.
func (l *link) open(ctx context.Context) (*conn, error) {
	ours, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	m, err := l.request(ours, message{kind: msgOpen})
	if err != nil {
		if ours.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("shm: dial %q: %w", l.addr, rdma.ErrTimeout)
		}
		return nil, err
	}
	if m.kind != msgOpened || int(m.slot) >= len(l.conns) {
		return nil, errWire
	}
	if m.reason != reasonNone {
		return nil, fmt.Errorf("shm: dial %q: %w", l.addr, m.reason.err())
	}
	c := newConn(l, m.id, int(m.slot))
	l.conns[m.slot].Store(c)
	for used := int32(c.word%(doorbellWords/l.pollers)) + 1; ; {
		if old := l.wordsUsed.Load(); old >= used || l.wordsUsed.CompareAndSwap(old, used) {
			return c, nil
		}
	}
}

// region returns a region that this process has mapped, nil if it has not.
func (l *link) region(key rdma.RKey) *mem.Region {
	regions := *l.regions.Load()
	if i := int(key) - 1; uint(i) < uint(len(regions)) {
		return regions[i]
	}
	return nil
}

// fetch performs a READ on memory that is not mapped yet. It asks the server
// for files until the READ is complete, or the server has no more.
func (l *link) fetch(ctx context.Context, wr *rdma.WR) error {
	for have, known := uint64(0), false; ; {
		r := l.region(wr.RKey)
		if r != nil {
			if wr.Status = read(r, wr); wr.Status != rdma.StatusPending {
				return nil
			}
		}
		if wr.RKey == 0 || wr.RKey > regionsMax || known && (r == nil || r.Size() == have) {
			wr.Status = rdma.StatusAccess
			return nil
		}
		if known = true; r != nil {
			have = r.Size()
		}
		if _, err := l.request(ctx, message{kind: msgAsk, rkey: wr.RKey, first: have}); err != nil {
			return err
		}
	}
}

// close ends a link that no connection uses.
func (l *link) close() {
	l.leave()
	<-l.done
	l.closeBells()
}

func (l *link) closeBells() {
	for i := range l.bells {
		l.bells[i].eventfd.Close()
	}
}
