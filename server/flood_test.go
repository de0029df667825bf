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

// TestMadeUpSessionsPushOutNobody sends more sessions than a server remembers,
// over one connection and over many that come and go. The outcome of another
// client stays, and its repeated commit takes effect once.
func TestMadeUpSessionsPushOutNobody(t *testing.T) {
	ctx, net := t.Context(), inproc.New(inproc.Options{})
	cat, err := tables.NewCatalog(tables.Def{
		Name: "row", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "v", Type: tables.Int64}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := server.Embedded(ctx, server.EmbeddedConfig{Catalog: cat, Network: net})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	dial := func() rdma.Conn {
		c, err := net.Dial(ctx, cl.Servers[0].Addr())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	call := func(c rdma.Conn, req []byte) wire.Code {
		resp, err := rdma.Call(ctx, c, req, nil)
		if err != nil || len(resp) == 0 {
			t.Fatalf("%v: %d bytes", err, len(resp))
		}
		return wire.Code(resp[0])
	}
	row := cat.MustTable("row")
	insert := func(client, key uint64) []byte {
		return wire.AppendCommit(nil, wire.OpCommit, &wire.Commit{ID: wire.ID{Client: client, Seq: 1}, Parts: []wire.Part{{
			Writes: []wire.Write{{Index: uint16(row.Primary().ID), Op: wire.Insert, Key: index.Num(key), Row: row.NewRow()}},
		}}}, nil)
	}
	victim, other := dial(), dial()
	defer victim.Close()
	defer other.Close()
	const mine = 1 << 40
	if c := call(victim, insert(mine, 1)); c != wire.OK {
		t.Fatalf("first commit: %v", c)
	}
	made := uint64(0)
	flood := func(c rdma.Conn, n int) {
		for range n {
			made++
			call(c, wire.AppendID([]byte{byte(wire.OpOutcome)}, wire.ID{Client: made, Seq: 1}))
		}
	}
	flood(other, 1<<17+100)
	for range 50 {
		c := dial()
		flood(c, 300)
		c.Close()
	}
	if c := call(victim, insert(mine, 1)); c != wire.OK {
		t.Errorf("after %d made-up sessions the repeated commit is answered %v, want %v", made, c, wire.OK)
	}
	if st := cl.Servers[0].Stats(); st.Outcomes > 10_000 {
		t.Errorf("%d sessions are remembered", st.Outcomes)
	}
}
