package multi

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"drtmx/rdma"
)

// visit is a connection, or the dial of one, to the address that a server had then. It
// is kept where servers move: see Abandon.
type visit struct {
	n      uint64 // counts the visits
	at     string // the address that was dialed
	cancel context.CancelCauseFunc
	conn   rdma.Conn // nil while it is dialed
	left   bool      // the server is not at the address any more
}

// errMoved reports a server that is not at the address any more which was dialed.
var errMoved = fmt.Errorf("%w: multi: the server has moved", rdma.ErrPeerDown)

// moving is a connection that Abandon may close.
type moving struct {
	rdma.Conn
	p *Provider
	v *visit
}

// Close implements rdma.Conn.
func (c *moving) Close() error {
	c.p.mu.Lock()
	delete(c.p.mu.visits, c.v)
	c.p.mu.Unlock()
	return c.Conn.Close()
}

// Abandon ends all dials and connections to an address, because the server that was
// there is elsewhere now, or another process is there. Operations that wait for an
// answer over such a connection get an error: otherwise a process that is paused would
// keep them waiting. The caller must first make Resolve return the new address.
func (p *Provider) Abandon(addr string) {
	p.mu.Lock()
	var conns []rdma.Conn
	var there []*visit
	for v := range p.mu.visits {
		if v.at == addr && !v.left {
			there = append(there, v)
		}
	}
	// In a fixed order, so that a simulation can be repeated.
	slices.SortFunc(there, func(a, b *visit) int { return cmp.Compare(a.n, b.n) })
	for _, v := range there {
		v.left = true
		v.cancel(errMoved)
		if v.conn != nil {
			conns = append(conns, v.conn)
		}
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.Close() // nobody waits for the result
	}
}

// arrive resolves an address for a dial, and notes the dial: either Abandon of the
// address finds it, or it has the new address. The visit is nil if servers never
// move.
func (p *Provider) arrive(ctx context.Context, addr string) (context.Context, string, *visit) {
	if p.Resolve == nil {
		return ctx, addr, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.visited++
	v := &visit{n: p.mu.visited, at: p.Resolve(addr)}
	ctx, v.cancel = context.WithCancelCause(ctx)
	if p.mu.visits == nil {
		p.mu.visits = map[*visit]struct{}{}
	}
	p.mu.visits[v] = struct{}{}
	return ctx, v.at, v
}

// settle ends a noted dial. It returns the connection, which Abandon may close
// from now on.
func (p *Provider) settle(v *visit, c rdma.Conn, err error) (rdma.Conn, error) {
	if v == nil {
		return c, err
	}
	v.cancel(nil)
	p.mu.Lock()
	left := v.left
	if err != nil || left {
		delete(p.mu.visits, v)
	} else {
		v.conn = c
	}
	p.mu.Unlock()
	switch {
	case left && err == nil:
		c.Close() // to the former address
		return nil, errMoved
	case left:
		return nil, errMoved
	case err != nil:
		return nil, err
	}
	return &moving{c, p, v}, nil
}
