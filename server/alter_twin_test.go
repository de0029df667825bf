package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// What must hold when a twin is added and taken away while the table is written:
//
//   - When ranges can be read, they have all rows, and each one once.
//   - That stays so for transactions that began before, while or after it was
//     built, with any version of the catalogue.
//   - While there is none, ranges are refused, and everything else goes on.

func twinDefs() (defs []tables.Def) {
	for _, d := range indexedDefs() {
		if d.Primary == tables.Hash {
			defs = append(defs, d)
		}
	}
	grows := defs[0]
	grows.Name, grows.Grows = "grows", true
	return append(defs, grows)
}

// ranges checks that ranges of a table have its rows, as one transaction sees both.
func ranges(x *txn.Txn, tab *tables.Table, rnd *rand.Rand) error {
	var keys []tables.Key
	for id := range uint64(indexedKeys) {
		keys = append(keys, growKey(tab, id))
	}
	rows, err := x.GetMany(tab, keys)
	if err != nil {
		return err
	}
	for range 3 {
		lo, hi := tables.First, tables.Last
		if rnd.IntN(2) == 0 {
			lo, hi = keys[rnd.IntN(len(keys))], keys[rnd.IntN(len(keys))]
		}
		got := map[string]tables.Row{}
		for e, err := range x.Scan(tab.Primary(), lo, hi) {
			if err != nil {
				return err
			}
			if got[e.Key.String()] != nil {
				return fmt.Errorf("table %s: a range has row %v twice", tab.Name(), e.Key)
			}
			got[e.Key.String()] = e.Row.Clone()
		}
		for i, row := range rows {
			in := (lo == tables.First || keys[i].Compare(lo) >= 0) && (hi == tables.Last || keys[i].Compare(hi) <= 0)
			if found := got[keys[i].String()]; in && string(found) != string(row) || !in && found != nil {
				return fmt.Errorf("table %s: the range %v to %v has of row %v %x, want %x (in it: %v)", tab.Name(), lo, hi, keys[i], found, row, in)
			}
		}
	}
	return nil
}

