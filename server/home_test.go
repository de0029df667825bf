package server

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// TestHomeOfAProcedureThatWaited: a procedure has waited in a line of its home, and
// then leaves it, after a transaction of several partitions of the server. It
// asks for its turns at its own home.
func TestHomeOfAProcedureThatWaited(t *testing.T) {
	const other, home, elsewhere = 0, 2, 1 // accounts, and their partitions
	cat := bank(t)
	acct := cat.MustTable("account")
	bal := acct.Field("balance")
	var cl *Cluster
	var loses atomic.Bool
	body := func(ctx context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
		row, err := x.Get(acct, tables.Num(home))
		if err != nil {
			return nil, err
		}
		row = row.Clone()
		if row.Int(bal) != startBalance {
			if _, err := x.Get(acct, tables.Num(elsewhere)); err != nil {
				return nil, err
			}
			if loses.CompareAndSwap(true, false) { // others change what it has read
				done := make(chan error)
				go func() {
					done <- cl.DB.Update(context.Background(), func(x *txn.Txn) error { return deposit(x, acct, home, home) })
				}()
				if err := <-done; err != nil {
					return nil, err
				}
			}
		}
		row.SetInt(bal, row.Int(bal)+1)
		return nil, x.Update(acct, tables.Num(home), row)
	}
	var err error
	cl, err = Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Partitions: 4, Procedures: []txn.Procedure{{Name: "leaves", Body: body}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	putAccounts(t, cl.DB, acct, 4, startBalance)
	s := cl.Servers[0]
	p := s.parts.of[home]
	g := (&parkingRig{t: t, cl: cl, s: s, p: p, acct: acct}).untimed()
	// A session has the row of the home reserved.
	const session = 900
	ix := uint16(acct.Primary().ID)
	turn := wire.Turn{Wait: time.Minute, Losses: 8, Rows: []wire.RowName{wire.NameRow(ix, index.Num(home))}}
	r := &replier{g: g, name: "asks"}
	s.handle(&rdma.Request{From: &anyRole, Peer: 900, Body: wire.AppendReserve(nil, session, home, &turn), Replier: r})
	if !r.reserved() {
		t.Fatal("no turn in an empty line")
	}
	called := make(chan error, 1)
	go func() { _, err := cl.DB.Call(context.Background(), txn.Home(home), "leaves", nil); called <- err }()
	g.awaitParked(1)
	loses.Store(true)
	reserved := func() uint64 { p.mu.Lock(); defer p.mu.Unlock(); return p.requests.lines.reserved }
	before := reserved()
	// It commits in two partitions of the server.
	c := wire.Commit{ID: wire.ID{Client: session, Seq: 1}, Sent: s.clocks.present()}
	for _, id := range []uint64{other, home} {
		c.Parts = append(c.Parts, wire.Part{Partition: placement.Partition(id), Writes: []wire.Write{{Index: ix, Op: wire.Update, Key: index.Num(id), Row: g.row(id, 7)}}})
	}
	w := &replier{g: g, name: "commits"}
	s.handle(&rdma.Request{From: &anyRole, Peer: 900, Body: wire.AppendCommit(nil, wire.OpCommit, &c, nil), Replier: w})
	if err := <-called; err != nil {
		t.Fatal(err)
	}
	if w.await(t).code() != wire.OK {
		t.Fatalf("the commit: %q", w.all)
	}
	if loses.Load() {
		t.Fatal("the procedure has not lost")
	}
	if n := reserved() - before; n == 0 {
		t.Error("the procedure has lost, and has had no turn at its home")
	}
}
