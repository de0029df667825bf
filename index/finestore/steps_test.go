package finestore

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/read"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// world is an index with a client of it, and what its rows are.
type world struct {
	t    *testing.T
	e    *indextest.Env
	s    *Server
	c    *read.Client
	conn rdma.Conn
	r    *rand.Rand
	csn  block.CSN
	rows map[uint64]block.CSN
	now  time.Duration
	op   reading
	hot  uint64 // where half of the changes are
	last [32]uint64
	n    int // changes
	// between, if set, is called between two rounds of a client's operation.
	between func()
}

// reading is a client's operation under way.
type reading struct {
	batch [2]rdma.Batch
	get   index.GetOp
	scan  index.ScanOp
}

func newWorld(t *testing.T, v indextest.Variant, o Options) *world {
	t.Helper()
	seed := indextest.Seed(t)
	e, err := indextest.NewEnv(v, seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	o.RowWords, o.Locks = 1, e.Locks
	w := &world{t: t, e: e, r: rand.New(rand.NewPCG(seed, 3)), rows: map[uint64]block.CSN{}}
	if w.s, err = NewServer(e.Arena, o); err != nil {
		t.Fatal(err)
	}
	w.c = read.New(w.s.Root(), e.RKey, read.Options{InOrder: e.InOrder, RowWords: 1})
	if w.conn, err = e.Dial(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.conn.Close() })
	w.op.get, w.op.scan = w.c.NewGet(), w.c.NewScan()
	return w
}

// fetch lets the client fetch the models.
func (w *world) fetch() {
	w.t.Helper()
	if err := w.c.Maintain(context.Background(), w.conn); err != nil {
		w.t.Fatal(err)
	}
}

// maintain lets the server work n times.
func (w *world) maintain(n int) {
	for range n {
		w.now += 3 * time.Millisecond
		w.s.Maintain(w.now, nil)
	}
}

