package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// A host is a process of a cluster whose members are in a store. It runs the data
// server with its own number, and keeps copies of the logs of others. If the lease
// of one of those has ended, and the copy is in sync, the host takes the server
// over: it runs a second data server, from the copy, at an address of its own.
// docs/replication.md has the design and its rules.

const (
	// takeoverGrace is how long a server must have been without a lease, unless it has
	// been quiet for longer: see grace. A process that gave its lease back and is started
	// again at once keeps its server.
	takeoverGrace = 500 * time.Millisecond
	// takeoverTick is how often a host looks at a server while something is to be done.
	takeoverTick = 100 * time.Millisecond
	// takeoverRest is the time between two looks while nothing is to be done, as far as
	// this host knows without news of the cluster.
	takeoverRest = time.Second
	// copyQuiet is how long nothing has come for a copy when the host begins to read it,
	// since its home may be lost. A home that runs sends to a copy in sync more often. If
	// a very busy one does not, the copy is read in vain.
	copyQuiet = time.Second
	// takeoverPause is the time between attempts that fail.
	takeoverPause = time.Second
)

// HomesDir is the directory, in that of a host's own data server, of the servers
// that the host has taken over.
const HomesDir = "homes"

// homeDir is the directory of a server that a host has taken over.
func homeDir(host string, server placement.Server) string {
	return vfs.Default.PathJoin(host, HomesDir, fmt.Sprintf("server-%d", server))
}

// copies is the part of a data server that keeps the copies of others.
type copies interface {
	ReadCopy(home placement.Server) (server.CopyRead, error)
	CopySilence(home placement.Server) (d time.Duration, ok bool)
	YieldCopy(home placement.Server) (dir string, made datadir.Copy, err error)
	ResumeCopy(home placement.Server)
}

// takeovers manages the servers that a host has taken over or may take over.
type takeovers struct {
	o      *JoinOptions // of the host
	dir    string       // of its own data server
	place  *place       // of its own data server
	copies copies
	ended  context.Context
	end    context.CancelFunc
	wg     sync.WaitGroup
	looks  atomic.Uint64 // rounds of run

	mu struct {
		sync.Mutex
		homes map[placement.Server]*home
		rests bool // set by rest: nothing is begun
	}
}

// home is a server that a host has taken over, or tries to.
type home struct {
	lostAt  time.Duration // by clock.Now: since then the server has no lease; 0: it has one
	next    time.Duration // of the next attempt
	busy    bool
	member  *Member       // nil: it does not run here
	readyAt time.Duration // since then the host where it is to be can take it; 0: it cannot
	backAt  time.Duration // when it was given to that host; 0: it was not
	pause   time.Duration // after backAt, before it is given again; doubles while nobody takes it
	reading *reading      // of its copy, while no steps come for it; nil: none has begun
	swept   bool          // this host's former directory of the server is removed
}

// reading is the result of reading a copy in advance, so that a takeover need not wait
// for it.
type reading struct {
	done chan struct{}
	got  server.CopyRead
	err  error
}

// readCopy begins to read the copy of a data server.
func readCopy(c copies, server placement.Server) *reading {
	r := &reading{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.got, r.err = c.ReadCopy(server)
	}()
	return r
}

// wait waits for the reading to end and returns its result. A nil reading has read
// nothing.
func (r *reading) wait(ctx context.Context) (server.CopyRead, error) {
	if r == nil {
		return server.CopyRead{}, nil
	}
	select {
	case <-r.done:
		return r.got, r.err
	case <-ctx.Done():
		return server.CopyRead{}, ctx.Err()
	}
}

// watchOthers starts the goroutine that takes over servers that are lost.
func watchOthers(o *JoinOptions, p *place, c copies) *takeovers {
	t := &takeovers{o: o, dir: p.config.Dir, place: p, copies: c}
	t.ended, t.end = context.WithCancel(context.Background())
	t.mu.homes = map[placement.Server]*home{}
	t.wg.Go(t.run)
	return t
}

