package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Each writer moves money between accounts. Its transfer k inserts entry k, whose
// row says what was moved, puts a row with a string key that has k, and inserts or
// deletes a row, by turns. So the state at any tick tells how far each writer was, and
// must be what that follows from.
const (
	accounts    = 24
	balance     = 1000
	writers     = 3
	largeBytes  = 40 << 10
	replicated  = 10
	entryShift  = 32
	entriesMax  = 1 << 20
	ownersCount = 4
)

func schema(t testing.TB) *tables.Catalog {
	t.Helper()
	c, err := tables.NewCatalog(
		tables.Def{
			Name: "account", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "id", Type: tables.Int64}, {Name: "balance", Type: tables.Int64}, {Name: "owner", Type: tables.Int32}},
			Secondary: []tables.Secondary{{
				Name: "by_owner", Include: []string{"balance"}, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 32},
				Key: []tables.KeyPart{{Column: "owner", Bits: 32, How: tables.Value}, {Column: "id", Bits: 32, How: tables.Value}},
			}},
		},
		tables.Def{
			Name: "entry", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: entryShift}, Grows: true,
			Columns: []tables.Column{{Name: "from", Type: tables.Int64}, {Name: "to", Type: tables.Int64}, {Name: "amount", Type: tables.Int64}},
		},
		tables.Def{
			Name: "progress", Key: tables.StringKey, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{{Name: "k", Type: tables.Int64}, {Name: "large", Type: tables.Bytes}},
		},
		tables.Def{
			Name: "odd", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: []tables.Column{{Name: "k", Type: tables.Int64}},
		},
		tables.Def{
			Name: "fixed", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.Replicated},
			Columns: []tables.Column{{Name: "v", Type: tables.Int64}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// world is a cluster with writers.
type world struct {
	t    testing.TB
	net  *inproc.Network
	cl   *server.Cluster
	dir  string
	stop chan struct{}
	wg   sync.WaitGroup
	logs [writers][]span // of the transfers that were acknowledged
}

// span is the time of a transfer: it commits at one of these ticks.
type span struct{ from, to clock.Tick }

func openWorld(t testing.TB, dir string, servers, partitions int, change func(*server.EmbeddedConfig)) *world {
	t.Helper()
	w := &world{t: t, net: inproc.New(inproc.Options{}), dir: dir, stop: make(chan struct{})}
	c := server.EmbeddedConfig{
		Catalog: schema(t), Servers: servers, Partitions: partitions, Network: w.net, Durability: server.Disk, Dir: dir, SegmentBytes: 1 << 20,
		CheckpointBytes: 1 << 20,
	}
	if change != nil {
		change(&c)
	}
	var err error
	if w.cl, err = server.Embedded(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) load() {
	db := w.cl.DB
	acct, fixed := db.Catalog().MustTable("account"), db.Catalog().MustTable("fixed")
	load := func(tab *tables.Table, n int, row func(i int) tables.Row) {
		l, err := db.NewLoader(w.t.Context(), tab)
		for i := 0; i < n && err == nil; i++ {
			err = l.Add(tables.Num(uint64(i)), row(i))
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	load(acct, accounts, func(i int) tables.Row {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(i))
		row.SetInt(acct.Field("balance"), balance)
		row.SetInt(acct.Field("owner"), int64(i%ownersCount))
		return row
	})
	load(fixed, replicated, func(i int) tables.Row {
		row := fixed.NewRow()
		row.SetInt(fixed.Field("v"), int64(i*i))
		return row
	})
	if err := db.Seal(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func large(writer int, k int64) []byte {
	return bytes.Repeat([]byte{byte(writer), byte(k), 7}, largeBytes/3)
}

// transfer is transfer k of a writer.
func transfer(ctx context.Context, db *txn.DB, r *rand.Rand, writer int, k int64) error {
	c := db.Catalog()
	acct, entry, progress, odd := c.MustTable("account"), c.MustTable("entry"), c.MustTable("progress"), c.MustTable("odd")
	from, to, amount := r.IntN(accounts), r.IntN(accounts), int64(r.IntN(50))
	bal := acct.Field("balance")
	return db.Update(ctx, func(t *txn.Txn) error {
		if from != to {
			for id, d := range map[int]int64{from: -amount, to: amount} {
				row, err := t.Get(acct, tables.Num(uint64(id)))
				if err != nil {
					return err
				}
				row = row.Clone()
				row.SetInt(bal, row.Int(bal)+d)
				if err := t.Update(acct, tables.Num(uint64(id)), row); err != nil {
					return err
				}
			}
		}
		e := entry.NewRow()
		e.SetInt(entry.Field("from"), int64(from))
		e.SetInt(entry.Field("to"), int64(to))
		e.SetInt(entry.Field("amount"), amount)
		if err := t.Insert(entry, tables.Num(uint64(writer)<<entryShift|uint64(k)), e); err != nil {
			return err
		}
		p := progress.NewRow()
		p.SetInt(progress.Field("k"), k)
		if k%16 == 0 {
			p.SetBytes(progress.Field("large"), large(writer, k))
		}
		if err := t.Put(progress, tables.Str(fmt.Sprintf("writer %d", writer)), p); err != nil {
			return err
		}
		if k%2 == 0 {
			return t.Delete(odd, tables.Num(uint64(writer)))
		}
		o := odd.NewRow()
		o.SetInt(odd.Field("k"), k)
		return t.Insert(odd, tables.Num(uint64(writer)), o)
	})
}

// write starts the writers.
func (w *world) write(seed uint64) {
	ticks := clock.NewTicks()
	for i := range writers {
		w.wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for k := int64(1); ; k++ {
				select {
				case <-w.stop:
					return
				default:
				}
				from := ticks.Now()
				if err := transfer(context.Background(), w.cl.DB, r, i, k); err != nil {
					w.t.Errorf("writer %d, transfer %d: %v", i, k, err)
					return
				}
				w.logs[i] = append(w.logs[i], span{from, ticks.Now()})
				time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			}
		})
	}
}

func (w *world) end() {
	close(w.stop)
	w.wg.Wait()
}

func (w *world) options(dir string) Options {
	return Options{Addrs: w.cl.DB.Servers(), Dial: w.net.Dial, Dir: dir, Every: 30 * time.Millisecond}
}

// checkState checks that the state of a database is that after some transfers of each
// writer, and returns of how many.
func checkState(t testing.TB, db *txn.DB) (done [writers]int64) {
	t.Helper()
	c := db.Catalog()
	acct, entry, progress, odd, fixed := c.MustTable("account"), c.MustTable("entry"), c.MustTable("progress"), c.MustTable("odd"), c.MustTable("fixed")
	err := db.View(context.Background(), func(tx *txn.Txn) error {
		var want [accounts]int64
		for i := range want {
			want[i] = balance
		}
		for i := range writers {
			row, err := tx.Get(progress, tables.Str(fmt.Sprintf("writer %d", i)))
			done[i] = 0
			if err == nil {
				done[i] = row.Int(progress.Field("k"))
				if b := row.Bytes(progress.Field("large")); done[i]%16 == 0 && !bytes.Equal(b, large(i, done[i])) {
					return fmt.Errorf("writer %d: the large value of transfer %d is wrong", i, done[i])
				}
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			k := int64(0)
			for e, err := range tx.Scan(entry.Primary(), tables.Num(uint64(i)<<entryShift), tables.Num(uint64(i)<<entryShift|entriesMax)) {
				if err != nil {
					return err
				}
				if k++; e.Key.Num() != uint64(i)<<entryShift|uint64(k) {
					return fmt.Errorf("writer %d: entry %d is missing", i, k)
				}
				want[e.Row.Int(entry.Field("from"))] -= e.Row.Int(entry.Field("amount"))
				want[e.Row.Int(entry.Field("to"))] += e.Row.Int(entry.Field("amount"))
			}
			if k != done[i] {
				return fmt.Errorf("writer %d: %d entries, its progress is %d", i, k, done[i])
			}
			if row, err = tx.Get(odd, tables.Num(uint64(i))); err == nil && row.Int(odd.Field("k")) != k || (err == nil) != (k%2 == 1) {
				return fmt.Errorf("writer %d after %d transfers: the row of odd ones: %v, %v", i, k, row, err)
			}
		}
		seen := 0
		for o := range ownersCount {
			for e, err := range tx.Scan(acct.Secondary("by_owner"), tables.Num(uint64(o)<<32), tables.Num(uint64(o)<<32|1<<31)) {
				if err != nil {
					return err
				}
				row, err := tx.Get(acct, acct.Secondary("by_owner").EntryOf(e.Row))
				if err != nil {
					return err
				}
				seen++
				if id := row.Int(acct.Field("id")); row.Int(acct.Field("balance")) != want[id] || e.Row.Int(acct.Secondary("by_owner").Field("balance")) != want[id] {
					return fmt.Errorf("account %d has %d, want %d after %v transfers", id, row.Int(acct.Field("balance")), want[id], done)
				}
			}
		}
		if seen != accounts {
			return fmt.Errorf("%d accounts, want %d", seen, accounts)
		}
		for i := range replicated {
			if row, err := tx.Get(fixed, tables.Num(uint64(i))); err != nil || row.Int(fixed.Field("v")) != int64(i*i) {
				return fmt.Errorf("row %d of the replicated table: %v, %v", i, row, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// checkRestored restores a tick and checks that the state is that of the tick.
func (w *world) checkRestored(from string, at clock.Tick, servers, partitions int) {
	w.t.Helper()
	dir := filepath.Join(w.t.TempDir(), "restored")
	res, err := Restore(w.t.Context(), RestoreOptions{From: from, Dir: dir, To: at, Servers: servers, Partitions: partitions})
	if err != nil {
		w.t.Fatal(err)
	}
	cl, err := server.Embedded(w.t.Context(), server.EmbeddedConfig{
		Catalog: nil, Servers: servers, Partitions: partitions, Durability: server.Disk, Dir: dir,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	done := checkState(w.t, cl.DB)
	// Clocks of one machine may differ by a tick.
	for i, log := range w.logs {
		for k, s := range log {
			present := int64(k) < done[i]
			if s.to+1 < res.To && !present || s.from > res.To+1 && present {
				w.t.Errorf("writer %d: transfer %d committed at a tick from %d to %d; at tick %d it is there: %v", i, k+1, s.from, s.to, res.To, present)
			}
		}
	}
	for _, s := range cl.Servers {
		if err := s.Check(); err != nil {
			w.t.Error(err)
		}
	}
	w.t.Logf("tick %d in %d servers with %d partitions: %v transfers", res.To, servers, partitions, done)
}

// TestBackup: a backup that is made while writers run can be restored to any tick
// in its range, into any layout, and is then the state at that tick.
func TestBackup(t *testing.T) {
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 99))
	for _, servers := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			w := openWorld(t, t.TempDir(), servers, servers+r.IntN(3), nil)
			defer w.cl.Close()
			w.load()
			w.write(seed)
			time.Sleep(100 * time.Millisecond)
			dir := filepath.Join(t.TempDir(), "backup")
			o := w.options(dir)
			o.Follow, o.For = true, 500*time.Millisecond
			m, err := Run(t.Context(), o)
			w.end()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Verify(vfs.Default, dir, nil); err != nil {
				t.Fatal(err)
			}
			t.Logf("ticks %d to %d", m.First, m.Last)
			for i, at := range []clock.Tick{m.First, m.Last, m.First + clock.Tick(r.Uint64N(uint64(m.Last-m.First+1))), m.First + clock.Tick(r.Uint64N(uint64(m.Last-m.First+1)))} {
				n := 1 + (i+servers)%3
				w.checkRestored(dir, at, n, n+r.IntN(4))
			}
			for _, at := range []clock.Tick{m.First - 1, m.Last + 1} {
				if _, err := Restore(t.Context(), RestoreOptions{From: dir, Dir: filepath.Join(t.TempDir(), "r"), To: at}); !errors.Is(err, ErrRange) {
					t.Errorf("restore to tick %d: %v", at, err)
				}
			}
		})
	}
}
