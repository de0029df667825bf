package finestore

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/btree"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/testseed"
)

// buffered is a rival with its model: a sorted map of keys to the CSNs of their rows.
type buffered struct {
	x    *bufferedIndex
	r    *rand.Rand
	keys uint64
	csn  block.CSN
	rows *btree.BTreeG[rowAt] // addr is the CSN
	res  index.GetResult
	list index.ScanResult
	buf  []uint64
}

// newBufferedWorld loads a rival with some of the keys.
func newBufferedWorld(t *testing.T, o bufferedOptions, keys uint64) *buffered {
	t.Helper()
	seed := testseed.Of(t)
	e, err := indextest.NewEnv(indextest.Variants()[0], seed, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	o.RowWords, o.Locks, o.LeavesPerSubModel = 1, e.Locks, 16
	w := &buffered{r: rand.New(rand.NewPCG(seed, 5)), keys: keys, rows: btree.NewG(8, rowAt.before)}
	if w.x, err = newBuffered(e.Arena, o); err != nil {
		t.Fatal(err)
	}
	for k := range keys {
		if w.r.IntN(10) > 0 {
			continue
		}
		w.csn++
		if err := w.x.Load(index.Num(k), []uint64{uint64(w.csn)}, block.Present(w.csn)); err != nil {
			t.Fatal(err)
		}
		w.rows.ReplaceOrInsert(rowAt{k, uint64(w.csn)})
	}
	for now := time.Second; w.x.MaintainAll(now, nil); {
		now += time.Second
	}
	return w
}

// write inserts a key, or gives it another row. While the writer has the lock, no reader gets a row.
func (w *buffered) write(key uint64) error {
	h, err := w.x.LockWrite(1, index.Num(key), 0)
	if err != nil {
		return err
	}
	if w.x.Lookup(index.Num(key), &w.res); w.res.Status != index.Locked {
		return fmt.Errorf("key %d is locked, and a lookup says %v", key, w.res.Status)
	}
	w.csn++
	if err := w.x.Reserve(h, 1); err != nil {
		return err
	}
	w.x.Publish(h, []uint64{uint64(w.csn)}, block.Present(w.csn))
	w.rows.ReplaceOrInsert(rowAt{key, uint64(w.csn)})
	return nil
}

func (w *buffered) look(key uint64) error {
	w.x.Lookup(index.Num(key), &w.res)
	r, there := w.rows.Get(rowAt{key: key})
	if there != (w.res.Status == index.Found) || there && w.res.Row[0] != r.addr {
		return fmt.Errorf("key %d is %v with row %v; it is there: %v, with %d", key, w.res.Status, w.res.Row, there, r.addr)
	}
	return nil
}

func (w *buffered) scan(lo, hi uint64, limit int) error {
	w.buf = w.x.Scan(index.Num(lo), index.Num(hi), limit, &w.list, w.buf)
	var want, got []rowAt
	more := false
	w.rows.AscendGreaterOrEqual(rowAt{key: lo}, func(r rowAt) bool {
		if more = r.key <= hi && limit > 0 && len(want) == limit; more || r.key > hi {
			return false
		}
		want = append(want, r)
		return true
	})
	for _, e := range w.list.Entries {
		got = append(got, rowAt{e.Key.Num, e.Row[0]})
	}
	if w.list.Status != index.Found || w.list.More != more || !slices.Equal(got, want) {
		return fmt.Errorf("%d..%d limit %d: %v, more: %v, rows %v; want %v, more: %v", lo, hi, limit, w.list.Status, w.list.More, got, want, more)
	}
	return nil
}

// step makes one random change or query. Half of the keys are in one part of the range, and some
// ascend.
func (w *buffered) step(i int) error {
	key := w.r.Uint64N(w.keys)
	if w.r.IntN(2) == 0 {
		key = w.keys/3 + w.r.Uint64N(w.keys/10)
	}
	switch n := w.r.IntN(10); {
	case n < 5:
		return w.write(key)
	case n == 5:
		return w.write(w.keys + uint64(i))
	case n < 8:
		return w.look(key)
	}
	return w.scan(key, key+w.r.Uint64N(w.keys/8), w.r.IntN(30))
}

// TestBufferedRivals holds the rivals of the benchmarks to a sorted map. Arrays and buffers are
// small, so that merges divide arrays and groups of arrays. XIndex also merges in another goroutine,
// beside the one that writes and reads.
func TestBufferedRivals(t *testing.T) {
	const steps = 4000
	for _, arrays := range []int{1, 3} {
		for _, mode := range []string{"delta", "xindex", "xindex beside"} {
			t.Run(fmt.Sprintf("%s, %d arrays", mode, arrays), func(t *testing.T) {
				o := bufferedOptions{Options: Options{KeysPerArray: 4}, Arrays: arrays, Limit: 6, Background: mode != "delta"}
				w := newBufferedWorld(t, o, 3000)
				loaded := w.x.arrays.Len()
				var lock sync.Mutex // the executor's
				var wg sync.WaitGroup
				var ended atomic.Bool
				var passes atomic.Uint64
				beside := mode == "xindex beside"
				if beside {
					wg.Go(func() {
						for now := time.Duration(0); !ended.Load(); now += time.Millisecond {
							w.x.Maintain(now, &lock)
							passes.Add(1)
						}
					})
				}
				stop := func() { ended.Store(true); wg.Wait() }
				defer stop()
				frozen := 0 // queries while some full buffers wait
				for i := range steps {
					lock.Lock()
					if !beside {
						frozen += min(len(w.x.due), 1)
					}
					err := w.step(i)
					lock.Unlock()
					if was := passes.Load(); beside && i%100 == 0 {
						for passes.Load() == was {
							runtime.Gosched()
						}
					}
					if !beside && w.r.IntN(40) == 0 {
						w.x.Maintain(time.Duration(i)*time.Millisecond, &lock)
					}
					if err == nil && !beside && i%100 == 0 {
						err = w.x.check()
					}
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
				}
				stop()
				if err := w.x.check(); err != nil {
					t.Fatal(err)
				}
				if err := w.scan(0, ^uint64(0), 0); err != nil {
					t.Fatal(err)
				}
				if w.x.merges < 50 || w.x.arrays.Len() < 2*loaded || mode == "xindex" && frozen == 0 {
					t.Errorf("%d merges, %d arrays, then %d; a full buffer waited at %d steps", w.x.merges, loaded, w.x.arrays.Len(), frozen)
				}
				t.Logf("%d merges of %d rows, %d arrays, then %d", w.x.merges, w.x.copied, loaded, w.x.arrays.Len())
			})
		}
	}
}
