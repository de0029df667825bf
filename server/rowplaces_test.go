package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// placeRig is a table in four partitions that a client has loaded.
type placeRig struct {
	*Cluster
	tab *tables.Table
}

func newPlaceRig(t *testing.T, servers int, twin tables.Twin, keys uint64, f inproc.Faults) *placeRig {
	t.Helper()
	cat, err := tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Hash, Twin: twin, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
	})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Servers: servers, Partitions: 4, Network: inproc.New(inproc.Options{Faults: f}), MemoryBytes: 256 << 20,
		Client: txn.Config{Retry: txn.Retry{Patience: testseed.Patience()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range cl.Servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	r := &placeRig{cl, cat.MustTable("t")}
	l, err := cl.DB.NewLoader(t.Context(), r.tab)
	for k := uint64(0); k < keys && err == nil; k++ {
		err = l.Add(tables.Num(k), r.tab.NewRow())
	}
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *placeRig) partition(id placement.Partition) *partition {
	for _, s := range r.Servers {
		if p := s.parts.get(id); p != nil {
			return p
		}
	}
	panic(fmt.Sprintf("no partition %d", id))
}

// check compares the places of all entries with those of the rows, and returns how many have none. No
// transaction is under way.
func (r *placeRig) check(t *testing.T) (without int) {
	t.Helper()
	for id := range placement.Partition(4) {
		p, rows := r.partition(id), r.partition((id+3)%4)
		srv := p.index(r.tab.Twin().ID).(index.OrderedServer)
		var res index.ScanResult
		srv.Scan(index.Num(0), last(r.tab.Twin()), 0, &res, nil)
		for i := range res.Entries {
			e := &res.Entries[i]
			if e.Row[0] == 0 {
				without++
				continue
			}
			rows.mu.Lock()
			at := rows.writer.rowAt(rows.has.Load().indexes[r.tab.Primary().ID], e.Key)
			rows.mu.Unlock()
			if at != e.Row[0] {
				t.Errorf("the row of key %d is at %#x, and the twin says %#x", e.Key.Num, at, e.Row[0])
			}
		}
	}
	return without
}

// change deletes some keys, and inserts them again, in one transaction each.
func (r *placeRig) change(ctx context.Context, keys ...uint64) error {
	for _, fn := range []func(x *txn.Txn, k uint64) error{
		func(x *txn.Txn, k uint64) error { return x.Delete(r.tab, tables.Num(k)) },
		func(x *txn.Txn, k uint64) error { return x.Insert(r.tab, tables.Num(k), r.tab.NewRow()) },
	} {
		if err := r.DB.Update(ctx, func(x *txn.Txn) error {
			for _, k := range keys {
				if err := fn(x, k); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// settled waits until no transaction is under way.
func (r *placeRig) settled(t *testing.T) {
	t.Helper()
	await(t, "no transaction is under way", func() bool {
		n := 0
		for _, s := range r.Servers {
			n += s.InDoubt()
		}
		return n == 0
	})
}

// TestLoadedRowsHavePlaces: when loading has ended, or when a twin was built, its entries get the places of
// their rows.
func TestLoadedRowsHavePlaces(t *testing.T) {
	const keys = 3000
	for _, c := range []struct {
		name    string
		servers int
		built   bool
		faults  inproc.Faults
	}{
		{"loaded, rows at another data server", 2, false, inproc.Faults{}},
		{"loaded, rows at the same one", 1, false, inproc.Faults{}},
		{"built", 2, true, inproc.Faults{}},
		{"READs out of order", 2, false, inproc.Faults{Scramble: 0.1}}, // so leaves have checksums
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.built {
				r := newPlaceRig(t, c.servers, "", keys, c.faults)
				tab, err := r.DB.SetTwin(t.Context(), "t", tables.TwinNext)
				if err != nil {
					t.Fatal(err)
				}
				r.tab = tab
				await(t, "all entries have places", func() bool { return r.check(t) == 0 })
				return
			}
			r := newPlaceRig(t, c.servers, tables.TwinNext, keys, c.faults)
			if n := r.check(t); n != keys {
				t.Fatalf("%d of %d entries have no place before the end of loading", n, keys)
			}
			if err := r.DB.Seal(t.Context()); err != nil {
				t.Fatal(err)
			}
			await(t, "all entries have places", func() bool { return r.check(t) == 0 })
		})
	}
}

// TestPlacesBesideWriters: rows are deleted and inserted again while the places of all are asked for, by
// transactions of one partition, whose entries have places, and of several, whose entries have none.
func TestPlacesBesideWriters(t *testing.T) {
	const keys, changes = 500, 1000
	r := newPlaceRig(t, 2, tables.TwinNext, keys, inproc.Faults{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(changes) {
			k := 7 * i % (keys - 8)
			if err := errors.Join(r.change(t.Context(), k), r.change(t.Context(), k+1, k+2, k+3)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	sweeps := 0
	for working := true; working; sweeps++ {
		select {
		case <-done:
			working = false
		default:
		}
		for id := range placement.Partition(4) {
			if _, err := r.partition(id).placing(r.tab.Twin()).all(); err != nil {
				t.Error(err)
			}
		}
	}
	r.settled(t)
	if n := r.check(t); n > 0 {
		t.Errorf("%d of %d entries have no place after %d times", n, keys, sweeps)
	}
}

// TestLatePlacesAreNotTaken: between a question and the answer, or the answer and its use, a row is
// deleted and inserted again elsewhere. The place of the first one is not that of the second.
func TestLatePlacesAreNotTaken(t *testing.T) {
	r := newPlaceRig(t, 2, tables.TwinNext, 400, inproc.Faults{})
	for id := range placement.Partition(4) {
		pl := r.partition(id).placing(r.tab.Twin())
		if _, err := pl.collect(); err != nil || len(pl.keys) < 20 {
			t.Fatalf("partition %d: %d entries, %v", id, len(pl.keys), err)
		}
		elsewhere := r.partition((id + 1) % 4).placing(r.tab.Twin())
		_, err := elsewhere.collect()
		if err := errors.Join(err, r.change(t.Context(), pl.keys[:4]...)); err != nil { // shipped, with places
			t.Fatal(err)
		}
		both := pl.keys[4:8] // with a key of another partition: without places
		if len(elsewhere.keys) > 0 {
			both = append(slices.Clone(both), elsewhere.keys[0])
		}
		if err := errors.Join(r.change(t.Context(), both...), pl.ask(), r.change(t.Context(), pl.keys[8:16]...)); err != nil {
			t.Fatal(err)
		}
		r.settled(t)
		if n, want := pl.set(), len(pl.keys)-16; n != want {
			t.Errorf("partition %d: %d entries get places, want %d", id, n, want)
		}
	}
	r.check(t)
}