// TestTwinBesideWriters adds twins and takes them away beside clients that insert, delete
// and change rows and do not hear of it, and one that reads ranges all the time.
func TestTwinBesideWriters(t *testing.T) {
	t.Parallel()
	alterFabrics(t, func(t *testing.T, r *alterRig) {
		db, changes := r.open(t, rdma.RoleLoader, txn.Config{}), 0
		seed := testseed.Of(t)
		var tabs []*tables.Table
		for _, d := range twinDefs() {
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			changes++
			tabs = append(tabs, tab)
			rnd := rand.New(rand.NewPCG(seed, 1))
			for range 300 {
				if err := churn(db, tab, 0, 1, rnd); err != nil {
					t.Fatal(err)
				}
			}
		}
		var wg sync.WaitGroup
		var done atomic.Bool
		var writes, read, refused atomic.Int64
		stop := func() { done.Store(true); wg.Wait() }
		defer stop()
		for w := range uint64(2) {
			old := r.open(t, rdma.RoleWriter, txn.Config{})
			rnd := rand.New(rand.NewPCG(seed, 2+w))
			wg.Go(func() {
				for !done.Load() {
					if err := churn(old, tabs[rnd.IntN(len(tabs))], w, 2, rnd); err != nil {
						t.Error(err)
						return
					}
					writes.Add(1)
					time.Sleep(100 * time.Microsecond) // the builds are what takes processors
				}
			})
		}
		reader := r.open(t, rdma.RoleReader, txn.Config{})
		rnd := rand.New(rand.NewPCG(seed, 9))
		wg.Go(func() {
			for !done.Load() {
				tab := tabs[rnd.IntN(len(tabs))]
				err := unlessSlow(func() error {
					return reader.View(t.Context(), func(x *txn.Txn) error { return ranges(x, tab, rnd) })
				})
				switch {
				case err == nil:
					read.Add(1)
				case errors.Is(err, tables.ErrCatalog) || errors.Is(err, tables.ErrSchema):
					refused.Add(1)
				case !errors.Is(err, txn.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
		late := r.open(t, rdma.RoleReader, txn.Config{})
		twins := []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext, tables.TwinLocal}
		if r.name != "inproc" { // two of them, which depend on the seed
			at := seed % 3
			twins = twins[at : at+2]
		}
		for _, twin := range twins {
			for _, tab := range tabs {
				before := writes.Load()
				own, err := db.SetTwin(t.Context(), tab.Name(), twin)
				if err != nil {
					t.Fatal(err)
				}
				changes += 2
				if again, err := db.SetTwin(t.Context(), tab.Name(), twin); err != nil || again.Twin().ID != own.Twin().ID {
					t.Errorf("the twin again: %v", err)
				}
				during := writes.Load() - before
				look := func(x *txn.Txn) error { return ranges(x, tab, rand.New(rand.NewPCG(seed, 3))) }
				for range 2 {
					for _, err := range []error{
						unlessSlow(func() error { return db.View(t.Context(), look) }),
						unlessSlow(func() error { return late.View(t.Context(), look) }),
					} {
						if err != nil {
							t.Errorf("table %s, twin %s: %v", tab.Name(), twin, err)
						}
					}
				}
				if twin != tables.TwinNext {
					if err := errors.Join(db.Snapshot(t.Context(), look), db.Snapshot(t.Context(), look, txn.Staleness(time.Second))); err != nil {
						t.Errorf("table %s, twin %s: a snapshot: %v", tab.Name(), twin, err)
					}
				}
				t.Logf("table %s, twin %s: %d writes beside the build", tab.Name(), twin, during)
			}
			for _, tab := range tabs {
				if _, err := db.SetTwin(t.Context(), tab.Name(), tables.TwinSync); err == nil && twin != tables.TwinSync || err != nil && !errors.Is(err, tables.ErrSchema) {
					t.Errorf("another twin of a table that has one: %v", err)
				}
				own, err := db.Table(tab.Name())
				if err != nil {
					t.Fatal(err)
				}
				gone := own.Twin().ID
				if own, err = db.SetTwin(t.Context(), tab.Name(), ""); err != nil || own.Twin() != nil {
					t.Fatalf("a twin that is taken away: %v", err)
				}
				changes += 2
				look := func(x *txn.Txn) error { return ranges(x, tab, rand.New(rand.NewPCG(seed, 4))) }
				if err := db.View(t.Context(), look); !errors.Is(err, tables.ErrSchema) {
					t.Errorf("a range of a table without a twin: %v", err)
				}
				await(t, "the twin that was taken away has no entries", func() bool {
					var left uint64
					for _, s := range r.servers {
						for _, p := range s.parts.here {
							p.mu.Lock()
							left += p.index(gone).Stats().Rows
							p.mu.Unlock()
						}
					}
					return left == 0
				})
			}
		}
		stop()
		if err := r.agree(changes); err != nil {
			t.Error(err)
		}
		t.Logf("%d writes, %d reads of ranges, %d refused", writes.Load(), read.Load(), refused.Load())
	})
}

// TestTwinIsBuiltLate: while a server does not build, ranges are refused with an error
// that says so, loaders are, and everything else goes on, deletes of keys that the build
// has not found among it.
func TestTwinIsBuiltLate(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			net := inproc.New(inproc.Options{})
			late := &lateFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), step: stepBuild}
			r := startAltered(t, roleFabric{
				server: late, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
			}, 1<<26, 1<<26)
			db := r.open(t, rdma.RoleLoader, txn.Config{})
			tab, err := db.AddTable(t.Context(), twinDefs()[0])
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(testseed.Of(t), 2))
			work := func(db *txn.DB) {
				t.Helper()
				for range 300 {
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
			if _, err := db.SetTwin(ctx, tab.Name(), twin); !errors.Is(err, txn.ErrUnavailable) {
				t.Errorf("a twin that a server does not build: %v", err)
			}
			work(old)
			work(db)
			look := func(x *txn.Txn) error { return ranges(x, tab, rnd) }
			if err := db.View(t.Context(), look); !errors.Is(err, tables.ErrCatalog) {
				t.Errorf("ranges are read before the twin is built: %v", err)
			}
			if _, err := db.NewLoader(t.Context(), tab); !errors.Is(err, tables.ErrCatalog) {
				t.Errorf("a loader beside the build of a twin: %v", err)
			}
			late.lose.Store(false)
			if _, err := db.SetTwin(t.Context(), tab.Name(), twin); err != nil {
				t.Fatal(err)
			}
			work(old)
			if err := db.View(t.Context(), look); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTwinWithoutMemory: a twin that a partition has no memory for is refused, the table
// has none, and its rows can be written.
func TestTwinWithoutMemory(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			r := inprocRig(t, 1<<24, 1<<24)
			db := r.open(t, rdma.RoleLoader, txn.Config{})
			d := tables.Def{
				Name: "big", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
				Columns: []tables.Column{{Name: "text", Type: tables.Text, Size: 1000}},
			}
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			n := uint64(0)
			for full := false; !full; n += 500 {
				err := db.Update(t.Context(), func(x *txn.Txn) error {
					for k := range uint64(500) {
						if err := x.Insert(tab, tables.Num(n+k), tab.NewRow()); err != nil {
							return err
						}
					}
					return nil
				})
				if full = errors.Is(err, txn.ErrOutOfMemory); err != nil && !full {
					t.Fatal(err)
				}
			}
			_, err = db.SetTwin(t.Context(), tab.Name(), twin)
			if !errors.Is(err, txn.ErrOutOfMemory) {
				t.Fatalf("a twin without memory: %v, want ErrOutOfMemory", err)
			}
			if err := db.Update(t.Context(), func(x *txn.Txn) error { return x.Delete(tab, tables.Num(3)) }); err != nil {
				t.Error(err)
			}
			own, err := db.Table(tab.Name())
			if err != nil || own.Twin() != nil {
				t.Errorf("the table has the twin that was refused: %v", err)
			}
		})
	}
}

// TestTwinByChange: changes that make no sense are refused by name.
func TestTwinByChange(t *testing.T) {
	t.Parallel()
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	for _, c := range []struct {
		table string
		twin  tables.Twin
		want  error
	}{
		{"nowhere", tables.TwinLocal, tables.ErrSchema},
		{"account", "far", tables.ErrSchema},
		{"entry", tables.TwinLocal, tables.ErrSchema}, // ordered
	} {
		if _, err := db.SetTwin(t.Context(), c.table, c.twin); !errors.Is(err, c.want) {
			t.Errorf("table %s, twin %q: %v, want %v", c.table, c.twin, err, c.want)
		}
	}
	c := r.dial(t, rdma.Identity{Role: rdma.RoleLoader}, r.addrs[0])
	for _, bad := range []string{`{"twin":{}}`, `{"twin":{"table":"account"},"table":{"name":"x"}}`, `{"twin":7}`} {
		if resp, err := rdma.Call(t.Context(), c, append([]byte{byte(wire.OpAlter)}, bad...), nil); err != nil || len(resp) == 0 || wire.Code(resp[0]) == wire.OK {
			t.Errorf("change %s is answered with %q: %v", bad, resp, err)
		}
	}
}

// TestOldReadersOfATwin: clients that do not know that a twin was taken away read no empty
// range in it, by READs or by RPCs, and do not write what rests on one.
func TestOldReadersOfATwin(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			r := inprocRig(t, 1<<26, 1<<26)
			db := r.open(t, rdma.RoleLoader, txn.Config{})
			d := twinDefs()[0]
			d.Twin = twin
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(testseed.Of(t), 2))
			for range 300 {
				if err := churn(db, tab, 0, 1, rnd); err != nil {
					t.Fatal(err)
				}
			}
			look := func(x *txn.Txn) error { return ranges(x, tab, rnd) }
			account := r.cat.MustTable("account")
			use := map[string]func(*txn.DB) error{
				"a View":     func(db *txn.DB) error { return db.View(t.Context(), look) },
				"a Snapshot": func(db *txn.DB) error { return db.Snapshot(t.Context(), look) },
				"an Update": func(db *txn.DB) error {
					return db.Update(t.Context(), func(x *txn.Txn) error {
						if _, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries(); err != nil {
							return err
						}
						return x.Put(account, tables.Num(7), account.NewRow())
					})
				},
			}
			if twin == tables.TwinNext {
				delete(use, "a Snapshot")
			}
			old := map[string][]*txn.DB{}
			for name, try := range use {
				for _, path := range []txn.ReadPath{txn.OneSided, txn.OrderedByRPC} {
					o := r.open(t, rdma.RoleWriter, txn.Config{Reads: path})
					if err := try(o); err != nil {
						t.Fatal(err)
					}
					old[name] = append(old[name], o)
				}
			}
			id := tab.Twin().ID
			if _, err := db.SetTwin(t.Context(), tab.Name(), ""); err != nil {
				t.Fatal(err)
			}
			await(t, "the twin is empty", func() bool {
				var left uint64
				for _, s := range r.servers {
					for _, p := range s.parts.here {
						p.mu.Lock()
						left += p.index(id).Stats().Rows
						p.mu.Unlock()
					}
				}
				return left == 0
			})
			for name, try := range use {
				for i, o := range old[name] {
					if err := try(o); !errors.Is(err, tables.ErrSchema) {
						t.Errorf("%s, read path %d: %v, want that the table has no ranges", name, i, err)
					}
				}
			}
		})
	}
}

