package server_test

import (
	"testing"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
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
	return wire.AppendCommit(nil, wire.OpCommit, &wire.Commit{ID: wire.ID{Client: client, Seq: 1}, Parts: []wire.Part{{
		Writes: []wire.Write{{Index: uint16(f.row.Primary().ID), Op: wire.Insert, Key: index.Num(key), Row: f.row.NewRow()}},
	}}}, nil)
}

// question asks for the outcome of a session's first commit. Unless peek is set
// the server refuses the commit from then on, if it has not seen it.
func question(client uint64, peek bool) []byte {
	req := wire.AppendID([]byte{byte(wire.OpOutcome)}, wire.ID{Client: client, Seq: 1})
	if peek {
		req = append(req, 1)
	}
	return req
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
			f.call(c, question(made, false))
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

// TestForgottenOutcomesAreInDoubt: a commit whose outcome was pushed out by
// thousands of later sessions of the same identity, all without connection, is
// never said not to have committed: its client would repeat it.
func TestForgottenOutcomesAreInDoubt(t *testing.T) {
	f := newFlood(t)
	const mine, unseen = 1 << 40, 2 << 40
	victim := f.dial()
	if c := f.call(victim, f.insert(mine, 1)); c != wire.OK {
		t.Fatalf("first commit: %v", c)
	}
	victim.Close()
	asking := f.dial()
	defer asking.Close()
	if c := f.call(asking, question(unseen, false)); c != wire.Unknown {
		t.Errorf("nothing is forgotten, and a commit that was never seen is answered %v", c)
	}
	if c := f.call(asking, question(unseen, true)); c != wire.Aborted {
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
	for range 3 { // the question itself changes nothing
		if c := f.call(asking, question(mine, true)); c != wire.Unknown {
			t.Errorf("a forgotten commit is answered %v, to who only wants to know", c)
		}
		if c := f.call(asking, question(mine, false)); c != wire.InDoubt {
			t.Errorf("a forgotten commit is answered %v, want %v", c, wire.InDoubt)
		}
	}
}
