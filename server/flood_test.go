package server_test

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// flood is a server of one partition and connections of one identity to it, on
// which requests are made by hand.
type flood struct {
	t   *testing.T
	net *inproc.Network
	cl  *server.Cluster
	row *tables.Table
}

func newFlood(t *testing.T) *flood {
	net := inproc.New(inproc.Options{})
	cat, err := tables.NewCatalog(tables.Def{
		Name: "row", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "v", Type: tables.Int64}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Catalog: cat, Network: net})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return &flood{t, net, cl, cat.MustTable("row")}
}

func (f *flood) dial() rdma.Conn {
	f.t.Helper()
	c, err := f.net.Dial(f.t.Context(), f.cl.Servers[0].Addr())
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *flood) call(c rdma.Conn, req []byte) wire.Code {
	f.t.Helper()
	resp, err := rdma.Call(f.t.Context(), c, req, nil)
	if err != nil || len(resp) == 0 {
		f.t.Fatalf("%v: %d bytes", err, len(resp))
	}
	return wire.Code(resp[0])
}

// insert is the first commit of a session.
func (f *flood) insert(client, key uint64) []byte {
	return f.insertAt(f.cl.Servers[0].Present(), client, key)
}

func (f *flood) insertAt(sent wire.Sent, client, key uint64) []byte {
	return wire.AppendCommit(nil, wire.OpCommit, &wire.Commit{ID: wire.ID{Client: client, Seq: 1}, Sent: sent, Parts: []wire.Part{{
		Writes: []wire.Write{{Index: uint16(f.row.Primary().ID), Op: wire.Insert, Key: index.Num(key), Row: f.row.NewRow()}},
	}}}, nil)
}

// question asks for the outcome of a session's first commit, which was sent at a time.
// The server refuses the commit from then on, if it has not seen it.
func question(client uint64, sent wire.Sent) []byte {
	return wire.AppendOutcome(nil, wire.ID{Client: client, Seq: 1}, sent, wire.OutcomeWait)
}

// TestMadeUpSessionsPushOutNobody sends more sessions than a server remembers,
// over one connection and over many that come and go. The outcome of another
// client stays, and its repeated commit takes effect once.
func TestMadeUpSessionsPushOutNobody(t *testing.T) {
	f := newFlood(t)
	victim, other := f.dial(), f.dial()
	defer victim.Close()
	defer other.Close()
	const mine = 1 << 40
	if c := f.call(victim, f.insert(mine, 1)); c != wire.OK {
		t.Fatalf("first commit: %v", c)
	}
	made := uint64(0)
	flood := func(c rdma.Conn, n int) {
		for range n {
			made++
			f.call(c, question(made, f.cl.Servers[0].Present()))
		}
	}
	flood(other, 1<<17+100)
	for range 50 {
		c := f.dial()
		flood(c, 300)
		c.Close()
	}
	if c := f.call(victim, f.insert(mine, 1)); c != wire.OK {
		t.Errorf("after %d made-up sessions the repeated commit is answered %v, want %v", made, c, wire.OK)
	}
	if st := f.cl.Servers[0].Stats(); st.Outcomes > 10_000 {
		t.Errorf("%d sessions are remembered", st.Outcomes)
	}
}

// TestForgottenOutcomesAreNotDenied: a commit whose outcome was pushed out by
// thousands of later sessions of the same identity, all without connection, is
// never said not to have committed: its client would repeat it. No copy of it is
// executed, nor is a commit that was refused before it came, although the refusal is
// forgotten too. What was sent afterwards has certain answers, and is executed.
func TestForgottenOutcomesAreNotDenied(t *testing.T) {
	f := newFlood(t)
	s := f.cl.Servers[0]
	const mine, unseen, fresh, late = 1 << 40, 2 << 40, 3 << 40, 4 << 40
	victim, sent := f.dial(), s.Present()
	for client, want := range map[uint64]wire.Code{mine: wire.OK, unseen: wire.Unknown} {
		req := question(client, sent)
		if client == mine {
			req = f.insertAt(sent, mine, 1)
		}
		if c := f.call(victim, req); c != want {
			t.Fatalf("at first: %v, want %v", c, want)
		}
	}
	victim.Close()
	asking := f.dial()
	defer asking.Close()
	if c := f.call(asking, question(late, sent)); c != wire.Unknown {
		t.Errorf("nothing is forgotten, and a commit that was never seen is answered %v", c)
	}
	if c := f.call(asking, question(late, sent)); c != wire.Aborted {
		t.Errorf("a commit that is refused from now on is answered %v", c)
	}
	for made, conns := uint64(0), 0; conns < 20; conns++ {
		c := f.dial()
		for range 250 {
			made++
			f.call(c, f.insert(made, 10+made))
		}
		c.Close()
	}
	for client, key := range map[uint64]uint64{mine: 2, unseen: 3} { // another key, or it would be refused for the first
		if c := f.call(asking, f.insertAt(sent, client, key)); c != wire.Conflict {
			t.Errorf("a late commit of session %x is answered %v", client, c)
		}
	}
	for range 3 { // the question itself changes nothing
		if c := f.call(asking, question(mine, sent)); c != wire.Forgotten {
			t.Errorf("a forgotten commit is answered %v, want %v", c, wire.Forgotten)
		}
		if c := f.call(asking, f.insertAt(sent, mine, 2)); c != wire.Forgotten {
			t.Errorf("a forgotten commit that comes again is answered %v, want %v", c, wire.Forgotten)
		}
	}
	for now := s.Present().At; s.Present().At == now; {
		time.Sleep(time.Millisecond)
	}
	if c := f.call(asking, question(fresh, s.Present())); c != wire.Unknown {
		t.Errorf("a commit sent since is answered %v, want %v", c, wire.Unknown)
	}
	if c := f.call(asking, f.insert(fresh+1, 4)); c != wire.OK {
		t.Errorf("a commit sent since is answered %v", c)
	}
	for key, want := range map[uint64]bool{1: true, 2: false, 3: false, 4: true} {
		if err := f.cl.DB.View(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(f.row, tables.Num(key))
			return err
		}); want != (err == nil) {
			t.Errorf("key %d: %v", key, err)
		}
	}
}
