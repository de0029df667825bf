package sim

import (
	"context"
	"fmt"
	"slices"

	"drtmx/rdma"

	"github.com/zeebo/xxh3"
)

// Provider returns a fabric as the process of that name sees it: every message takes
// time, waits for cuts to end, and is an event. The name of a process is its address,
// or what precedes the colon in it. The provider belongs to the process that has the
// name now: see World.Kill.
func (w *World) Provider(p rdma.Provider, name string) rdma.Provider {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &provider{p, w, name, w.of(name)}
}

type provider struct {
	rdma.Provider
	w    *World
	name string
	life *life
}

// As implements rdma.Impersonator.
func (p *provider) As(who rdma.Identity) rdma.Provider {
	return &provider{rdma.As(p.Provider, who), p.w, p.name, p.life}
}

func (p *provider) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	if err := p.life.runs(); err != nil {
		return nil, err
	}
	e, err := p.Provider.Listen(addr, o)
	if err == nil {
		p.w.mu.Lock()
		p.life.addrs = append(p.life.addrs, addr)
		p.w.mu.Unlock()
	}
	return e, err
}

func (p *provider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	err := p.life.runs()
	if err == nil {
		err = p.w.Cross(ctx, p.name, process(addr))
	}
	if err != nil {
		return nil, fmt.Errorf("sim: dial %q: %w", addr, err)
	}
	c, err := p.Provider.Dial(ctx, addr)
	p.w.Event("%s dials %s %v", p.name, addr, err == nil)
	if err != nil {
		return nil, err
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if len(p.life.addrs) == 0 { // a client: what a server has dialed ends with its endpoint
		p.life.conns = append(p.life.conns, c)
	}
	return &conn{Conn: c, w: p.w, life: p.life, from: p.name, to: process(addr), addr: addr}, nil
}

// conn is a connection. Some batches are performed when they are posted, others
// when the client waits for them.
type conn struct {
	rdma.Conn
	w        *World
	life     *life  // of the client
	from, to string // processes
	addr     string
	later    []*rdma.Batch // posted and not performed
	response []byte        // that has arrived, but for its way back
	arrived  bool
}

func (c *conn) Post(b *rdma.Batch) error {
	if b.Len() == 0 || b.Len() > rdma.MaxBatch {
		return c.Conn.Post(b) // which refuses it
	}
	if err := c.life.runs(); err != nil {
		return err
	}
	if c.w.isCut(c.from, c.to) || c.w.Bool(c.w.swarm.late) {
		for i := range b.WRs {
			b.WRs[i].Status = rdma.StatusPending
		}
		c.later = append(c.later, b)
		return nil
	}
	if err := c.w.Cross(context.Background(), c.from, c.to); err != nil {
		return err
	}
	c.w.Event("%s posts %d to %s", c.from, b.Len(), c.addr)
	return c.Conn.Post(b)
}

func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	if i := slices.Index(c.later, b); i >= 0 {
		if err := c.w.Cross(ctx, c.from, c.to); err != nil {
			return fmt.Errorf("sim: wait for %q: %w", c.addr, err)
		}
		c.later = slices.Delete(c.later, i, i+1)
		c.w.Event("%s posts %d to %s late", c.from, b.Len(), c.addr)
		if err := c.Conn.Post(b); err != nil {
			for i := range b.WRs {
				b.WRs[i].Status = rdma.StatusPeerDown
			}
			return err
		}
	}
	if err := c.w.Cross(ctx, c.to, c.from); err != nil {
		return fmt.Errorf("sim: wait for %q: %w", c.addr, err)
	}
	err := c.Conn.Wait(ctx, b)
	if e := c.life.runs(); e != nil {
		return e
	}
	c.w.Event("%s has %d of %s %v", c.from, b.Len(), c.addr, err == nil)
	return err
}

func (c *conn) StartCall(ctx context.Context, req []byte) error {
	err := c.life.runs()
	if err == nil {
		err = c.w.Cross(ctx, c.from, c.to)
	}
	if err != nil {
		return fmt.Errorf("sim: call to %q: %w", c.addr, err)
	}
	err = c.Conn.StartCall(ctx, req)
	if len(req) > 0 {
		c.w.Event("%s asks %s %d: %d bytes %x %v", c.from, c.addr, req[0], len(req), xxh3.Hash(req), err == nil)
	}
	return err
}

func (c *conn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	if !c.arrived {
		var err error
		if c.response, err = c.Conn.FinishCall(ctx, c.response); err != nil {
			return nil, err
		}
		c.arrived = true
	}
	err := c.w.await(ctx, c.to) // a process may stop between its answer and the sending of it
	if err == nil {
		err = c.w.Cross(ctx, c.to, c.from)
	}
	if err != nil {
		return nil, fmt.Errorf("sim: call to %q: %w", c.addr, err)
	}
	if err := c.life.runs(); err != nil {
		return nil, err
	}
	c.arrived = false
	c.w.Event("%s answers %s: %d bytes %x", c.addr, c.from, len(c.response), xxh3.Hash(c.response))
	return append(resp[:0], c.response...), nil
}