// TestTwinLeavesInTwoSteps: a data server has not heard yet that a twin is taken away. Clients
// that read ranges in its memory find what is committed at the server that has.
func TestTwinLeavesInTwoSteps(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			net := inproc.New(inproc.Options{})
			late := &lateFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), step: stepUse}
			r := startAltered(t, roleFabric{
				server: late, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
			}, 1<<26, 1<<26)
			db := r.open(t, rdma.RoleLoader, txn.Config{})
			d := twinDefs()[0]
			d.Twin = twin
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			var keys []tables.Key // whose rows are at the server that hears of it
			for id := uint64(0); len(keys) < 20; id++ {
				if k := growKey(tab, id); r.servers[0].parts.of[d.Partition.Of(k, 4)] != nil {
					keys = append(keys, k)
				}
			}
			look := func(x *txn.Txn) error { return ranges(x, tab, rand.New(rand.NewPCG(1, 1))) }
			var readers []*txn.DB // which know all servers, and hear of nothing more until they are refused
			for range keys {
				o := r.open(t, rdma.RoleReader, txn.Config{})
				if err := o.View(t.Context(), look); err != nil {
					t.Fatal(err)
				}
				readers = append(readers, o)
			}
			writer := r.open(t, rdma.RoleWriter, txn.Config{})
			if err := writer.View(t.Context(), look); err != nil {
				t.Fatal(err)
			}
			late.lose.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), 2*alterPatience)
			defer cancel()
			if _, err := db.SetTwin(ctx, tab.Name(), ""); !errors.Is(err, txn.ErrUnavailable) {
				t.Errorf("a server has not followed: %v", err)
			}
			found := 0
			for i, k := range keys {
				if err := writer.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(tab, k, tab.NewRow()) }); err != nil {
					t.Fatal(err)
				}
				err := readers[i].View(t.Context(), func(x *txn.Txn) error {
					es, err := x.QueueScan(tab.Primary(), k, k, 0).Entries()
					if err == nil && len(es) == 0 {
						return fmt.Errorf("row %v was committed, and a range does not have it", k)
					}
					return err
				})
				switch {
				case err == nil:
					found++
				case !errors.Is(err, tables.ErrCatalog):
					t.Error(err)
				}
			}
			late.lose.Store(false)
			if own, err := db.SetTwin(t.Context(), tab.Name(), ""); err != nil || own.Twin() != nil {
				t.Errorf("the twin is not taken away: %v", err)
			}
			t.Logf("%d of %d ranges were read, the others refused", found, len(keys))
		})
	}
}