func (w *world) write(key uint64, deletes bool) {
	w.t.Helper()
	h, err := w.s.LockWrite(1, index.Num(key), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.csn++
	if deletes {
		w.s.PublishDelete(h, block.Absent(w.csn))
		delete(w.rows, key)
		return
	}
	w.s.Publish(h, []uint64{uint64(w.csn)}, block.Present(w.csn))
	w.rows[key] = w.csn
}

// refuse begins a write and undoes it.
func (w *world) refuse(key uint64) {
	w.t.Helper()
	h, err := w.s.LockWrite(1, index.Num(key), 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.s.Release(h)
}

// run drives one operation of the client.
func (w *world) run(op index.Op) {
	w.t.Helper()
	done, next := &w.op.batch[0], &w.op.batch[1]
	done.Reset()
	for range 500 {
		next.Reset()
		if op.Next(done, next) {
			return
		}
		if err := rdma.Do(context.Background(), w.conn, next); err != nil && next.WRs[0].Status == rdma.StatusPeerDown {
			w.t.Fatal(err)
		}
		if w.between != nil {
			w.between()
		}
		done, next = next, done
	}
	w.t.Fatal("an operation does not end")
}

// holds reports whether proofs hold now.
func (w *world) holds(proofs []index.Proof) bool {
	for _, p := range proofs {
		if w.e.Arena.Span(p.Addr&^63, 8).Load(int(p.Addr%64/8)) != p.Word {
			return false
		}
	}
	return true
}

// look looks a key up. If the answer's proofs hold when it is there, it must be right then.
func (w *world) look(key uint64) (index.Status, error) {
	w.op.get.Start(index.Num(key))
	w.run(w.op.get)
	res := w.op.get.Result()
	if (res.Status != index.Found && res.Status != index.NotFound) || !w.holds(res.Proofs) {
		return res.Status, nil
	}
	csn, there := w.rows[key]
	if there != (res.Status == index.Found) || there && (res.Row[0] != uint64(csn) || res.Header != block.Present(csn)) {
		return res.Status, fmt.Errorf("key %d is %v with row %v, and its proof holds; it is there: %v, of %d", key, res.Status, res.Row, there, csn)
	}
	return res.Status, nil
}

// list reads a range, and is held to the same.
func (w *world) list(lo, hi uint64, limit int) (index.Status, error) {
	w.op.scan.Start(index.Num(lo), index.Num(hi), limit)
	w.run(w.op.scan)
	res := w.op.scan.Result()
	if res.Status != index.Found {
		return res.Status, nil
	}
	exact := slices.Clone(res.Gaps)
	for _, e := range res.Entries {
		exact = append(exact, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
	}
	quick := w.holds(res.Quick)
	if quick && !w.holds(exact) {
		return res.Status, fmt.Errorf("%d..%d limit %d: quick proofs hold, and others do not", lo, hi, limit)
	}
	if !quick && !w.holds(exact) {
		return res.Status, nil
	}
	if res.More && len(res.Entries) != limit {
		return res.Status, fmt.Errorf("%d..%d limit %d: %d entries, and there are said to be more", lo, hi, limit, len(res.Entries))
	}
	if res.More {
		hi = res.Entries[limit-1].Key.Num
	}
	var want, got []uint64
	for k := range w.rows {
		if k >= lo && k <= hi {
			want = append(want, k)
		}
	}
	slices.Sort(want)
	for _, e := range res.Entries {
		if got = append(got, e.Key.Num); e.Header != block.Present(w.rows[e.Key.Num]) || e.Row[0] != uint64(w.rows[e.Key.Num]) {
			return res.Status, fmt.Errorf("%d..%d limit %d: key %d has the wrong row", lo, hi, limit, e.Key.Num)
		}
	}
	if !slices.Equal(got, want) {
		return res.Status, fmt.Errorf("%d..%d limit %d: keys %v, want %v", lo, hi, limit, got, want)
	}
	return res.Status, nil
}

// change makes one random change among so many keys. Half of the changes are near each other, for a
// while.
func (w *world) change(keys uint64) {
	w.t.Helper()
	key := w.r.Uint64N(keys)
	if w.r.IntN(1500) == 0 {
		w.hot = key
	}
	if w.r.IntN(2) == 0 {
		key = min(w.hot+w.r.Uint64N(min(3000, keys/4)), keys)
	}
	w.last[w.n%len(w.last)] = key
	w.n++
	if w.r.IntN(8) == 0 {
		w.refuse(key)
		return
	}
	w.write(key, w.r.IntN(4) == 0)
}

// loadKey loads a row.
func (w *world) loadKey(key uint64) {
	w.t.Helper()
	w.csn++
	if err := w.s.Load(index.Num(key), []uint64{uint64(w.csn)}, block.Present(w.csn)); err != nil {
		w.t.Fatal(err)
	}
	w.rows[key] = w.csn
}

// load loads some of the keys.
func (w *world) load(keys uint64, some int) {
	w.t.Helper()
	for k := range keys {
		if w.r.IntN(some) == 0 {
			w.loadKey(k)
		}
	}
	w.maintain(100)
	w.fetch()
}

// TestReadersBetweenRounds: while a client's operation is under way, rows come and go, bins are
// divided and arrays merged, between any two of its rounds. An answer whose proofs hold afterwards is
// right then, and few operations are given up.
func TestReadersBetweenRounds(t *testing.T) {
	for _, v := range indextest.Variants()[:1] {
		for _, c := range []struct {
			keys  uint64
			some  int // one key of so many is loaded
			array int
			idle  int // the server works once in so many rounds
		}{{300, 30, 4, 8}, {300, 2, 4, 8}, {3000, 300, 16, 8}, {6000, 1000, 40, 500}} {
			t.Run(fmt.Sprintf("%s, %d keys", v.Name, c.keys), func(t *testing.T) {
				w := newWorld(t, v, Options{KeysPerArray: c.array, LeavesPerSubModel: 16})
				w.load(c.keys, c.some)
				busy := 0
				w.between = func() {
					for range w.r.IntN(busy + 1) {
						w.change(c.keys)
					}
					if w.r.IntN(c.idle) == 0 {
						w.maintain(1)
					}
				}
				counts := map[index.Status]int{}
				for i := range 4000 {
					busy = []int{0, 3, 40}[w.r.IntN(3)]
					var st index.Status
					var err error
					if i%2 == 0 {
						st, err = w.look(w.r.Uint64N(c.keys))
					} else {
						lo := w.r.Uint64N(c.keys)
						st, err = w.list(lo, lo+w.r.Uint64N(c.keys/4), w.r.IntN(20))
					}
					if err != nil {
						t.Fatalf("operation %d: %v", i, err)
					}
					counts[st]++
					if w.c.Stale() {
						w.fetch()
					}
					if i%500 == 0 {
						if err := w.s.Check(); err != nil {
							t.Fatal(err)
						}
					}
				}
				sh := w.s.Shape()
				if c.idle > 100 && sh.BinSplits == 0 || sh.Merges == 0 || counts[index.Fallback]*5 > 4000 {
					t.Errorf("%v, %+v", counts, sh)
				}
				t.Logf("%v, %+v", counts, sh)
			})
		}
	}
}

// TestReadersBetweenSteps: at no step of a change is a row missing, or one there that was deleted.
func TestReadersBetweenSteps(t *testing.T) {
	v := indextest.Variants()
	for _, v := range []indextest.Variant{v[0], v[len(v)-1]} {
		t.Run(v.Name, func(t *testing.T) {
			w := newWorld(t, v, Options{KeysPerArray: 40, LeavesPerSubModel: 16})
			const keys = 40000
			w.load(keys, 400)
			steps := map[string]int{}
			var bad error
			ready := w.rows
			w.s.atStep = func(step string) {
				steps[step]++
				if bad != nil || steps[step] > 40 && w.r.IntN(20) != 0 {
					return
				}
				now := w.rows
				w.rows = ready
				defer func() { w.rows = now }()
				for _, key := range w.last {
					if _, err := w.look(key); err != nil {
						bad = fmt.Errorf("step %q: %w", step, err)
					}
				}
				lo := w.last[w.r.IntN(len(w.last))]
				if _, err := w.list(lo, lo+2000, 0); err != nil {
					bad = fmt.Errorf("step %q: %w", step, err)
				}
			}
			for i := range 6000 {
				ready = maps.Clone(w.rows)
				w.change(keys)
				ready = w.rows
				if i%1000 == 0 {
					w.maintain(1)
				}
				if w.c.Stale() {
					w.fetch()
				}
				if bad != nil {
					t.Fatalf("change %d: %v", i, bad)
				}
			}
			// Bins of which the second is full, and the first is not.
			key := func(i int) uint64 { return 1e6 + 1000*uint64(i) }
			w.merge(key(0))
			for i := range 33 {
				ready = maps.Clone(w.rows)
				w.write(key(i), false)
				w.last[i%len(w.last)] = key(i)
			}
			for i := range 4 {
				w.write(key(i), true)
			}
			ready = maps.Clone(w.rows)
			w.write(key(20)+1, false)
			ready = w.rows
			if bad != nil {
				t.Fatal(bad)
			}
			if len(steps) < 9 {
				t.Errorf("only these steps: %v", steps)
			}
			t.Log(steps)
			if err := w.s.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
