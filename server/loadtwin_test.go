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

// brokenLoads lets so many messages of a loader reach a data server, and loses the others.
type brokenLoads struct {
	rdma.Provider
	to   string
	left int
}

type brokenLoad struct {
	rdma.Conn
	f  *brokenLoads
	to string
}

func (f *brokenLoads) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := f.Provider.Dial(ctx, addr)
	return &brokenLoad{c, f, addr}, err
}

func (c *brokenLoad) StartCall(ctx context.Context, req []byte) error {
	if wire.Op(req[0]) == wire.OpLoad && c.to == c.f.to {
		if c.f.left--; c.f.left < 0 {
			return errLost
		}
	}
	return c.Conn.StartCall(ctx, req)
}

// TestLoadedEntriesHaveRows: a load ends at any message. No entry of a twin is without its row then, wherever
// the twin is.
func TestLoadedEntriesHaveRows(t *testing.T) {
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			for messages := 1; ; messages++ {
				if loadsAll := loadTwin(t, twin, messages); loadsAll || t.Failed() {
					break
				}
			}
		})
	}
}

// loadTwin loads rows of one partition; its data server gets so many messages at most. It reports whether all
// rows were loaded.
func loadTwin(t *testing.T, twin tables.Twin, messages int) (all bool) {
	t.Helper()
	var columns []tables.Column
	for _, name := range []string{"a", "b", "c", "d"} { // rows are larger than entries
		columns = append(columns, tables.Column{Name: name, Type: tables.Int64})
	}
	cat, err := tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Hash, Twin: twin, Columns: columns, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 32},
	})
	if err != nil {
		t.Fatal(err)
	}
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Partitions: 2, Network: net, MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	f := &brokenLoads{Provider: net, to: cl.Servers[0].Addr(), left: messages}
	db, err := txn.Open(t.Context(), txn.Config{Servers: []string{cl.Servers[0].Addr(), cl.Servers[1].Addr()}, Dial: f.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tab := cat.MustTable("t")
	l, err := db.NewLoader(t.Context(), tab)
	if err != nil {
		t.Fatal(err)
	}
	for k := uint64(0); k < 20_000 && err == nil; k++ {
		err = l.Add(tables.Num(k), tab.NewRow())
	}
	err = errors.Join(err, l.Close())
	at := cl.Servers[0].parts.get(0)
	rows := at.index(tab.Primary().ID).Stats().Rows
	if twin != tables.TwinLocal {
		at = cl.Servers[1].parts.get(1)
	}
	if entries := at.index(tab.Twin().ID).Stats().Rows; entries > rows {
		t.Errorf("%d messages: %d entries, and %d rows", messages, entries, rows)
	}
	return err == nil
}