// marked is a row of a table whose twin comes and goes.
type marked struct {
	ID uint64 `drtmx:"key"`
	N  int64
}

var markTable = tables.Of[marked]("mark", tables.WithPrimary(tables.Hash), tables.WithTwin(tables.TwinSync), tables.WithPartition(tables.Partitioning{Kind: tables.ByBits}))

// markRuns is how often the body of markProcedure has run.
var markRuns atomic.Int64

// markProcedure inserts a row unless it is there.
func markProcedure() txn.Procedure {
	return txn.Procedure{Name: "mark", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		markRuns.Add(1)
		own := marked{ID: uint64(args[0])}
		if err := markTable.Get(t, &own); !errors.Is(err, txn.ErrNotFound) {
			return nil, err
		}
		own.N = 2
		return nil, markTable.Insert(t, &own)
	}}
}

// parkedFabric holds back requests of one kind, once it is told to.
type parkedFabric struct {
	rdma.Provider
	op      wire.Op
	armed   atomic.Bool
	reached chan string // where the held request goes
	release chan struct{}
}

type parkedConn struct {
	rdma.Conn
	f  *parkedFabric
	to string
}

func (f *parkedFabric) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := f.Provider.Dial(ctx, addr)
	return &parkedConn{c, f, addr}, err
}

