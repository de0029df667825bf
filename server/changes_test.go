package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// Each row counts how often it was written, and says by which transaction and how many
// rows that wrote. So a feed shows itself whether it leaves out, doubles, splits or
// exchanges anything: rows count on one by one, and changes have all rows of one
// transaction.
const (
	feedKeys   = 12
	feedTables = 3
	feedLarge  = 20 << 10
)

func feedCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	columns := []tables.Column{{Name: "n", Type: tables.Int64}, {Name: "id", Type: tables.Int64}, {Name: "count", Type: tables.Int64}}
	c, err := tables.NewCatalog(
		tables.Def{
			Name: "number", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: columns,
			Secondary: []tables.Secondary{{
				Name: "by_id", Partition: tables.Partitioning{Kind: tables.ByHash},
				Key: []tables.KeyPart{{Column: "id", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
			}},
		},
		tables.Def{
			Name: "text", Key: tables.StringKey, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
			Columns: append(slices.Clone(columns), tables.Column{Name: "large", Type: tables.Bytes}),
		},
		tables.Def{Name: "ordered", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 1}, Columns: columns},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// feedRow is a row as the model has it.
type feedRow struct{ n, id, count int64 }

// feedPlace is a row's table and key.
type feedPlace struct {
	table string
	key   tables.Key
}

// feedWorld is a cluster with writers and what they know.
type feedWorld struct {
	t     testing.TB
	db    *txn.DB
	seed  uint64
	mu    sync.Mutex
	fates map[int64]error // of each transaction; nil: committed
	seen  []map[feedPlace]int64
}

var errRolledBack = errors.New("rolled back on purpose")

func feedPlaces(c *tables.Catalog) (places []feedPlace) {
	for _, t := range c.Tables {
		for k := range uint64(feedKeys) {
			key := tables.Num(k)
			if t.Primary().Key == tables.StringKey {
				key = tables.Str(fmt.Sprintf("key %d", k))
			}
			places = append(places, feedPlace{t.Name(), key})
		}
	}
	return places
}

// write is one transaction.
func (w *feedWorld) write(ctx context.Context, r *rand.Rand, id int64) error {
	c := w.db.Catalog()
	places := feedPlaces(c)
	r.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	places = places[:1+r.IntN(4)]
	back, large := r.IntN(10) == 0, r.IntN(20) == 0
	gone := make([]bool, len(places))
	for i := range gone {
		gone[i] = i > 0 && r.IntN(4) == 0
	}
	return w.db.Update(ctx, func(t *txn.Txn) error {
		rows, count := make([]tables.Row, len(places)), int64(0)
		for i, p := range places {
			row, err := t.Get(c.MustTable(p.table), p.key)
			if err != nil && !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			if rows[i] = row.Clone(); row != nil || !gone[i] {
				count++
			}
		}
		for i, p := range places {
			tab := c.MustTable(p.table)
			row, was := rows[i], rows[i] != nil
			if gone[i] {
				if was {
					if err := t.Delete(tab, p.key); err != nil {
						return err
					}
				}
				continue
			}
			n := int64(1)
			if was {
				n = row.Int(tab.Field("n")) + 1
			} else {
				row = tab.NewRow()
			}
			row.SetInt(tab.Field("n"), n)
			row.SetInt(tab.Field("id"), id)
			row.SetInt(tab.Field("count"), count)
			if large && p.table == "text" {
				row.SetBytes(tab.Field("large"), bytes.Repeat([]byte{byte(id)}, feedLarge))
			}
			put := t.Put
			if was && id%2 == 0 {
				put = t.Update
			}
			if err := put(tab, p.key, row); err != nil {
				return err
			}
		}
		if back {
			return errRolledBack
		}
		return nil
	})
}

// writers writes until done is closed.
func (w *feedWorld) writers(n int, done <-chan struct{}) (wait func()) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(w.seed, uint64(i)))
			for k := int64(1); ; k++ {
				select {
				case <-done:
					return
				default:
				}
				id := int64(i+1)<<32 | k
				ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
				err := w.write(ctx, r, id)
				cancel()
				w.mu.Lock()
				w.fates[id] = err
				w.mu.Unlock()
				if r.IntN(8) == 0 {
					time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
				}
			}
		})
	}
	return wg.Wait
}

