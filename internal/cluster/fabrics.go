package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Names of the fabrics between processes.
const (
	FabricShm   = "shm"
	FabricTCP   = "tcp"
	FabricVerbs = "verbs"
)

// FabricNames are the names of the fabrics between processes, the best first.
var FabricNames = []string{FabricShm, FabricVerbs, FabricTCP}

// Fabrics is a provider made of several: a data server listens on each fabric
// that its address (see Offer) names, and a client takes the best that leads
// to it.
//
// Shared memory is best, but a socket's name means something on its own host
// only. So where a server offers a network, too, what answers at the socket
// must say that it is the server at that host and port; otherwise the network
// is taken.
type Fabrics struct {
	Shm, Verbs, TCP rdma.Provider // nil: this process has none
	// ListenAt is where to listen on networks instead of at the host and port
	// by which others dial; empty means there.
	ListenAt string

	resolve  func(addr string) string // where the server of an address is now; nil: there
	trusting bool                     // sockets are believed; for tests of what answers no hello

	mu struct {
		sync.Mutex
		listens []string         // names of fabrics
		routes  map[string]route // by address that was dialled
	}
}

var (
	_ rdma.Provider     = (*Fabrics)(nil)
	_ rdma.Impersonator = (*Fabrics)(nil)
	_ rdma.Keyed        = (*Fabrics)(nil)
)

// As is the fabrics dialling with another identity, where they can choose one.
func (f *Fabrics) As(who rdma.Identity) rdma.Provider { return &memberFabrics{f, who} }

// memberFabrics is a Fabrics whose dials have an identity.
type memberFabrics struct {
	*Fabrics
	who rdma.Identity
}

// Dial is Fabrics.Dial with the identity.
func (m *memberFabrics) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return m.dial(ctx, addr, &m.who)
}

// SetSecret gives each fabric the secret of the cluster.
func (f *Fabrics) SetSecret(secret []byte) {
	for _, p := range []rdma.Provider{f.Shm, f.Verbs, f.TCP} {
		if p != nil {
			rdma.SetSecret(p, secret)
		}
	}
}

// route is how an address was reached last.
type route struct {
	fabric  string
	inOrder bool
}

// way is one fabric to a data server.
type way struct {
	name string
	p    rdma.Provider
	addr string
}

// ways are what an offer names, the best first.
func (f *Fabrics) ways(o *Offer) []way {
	all := []way{{FabricShm, f.Shm, o.Shm}, {FabricVerbs, f.Verbs, o.Verbs}, {FabricTCP, f.TCP, o.TCP}}
	return slices.DeleteFunc(all, func(w way) bool { return w.addr == "" })
}

// quiet is f for questions that are not to count as work.
func (f *Fabrics) quiet() *Fabrics {
	return &Fabrics{Shm: f.Shm, Verbs: f.Verbs, TCP: f.TCP, resolve: f.resolve}
}

// Quiet is a provider of the same fabrics that leaves Name and Route alone.
func (f *Fabrics) Quiet() rdma.Provider { return f.quiet() }

// Name joins the names of the fabrics that were used, or of those there are.
func (f *Fabrics) Name() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	used := func(name string) bool {
		if slices.Contains(f.mu.listens, name) {
			return true
		}
		for _, r := range f.mu.routes {
			if r.fabric == name {
				return true
			}
		}
		return false
	}
	idle := len(f.mu.listens) == 0 && len(f.mu.routes) == 0
	var names []string
	for _, w := range []way{{FabricShm, f.Shm, ""}, {FabricVerbs, f.Verbs, ""}, {FabricTCP, f.TCP, ""}} {
		if w.p != nil && (idle || used(w.name)) {
			names = append(names, w.name)
		}
	}
	return strings.Join(names, "+")
}

// Unordered reports whether some clients may read out of order: see
// rdma.Unordered.
func (f *Fabrics) Unordered() bool { return f.Verbs != nil }

// Route is the fabric that led to an address last, "" if none has.
func (f *Fabrics) Route(addr string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.routes[addr].fabric
}

// take closes a connection over a fabric that reads in another order than the
// one that led there before: a database decides once for each server whether
// blocks need their checksums.
func (f *Fabrics) take(addr, name string, c rdma.Conn) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if was, ok := f.mu.routes[addr]; ok && was.inOrder != c.InOrder() {
		c.Close()
		return fmt.Errorf("%w: %s was reached over %s, which reads in another order than %s", rdma.ErrUnsupported, addr, was.fabric, name)
	}
	if f.mu.routes == nil {
		f.mu.routes = map[string]route{}
	}
	f.mu.routes[addr] = route{name, c.InOrder()}
	return nil
}

// Dial connects to a data server on the best fabric that both sides have. It
// fails with rdma.ErrUnsupported if there is none, and with rdma.ErrAddress
// for an address that is not an Offer.
func (f *Fabrics) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return f.dial(ctx, addr, nil)
}

// dial dials as who, or as the fabrics do by themselves if that is nil.
func (f *Fabrics) dial(ctx context.Context, addr string, who *rdma.Identity) (rdma.Conn, error) {
	target := addr
	if f.resolve != nil {
		target = f.resolve(addr)
	}
	o, err := ParseOffer(target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rdma.ErrAddress, err)
	}
	err = fmt.Errorf("%w: %s offers no fabric that this process has", rdma.ErrUnsupported, target)
	ways := f.ways(&o)
	if target == o.TCP { // without a name, so it may be that of a device
		ways = append(ways, way{FabricVerbs, f.Verbs, target})
	}
	var errs []error
	for _, w := range ways {
		if w.p == nil || ctx.Err() != nil {
			continue
		}
		p := w.p
		if who != nil {
			p = rdma.As(p, *who)
		}
		c, werr := p.Dial(ctx, w.addr)
		if werr == nil && w.name == FabricShm && !f.trusting {
			werr = o.verify(ctx, c)
		}
		if werr == nil {
			werr = f.take(addr, w.name, c)
		}
		if werr == nil {
			return c, nil
		}
		errs = append(errs, werr)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(errs) > 0:
		return nil, errs[tells(target, &o, len(errs))]
	}
	return nil, err
}

