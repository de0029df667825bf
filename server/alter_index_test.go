package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// What must hold when an index is built:
//
//   - When it can be read it has an entry for each row, and no other.
//   - That stays so for transactions that began before, while or after it was
//     built, with any version of the catalogue.
//   - If two rows have one key, or a row none, the index is withdrawn, and its
//     memory is free.

// byA orders rows by a column that writers change.
var byA = tables.Secondary{
	Name: "by_a", Include: []string{"b"}, Partition: tables.Partitioning{Kind: tables.ByHash},
	Key: []tables.KeyPart{{Column: "a", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
}

// uniqueA has a key that the rows must not share.
var uniqueA = tables.Secondary{
	Name: "unique_a", Partition: tables.Partitioning{Kind: tables.ByHash}, Key: []tables.KeyPart{{Column: "a", Bits: 40, How: tables.Value}},
}

func indexedDefs() (defs []tables.Def) {
	for _, primary := range []tables.IndexKind{tables.Hash, tables.Ordered} {
		for _, key := range []tables.KeyKind{tables.NumberKey, tables.StringKey} {
			defs = append(defs, tables.Def{
				Name: fmt.Sprintf("x%d%d", primary, key), Primary: primary, Key: key, Partition: tables.Partitioning{Kind: tables.ByHash},
				Columns: []tables.Column{{Name: "a", Type: tables.Int64}, {Name: "b", Type: tables.Text, Size: 7}},
			})
		}
	}
	return defs
}

const indexedKeys = 400

// exact checks that indexes have the entries of the rows of a table, as one
// transaction sees both.
func exact(x *txn.Txn, tab *tables.Table, names ...string) error {
	rows := map[string]tables.Row{}
	var keys []tables.Key
	for id := range uint64(indexedKeys) {
		keys = append(keys, growKey(tab, id))
	}
	found, err := x.GetMany(tab, keys)
	if err != nil {
		return err
	}
	for i, row := range found {
		if row != nil {
			rows[keys[i].String()] = row
		}
	}
	for _, name := range names {
		ix, n := tab.Secondary(name), 0
		for e, err := range x.Scan(ix, tables.First, tables.Last) {
			if err != nil {
				return err
			}
			primary := ix.EntryOf(e.Row)
			row := rows[primary.String()]
			if row == nil {
				return fmt.Errorf("index %s has an entry of row %v, which is not there", ix.Name, primary)
			}
			key, want, err := ix.Entry(primary, row, nil)
			if err != nil || key.Compare(e.Key) != 0 || string(want) != string(e.Row) {
				return fmt.Errorf("index %s has of row %v the entry %v %x, want %v %x (%v)", ix.Name, primary, e.Key, e.Row, key, want, err)
			}
			n++
		}
		if n != len(rows) {
			return fmt.Errorf("index %s has %d entries for %d rows", ix.Name, n, len(rows))
		}
	}
	return nil
}

// churn inserts, deletes and changes rows through a DB, of keys that are n
// modulo of.
func churn(db *txn.DB, tab *tables.Table, n, of uint64, rnd *rand.Rand) error {
	id := rnd.Uint64N(indexedKeys/of)*of + n
	key := growKey(tab, id)
	row := tab.NewRow()
	row.SetInt(tab.Field("a"), int64(id)+indexedKeys*rnd.Int64N(5)) // no other row has it
	row.SetText(tab.Field("b"), fmt.Append(nil, rnd.IntN(1000)))
	way := rnd.IntN(5)
	body := func(x *txn.Txn) error {
		old, err := x.Get(tab, key)
		switch {
		case errors.Is(err, txn.ErrNotFound):
			return x.Insert(tab, key, row)
		case err != nil:
			return err
		case way == 0:
			return x.Delete(tab, key)
		case way == 1: // only what the index includes
			row.SetInt(tab.Field("a"), old.Int(tab.Field("a")))
			return x.Update(tab, key, row)
		case way == 2: // twice
			other := old.Clone()
			other.SetInt(tab.Field("a"), int64(id)+indexedKeys*7)
			if err := x.Update(tab, key, other); err != nil {
				return err
			}
			return x.Put(tab, key, row)
		case way == 3:
			if err := x.Delete(tab, key); err != nil {
				return err
			}
			return x.Insert(tab, key, row)
		}
		return x.Put(tab, key, row)
	}
	err := unlessSlow(func() error { return db.Update(context.Background(), body) })
	if err != nil {
		return fmt.Errorf("table %s, row %d, way %d: %w", tab.Name(), id, way, err)
	}
	return nil
}

// TestAddIndex builds indexes beside clients that insert, delete and move rows,
// and do not hear of it.
func TestAddIndex(t *testing.T) {
	t.Parallel()
	alterFabrics(t, func(t *testing.T, r *alterRig) {
		db := r.open(t, rdma.RoleLoader, txn.Config{})
		var tabs []*tables.Table
		for _, d := range indexedDefs() {
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			tabs = append(tabs, tab)
			rnd := rand.New(rand.NewPCG(1, 1))
			for range 400 {
				if err := churn(db, tab, 0, 1, rnd); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wg sync.WaitGroup
		var done atomic.Bool
		var writes atomic.Int64
		stop := func() { done.Store(true); wg.Wait() }
		defer stop()
		for w := range uint64(2) {
			old := r.open(t, rdma.RoleWriter, txn.Config{})
			rnd := rand.New(rand.NewPCG(2, w))
			wg.Go(func() {
				for !done.Load() {
					if err := churn(old, tabs[rnd.IntN(len(tabs))], w, 2, rnd); err != nil {
						t.Error(err)
						return
					}
					writes.Add(1)
				}
			})
		}
		late := r.open(t, rdma.RoleReader, txn.Config{})
		for _, tab := range tabs {
			before := writes.Load()
			for _, s := range []tables.Secondary{byA, uniqueA} {
				ix, err := db.AddIndex(t.Context(), tab.Name(), s)
				if err != nil {
					t.Fatal(err)
				}
				if again, err := db.AddIndex(t.Context(), tab.Name(), s); err != nil || again.ID != ix.ID {
					t.Errorf("the index again: %v, %v", again, err)
				}
			}
			during := writes.Load() - before
			own, err := db.Table(tab.Name())
			if err != nil {
				t.Fatal(err)
			}
			look := func(x *txn.Txn) error { return exact(x, own, "by_a", "unique_a") }
			for range 3 {
				if err := errors.Join(db.View(t.Context(), look), db.Snapshot(t.Context(), look), late.View(t.Context(), look),
					db.Snapshot(t.Context(), look, txn.Staleness(time.Second))); err != nil {
					t.Errorf("table %s: %v", tab.Name(), err)
				}
			}
			t.Logf("table %s: %d writes beside the builds", tab.Name(), during)
		}
		stop()
		if err := r.agree(len(tabs) * 5); err != nil {
			t.Error(err)
		}
		if err := db.View(t.Context(), func(x *txn.Txn) error {
			for _, tab := range tabs {
				own, err := db.Table(tab.Name())
				if err = errors.Join(err, exact(x, own, "by_a", "unique_a")); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestIndexIsWithdrawn: an index that rows do not fit is withdrawn, beside a
// writer of these rows, and can be added when they do.
func TestIndexIsWithdrawn(t *testing.T) {
	t.Parallel()
	r := inprocRig(t, 1<<26, 1<<26)
	db, old := r.open(t, rdma.RoleLoader, txn.Config{}), r.open(t, rdma.RoleWriter, txn.Config{})
	for n, d := range indexedDefs() {
		tab, err := db.AddTable(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		set := func(db *txn.DB, id uint64, a int64, b string) {
			t.Helper()
			row := tab.NewRow()
			row.SetInt(tab.Field("a"), a)
			row.SetText(tab.Field("b"), []byte(b))
			if err := db.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, growKey(tab, id), row) }); err != nil {
				t.Fatal(err)
			}
		}
		for id := range uint64(indexedKeys) {
			set(db, id, int64(id), "")
		}
		for _, bad := range []int64{17, -1} { // the key of another row, and no key
			set(db, 300, bad, "")
			var wg sync.WaitGroup
			var done atomic.Bool
			wg.Go(func() {
				for i := 0; !done.Load() && n < 2; i++ { // the other columns of the two rows
					set(old, 300, bad, fmt.Sprint(i%1000))
					set(old, 17, 17, fmt.Sprint(i%1000))
				}
			})
			_, err := db.AddIndex(t.Context(), tab.Name(), uniqueA)
			done.Store(true)
			wg.Wait()
			want, e := txn.ErrExists, (*txn.Error)(nil)
			if bad < 0 {
				want = tables.ErrRow
			}
			if !errors.Is(err, want) || want == txn.ErrExists && (!errors.As(err, &e) || e.Key != tables.Num(17) || e.Table != tab.Name()) {
				t.Errorf("table %s, value %d: %v", tab.Name(), bad, err)
			}
			if own, _ := db.Table(tab.Name()); own.Indexed() {
				t.Errorf("table %s has the index", tab.Name())
			}
			set(old, 301, 17, "fits")
			set(old, 301, 301, "")
			gone := len(r.servers[0].catalog.Load().Indexes) - 1
			var left uint64
			for end := time.Now().Add(testseed.Patience()); ; {
				left = 0
				for _, s := range r.servers {
					for _, p := range s.parts.here {
						left += p.index(gone).Stats().Rows
					}
				}
				if left == 0 || time.Now().After(end) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if left != 0 {
				t.Fatalf("the withdrawn index has %d entries", left)
			}
		}
		set(db, 300, 300, "")
		if _, err := db.AddIndex(t.Context(), tab.Name(), uniqueA); err != nil {
			t.Fatal(err)
		}
		own, err := db.Table(tab.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := old.View(t.Context(), func(x *txn.Txn) error { return exact(x, own, "unique_a") }); err != nil {
			t.Error(err)
		}
		row := tab.NewRow()
		row.SetInt(tab.Field("a"), 17)
		if err := old.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, growKey(tab, 300), row) }); !errors.Is(err, txn.ErrExists) {
			t.Errorf("a row with the key of another: %v", err)
		}
	}
}

// TestServerBuildsLate: while a server does not build, the index is not read, and
// everything else goes on. Other changes wait.
func TestServerBuildsLate(t *testing.T) {
	t.Parallel()
	net := inproc.New(inproc.Options{})
	late := &lateFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), step: stepBuild}
	r := startAltered(t, roleFabric{
		server: late, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
	}, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	tab, err := db.AddTable(t.Context(), indexedDefs()[0])
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	work := func(db *txn.DB) {
		t.Helper()
		for range 200 {
			if err := churn(db, tab, 0, 1, rnd); err != nil {
				t.Fatal(err)
			}
		}
	}
	work(db)
	old := r.open(t, rdma.RoleWriter, txn.Config{})
	late.lose.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*alterPatience)
	defer cancel()
	if _, err := db.AddIndex(ctx, tab.Name(), byA); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("an index that a server does not build: %v", err)
	}
	work(old)
	work(db)
	if err := db.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	own, err := db.Table(tab.Name())
	if err != nil || own.Secondary("by_a") != nil || len(own.Building()) != 1 {
		t.Fatalf("the table has indexes %v, and builds %v: %v", own.Secondaries(), own.Building(), err)
	}
	if err := db.View(t.Context(), func(x *txn.Txn) error {
		_, err := x.QueueScan(own.Building()[0], tables.First, tables.Last, 0).Entries()
		return err
	}); !errors.Is(err, tables.ErrCatalog) {
		t.Errorf("an index is read before it is built: %v", err)
	}
	if _, err := db.NewLoader(t.Context(), own); !errors.Is(err, tables.ErrCatalog) {
		t.Errorf("a loader beside the build of an index: %v", err)
	}
	second := make(chan error, 1)
	go func() {
		_, err := db.AddTable(context.Background(), indexedDefs()[1])
		second <- err
	}()
	time.Sleep(50 * time.Millisecond)
	late.lose.Store(false)
	if _, err := db.AddIndex(t.Context(), tab.Name(), byA); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("a table that is added meanwhile: %v", err)
	}
	work(old)
	if own, err = db.Table(tab.Name()); err != nil {
		t.Fatal(err)
	}
	if err := db.View(t.Context(), func(x *txn.Txn) error { return exact(x, own, "by_a") }); err != nil {
		t.Error(err)
	}
}

// TestClientDiesInABuild: the orderer goes on, and a column can be added to a
// table with indexes that were added.
func TestClientDiesInABuild(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	tab, err := db.AddTable(t.Context(), growing()[0])
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(grownRows) {
		if err := db.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(tab, growKey(tab, id), oldRow(tab, id, int64(id))) }); err != nil {
			t.Fatal(err)
		}
	}
	c := r.dial(t, rdma.Identity{Role: rdma.RoleLoader}, r.addrs[0])
	req := fmt.Appendf([]byte{byte(wire.OpAlter)}, `{"index":{"table":%q,"index":{"name":"by_a","key":[{"column":"a","how":4},{"column":"_key","how":4}],"partition":{"kind":1}}}}`, tab.Name())
	if err := c.StartCall(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	c.Close()
	r.awaitAgreed(t, 3)
	own, err := db.AddColumn(t.Context(), tab.Name(), tables.Column{Name: "d", Type: tables.Int64})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, growKey(tab, 3), oldRow(tab, 3, 77)) }); err != nil {
		t.Error(err)
	}
	if err := db.View(t.Context(), func(x *txn.Txn) error {
		n := 0
		for e, err := range x.Scan(own.Secondary("by_a"), tables.First, tables.Last) {
			if err != nil {
				return err
			}
			row, err := x.Get(own, own.Secondary("by_a").EntryOf(e.Row))
			if key, _, kerr := own.Secondary("by_a").Entry(own.Secondary("by_a").EntryOf(e.Row), row, nil); err != nil || kerr != nil || key.Compare(e.Key) != 0 {
				return fmt.Errorf("entry %v of row %v: %w", e.Key, row, errors.Join(err, kerr))
			}
			n++
		}
		if n != grownRows {
			return fmt.Errorf("%d entries for %d rows", n, grownRows)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestKeysOfAHashIndex: the keys of a hash index that grows meanwhile.
func TestKeysOfAHashIndex(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	p, tab := r.servers[0].parts.of[0], r.cat.MustTable("account")
	add := func(n uint64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		w := []wire.Write{{Index: uint16(tab.Primary().ID), Op: wire.Insert, Key: index.Num(n), Row: make([]byte, tab.RowBytes())}}
		if v := p.commit(&wire.Part{Writes: w}); !v.ok() {
			t.Fatal(v)
		}
	}
	const n = 2000
	for i := range uint64(n) {
		add(i)
	}
	seen, next := map[uint64]bool{}, uint64(n)
	if err := p.eachKeys(t.Context(), tab.Primary(), func(keys []tables.Key) error {
		for _, k := range keys {
			seen[k.Num()] = true
		}
		if next < 3*n {
			for range buildRows {
				add(next)
				next++
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(n) {
		if !seen[i] {
			t.Fatalf("key %d is missing", i)
		}
	}
}
