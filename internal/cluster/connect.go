package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/tables"
)

// connectTimeout bounds how long one data server may take to say who it is.
const connectTimeout = 5 * time.Second

// ErrNoAnswer reports that no data server at an address answers.
var ErrNoAnswer = errors.New("cluster: no data server answers")

// ClientOptions are how a client speaks.
type ClientOptions struct {
	TLS      *tcp.TLS // over tcp; nil means plain text
	Insecure bool     // plain text beyond loopback, too
	Device   string   // of verbs; empty means the first
	// Members opens where the members of a cluster are kept that an address
	// names; nil means that this program cannot.
	Members OpenMembers
}

// OpenMembers opens the store of a cluster's members, which its caller closes.
type OpenMembers func(context.Context, *Address) (member.Store, error)

// NewFabrics is what this process can speak: tcp, and shm and verbs where the
// machine and the binary have them.
func NewFabrics(o ClientOptions) (*Fabrics, error) {
	t, err := tcp.New(tcp.Options{TLS: o.TLS, Insecure: o.Insecure})
	if err != nil {
		return nil, err
	}
	f := &Fabrics{TCP: t}
	if shm.Available() == nil {
		if s, err := shm.New(shm.Options{}); err == nil {
			f.Shm = s
		}
	}
	if v, err := verbs.New(verbs.Options{Device: o.Device}); err == nil {
		f.Verbs = v
	}
	return f, nil
}

// Map is who makes up a cluster.
type Map struct {
	Servers   []string // addresses of the data servers, in order: see Offer
	Primaries []int    // by partition: the server that holds it
	Epoch     uint32   // grows when Primaries change
	Catalog   json.RawMessage
}

// Tables is the catalogue, decoded.
func (m *Map) Tables() (*tables.Catalog, error) { return tables.ParseCatalog(m.Catalog) }

// MapSource tells who makes up a cluster. The data servers themselves are one;
// a membership service may be another.
type MapSource func(context.Context) (*Map, error)

// Connect finds the data servers of a cluster by asking those that the address
// names, one after the other, for the list of all. What the address says of TLS
// comes before the options. Of an address of etcd it asks the store for the servers,
// and follows it until the Cluster is closed: each server is dialled where it is
// by then, and Lost is closed when one was started again; of others Lost is
// never closed. The error wraps ErrNoAnswer, or ErrNoCluster for a directory
// without sockets, or is one of package member.
func Connect(ctx context.Context, a *Address, o ClientOptions) (*Cluster, *Map, error) {
	if a.TLS != nil {
		o.TLS = a.TLS
	}
	o.Insecure = (o.Insecure || a.Insecure) && o.TLS == nil
	f, err := NewFabrics(o)
	if err != nil {
		return nil, nil, err
	}
	if len(a.Etcd) > 0 {
		return f.connectMembers(ctx, a, o.Members)
	}
	return ConnectOver(ctx, f, func(ctx context.Context) (*Map, error) { return f.ask(ctx, a) })
}

// ConnectOver finds the data servers that a source names; each is then dialled
// over the best fabric that it shares with f.
func ConnectOver(ctx context.Context, f *Fabrics, source MapSource) (*Cluster, *Map, error) {
	m, err := source(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, addr := range m.Servers {
		if _, err := ParseOffer(addr); err != nil {
			return nil, nil, err
		}
	}
	return newCluster(f, m.Servers), m, nil
}

// ask asks the data servers of an address for the map until one answers.
func (f *Fabrics) ask(ctx context.Context, a *Address) (*Map, error) {
	offers, err := a.offers()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, o := range offers {
		if o.Verbs != "" && f.Verbs == nil {
			continue
		}
		m, err := f.askOne(ctx, o.String())
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

// askOne asks one data server for the others.
func (f *Fabrics) askOne(ctx context.Context, addr string) (*Map, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	h, err := f.quiet().hello(ctx, addr) // what carries this question is not what will carry the work
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return &Map{Servers: h.Servers, Primaries: h.Primaries, Epoch: h.Epoch, Catalog: h.Catalog}, nil
}

func (f *Fabrics) hello(ctx context.Context, addr string) (*wire.Hello, error) {
	c, err := f.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return sayHello(ctx, c)
}

// sayHello asks a data server who it is.
func sayHello(ctx context.Context, c rdma.Conn) (*wire.Hello, error) {
	resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
	if err != nil {
		return nil, err
	}
	return wire.DecodeHello(resp)
}