// tells is the number of the failure to report: that of the network, for which
// the others were tried first, and not that of a guess.
func tells(addr string, o *Offer, failures int) int {
	if addr == o.TCP {
		return 0
	}
	return failures - 1
}

// verifyTimeout bounds how long what is behind a socket may take to say who it
// is, before the network is tried.
const verifyTimeout = 2 * time.Second

// verify closes a connection to a socket if another server is behind it than
// the one at the host and port.
func (o *Offer) verify(ctx context.Context, c rdma.Conn) error {
	if o.TCP == "" && o.Verbs == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	h, err := sayHello(ctx, c)
	if err == nil {
		var self Offer
		if self, err = ParseOffer(h.Servers[h.Server]); err == nil && self.TCP == o.TCP && self.Verbs == o.Verbs {
			return nil
		}
	}
	c.Close()
	if err == nil {
		err = fmt.Errorf("%w: at %s is another data server than %s", rdma.ErrAddress, o.Shm, o)
	}
	return err
}

// Listen opens an endpoint on every fabric that the address offers. It fails
// with rdma.ErrUnsupported if this process lacks one of them.
func (f *Fabrics) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	offer, err := ParseOffer(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", rdma.ErrAddress, err)
	}
	e := &endpoints{}
	served := map[string]*string{FabricShm: &offer.Shm, FabricVerbs: &offer.Verbs, FabricTCP: &offer.TCP}
	for _, w := range f.ways(&offer) {
		elsewhere := w.name != FabricShm && f.ListenAt != ""
		if elsewhere {
			w.addr = f.ListenAt
		}
		err := fmt.Errorf("%w: fabric %s is not there", rdma.ErrUnsupported, w.name)
		if w.p != nil {
			err = e.listen(w, o)
		}
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		if !elsewhere {
			*served[w.name] = e.all[len(e.all)-1].Addr() // a port that was 0 is known by now
		}
	}
	e.addr = offer.String()
	f.mu.Lock()
	f.mu.listens = append(f.mu.listens, e.names...)
	f.mu.Unlock()
	return e, nil
}

// endpoints are one data server's, on several fabrics. Peers of the k-th are
// numbered so that no two are the same.
type endpoints struct {
	addr  string
	all   []rdma.Endpoint
	names []string // of the fabrics
}

// peerBits tell the fabrics of peers apart; providers count theirs from 1.
const peerBits = 62

func (e *endpoints) peer(k int, id rdma.PeerID) rdma.PeerID {
	return id | rdma.PeerID(k)<<peerBits // again and again, since requests are used again
}

func (e *endpoints) listen(w way, o rdma.ListenOptions) error {
	k := len(e.all)
	if gone := o.OnDisconnect; gone != nil {
		o.OnDisconnect = func(id rdma.PeerID) { gone(e.peer(k, id)) }
	}
	ep, err := w.p.Listen(w.addr, o)
	if err != nil {
		return err
	}
	e.all = append(e.all, ep)
	e.names = append(e.names, w.name)
	return nil
}

// Addr is the address with all fabrics in it.
func (e *endpoints) Addr() string { return e.addr }

// Register grants access on all fabrics, under one name.
func (e *endpoints) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	var key rdma.RKey
	for k, ep := range e.all {
		other, err := ep.Register(r, a)
		if err != nil {
			return 0, err
		}
		if k > 0 && other != key {
			return 0, fmt.Errorf("%w: fabrics %s and %s name a region %d and %d", rdma.ErrUnsupported, e.names[0], e.names[k], key, other)
		}
		key = other
	}
	return key, nil
}

// Serve handles RPCs of all fabrics.
func (e *endpoints) Serve(h rdma.Handler) error {
	for k, ep := range e.all {
		err := ep.Serve(func(r *rdma.Request) {
			r.Peer = e.peer(k, r.Peer)
			h(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Counters sums all fabrics.
func (e *endpoints) Counters() (sum rdma.Counters) {
	for _, ep := range e.all {
		sum = sum.Add(ep.Counters())
	}
	return sum
}

// Refusals is rdma.Auditor's: sums by reason.
func (e *endpoints) Refusals() []rdma.Refusal {
	var all []rdma.Refusal
	for _, ep := range e.all {
		a, ok := ep.(rdma.Auditor)
		if !ok {
			continue
		}
		for _, r := range a.Refusals() {
			i := slices.IndexFunc(all, func(o rdma.Refusal) bool { return o.Reason == r.Reason })
			if i < 0 {
				all = append(all, r)
				continue
			}
			all[i].Count += r.Count
		}
	}
	return all
}

// Close closes all endpoints.
func (e *endpoints) Close() error {
	var errs []error
	for _, ep := range e.all {
		errs = append(errs, ep.Close())
	}
	return errors.Join(errs...)
}

// provider is one of the fabrics, by name.
func (f *Fabrics) provider(name string) rdma.Provider {
	return map[string]rdma.Provider{FabricShm: f.Shm, FabricVerbs: f.Verbs, FabricTCP: f.TCP}[name]
}
