package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"drtmx/internal/hosting"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/txn"
)

// hooks decorate a provider: tests see every request and every round before it
// is sent and after it is answered, and may fail it.
type hooks struct {
	rdma.Provider
	mu sync.Mutex
	// call, if set, is told of a request, and of its answer (sent true). An
	// error breaks the connection at that point.
	call func(to string, op wire.Op, sent bool) error
	// started, if set, is told of a request that was sent.
	started func(to string, op wire.Op)
	// post likewise for batches.
	post func(to string, sent bool) error
	// dial, if set, may fail a dial.
	dial func(to string) error
	// request, if set, is shown every request before it is sent.
	request func(to string, req []byte)
	// instances are the incarnations that the membership store has, by server.
	instances sync.Map
}

func (h *hooks) set(call func(to string, op wire.Op, sent bool) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call = call
}

func (h *hooks) onCall(to string, op wire.Op, sent bool) error {
	h.mu.Lock()
	fn := h.call
	h.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(to, op, sent)
}

func (h *hooks) onPost(to string, sent bool) error {
	h.mu.Lock()
	fn := h.post
	h.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(to, sent)
}

func (h *hooks) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	h.mu.Lock()
	fn := h.dial
	h.mu.Unlock()
	if fn != nil {
		if err := fn(addr); err != nil {
			return nil, err
		}
	}
	c, err := h.Provider.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &hookConn{Conn: c, h: h, to: addr}, nil
}

type hookConn struct {
	rdma.Conn
	h  *hooks
	to string
	op wire.Op // of the call under way
}

func (c *hookConn) broken(err error) error {
	c.Conn.Close()
	return fmt.Errorf("%w: %w", rdma.ErrPeerDown, err)
}

func (c *hookConn) StartCall(ctx context.Context, req []byte) error {
	c.op = wire.Op(req[0])
	c.h.mu.Lock()
	show := c.h.request
	c.h.mu.Unlock()
	if show != nil {
		show(c.to, req)
	}
	if err := c.h.onCall(c.to, c.op, false); err != nil {
		return c.broken(err)
	}
	err := c.Conn.StartCall(ctx, req)
	c.h.mu.Lock()
	started := c.h.started
	c.h.mu.Unlock()
	if started != nil && err == nil {
		started(c.to, c.op)
	}
	return err
}

func (c *hookConn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	resp, err := c.Conn.FinishCall(ctx, resp)
	if err != nil {
		return resp, err
	}
	if err := c.h.onCall(c.to, c.op, true); err != nil {
		return nil, c.broken(err)
	}
	return resp, nil
}

func (c *hookConn) Post(b *rdma.Batch) error {
	if err := c.h.onPost(c.to, false); err != nil {
		return c.broken(err)
	}
	return c.Conn.Post(b)
}

func (c *hookConn) Wait(ctx context.Context, b *rdma.Batch) error {
	err := c.Conn.Wait(ctx, b)
	if err != nil {
		return err
	}
	if err := c.h.onPost(c.to, true); err != nil {
		return c.broken(err)
	}
	return nil
}

// startHooked makes a cluster whose servers talk to each other over one set of
// hooks, and whose client over another.
func startHooked(t testing.TB, s *listSchema, servers int, cfg txn.Config) (x *cluster, client, peers *hooks) {
	t.Helper()
	return startRetaining(t, s, servers, cfg, 0)
}

// startRetaining is startHooked with a retention of versions.
func startRetaining(t testing.TB, s *listSchema, servers int, cfg txn.Config, retain time.Duration) (x *cluster, client, peers *hooks) {
	t.Helper()
	return startLimited(t, s, servers, cfg, retain, twophase.Limits{})
}

// startLimited is startRetaining with tables of the commit protocol of some size.
func startLimited(t testing.TB, s *listSchema, servers int, cfg txn.Config, retain time.Duration, l twophase.Limits) (x *cluster, client, peers *hooks) {
	t.Helper()
	x = &cluster{Cluster: &server.Cluster{}, net: inproc.New(inproc.Options{}), s: s}
	client, peers = &hooks{Provider: x.net}, &hooks{Provider: x.net}
	for i := range servers {
		x.addrs = append(x.addrs, fmt.Sprintf("server-%d", i))
	}
	for i := range servers {
		srv, err := server.New(server.Config{
			Index: i, Addrs: x.addrs, Catalog: s.cat, Procedures: s.procedures(), Provider: peers, MemoryBytes: 1 << 28,
			Retain: retain,
		}.Hosted(hosting.Options{Place: hosting.Place{Registered: peers.registered}}))
		if err != nil {
			t.Fatal(err)
		}
		x.Servers = append(x.Servers, srv)
		if l != (twophase.Limits{}) {
			srv.LimitTables(l)
		}
		if err := srv.Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { x.Close() })
	cfg.Servers, cfg.Dial = x.addrs, client.Dial
	db, err := txn.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	x.DB = db
	return x, client, peers
}

// registered is the membership store of the servers: it knows the incarnations
// that a test has put into it.
func (h *hooks) registered(_ context.Context, server placement.Server) (incarnation uint64, err error) {
	if v, ok := h.instances.Load(server); ok {
		return v.(uint64), nil
	}
	return 0, nil
}

// die lets nothing leave over these hooks any more: a process that has crashed sends
// no requests. What it has sent before may still arrive.
func (h *hooks) die() {
	gone := errors.New("the process has crashed")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call = func(string, wire.Op, bool) error { return gone }
	h.post = func(string, bool) error { return gone }
	h.dial = func(string) error { return gone }
}
