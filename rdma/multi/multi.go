package multi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
)

// Options configure the providers that New makes.
type Options struct {
	TLS      *tcp.TLS // of tcp; nil means plain text
	Insecure bool     // plain text beyond loopback, too
	Device   string   // of verbs; empty means the first
}

// ErrFabric reports the name of a fabric that does not exist.
var ErrFabric = fmt.Errorf("%w: multi: unknown fabric", rdma.ErrUnsupported)

// Provider is a provider made of several. Its fields are set before its first
// use; nil members are fabrics that this process does not have.
type Provider struct {
	Shm, Verbs, TCP rdma.Provider
	// ListenAt is the host and port at which to listen on networks instead of
	// those of the address. Empty means those of the address.
	ListenAt string
	// Resolve returns the present address of the server that has or had an
	// address. nil means that servers never move. It is called with a lock held,
	// and must not use the Provider. See Abandon.
	Resolve func(addr string) string
	// Confirm asks the server behind a socket for its own address. It is used
	// where an address names a network as well. nil means that sockets are
	// trusted.
	Confirm func(context.Context, rdma.Conn) (addr string, err error)

	mu struct {
		sync.Mutex
		listens []string         // names of fabrics
		routes  map[string]route // by address that was dialled
		visits  map[*visit]struct{}
		visited uint64 // how many visits there were
	}
}

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.Impersonator = (*Provider)(nil)
	_ rdma.Keyed        = (*Provider)(nil)
)

// route is how an address was reached last.
type route struct {
	fabric  string
	inOrder bool
}

// New makes a provider of the fabrics named. Without names it has all fabrics
// that this process can use: tcp always, shm and verbs where the machine and
// the binary have them. It fails with ErrFabric for an unknown name, and with
// the error of a named fabric that cannot be used.
func New(o Options, names ...string) (*Provider, error) {
	p := &Provider{}
	given := len(names) > 0
	if !given {
		names = Names
	}
	for _, name := range names {
		var err error
		switch name {
		case Shm:
			p.Shm, err = shm.New(shm.Options{})
		case Verbs:
			p.Verbs, err = verbs.New(verbs.Options{Device: o.Device})
		case TCP:
			p.TCP, err = tcp.New(tcp.Options{TLS: o.TLS, Insecure: o.Insecure})
		default:
			return nil, fmt.Errorf("%w %q, want %s", ErrFabric, name, strings.Join(Names, ", "))
		}
		if err != nil {
			if given || name == TCP {
				return nil, err
			}
			*p.member(name) = nil // not a nil pointer in an interface
		}
	}
	return p, nil
}

// member is the field of a fabric.
func (p *Provider) member(name string) *rdma.Provider {
	switch name {
	case Shm:
		return &p.Shm
	case Verbs:
		return &p.Verbs
	}
	return &p.TCP
}

// Member returns the provider of one fabric, nil if there is none.
func (p *Provider) Member(name string) rdma.Provider { return *p.member(name) }

// Quiet returns a provider of the same fabrics whose dials do not change Name
// and Route.
func (p *Provider) Quiet() *Provider {
	return &Provider{Shm: p.Shm, Verbs: p.Verbs, TCP: p.TCP, Resolve: p.Resolve, Confirm: p.Confirm}
}

// As returns the provider with an identity for its dials, where a fabric can
// choose one.
func (p *Provider) As(who rdma.Identity) rdma.Provider { return &member{p, who} }

// member is a Provider whose dials have an identity.
type member struct {
	*Provider
	who rdma.Identity
}

// Dial is Provider.Dial with the identity.
func (m *member) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return m.dial(ctx, addr, &m.who)
}

// SetSecret gives each fabric the secret of the cluster.
func (p *Provider) SetSecret(secret []byte) {
	for _, name := range Names {
		if m := p.Member(name); m != nil {
			rdma.SetSecret(m, secret)
		}
	}
}

