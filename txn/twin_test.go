package txn_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// twinKeys are the keys of the tests of twins, as numbers and as strings in the same order.
const twinKeys = 400

// twinned is a table with a twin, in a cluster of two data servers with four partitions.
type twinned struct {
	*server.Cluster
	tab  *tables.Table
	n, s tables.Field
}

// forms of tables with twins.
var twinForms = map[string]tables.Def{
	"by hash":   {Partition: tables.Partitioning{Kind: tables.ByHash}},
	"by bits":   {Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 3}},
	"by ranges": {Partition: tables.Partitioning{Kind: tables.ByRange, Bounds: []tables.Key{tables.Num(50), tables.Num(90), tables.Num(300)}}},
	"growing":   {Grows: true, Partition: tables.Partitioning{Kind: tables.ByHash}},
	"strings":   {Key: tables.StringKey, Partition: tables.Partitioning{Kind: tables.ByPrefix, Prefix: 2}},
	"string ranges": {
		Key:       tables.StringKey,
		Partition: tables.Partitioning{Kind: tables.ByRange, Bounds: []tables.Key{tables.Str("0100"), tables.Str("0200"), tables.Str("0300")}},
	},
	"indexed": {
		Partition: tables.Partitioning{Kind: tables.ByHash},
		Secondary: []tables.Secondary{{
			Name: "by_n", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}},
	},
}

func newTwinned(t *testing.T, d tables.Def, twin tables.Twin, client txn.Config) *twinned {
	t.Helper()
	d.Name, d.Primary, d.Twin = "t", tables.Hash, twin
	d.Columns = []tables.Column{{Name: "n", Type: tables.Int64}, {Name: "s", Type: tables.Text, Size: 8}}
	cat, err := tables.NewCatalog(d)
	if err != nil {
		t.Fatal(err)
	}
	if client.Retry == (txn.Retry{}) {
		client.Retry.Patience = testseed.Patience()
	}
	tab := cat.MustTable("t")
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: cat, Servers: 2, Partitions: 4, Network: inproc.New(inproc.Options{}), Client: client, MemoryBytes: 256 << 20, Retain: time.Minute,
		Procedures: []txn.Procedure{{
			Name: "count", ReadOnly: true,
			Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
				es, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
				return fmt.Append(nil, len(es)), err
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	return &twinned{Cluster: cl, tab: tab, n: tab.Field("n"), s: tab.Field("s")}
}

func (w *twinned) key(k int) tables.Key {
	if w.tab.Def().Key == tables.StringKey {
		return tables.Str(fmt.Sprintf("%04d", k))
	}
	return tables.Num(uint64(k))
}

func (w *twinned) row(n int64) tables.Row {
	row := w.tab.NewRow()
	row.SetInt(w.n, n)
	return row
}

// check compares what a transaction sees of a range with what it must see, by all ways to read it.
func (w *twinned) check(x *txn.Txn, lo, hi int, want map[int]int64) error {
	var keys []int
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if lo <= k && k <= hi {
			keys = append(keys, k)
		}
	}
	same := func(how string, got []txn.Entry, keys []int) error {
		if len(got) != len(keys) {
			return fmt.Errorf("%s of %d to %d: %d rows, want %d", how, lo, hi, len(got), len(keys))
		}
		for i, k := range keys {
			if got[i].Key != w.key(k) || got[i].Row.Int(w.n) != want[k] {
				return fmt.Errorf("%s of %d to %d: key %v has %d, want %d of key %d", how, lo, hi, got[i].Key, got[i].Row.Int(w.n), want[k], k)
			}
		}
		return nil
	}
	ix, from, to := w.tab.Primary(), w.key(lo), w.key(hi)
	all := x.QueueScan(ix, from, to, 0)
	few := x.QueueScan(ix, from, to, 5)
	for how, sc := range map[string]*txn.QueuedScan{"scan": all, "scan of five": few} {
		es, err := sc.Entries()
		if err != nil {
			return err
		}
		some := keys
		if sc == few {
			some = keys[:min(5, len(keys))]
		}
		if err := same(how, es, some); err != nil {
			return err
		}
	}
	for how, seq := range map[string]iter.Seq2[txn.Entry, error]{"loop": x.Scan(ix, from, to), "loop down": x.ScanReverse(ix, from, to)} {
		var es []txn.Entry
		for e, err := range seq {
			if err != nil {
				return err
			}
			es = append(es, txn.Entry{Key: e.Key.Clone(), Row: slices.Clone(e.Row)})
		}
		if how == "loop down" {
			slices.Reverse(es)
		}
		if err := same(how, es, keys); err != nil {
			return err
		}
	}
	return nil
}

// TestTwins makes random transactions on tables with twins, and reads ranges of their keys in them and
// after them.
func TestTwins(t *testing.T) {
	for name, d := range twinForms {
		for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
			for reads, path := range map[string]txn.ReadPath{"READs": txn.OneSided, "RPCs": txn.OrderedByRPC} {
				if path != txn.OneSided && name != "strings" && name != "by bits" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", name, twin, reads), func(t *testing.T) {
					t.Parallel()
					seed := testseed.Of(t)
					twinHistory(t, newTwinned(t, d, twin, txn.Config{Reads: path}), rng.New(seed))
				})
			}
		}
	}
}

