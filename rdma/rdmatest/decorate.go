package rdmatest

import (
	"context"

	"drtmx/rdma"
)

// Decorator is a provider that alters another one. Tests use it to inject
// faults that a provider cannot, and to show that the suite detects them.
type Decorator struct {
	rdma.Provider
	// OnListen and OnDial, if set, alter the result of a successful Listen or
	// Dial.
	OnListen func(rdma.Endpoint) rdma.Endpoint
	OnDial   func(rdma.Conn) rdma.Conn
	// Options, if set, alters the options passed to Listen.
	Options func(rdma.ListenOptions) rdma.ListenOptions
}

// Listen implements rdma.Provider.
func (d *Decorator) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	if d.Options != nil {
		o = d.Options(o)
	}
	e, err := d.Provider.Listen(addr, o)
	if err == nil && d.OnListen != nil {
		e = d.OnListen(e)
	}
	return e, err
}

// Dial implements rdma.Provider.
func (d *Decorator) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := d.Provider.Dial(ctx, addr)
	if err == nil && d.OnDial != nil {
		c = d.OnDial(c)
	}
	return c, err
}