func (c *parkedConn) StartCall(ctx context.Context, req []byte) error {
	if wire.Op(req[0]) == c.f.op && c.f.armed.CompareAndSwap(true, false) {
		c.f.reached <- c.to
		<-c.f.release
	}
	return c.Conn.StartCall(ctx, req)
}

// TestTwinLeavesBesideCommit: a transaction has found a range empty, and the data server of the twin is
// prepared, but the other one has not decided. So the twin stays maintained: who inserts into that range meets
// the lock, and no View sees such a row before that transaction is over.
func TestTwinLeavesBesideCommit(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinSync, tables.TwinNext} {
		t.Run(string(twin), func(t *testing.T) {
			tried := 0
			for reader := range 2 { // the data server whose share has the range
				net := inproc.New(inproc.Options{})
				held := &parkedFabric{
					Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), op: wire.OpHandOver,
					reached: make(chan string, 1), release: make(chan struct{}),
				}
				r := startAltered(t, roleFabric{
					server: held, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
				}, 1<<26, 1<<26)
				if r.commitWhileTwinLeaves(t, twin, reader, held) {
					tried++
				}
			}
			if tried == 0 {
				t.Error("the share with the range is never the first one")
			}
		})
	}
}

// commitWhileTwinLeaves returns false if the share without proofs is prepared first.
func (r *alterRig) commitWhileTwinLeaves(t *testing.T, twin tables.Twin, reader int, held *parkedFabric) bool {
	t.Helper()
	ctx := t.Context()
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	d := twinDefs()[0]
	d.Twin, d.Partition = twin, tables.Partitioning{Kind: tables.ByBits, Shift: 8}
	tab, err := db.AddTable(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	entry := r.cat.MustTable("entry")
	var absent tables.Key
	var written [2]tables.Key // a row at each data server
	for p := range uint64(4) {
		for server := range written {
			if r.servers[server].parts.of[p] != nil {
				written[server] = tables.Num(p<<32 | 7)
			}
		}
		if r.servers[reader].parts.of[(p+1)%4] != nil { // where the twin has the keys of partition p
			absent = tables.Num(p<<8 | 5)
		}
	}
	amount := func(n int64) tables.Row {
		row := entry.NewRow()
		row.SetInt(entry.Field("amount"), n)
		return row
	}
	put := func(x *txn.Txn, n int64) error {
		return errors.Join(x.Put(entry, written[0], amount(n)), x.Put(entry, written[1], amount(n)))
	}
	if err := db.Update(ctx, func(x *txn.Txn) error { return put(x, 1) }); err != nil {
		t.Fatal(err)
	}
	old := r.open(t, rdma.RoleWriter, txn.Config{})
	done := make(chan error, 1)
	held.armed.Store(true)
	go func() {
		done <- old.Update(ctx, func(x *txn.Txn) error {
			es, err := x.QueueScan(tab.Primary(), absent, absent, 0).Entries()
			if err != nil || len(es) > 0 {
				return fmt.Errorf("%d rows: %w", len(es), err)
			}
			return put(x, 2)
		})
	}()
	last := 0
	select {
	case to := <-held.reached:
		last = slices.Index(r.addrs, to)
	case err := <-done:
		t.Fatalf("nothing was handed over: %v", err)
	}
	if last == reader {
		close(held.release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		return false
	}
	left := make(chan error, 1)
	go func() {
		_, err := db.SetTwin(ctx, tab.Name(), "")
		left <- err
	}()
	await(t, "both data servers know that the twin leaves", func() bool {
		return r.servers[0].catalog.Load().Version() >= 2 && r.servers[1].catalog.Load().Version() >= 2
	})
	other := r.open(t, rdma.RoleWriter, txn.Config{})
	sees := false
	for range 20 {
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		err := other.Update(soon, func(x *txn.Txn) error { return x.Insert(tab, absent, tab.NewRow()) })
		cancel()
		if err != nil {
			continue
		}
		if err := other.View(ctx, func(x *txn.Txn) error {
			_, missing := x.Get(tab, absent)
			row, err := x.Get(entry, written[last])
			if err == nil && missing == nil {
				sees = row.Int(entry.Field("amount")) == 1
			}
			return errors.Join(err, missing)
		}); err != nil {
			t.Error(err)
		}
		break
	}
	close(held.release)
	if err := <-done; err == nil && sees {
		t.Error("a transaction that has not seen a row commits after a View that saw the row without it")
	} else if err != nil && !errors.Is(err, tables.ErrSchema) && !errors.Is(err, tables.ErrCatalog) {
		t.Error(err) // begun again, it finds no twin, or one that is being taken away
	}
	if err := <-left; err != nil {
		t.Error(err)
	}
	return true
}

// TestEntriesOfAnEndedTwin: a data server has not heard that a twin is not maintained any more, and has
// the entry of a row that was deleted since. That refuses no insert of the row.
func TestEntriesOfAnEndedTwin(t *testing.T) {
	t.Parallel()
	net := inproc.New(inproc.Options{})
	late := &lateFabric{Provider: net.As(rdma.Identity{Role: rdma.RoleServer}), step: stepMake}
	r := startAltered(t, roleFabric{
		server: late, addrs: []string{"a", "b"}, as: func(_ testing.TB, who rdma.Identity) rdma.Provider { return net.As(who) },
	}, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	tab, err := db.AddTable(t.Context(), markTable)
	if err != nil {
		t.Fatal(err)
	}
	id := uint64(0) // of a row at a whose entry is at b
	by := tables.Partitioning{Kind: tables.ByBits}
	at := func(server int, id uint64) bool { return r.servers[server].parts.of[by.Of(tables.Num(id), 4)] != nil }
	for !at(0, id) || !at(1, id+1) {
		id++
	}
	home, err := db.Home(tab, tables.Num(id+1))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(t.Context(), func(x *txn.Txn) error { return markTable.Insert(x, &marked{ID: id, N: 1}) }); err != nil {
		t.Fatal(err)
	}
	take := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*alterPatience)
		defer cancel()
		if _, err := db.SetTwin(ctx, tab.Name(), ""); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("a server has not followed: %v", err)
		}
	}
	late.passes.Store(1) // of the version in which nobody reads the twin
	late.lose.Store(true)
	take()
	if _, err := db.Call(t.Context(), home, "mark", []byte{byte(id)}); err != nil { // then the server's own client knows that one
		t.Fatal(err)
	}
	late.uses.Store(true)
	take()
	a, b := r.servers[0].catalog.Load(), r.servers[1].catalog.Load()
	if twin := b.MustTable(tab.Name()).Twin(); a.MustTable(tab.Name()).Twin() != nil || twin == nil || !twin.IsLeaving() {
		t.Fatalf("the servers have versions %d and %d", a.Version(), b.Version())
	}
	if err := db.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Update(t.Context(), func(x *txn.Txn) error { return markTable.Delete(x, &marked{ID: id}) }); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := db.Call(context.Background(), home, "mark", []byte{byte(id)})
		done <- err
	}()
	for markRuns.Store(0); markRuns.Load() < 4 && len(done) == 0; {
		time.Sleep(time.Millisecond)
	}
	late.lose.Store(false)
	if err := <-done; err != nil {
		t.Errorf("an insert of a row that was deleted: %v", err)
	}
	if own, err := db.SetTwin(t.Context(), tab.Name(), ""); err != nil || own.Twin() != nil {
		t.Errorf("the twin is not taken away: %v", err)
	}
}

