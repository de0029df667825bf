package server

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// extendConn ends a context when its client has asked for leaves.
type extendConn struct {
	rdma.Conn
	end   *context.CancelFunc // nil: not now
	asked bool
}

// StartCall implements rdma.Conn.
func (c *extendConn) StartCall(ctx context.Context, req []byte) error {
	err := c.Conn.StartCall(ctx, req)
	var q wire.WriterRequest
	d := wire.NewDecoder(req[1:])
	if err == nil && *c.end != nil && wire.Op(req[0]) == wire.OpWriter && q.Decode(&d) == nil && q.Step == wire.WriterExtend {
		(*c.end)()
		c.asked = true
	}
	return err
}

// FinishCall implements rdma.Conn.
func (c *extendConn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	if c.asked && ctx.Err() != nil {
		return resp, ctx.Err() // the answer is late
	}
	c.asked = false
	return c.Conn.FinishCall(ctx, resp)
}

// TestLeavesOfEndedRequestsComeBack: a transaction ends before it hears of the leaves that its writer has
// got. No writer knows of them then, and the data server must not keep them for it.
func TestLeavesOfEndedRequestsComeBack(t *testing.T) {
	cat, err := tables.NewCatalog(tables.Def{
		Name: "written", Primary: tables.Ordered, Engine: tables.Rolex, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 60},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64}, {Name: "text", Type: tables.Text, Size: 1000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 1, Network: net, MemoryBytes: 1 << 24})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.DB.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	var end context.CancelFunc
	c := patient()
	c.Servers = []string{cl.Servers[0].Addr()}
	c.Dial = func(ctx context.Context, addr string) (rdma.Conn, error) {
		conn, err := net.Dial(ctx, addr)
		return &extendConn{Conn: conn, end: &end}, err
	}
	db, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tab := cat.MustTable("written")
	insert := func(ctx context.Context, key uint64) error {
		return s.Update(ctx, func(tx *txn.Txn) error { return tx.Insert(tab, tables.Num(key), tab.NewRow()) })
	}
	n, ended := uint64(0), 0
	for ended < 100 && n < 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		end = cancel
		err := insert(ctx, n)
		cancel()
		switch end = nil; {
		case err == nil:
			n++
		case errors.Is(err, context.Canceled):
			ended++
		default:
			t.Fatalf("row %d, after %d ends: %v", n, ended, err)
		}
	}
	if ended < 100 {
		t.Fatalf("only %d of %d transactions ended while they waited for leaves", ended, n)
	}
	for ; n < 1000; n++ {
		if err := insert(t.Context(), n); err != nil {
			t.Fatalf("row %d: %v", n, err)
		}
	}
}