func twinHistory(t *testing.T, w *twinned, s *rng.Stream) {
	ctx, is := t.Context(), map[int]int64{}
	l, err := w.DB.NewLoader(ctx, w.tab)
	if err != nil {
		t.Fatal(err)
	}
	for k := 0; k < twinKeys; k += 2 {
		is[k] = int64(k)
		if err := l.Add(w.key(k), w.row(is[k])); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), w.DB.Seal(ctx)); err != nil {
		t.Fatal(err)
	}
	for n := range 60 {
		step, some := s.SplitN(uint64(n)), s.Bool(0.2) // some transactions are rolled back
		var now map[int]int64
		err := w.DB.Update(ctx, func(x *txn.Txn) error {
			r := step.Split("body")
			now = maps.Clone(is)
			for range r.Intn(12) {
				if err := w.change(x, r, now); err != nil {
					return err
				}
				if r.Bool(0.3) {
					lo := r.Intn(twinKeys)
					if err := w.check(x, lo, lo+r.Intn(80), now); err != nil {
						return err
					}
				}
			}
			if some {
				return errTakenBack
			}
			return nil
		})
		switch {
		case errors.Is(err, errTakenBack) && some:
			now = is
		case err != nil:
			t.Fatalf("transaction %d: %v", n, err)
		}
		is = now
		lo, rows := s.Intn(twinKeys), s.Intn(100)
		read := func(x *txn.Txn) error { return w.check(x, lo, lo+rows, is) }
		if n%20 == 19 {
			read = func(x *txn.Txn) error { return w.check(x, 0, 2*twinKeys, is) }
		}
		if err := w.DB.View(ctx, read); err != nil {
			t.Fatalf("after transaction %d: %v", n, err)
		}
		var old *txn.SnapshotTooOld
		if err := w.DB.Snapshot(ctx, read); w.tab.Def().Twin == tables.TwinNext {
			if !errors.As(err, &old) || old.Table != "t" || old.MadeBy != "twin next" {
				t.Fatalf("snapshot of a range after transaction %d: %v, want SnapshotTooOld", n, err)
			}
		} else if err != nil {
			t.Fatalf("snapshot after transaction %d: %v", n, err)
		}
	}
	got, err := w.DB.Call(ctx, txn.Home(0), "count", nil)
	if err != nil || string(got) != fmt.Sprint(len(is)) {
		t.Errorf("a procedure counts %s rows, want %d: %v", got, len(is), err)
	}
}

// change writes a random key, and notes what it has then.
func (w *twinned) change(x *txn.Txn, r *rng.Stream, now map[int]int64) error {
	k, n := r.Intn(twinKeys), int64(r.Intn(1000))
	_, is := now[k]
	var err error
	switch r.Intn(4) {
	case 0:
		if err = x.Put(w.tab, w.key(k), w.row(n)); err == nil {
			now[k] = n
		}
	case 1:
		if is {
			return nil // it would end the transaction
		}
		if err = x.Insert(w.tab, w.key(k), w.row(n)); err == nil {
			now[k] = n
		}
	case 2:
		if !is {
			return nil
		}
		if err = x.Update(w.tab, w.key(k), w.row(n)); err == nil {
			now[k] = n
		}
	default:
		if !is {
			return nil
		}
		if err = x.Delete(w.tab, w.key(k)); err == nil {
			delete(now, k)
		}
	}
	if err != nil {
		return fmt.Errorf("key %d: %w", k, err)
	}
	return nil
}

// A scan of a twin has one round more than one of an ordered index if the entries say where the rows
// are, and two if not; validation is one round more in both.
func TestRoundsOfTwins(t *testing.T) {
	for _, c := range []struct {
		name   string
		twin   tables.Twin
		loaded bool
		rounds uint64
	}{
		{"local", tables.TwinLocal, false, 3},
		{"local, loaded", tables.TwinLocal, true, 3},
		{"next", tables.TwinNext, false, 3},
		{"next, loaded", tables.TwinNext, true, 3},
		{"sync", tables.TwinSync, false, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, ctx := newTwinned(t, twinForms["by ranges"], c.twin, txn.Config{LocationCache: -1}), t.Context()
			inserted := 30
			if c.loaded {
				l, err := w.DB.NewLoader(ctx, w.tab)
				for k := 0; k < inserted && err == nil; k++ {
					err = l.Add(w.key(k), w.row(int64(k)))
				}
				if err == nil {
					err = l.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
				inserted = 0
			}
			if err := w.DB.Seal(ctx); err != nil {
				t.Fatal(err)
			}
			for k := range inserted {
				if err := w.DB.Update(ctx, func(x *txn.Txn) error { return x.Insert(w.tab, w.key(k), w.row(int64(k))) }); err != nil {
					t.Fatal(err)
				}
			}
			s, err := w.DB.NewSession(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var was, is uint64
			end := time.Now().Add(testseed.Patience())
			// Places of loaded rows come in the background.
			late := c.loaded && c.twin == tables.TwinNext
			for i := 0; i < 3 || late && is-was != c.rounds && time.Now().Before(end); i++ { // the first ones load models and the directory
				was = is
				if err := s.View(ctx, func(x *txn.Txn) error {
					es, err := x.QueueScan(w.tab.Primary(), w.key(10), w.key(19), 0).Entries()
					if err == nil && len(es) != 10 {
						err = fmt.Errorf("%d rows", len(es))
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
				is = s.Stats().Rounds
			}
			if is-was != c.rounds {
				t.Errorf("%d rounds, want %d", is-was, c.rounds)
			}
		})
	}
}
