package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/multi"
)

// connectTimeout bounds the dial and the hello of one data server.
const connectTimeout = 5 * time.Second

// ErrNoAnswer reports that no data server at an address answers.
var ErrNoAnswer = errors.New("cluster: no data server answers")

// ErrMoves reports an address of data servers that may move to other hosts: a client
// could not follow them.
var ErrMoves = errors.New("cluster: the data servers may move to other hosts; want drtmx+etcd://host:port/name of their etcd, or the runtime directory of the command that has started all of them")

// NewFabrics makes a provider of the fabrics named, or of all that this process
// can use; see multi.New. A socket is believed only if the data server behind
// it says that it is the one at the network address.
func NewFabrics(o multi.Options, names ...string) (*multi.Provider, error) {
	f, err := multi.New(o, names...)
	if errors.Is(err, multi.ErrFabric) {
		err = fmt.Errorf("%w: %w", ErrOptions, err)
	}
	if err != nil {
		return nil, err
	}
	confirm(f)
	return f, nil
}

// confirm lets a provider ask the servers behind sockets who they are.
func confirm(f *multi.Provider) {
	f.Confirm = func(ctx context.Context, c rdma.Conn) (string, error) {
		h, err := sayHello(ctx, c)
		if err != nil {
			return "", err
		}
		return h.Servers[h.Server], nil
	}
}

// NewProvider makes a provider of the fabrics named. If there is only one, it is that
// fabric's own provider.
func NewProvider(o multi.Options, names ...string) (rdma.Provider, error) {
	f, err := NewFabrics(o, names...)
	if err != nil || len(names) != 1 {
		return f, err
	}
	return f.Member(names[0]), nil
}

// fabricsOf returns p as a provider of several fabrics, which may offer only one.
func fabricsOf(p rdma.Provider) (*multi.Provider, error) {
	f, ok := p.(*multi.Provider)
	if ok {
		return f, nil
	}
	f = &multi.Provider{}
	switch p.Name() {
	case multi.Shm:
		f.Shm = p
	case multi.TCP:
		f.TCP = p
	case multi.Verbs:
		f.Verbs = p
	default:
		return nil, fmt.Errorf("%w: fabric %s, want %s", ErrOptions, p.Name(), strings.Join(multi.Names, ", "))
	}
	confirm(f)
	return f, nil
}

// ConnectOptions locate a running cluster. Exactly one of Address, Dir and Addrs
// is set.
type ConnectOptions struct {
	// Address names some data servers, or the store of the members.
	Address *Address
	// Dir is a runtime directory: of a cluster that Start started there, or of
	// data servers that joined one by one.
	Dir string
	// Addrs are the addresses of all data servers, in order.
	Addrs []string
	// Fabrics configure the providers. The TLS of the Address has
	// precedence. With a Device, Addrs are those of RDMA devices.
	Fabrics multi.Options
	// Members opens the store of members that an Address names, such as etcd.OpenExisting;
	// nil means that this program cannot open one.
	Members OpenMembers
	// Unasked skips the hello of a data server if there is a store of members, because all
	// servers may be paused or starting. The result then knows no tables.
	Unasked bool

	provider func(fabric string) (rdma.Provider, error) // a test's; nil: clientOf
}

// OpenMembers opens the store of a cluster's members. The caller closes it.
type OpenMembers func(context.Context, *member.Location) (member.Store, error)

// check reports all faults of the options.
func (o *ConnectOptions) check() error {
	var faults []error
	given := 0
	for _, is := range []bool{o.Address != nil, o.Dir != "", len(o.Addrs) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		faults = append(faults, errors.New("want an address, a directory or the addresses of all data servers"))
	}
	if len(o.Addrs) > MaxServers {
		faults = append(faults, fmt.Errorf("%d addresses, want at most %d", len(o.Addrs), MaxServers))
	}
	return optionsError(faults)
}

// Connect finds a running cluster. The error wraps ErrNoCluster, ErrStale,
// ErrVersion or ErrDir for a directory, and ErrNoAnswer, ErrAddress or ErrMoves for an
// address, or is one of package member.
//
// Lost of the result is closed when the process that serves a directory reports the
// loss of a data server. For an address of etcd it is closed when a server was
// restarted without its memory; later dials use the servers' latest addresses. Lost of
// other clusters is never closed.
func Connect(ctx context.Context, o ConnectOptions) (*Cluster, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	switch {
	case o.Address != nil:
		return connectAddress(ctx, o.Address, o)
	case o.Dir != "":
		return connectDir(ctx, o)
	}
	fabric := multi.Shm
	if multi.IsHostPort(o.Addrs[0]) {
		if fabric = multi.TCP; o.Fabrics.Device != "" {
			fabric = multi.Verbs
		}
	}
	f, err := NewFabrics(o.Fabrics, fabric) // the servers may name each other's fabrics
	if err != nil {
		return nil, err
	}
	if h, err := askAnyServer(ctx, f, &Address{Hosts: o.Addrs}, o.Addrs[:1]); err == nil && h.Moves {
		return nil, fmt.Errorf("%w: %s", ErrMoves, strings.Join(o.Addrs, ","))
	}
	c := newCluster(f, o.Addrs)
	c.where = strings.Join(o.Addrs, ",")
	return c, nil
}