// snapshots keeps what snapshots find, until done is closed.
func (w *feedWorld) snapshots(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if state, err := w.state(); err == nil {
			w.mu.Lock()
			w.seen = append(w.seen, state)
			w.mu.Unlock()
		}
	}
}

// state is how often each row was written, by a snapshot.
func (w *feedWorld) state() (state map[feedPlace]int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	defer cancel()
	c := w.db.Catalog()
	err = w.db.Snapshot(ctx, func(t *txn.Txn) error {
		state = map[feedPlace]int64{}
		for _, p := range feedPlaces(c) {
			tab := c.MustTable(p.table)
			row, err := t.Get(tab, p.key)
			if err == nil {
				state[p] = row.Int(tab.Field("id"))<<16 | row.Int(tab.Field("n"))
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
		}
		return nil
	})
	return state, err
}

// feedModel is what a consumer makes of a feed.
type feedModel struct {
	rows    map[feedPlace]feedRow
	ids     map[int64]bool
	last    uint64 // tick
	closed  bool   // the last change was the last one of its tick
	cursors []string
	states  []map[feedPlace]int64 // at the end of each tick
	kinds   [4]int
	several int // changes of several partitions
}

func newFeedModel() *feedModel {
	return &feedModel{rows: map[feedPlace]feedRow{}, ids: map[int64]bool{}, closed: true, states: []map[feedPlace]int64{{}}}
}

// take applies a change, and finds what is wrong with it.
func (m *feedModel) take(c *txn.Change) error {
	if c.Tick < m.last || c.Tick == m.last && m.closed && len(m.cursors) > 0 || c.Tick > m.last && !m.closed {
		return fmt.Errorf("a change of tick %d after one of tick %d, the last one of its tick: %v", c.Tick, m.last, m.closed)
	}
	m.last, m.closed = c.Tick, c.Last
	id, count, parts := int64(0), int64(0), map[int]bool{}
	for i := range c.Writes {
		x := &c.Writes[i]
		p := feedPlace{x.Table.Name(), x.Key}
		was, there := m.rows[p]
		parts[x.Partition] = true
		if x.Kind == txn.Deleted {
			m.kinds[2]++
			if !there || x.Row != nil {
				return fmt.Errorf("tick %d: %s %v is deleted, it was there: %v", c.Tick, p.table, p.key, there)
			}
			delete(m.rows, p)
			continue
		}
		now := feedRow{x.Row.Int(x.Table.Field("n")), x.Row.Int(x.Table.Field("id")), x.Row.Int(x.Table.Field("count"))}
		switch {
		case x.Kind == txn.Inserted && (there || now.n != 1), x.Kind == txn.Updated && (!there || now.n != was.n+1), x.Kind == txn.Loaded:
			return fmt.Errorf("tick %d: %v of %s %v: %+v, it was there: %v, %+v", c.Tick, x.Kind, p.table, p.key, now, there, was)
		case id != 0 && (id != now.id || count != now.count):
			return fmt.Errorf("tick %d: a change has rows of transactions %d and %d", c.Tick, id, now.id)
		}
		m.kinds[x.Kind-txn.Inserted]++
		id, count = now.id, now.count
		m.rows[p] = now
	}
	if int64(len(c.Writes)) != count {
		return fmt.Errorf("tick %d: a change of transaction %d has %d rows of %d", c.Tick, id, len(c.Writes), count)
	}
	if m.ids[id] {
		return fmt.Errorf("transaction %d comes twice", id)
	}
	if len(parts) > 1 {
		m.several++
	}
	m.ids[id] = true
	m.cursors = append(m.cursors, c.Cursor.String())
	if c.Last {
		state := map[feedPlace]int64{}
		for p, r := range m.rows {
			state[p] = r.id<<16 | r.n
		}
		m.states = append(m.states, state)
	}
	return nil
}

// follow takes changes until done is closed and all is delivered that had committed
// then. It stops and goes on at random.
func (m *feedModel) follow(db *txn.DB, from txn.Cursor, r *rand.Rand, done <-chan struct{}) (ends int, err error) {
	for {
		left := -1
		err = nil // of the feed before
		opts := []txn.ChangesOption{txn.ChangesMemory([]int{0, 1, 5_000, 100_000}[r.IntN(4)])}
		last := false
		select {
		case <-done:
			opts, last = append(opts, txn.UntilNow()), true
		default:
			left = r.IntN(60)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(200))*time.Millisecond)
		if last {
			cancel()
			opts = append(opts, txn.ChangesMemory(0)) // which is fast
			ctx, cancel = context.WithTimeout(context.Background(), testseed.Patience())
		}
		for c, ferr := range db.Changes(ctx, from, opts...) {
			if err = ferr; err != nil {
				break
			}
			if err = m.take(&c); err != nil {
				cancel()
				return ends, err
			}
			if from, err = txn.ParseCursor(c.Cursor.String()); err != nil {
				cancel()
				return ends, err
			}
			if left--; left == 0 {
				break
			}
		}
		cancel()
		ends++
		switch {
		case last:
			return ends, err
		case err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, txn.ErrUnavailable):
		default:
			return ends, err
		}
	}
}