// TestTwinOutlivesCrashes: all servers crash at moments of a build, or while a twin is taken
// away, beside a writer. When they run again they complete it, and ranges have the rows.
func TestTwinOutlivesCrashes(t *testing.T) {
	t.Parallel()
	for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinSync} {
		t.Run(string(twin), func(t *testing.T) {
			cat, mem := crashCatalog(t), vfstest.NewCrashableMem()
			fs, account := vfstest.New(mem), cat.MustTable("account")
			rnd := rand.New(rand.NewPCG(testseed.Of(t), 5))
			var mu sync.Mutex
			var left []*vfstest.Mem
			changing := false
			fs.Before = func(_ int, op vfstest.Op, _ string) error {
				mu.Lock()
				defer mu.Unlock()
				if changing && leaves(op) && rnd.IntN(12) == 0 && len(left) < 60 {
					left = append(left, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rand.New(rand.NewPCG(rnd.Uint64(), 0))}))
				}
				return nil
			}
			cl, err := crashBank(fs, cat, 2, rnd.Uint64())
			if err != nil {
				t.Fatal(err)
			}
			put := func(db *txn.DB, n uint64) error {
				row := account.NewRow()
				row.SetInt(account.Field("id"), int64(n%crashTwinKeys))
				row.SetInt(account.Field("balance"), int64(n))
				return unlessSlow(func() error {
					return db.Update(t.Context(), func(x *txn.Txn) error {
						if n%3 == 0 {
							if err := x.Delete(account, tables.Num(n%crashTwinKeys)); !errors.Is(err, txn.ErrNotFound) {
								return err
							}
						}
						return x.Put(account, tables.Num(n%crashTwinKeys), row)
					})
				})
			}
			for n := range uint64(crashTwinKeys) {
				if err := put(cl.DB, 3*n+1); err != nil {
					t.Fatal(err)
				}
			}
			mu.Lock()
			changing = true
			mu.Unlock()
			var wg sync.WaitGroup
			var done atomic.Bool
			wg.Go(func() {
				for n := uint64(0); !done.Load(); n += 7 {
					if err := put(cl.DB, n); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range 2 {
				for _, to := range []tables.Twin{twin, ""} {
					if _, err := cl.DB.SetTwin(t.Context(), "account", to); err != nil {
						t.Errorf("twin %q: %v", to, err)
					}
				}
			}
			done.Store(true)
			wg.Wait()
			mu.Lock()
			changing = false
			mu.Unlock()
			if err := cl.Close(); err != nil {
				t.Error(err)
			}
			with := 0
			rnd.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
			for i, disk := range left[:min(len(left), 10)] {
				has, err := recoverTwin(t, cat, disk, twin, put)
				if err != nil {
					t.Errorf("crash %d of %d: %v", i, len(left), err)
				}
				if has {
					with++
				}
			}
			t.Logf("%d crashes, of the first ten %d with a twin", len(left), with)
		})
	}
}

