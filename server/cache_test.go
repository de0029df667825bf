package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"drtmx/index/learned"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestCacheBudgets: a DB keeps as much of the models as Config.Cache allows,
// with either family of models, and reads the same whatever it keeps.
func TestCacheBudgets(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, family := range []string{"plr", "rmi"} {
		c := startCached(ctx, t, family)
		kept := map[string]uint64{}
		for _, name := range []string{"full", "part=512", "models", "router", "tree", "tree=4096"} {
			kept[name] = c.kept(ctx, t, name)
		}
		t.Log(family, kept)
		if kept["full"] <= kept["part=512"] || kept["part=512"] < kept["models"] || kept["models"] <= kept["router"] {
			t.Errorf("family %s: bytes kept are %v", family, kept)
		}
		if kept["tree"] <= kept["tree=4096"] || kept["tree=4096"] == 0 || kept["tree=4096"] > 4096 {
			t.Errorf("family %s: bytes of inner nodes kept are %v", family, kept)
		}
	}
	if _, err := txn.ParseCache("part"); err == nil {
		t.Error("part without bytes is taken")
	}
	if _, err := txn.ParseCache("full=1"); err == nil {
		t.Error("full with bytes is taken")
	}
	if _, err := learned.ParseFamily("tree"); err == nil {
		t.Error("a family that does not exist is taken")
	}
}

// TestInnerNodesAreRefused: a DB that is to cache inner nodes says so if there are none: of
// string keys, or because the data servers do not publish them.
func TestInnerNodesAreRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	open := func(cl *Cluster, net *inproc.Network) (*txn.DB, error) {
		return txn.Open(ctx, txn.Config{
			Servers: []string{cl.Servers[0].Addr()}, Dial: net.Dial, Cache: txn.Cache{Keep: txn.CacheTree},
		})
	}
	start := func(d ...tables.Def) (*Cluster, *inproc.Network) {
		cat, err := tables.NewCatalog(d...)
		if err != nil {
			t.Fatal(err)
		}
		net := inproc.New(inproc.Options{})
		cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Network: net})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cl.Close() })
		return cl, net
	}
	columns := []tables.Column{{Name: "n", Type: tables.Int64}}
	byHash := tables.Partitioning{Kind: tables.ByHash}
	numbers := tables.Def{Name: "numbers", Key: tables.NumberKey, Primary: tables.Ordered, Columns: columns, Partition: byHash}
	cl, net := start(numbers)
	if db, err := open(cl, net); !errors.Is(err, txn.ErrCache) || !strings.Contains(err.Error(), cl.Servers[0].Addr()) {
		t.Errorf("without inner nodes: %v, %v, want %v and the data server", db, err, txn.ErrCache)
	}
	texts := tables.Def{Name: "texts", Key: tables.StringKey, Primary: tables.Ordered, Columns: columns, Partition: byHash}
	cl, net = start(numbers, texts)
	if db, err := open(cl, net); !errors.Is(err, txn.ErrCache) || !strings.Contains(err.Error(), "texts") {
		t.Errorf("string keys: %v, %v, want %v and the index", db, err, txn.ErrCache)
	}
}

const cachedRows = 20_000

// cached is a loaded cluster, whose models do not change any more.
type cached struct {
	*Cluster
	net *inproc.Network
}

func startCached(ctx context.Context, t *testing.T, family string) cached {
	t.Helper()
	f, err := learned.ParseFamily(family)
	if err != nil {
		t.Fatal(err)
	}
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: bank(t), Network: net, Family: f, PublishInner: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	entry, err := cl.DB.Table("entry")
	if err != nil {
		t.Fatal(err)
	}
	load, err := cl.DB.NewLoader(ctx, entry)
	if err != nil {
		t.Fatal(err)
	}
	row, amount := entry.NewRow(), entry.Field("amount")
	for k := range uint64(cachedRows) {
		row.SetInt(amount, int64(k))
		if err := load.Add(tables.Num(k*k), row); err != nil {
			t.Fatal(err)
		}
	}
	if err := load.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	return cached{cl, net}
}

// kept reads rows under one budget and returns the bytes that are kept.
func (c cached) kept(ctx context.Context, t *testing.T, name string) uint64 {
	t.Helper()
	cache, err := txn.ParseCache(name)
	if err != nil || cache.String() != name {
		t.Fatalf("ParseCache(%q) gave %v, %v", name, cache, err)
	}
	db, err := txn.Open(ctx, txn.Config{Servers: []string{c.Servers[0].Addr()}, Dial: c.net.Dial, Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	entry, err := db.Table("entry")
	if err != nil {
		t.Fatal(err)
	}
	amount := entry.Field("amount")
	for k := uint64(0); k < cachedRows; k += 97 {
		err := db.View(ctx, func(tx *txn.Txn) error {
			got, err := tx.Get(entry, tables.Num(k*k))
			if err == nil && got.Int(amount) != int64(k) {
				t.Errorf("key %d has the row of %d", k*k, got.Int(amount))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, st := range db.IndexStats() {
		if st.Index == "entry" {
			return st.CacheBytes
		}
	}
	t.Fatal("no statistics of the index")
	return 0
}