// close ends the servers that were taken over. Their data stays, and other hosts
// may take them over.
func (t *takeovers) close() error {
	t.end()
	t.wg.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, h := range t.mu.homes {
		if h.member != nil {
			errs = append(errs, h.member.Close())
		}
	}
	return errors.Join(errs...)
}

// run looks at the other servers whenever the state of the cluster changes, and again
// after the time that look has returned.
func (t *takeovers) run() {
	for {
		news, rest := t.place.news.next(), takeoverTick
		if s := t.place.state.Load(); s != nil && s.Map != nil && t.place.holds() {
			rest = takeoverRest
			for i := range s.Map.Servers {
				rest = min(rest, t.look(s, s.Map.Servers[i].Index))
			}
		}
		t.looks.Add(1)
		select {
		case <-t.ended.Done():
			return
		case <-time.After(rest):
		case <-news:
		}
	}
}

// look begins to take a server over if that is due. It returns how long it need not be
// called again while the state of the cluster does not change.
func (t *takeovers) look(s *member.State, server placement.Server) (rest time.Duration) {
	if server == t.o.Index {
		return takeoverRest
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.mu.homes[server]
	if h == nil {
		h = &home{}
		t.mu.homes[server] = h
	}
	now := clock.Now()
	if h.busy || t.mu.rests || now < h.next {
		return takeoverTick
	}
	m := s.Map
	where, _ := m.Server(server)
	if h.member != nil {
		select {
		case <-h.member.Lost(): // another host has taken it over
			t.attempt(server, h, func() error { return t.give(server, h) })
		default:
			t.giveBack(s, server, h, now)
		}
		return takeoverTick
	}
	if where.Host != t.o.host() && !h.swept {
		h.swept = true
		t.attempt(server, h, func() error {
			if err := t.sweep(server); err != nil && t.ended.Err() == nil {
				t.o.Log.Warn("what this host had of a data server stays", "server", server, "error", oneLine(err))
			}
			return nil
		})
		return takeoverTick
	}
	k := m.Copy(server, t.o.host())
	mine := where.Host != t.o.host() && m.Set(server).Members.Has(k)
	_, alive := s.Registered(server)
	quiet, ok := t.copies.CopySilence(server)
	to, ready := goesTo(s, server)
	goes := ready && to == t.o.host()
	switch {
	case !mine || alive && ok && quiet < copyQuiet && !goes:
		h.reading = nil
	case h.reading == nil && (!alive || ok):
		h.reading = readCopy(t.copies, server)
	}
	if alive {
		h.lostAt = 0
		switch {
		case !mine:
			return takeoverRest
		case ok && h.reading == nil:
			return max(copyQuiet-quiet, takeoverTick) // then the copy is to be read
		}
		return takeoverTick
	}
	if h.lostAt == 0 {
		h.lostAt = now
	}
	if ready && !goes && now-max(h.lostAt, h.backAt) < returnPatience {
		return takeoverTick // that host is to take it
	}
	patience := grace(quiet, ok)
	switch {
	case goes:
		patience = 0
	case m.Drains(t.o.host()):
		patience = returnPatience // any other host that can is to take it
	}
	switch {
	case where.Host == t.o.host():
		t.attempt(server, h, func() error {
			// take may have failed after the map was changed.
			if err := resumeTakeover(t.o, t.dir, m, where); err != nil {
				return err
			}
			addr, provider, err := t.o.beside(server)
			if err != nil {
				return err
			}
			return t.open(server, h, addr, provider)
		})
	case now-h.lostAt >= patience && t.o.settled() && mine:
		r := h.reading
		h.reading = nil // another attempt reads the copy again
		t.attempt(server, h, func() error { return t.take(server, h, r) })
	}
	return takeoverTick
}

// grace returns how long a server must have been without a lease before it is taken
// over, given how long its copy has been quiet, if that is known. A server whose copy
// was quiet long before the lease ended has not given the lease back. If it was started
// again meanwhile, it waits for the lease, and as a rule gets it first.
func grace(quiet time.Duration, known bool) time.Duration {
	if known && quiet >= copyQuiet {
		return takeoverTick
	}
	return takeoverGrace
}

// giveBack ends a server when the host where it is to be can take it over: its own
// host, which is back and has had a copy in sync for some time, or the host that an
// operator has named. The lock is held.
func (t *takeovers) giveBack(s *member.State, server placement.Server, h *home, now time.Duration) {
	to, ready := goesTo(s, server)
	if !ready {
		h.readyAt = 0
		return
	}
	if h.readyAt == 0 {
		h.readyAt = now
	}
	if now-h.readyAt < t.o.around.returnAfter || h.backAt != 0 && now-h.backAt < h.pause {
		return // the other host reads its copy; or nobody has taken the server, which is tried again later
	}
	t.attempt(server, h, func() error {
		t.o.Log.Warn("data server goes to another host, which has a copy in sync", "server", server, "host", t.o.host(), "to", to)
		err := t.give(server, h)
		t.mu.Lock()
		defer t.mu.Unlock()
		h.readyAt, h.backAt, h.pause = 0, clock.Now(), t.o.around.nextPause(h.pause)
		return err
	})
}

// attempt runs fn, which is about one server, in a goroutine. The lock is held.
func (t *takeovers) attempt(server placement.Server, h *home, fn func() error) {
	h.busy = true
	t.wg.Go(func() {
		err := fn()
		if err != nil && t.ended.Err() == nil {
			t.o.Log.Warn("data server not taken over", "server", server, "host", t.o.host(), "error", oneLine(err))
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		h.busy, h.next = false, clock.Now()
		if err != nil {
			h.next += takeoverPause
		}
	})
}

// errTakeover reports a copy that cannot take the place of its home.
var errTakeover = errors.New("cluster: the copy cannot take the place of its data server")

// take makes this host's copy of a server the server's data, and runs the server.
func (t *takeovers) take(server placement.Server, h *home, r *reading) (err error) {
	addr, provider, err := t.o.beside(server)
	if err != nil {
		return err
	}
	endpoints, err := endpointsOf(addr)
	if err != nil {
		return err
	}
	p := &promotion{
		ctx: t.ended, o: t.o, copies: t.copies, reading: r,
		self:    member.Server{Index: server, Instance: member.NewInstance(), Host: t.o.host(), Zone: t.o.Zone, Endpoints: endpoints},
		prepare: func(string, *member.Map) error { return t.clear(server) },
	}
	done, err := p.promote()
	if done == nil {
		return err
	}
	defer leaveLease(done.lease)
	t.o.Log.Warn("the copy of a data server takes its place", "server", server, "host", t.o.host(), "epoch", done.set.Epoch, "lost_ms", (clock.Now() - h.lostAt).Milliseconds())
	if err := adoptHome(t.o.fs(), t.dir, server, done.m.ID, p.self.Instance, done.set); err != nil {
		return err
	}
	leaveLease(done.lease)
	t.mu.Lock()
	h.backAt, h.pause = 0, 0
	t.mu.Unlock()
	return t.open(server, h, addr, provider)
}

// promotion changes the map so that a copy becomes the data of its server, and the map
// names the copy's host. The host has the server's lease meanwhile, so no other host
// serves it.
type promotion struct {
	ctx    context.Context
	o      *JoinOptions // of the host
	copies copies
	// reading is an earlier reading of the copy; nil means none.
	reading *reading
	self    member.Server // that the map is to name; the copy has its incarnation
	// prepare is called with the directory of the copy before the change, when nobody
	// serves the server.
	prepare func(dir string, m *member.Map) error
}

// promoted is the result of a promotion.
type promoted struct {
	lease member.Lease // of the server
	set   replica.Set
	m     *member.Map // that names the host
}

// promote makes the change. It returns nil if the change was not made, or if the
// context ended before that was known. Only in the second case does the copy stay given
// away.
func (p *promotion) promote() (done *promoted, err error) {
	store, server := p.o.Store, p.self.Index
	state, err := store.State(p.ctx)
	if err != nil || state.Map == nil {
		return nil, err
	}
	old, _ := state.Map.Server(server)
	if _, alive := state.Registered(server); alive || old.Host == p.self.Host {
		return nil, nil
	}
	read, err := p.reading.wait(p.ctx)
	if err != nil {
		return nil, err
	}
	dir, made, err := p.copies.YieldCopy(server)
	if err != nil {
		return nil, err
	}
	decided := true // it is known whether the copy is the data of the server now
	defer func() {
		if done == nil && decided {
			p.copies.ResumeCopy(server)
		}
	}()
	if err := p.check(dir, old, read); err != nil {
		return nil, err
	}
	p.self.Incarnation = old.Incarnation
	lease, err := store.Join(p.ctx, p.self, p.o.Lease)
	if err != nil {
		return nil, err
	}
	defer func() {
		if done == nil {
			leaveLease(lease)
		}
	}()
	if err := p.prepare(dir, state.Map); err != nil {
		return nil, err
	}
	for unknown := false; ; {
		m, err := member.Change(p.ctx, store, func(m *member.Map) (*member.Map, error) { return p.change(m, old, made) })
		unknown = unknown || errors.Is(err, member.ErrUnreachable)
		switch {
		case err == nil:
			return &promoted{lease, m.Set(server), m}, nil
		case errors.Is(err, errTakeover), errors.Is(err, replica.ErrNotInSync): // the map has changed, so that an attempt that was delayed fails
			return nil, err
		case !unknown && p.ctx.Err() == nil:
			return nil, err
		}
		select { // the change may have been made: repeat it
		case <-p.ctx.Done():
			decided = false
			return nil, err
		case <-time.After(takeoverTick):
		}
	}
}

// check refuses a copy that belongs to another incarnation of the server, ends before
// the known end of its log, or is damaged. It reads only what was not read before.
func (p *promotion) check(dir string, old member.Server, read server.CopyRead) error {
	server := p.self.Index
	id, ok, err := datadir.Read(p.o.fs(), dir)
	switch {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("%w %d: %s is not complete", errTakeover, server, dir)
	case member.Incarnation(id.Incarnation) != old.Incarnation:
		return fmt.Errorf("%w %d: %s is of incarnation %016x, not of %v", errTakeover, server, dir, id.Incarnation, old.Incarnation)
	}
	end, err := checkCopy(p.o.fs(), dir, id, read)
	if err != nil {
		return fmt.Errorf("%w %d: %w", errTakeover, server, err)
	}
	noted, err := p.o.Store.Durable(p.ctx, server)
	if err != nil {
		return err
	}
	if noted.Incarnation == old.Incarnation && end < noted.Log { // an older state was put there
		return fmt.Errorf("%w %d: the log in %s ends at %d, and was durable up to %d", errTakeover, server, dir, end, noted.Log)
	}
	return nil
}

// change returns the map that names the host, nil if the map names it already.
func (p *promotion) change(m *member.Map, old member.Server, made datadir.Copy) (*member.Map, error) {
	server := p.self.Index
	now, _ := m.Server(server)
	if now.Instance == p.self.Instance {
		return nil, nil // made before
	}
	if now.Instance != old.Instance {
		return nil, fmt.Errorf("%w %d: instance %v has it now", errTakeover, server, now.Instance)
	}
	next, err := replica.Promote(m.Set(server), m.Copy(server, p.self.Host), replica.Epoch(made.Since))
	if err != nil {
		return nil, err
	}
	next.Members = replica.First(1) // counted from this host on
	m.PutSet(server, next)
	m.Put(p.self)
	return m, nil
}

func leaveLease(l member.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	_ = l.Leave(ctx) // a lease that is not given back runs out
}

// adoptHome makes a host's copy of a server the server's data directory there. admitted
// is the instance that the map names.
func adoptHome(fs vfs.FS, hostDir string, server placement.Server, cluster member.ClusterID, admitted member.Instance, set replica.Set) error {
	from, to := serverCopyDir(hostDir, server), homeDir(hostDir, server)
	if _, ok, err := datadir.Read(fs, to); err != nil {
		return err
	} else if !ok { // the remains of an earlier stay are not a data directory
		if err := fs.RemoveAll(to); err != nil {
			return err
		}
	}
	if err := datadir.WritePlace(fs, from, datadir.Place{Cluster: uint64(cluster), Admitted: uint64(admitted)}); err != nil {
		return err
	}
	return datadir.Adopt(fs, from, to, uint32(set.Epoch), uint32(set.Since))
}

func checkCopy(fs vfs.FS, dir string, id *datadir.Identity, read server.CopyRead) (end uint64, err error) {
	return server.CheckCopy(fs, dir, id, read)
}

func serverCopyDir(hostDir string, home placement.Server) string {
	return server.CopyDir(vfs.Default, hostDir, home)
}

// resumeTakeovers completes the takeovers that a former process of this host has begun:
// the map says that a server is at this host, and its data is still in the directory of
// the copy. It must be called before this host takes any step of a copy.
func resumeTakeovers(o *JoinOptions, hostDir string, m *member.Map) error {
	for _, s := range m.Servers {
		if s.Index == o.Index || s.Host != o.host() {
			continue
		}
		if err := resumeTakeover(o, hostDir, m, s); err != nil {
			return err
		}
	}
	return nil
}

// resumeTakeover is resumeTakeovers for one server, which the map says is at this
// host. This host takes no step of its copy.
func resumeTakeover(o *JoinOptions, hostDir string, m *member.Map, s member.Server) error {
	if _, ok, err := datadir.Read(o.fs(), homeDir(hostDir, s.Index)); err != nil || ok {
		return err
	}
	_, ok, err := datadir.Read(o.fs(), serverCopyDir(hostDir, s.Index))
	switch {
	case err != nil:
		return err
	case !ok:
		o.Log.Error("a data server that was taken over has no directory here", "server", s.Index, "dir", homeDir(hostDir, s.Index))
		return nil
	}
	return adoptHome(o.fs(), hostDir, s.Index, m.ID, s.Instance, m.Set(s.Index))
}

// open runs a server whose data this host has, at an address of its own.
func (t *takeovers) open(server placement.Server, h *home, addr string, p *multi.Provider) error {
	o, host := *t.o, t.o.host()
	o.Index, o.at, o.home, o.Addr, o.Provider = server, &host, homeDir(t.dir, server), addr, p
	o.Waiting, o.Recovering = nil, nil
	m, err := Join(t.ended, o)
	if err != nil {
		return err
	}
	t.mu.Lock()
	h.member, h.lostAt = m, 0
	t.mu.Unlock()
	t.o.Log.Warn("data server runs at another host than its own", "server", server, "host", t.o.host(), "address", o.Addr)
	return nil
}

// give ends a server here, for another host to have, and takes steps of its copy again.
func (t *takeovers) give(server placement.Server, h *home) error {
	t.mu.Lock()
	m := h.member
	t.mu.Unlock()
	err := m.Close()
	t.copies.ResumeCopy(server)
	t.mu.Lock()
	defer t.mu.Unlock()
	h.member, h.lostAt, h.swept = nil, 0, false
	return err
}

// sweep removes what this host has of a server that it had taken over, when the server
// is at another host. It reads the store's state for that, since the last state seen
// may be older than the directory.
func (t *takeovers) sweep(server placement.Server) error {
	fs, dir := t.o.fs(), homeDir(t.dir, server)
	if there, err := exists(fs, dir); err != nil || !there {
		return err
	}
	state, err := t.o.Store.State(t.ended)
	if err != nil || state.Map == nil {
		return err
	}
	where, ok := state.Map.Server(server)
	if replaced, err := isReplaced(fs, dir, state.Map.Set(server)); err != nil || !ok || where.Host == t.o.host() || !replaced {
		return err
	}
	if err := t.clear(server); err != nil {
		return err
	}
	t.o.Log.Info("what this host had of a data server is removed: another host has the server", "server", server, "host", where.Host, "dir", dir)
	return nil
}

// clear removes what this host has of a server from an earlier stay. A server that
// hangs in Close still has its directory locked, and may write there.
func (t *takeovers) clear(server placement.Server) error {
	fs, dir := t.o.fs(), homeDir(t.dir, server)
	if there, err := exists(fs, dir); err != nil || !there {
		return err
	}
	lock, err := datadir.Lock(fs, dir)
	if err != nil {
		return err
	}
	return errors.Join(datadir.RemoveCopy(fs, dir), lock.Close())
}

// isReplaced reports whether the directory of a server can never be served again,
// because a copy has taken its place in the set. That holds also for a directory that
// is not complete.
func isReplaced(fs vfs.FS, dir string, set replica.Set) (bool, error) {
	_, ok, err := datadir.Read(fs, dir)
	if err != nil || !ok {
		return err == nil, err
	}
	epoch, _, err := datadir.ReadEpoch(fs, dir)
	if err != nil {
		return false, err
	}
	since, err := datadir.ReadSince(fs, dir)
	if err != nil {
		return false, err
	}
	_, err = replica.Open(set, replica.Epoch(epoch)+1, replica.Epoch(since), replica.MaxMembers)
	return errors.Is(err, replica.ErrReplaced), nil
}

// settled reports whether all hosts have had their chance to start.
func (o *JoinOptions) settled() bool {
	if o.Settled == nil {
		return true
	}
	select {
	case <-o.Settled:
		return true
	default:
		return false
	}
}

// beside returns an address of this host for a server that it takes over, and the
// provider with which that listens there.
func (o *JoinOptions) beside(server placement.Server) (addr string, p *multi.Provider, err error) {
	if o.around.beside != nil {
		return o.around.beside(server)
	}
	own, ok := o.Provider.(*multi.Provider)
	if !ok {
		return "", nil, fmt.Errorf("%w: a provider that cannot listen at several addresses", ErrOptions)
	}
	a, err := multi.ParseAddress(o.Addr)
	if err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrAddress, err)
	}
	switch {
	case a.Shm == "":
	case o.Dir != "" && filepath.Dir(a.Shm) == filepath.Clean(o.Dir):
		a.Shm = filepath.Join(o.Dir, besideName(server, o.host()))
	default:
		a.Shm = fmt.Sprintf("%s-%d", a.Shm, server)
	}
	p = own.Quiet()
	network := a.TCP
	if network == "" {
		network = a.Verbs
	}
	if network == "" {
		return a.String(), p, nil
	}
	at := own.ListenAt
	if at == "" {
		at = network
	}
	port, err := freePort(p, at)
	if err != nil {
		return "", nil, err
	}
	if own.ListenAt != "" {
		p.ListenAt = withPort(own.ListenAt, port)
	}
	if a.TCP != "" {
		a.TCP = withPort(a.TCP, port)
	}
	if a.Verbs != "" {
		a.Verbs = withPort(a.Verbs, port)
	}
	return a.String(), p, nil
}

// freePort returns a port at which nothing listens now on the host of an address.
func freePort(p *multi.Provider, at string) (string, error) {
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrAddress, err)
	}
	found, err := freeAddrs(1, func(port string) (string, error) {
		if p.TCP == nil {
			e, err := p.Verbs.Listen(net.JoinHostPort(host, port), rdma.ListenOptions{})
			if err != nil {
				return "", err
			}
			return net.JoinHostPort(host, port), e.Close()
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			return "", fmt.Errorf("%w: %w", rdma.ErrAddress, err)
		}
		return net.JoinHostPort(host, port), l.Close()
	})
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(found[0])
	return port, err
}

// withPort returns the address with another port.
func withPort(addr, port string) string {
	host, _, _ := net.SplitHostPort(addr) // it was parsed before
	return net.JoinHostPort(host, port)
}

// besideName returns the name of the socket of a server at another host than its own.
func besideName(server placement.Server, host int) string {
	return fmt.Sprintf("s%d-%d.sock", server, host)
}