// Name joins the names of the fabrics that were used, or of all there are while
// none was.
func (p *Provider) Name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := slices.Clone(p.mu.listens)
	for _, r := range p.mu.routes {
		used = append(used, r.fabric)
	}
	var names []string
	for _, name := range Names {
		if p.Member(name) != nil && (len(used) == 0 || slices.Contains(used, name)) {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Unordered reports whether some clients may read out of order: see
// rdma.Unordered.
func (p *Provider) Unordered() bool { return p.Verbs != nil }

// Route returns the fabric that led to an address last, "" if none has.
func (p *Provider) Route(addr string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.routes[addr].fabric
}

// setRoute notes over which fabric an address was reached. It refuses a
// connection that reads in another order than the last one to that address.
func (p *Provider) setRoute(addr, fabric string, c rdma.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, ok := p.mu.routes[addr]; ok && was.inOrder != c.InOrder() {
		return fmt.Errorf("%w: multi: %s was reached over %s, which reads in another order than %s", rdma.ErrUnsupported, addr, was.fabric, fabric)
	}
	if p.mu.routes == nil {
		p.mu.routes = map[string]route{}
	}
	p.mu.routes[addr] = route{fabric, c.InOrder()}
	return nil
}

// Dial connects to an endpoint on the best fabric that both sides have. It
// fails with rdma.ErrUnsupported if there is none, and with rdma.ErrAddress if
// addr is not an Address.
func (p *Provider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return p.dial(ctx, addr, nil)
}

// dial dials as who, or as a plain Dial does if who is nil.
func (p *Provider) dial(ctx context.Context, addr string, who *rdma.Identity) (rdma.Conn, error) {
	there, target, v := p.arrive(ctx, addr)
	c, err := p.dialAt(there, addr, target, who)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return p.settle(v, c, err)
}

// dialAt dials the address that a server has now.
func (p *Provider) dialAt(ctx context.Context, addr, target string, who *rdma.Identity) (rdma.Conn, error) {
	a, err := ParseAddress(target)
	if err != nil {
		return nil, err
	}
	ways := a.Parts()
	unprefixed := target == a.TCP
	if unprefixed {
		ways = append(ways, Part{Verbs, target}) // it may be the address of a device
	}
	var errs []error
	for _, w := range ways {
		m := p.Member(w.Fabric)
		if m == nil || ctx.Err() != nil {
			continue
		}
		if who != nil {
			m = rdma.As(m, *who)
		}
		c, err := p.dialOne(ctx, addr, &a, w, m)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(errs) == 0:
		return nil, fmt.Errorf("%w: multi: %s offers no fabric that this process has", rdma.ErrUnsupported, target)
	case unprefixed:
		return nil, errs[0] // the other one was a guess
	}
	return nil, errs[len(errs)-1] // of the network, which was tried last
}

// dialOne dials one fabric, and closes a connection that may not be used.
func (p *Provider) dialOne(ctx context.Context, addr string, a *Address, w Part, m rdma.Provider) (rdma.Conn, error) {
	c, err := m.Dial(ctx, w.Addr)
	if err != nil {
		return nil, err
	}
	if w.Fabric == Shm && p.Confirm != nil && (a.TCP != "" || a.Verbs != "") {
		err = p.confirm(ctx, a, c)
	}
	if err == nil {
		err = p.setRoute(addr, w.Fabric, c)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// confirmTimeout bounds how long the server behind a socket may take to say who
// it is, before the network is tried.
const confirmTimeout = 2 * time.Second

// confirm fails unless the server behind a socket is the one at the network
// addresses of a.
func (p *Provider) confirm(ctx context.Context, a *Address, c rdma.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	addr, err := p.Confirm(ctx, c)
	if err != nil {
		return err
	}
	self, err := ParseAddress(addr)
	if err == nil && (self.TCP != a.TCP || self.Verbs != a.Verbs) {
		err = fmt.Errorf("%w: multi: the server at %s is another one than %s", rdma.ErrAddress, a.Shm, a)
	}
	return err
}