// check compares what a feed has delivered with what the writers know.
func (w *feedWorld) check(m *feedModel) {
	state, err := w.state()
	if err != nil {
		w.t.Fatal(err)
	}
	if got := m.states[len(m.states)-1]; !maps.Equal(got, state) {
		w.t.Errorf("after all changes the rows are\n%v\nwant\n%v", got, state)
	}
	for id, err := range w.fates {
		switch {
		case err == nil && !m.ids[id]:
			w.t.Errorf("transaction %d has committed, and is no change", id)
		case m.ids[id] && (errors.Is(err, errRolledBack) || errors.Is(err, txn.ErrConflict)):
			w.t.Errorf("transaction %d is a change: %v", id, err)
		}
	}
	for i, seen := range w.seen {
		if !slices.ContainsFunc(m.states, func(s map[feedPlace]int64) bool { return maps.Equal(s, seen) }) {
			w.t.Errorf("snapshot %d is the state at the end of no tick: %v", i, seen)
		}
	}
}

// TestChanges: a feed has each transaction that has committed once, whole, in order, and
// none other, while data servers crash and recover, checkpoints cut their logs, and the
// feed ends and goes on at random. The state that it makes is that of every snapshot,
// and a second reading finds the same.
func TestChanges(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	sum, kinds, several, ends, states, crashes := 0, [4]int{}, 0, 0, 0, 0
	begin := time.Now()
	for run := uint64(0); run == 0 || time.Since(begin) < simTime(t, 1500*time.Millisecond) ||
		time.Since(begin) < time.Minute && (several == 0 || kinds[2] == 0 || states == 0 || crashes == 0); run++ {
		w, m, e, c := changesRun(t, seed+run)
		if t.Failed() {
			t.Fatalf("run %d: replay with DRTMX_SEED=%d", run, seed+run)
		}
		sum, several, ends, states, crashes = sum+len(m.ids), several+m.several, ends+e, states+len(w.seen), crashes+c
		for i := range kinds {
			kinds[i] += m.kinds[i]
		}
	}
	t.Logf("%d changes, %d of several partitions, inserts, updates, deletes %v, in %d feeds; %d snapshots, %d crashes", sum, several, kinds, ends, states, crashes)
}