// connectDir finds the cluster in a runtime directory.
func connectDir(ctx context.Context, o ConnectOptions) (*Cluster, error) {
	if o.provider == nil {
		o.provider = o.clientOf
	}
	c, err := attach(ctx, o.Dir, &o)
	if !errors.Is(err, ErrNoCluster) {
		return c, err
	}
	// Data servers that joined one by one share a directory without cluster.json.
	abs, aerr := filepath.Abs(o.Dir)
	if aerr != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, aerr)
	}
	if c, aerr = connectAddress(ctx, &Address{Dir: abs}, o); errors.Is(aerr, ErrNoCluster) {
		return nil, err
	}
	return c, aerr
}

// connectHosts finds the hosts of the cluster in a directory in their store, and
// follows them.
func (o *ConnectOptions) connectHosts(ctx context.Context, dir string, i *Info) (*Cluster, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	names := strings.Split(i.Fabric, "+")
	if len(names) > 1 {
		names = nil // any fabric will do that leads there from here
	}
	f, err := NewFabrics(o.Fabrics, names...)
	if err != nil {
		return nil, err
	}
	c, err := connectMembers(ctx, f, &Address{Dir: abs, Members: i.Members}, o.Members, !o.Unasked)
	if err != nil {
		return nil, err
	}
	c.info, c.where = i, dir
	for _, s := range i.Servers {
		c.pids = append(c.pids, s.PID)
	}
	return c, nil
}

// attachMoving finds a cluster of hosts in the directory in which they have sockets.
func (o ConnectOptions) attachMoving(ctx context.Context, dir string) (*Cluster, error) {
	if dir == "" {
		return nil, ErrMoves
	}
	if o.provider == nil {
		o.provider = o.clientOf
	}
	return attach(ctx, dir, &o)
}

// clientOf makes a client of the fabrics of a cluster found in a directory.
func (o *ConnectOptions) clientOf(fabric string) (rdma.Provider, error) {
	names := strings.Split(fabric, "+")
	for _, name := range names {
		if !slices.Contains(multi.Names, name) {
			return nil, fmt.Errorf("the cluster uses fabric %q, want %s", fabric, strings.Join(multi.Names, ", "))
		}
	}
	if len(names) > 1 {
		names = nil // any fabric will do that leads there from here
	}
	return NewProvider(o.Fabrics, names...)
}

// connectAddress finds the data servers of a cluster by asking those that the
// address names, one after the other, for the list of all.
func connectAddress(ctx context.Context, a *Address, o ConnectOptions) (*Cluster, error) {
	if a.TLS != nil {
		o.Fabrics.TLS = a.TLS
	}
	o.Fabrics.Insecure = (o.Fabrics.Insecure || a.Insecure) && o.Fabrics.TLS == nil
	f, err := NewFabrics(o.Fabrics)
	if err != nil {
		return nil, err
	}
	if a.Members != nil {
		return connectMembers(ctx, f, a, o.Members, !o.Unasked)
	}
	h, err := askForServers(ctx, f, a)
	if err != nil {
		return nil, err
	}
	if h.Moves {
		if c, err := o.attachMoving(ctx, a.Dir); err == nil {
			return c, nil
		}
		return nil, fmt.Errorf("%w: %s", ErrMoves, a)
	}
	for _, addr := range h.Servers {
		if _, err := multi.ParseAddress(addr); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAddress, err)
		}
	}
	c := newCluster(f, h.Servers)
	c.hello, c.where = h, a.String()
	return c, nil
}

// askForServers asks the data servers of an address for the list of all servers
// until one answers.
func askForServers(ctx context.Context, f *multi.Provider, a *Address) (*wire.Hello, error) {
	offers, err := a.offers()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, o := range offers {
		if o.Verbs != "" && f.Verbs == nil {
			continue
		}
		m, err := askServer(ctx, f, o.String())
		if err == nil {
			return m, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w at %s: %w", ErrNoAnswer, a, errors.Join(errs...))
}

// askServer asks one data server for the list of all servers.
func askServer(ctx context.Context, f *multi.Provider, addr string) (*wire.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	h, err := helloAt(ctx, f.Quiet(), addr) // transactions may take another fabric than this question
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return h, nil
}

// helloAt dials an address and returns the data server's hello.
func helloAt(ctx context.Context, f *multi.Provider, addr string) (*wire.Hello, error) {
	c, err := f.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return sayHello(ctx, c)
}

// sayHello returns a data server's hello: its identity and the cluster's shape.
func sayHello(ctx context.Context, c rdma.Conn) (*wire.Hello, error) {
	resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
	if err != nil {
		return nil, err
	}
	return wire.DecodeHello(resp)
}