const crashTwinKeys = 150

// recoverTwin opens what a crash left, and reports whether the table has a twin.
func recoverTwin(t *testing.T, cat *tables.Catalog, disk *vfstest.Mem, twin tables.Twin, put func(*txn.DB, uint64) error) (has bool, err error) {
	t.Helper()
	cl, err := crashBank(disk, cat, 2, 3)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	await(t, "the change is complete", func() bool {
		version := cl.Servers[0].catalog.Load().Version()
		for _, s := range cl.Servers {
			c := s.catalog.Load()
			if c.Version() != version || len(c.MustTable("account").Building()) > 0 {
				return false
			}
		}
		return true
	})
	if err := cl.DB.Refresh(t.Context()); err != nil {
		return false, err
	}
	tab, err := cl.DB.Table("account")
	if err != nil {
		return false, err
	}
	compare := func() error {
		return unlessSlow(func() error {
			return cl.DB.View(t.Context(), func(x *txn.Txn) error {
				es, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
				if err != nil {
					return err
				}
				at := 0
				for n := range uint64(crashTwinKeys) {
					row, err := x.Get(tab, tables.Num(n))
					switch {
					case errors.Is(err, txn.ErrNotFound):
						if at < len(es) && es[at].Key.Num() == n {
							return fmt.Errorf("a range has row %d, which is not there", n)
						}
					case err != nil:
						return err
					case at == len(es) || es[at].Key.Num() != n || string(es[at].Row) != string(row):
						return fmt.Errorf("a range of %d rows lacks row %d", len(es), n)
					default:
						at++
					}
				}
				return nil
			})
		})
	}
	if has = tab.Twin() != nil; has {
		if err := compare(); err != nil {
			return has, err
		}
	}
	for _, to := range []tables.Twin{"", twin} {
		if tab, err = cl.DB.SetTwin(t.Context(), "account", to); err != nil {
			return has, err
		}
		for n := range uint64(20) {
			if err := put(cl.DB, 17*n); err != nil {
				return has, err
			}
		}
	}
	return has, compare()
}