func changesRun(t *testing.T, seed uint64) (*feedWorld, *feedModel, int, int) {
	t.Helper()
	s := rng.New(seed).Split("changes")
	cat := feedCatalog(t)
	d := &crashable{sub: s.Split("disks"), parts: 64 << 10, every: 256 << 10}
	u := setup{servers: 1 + s.Intn(3), client: txn.Config{Seed: seed | 1}, net: inproc.Options{Seed: seed}}
	u.more, u.other = d.config, &workload{catalog: cat}
	u.partitions = u.servers * (1 + s.Intn(2))
	d.replicas = 1 + s.Intn(u.servers)
	x := u.start(t, newLists(&load{Room: 8}))
	defer x.Close()
	cfg := txn.Config{Seed: seed | 1, Servers: x.addrs, Dial: u.provider(x.net, rdma.Identity{Role: rdma.RoleLoader, Name: clientName}).Dial}
	db, err := txn.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := &feedWorld{t: t, db: db, seed: seed, fates: map[int64]error{}}
	from, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k := &crashing{x: x, u: &u, d: d, s: s.Split("moments"), counts: map[string]int{}, rest: []int{60, 120, 500}[s.Intn(3)]}
	calm, stop, crashed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	if s.Bool(0.7) {
		go func() { crashed <- k.run(calm) }()
	} else {
		crashed <- nil
	}
	wait := w.writers(2+s.Intn(5), stop)
	var side sync.WaitGroup
	side.Go(func() { w.snapshots(stop) })
	written := make(chan struct{})
	m := newFeedModel()
	var ends int
	var feedErr error
	side.Go(func() {
		ends, feedErr = m.follow(db, from, rand.New(rand.NewPCG(seed, 7)), written)
	})
	time.Sleep(between(s, 200, 500))
	close(calm)
	if err := <-crashed; err != nil {
		t.Error(err)
	}
	close(stop)
	wait()
	close(written)
	side.Wait()
	var old *txn.ChangesTooOld
	if errors.As(feedErr, &old) { // between two feeds nothing keeps the logs
		if old.Oldest < old.After {
			t.Errorf("changes after tick %d are there, and are refused: %v", old.Oldest, old)
		}
		return w, m, ends, k.counts["crashes"]
	}
	if feedErr != nil {
		t.Fatalf("%d servers, %d partitions, %d copies: %v", u.servers, u.partitions, d.replicas, feedErr)
	}
	w.check(m)
	w.readAgain(m, from)
	return w, m, ends, k.counts["crashes"]
}

// readAgain reads what the logs still have, from the beginning and from anywhere, and
// compares it with what a feed has delivered.
func (w *feedWorld) readAgain(m *feedModel, from txn.Cursor) {
	read := func(from txn.Cursor, opts ...txn.ChangesOption) (cursors []string, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
		defer cancel()
		for c, err := range w.db.Changes(ctx, from, append(opts, txn.UntilNow())...) {
			if err != nil {
				return cursors, err
			}
			cursors = append(cursors, fmt.Sprintf("tick %d, %d writes", c.Tick, len(c.Writes)), fmt.Sprint(c.Writes[0].Table.Name(), c.Writes[0].Key, c.Writes[0].Row))
		}
		return cursors, nil
	}
	first, err := read(txn.OldestChange(), txn.ChangesMemory(100_000))
	if err != nil {
		w.t.Errorf("from the oldest change on: %v", err)
	}
	second, err := read(txn.OldestChange())
	// A checkpoint may have cut the logs in between: then less is left.
	if err != nil || len(second) > len(first) || !slices.Equal(first[len(first)-len(second):], second) {
		w.t.Errorf("%d and %d parts of changes, which differ: %v", len(first), len(second), err)
	}
	if len(m.cursors) == 0 {
		return
	}
	at := len(m.cursors) / 2
	mid, err := txn.ParseCursor(m.cursors[at])
	if err != nil {
		w.t.Fatal(err)
	}
	rest, err := read(mid, txn.ChangesMemory(50_000))
	if errors.Is(err, txn.ErrChangesTooOld) {
		return
	}
	if err != nil || len(rest) != 2*(len(m.cursors)-at-1) {
		w.t.Errorf("%d changes follow change %d of %d: %v", len(rest)/2, at+1, len(m.cursors), err)
	}
}
