package hash

import (
	"context"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
)

// table is a trivial index.SharedLocks.
type table map[uint64]bool

func (l table) Empty() bool                                { return len(l) == 0 }
func (l table) SharedByOther(a uint64, _ index.Owner) bool { return l[a] }
func (l table) Move(uint64, uint64)                        { panic("rows and gaps of a hash index do not move") }
func (l table) Copy(uint64, uint64)                        { panic("a shared gap is not split") }

func load(t *testing.T, s *Server, from, to uint64) {
	t.Helper()
	for k := from; k < to; k++ {
		if err := s.Load(index.Num(k), []uint64{k}, block.Present(block.NewCSN(1, k+1))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStaleDirectoryCostsRoundsOnly: a client that last saw a table of 16
// buckets finds every key of one of thousands, in bounded rounds, and learns.
func TestStaleDirectoryCostsRoundsOnly(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	const n = 30000
	load(t, x.s, 0, n)
	most, later := 0, 0
	for k := range uint64(n) {
		res, rounds := x.get(t, k)
		if res.Status != index.Found || res.Row[0] != k {
			t.Fatalf("key %d: %v", k, res.Status)
		}
		most = max(most, rounds)
		if k >= n/2 {
			later += rounds
		}
	}
	if mean := float64(later) / (n / 2); most > 40 || mean > 5 {
		t.Errorf("at most %d rounds; %.2f on average in the second half", most, mean)
	}
	if !x.c.Stale() {
		t.Error("the client half does not know that it is stale")
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil || x.c.Stale() {
		t.Fatal(err, x.c.Stale())
	}
	total := 0
	for k := range uint64(n) {
		_, rounds := x.get(t, k)
		total += rounds
	}
	if mean := float64(total) / n; mean > 2.1 {
		t.Errorf("%.3f rounds after Maintain", mean)
	}
}

// TestSharedGapPostponesItsSplit: the gap word stays while it is shared, and
// growth catches up afterwards.
func TestSharedGapPostponesItsSplit(t *testing.T) {
	locks := table{}
	x := newBench(t, Options{RowWords: 1, Locks: locks}, ClientOptions{}, false)
	n := x.s.buckets.Load()
	next := x.s.bucketAddr(bucketOf(n, n))
	word := x.s.load(next, block.HeaderWord)
	locks[next] = true
	k := uint64(0)
	for ; k < 2000; k++ {
		// The gap is shared: only keys of other buckets can be inserted.
		if x.s.bucketAddr(bucketOf(hashKey(k), x.s.buckets.Load())) != next {
			load(t, x.s, k, k+1)
		} else if _, err := x.s.LockWrite(1, index.Num(k), 0); err != index.ErrLocked {
			t.Fatalf("LockWrite into a shared gap: %v", err)
		}
	}
	if got := x.s.load(next, block.HeaderWord); got != word || x.s.buckets.Load() != n {
		t.Fatalf("%d buckets, gap word %d → %d although it was shared", x.s.buckets.Load(), word, got)
	}
	delete(locks, next)
	load(t, x.s, k, 2*k)
	if x.s.buckets.Load() < 1000 {
		t.Errorf("%d buckets after the lock is gone", x.s.buckets.Load())
	}
	if err := x.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestGrowthIsBoundedWork: one insert splits at most one bucket.
func TestGrowthIsBoundedWork(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	for k := range uint64(10000) {
		before := x.s.buckets.Load()
		load(t, x.s, k, k+1)
		if after := x.s.buckets.Load(); after > before+1 {
			t.Fatalf("insert %d: %d buckets → %d", k, before, after)
		}
	}
	if got, want := x.s.buckets.Load(), uint64(10000*2/rowsPerTwoBuckets); got < want-1 {
		t.Errorf("%d buckets for 10000 rows, want %d", got, want)
	}
}

// TestSlidingWindow: rows deleted make room for other keys.
func TestSlidingWindow(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	const window = 2000
	var used uint64
	for k := range uint64(20 * window) {
		load(t, x.s, k, k+1)
		if k >= window {
			held, err := x.s.LockWrite(1, index.Num(k-window), 0)
			if err != nil || !held.Existed {
				t.Fatal(held, err)
			}
			x.s.PublishDelete(held, block.Absent(1))
		}
		if k == 2*window {
			used = x.arena.Used()
		}
	}
	if now := x.arena.Used(); now > used+64<<10 {
		t.Errorf("%d bytes used after one turn of the window, %d after many", used, now)
	}
	if err := x.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestInitialBuckets: the table starts at the size asked for, and options are checked.
func TestInitialBuckets(t *testing.T) {
	for _, want := range []int{0, 1, 17, 5000, 100000} {
		x := newBench(t, Options{RowWords: 1, InitialBuckets: want}, ClientOptions{}, true)
		if got := x.s.buckets.Load(); got < uint64(want) || got&(got-1) != 0 {
			t.Errorf("%d buckets asked for, %d made", want, got)
		}
		load(t, x.s, 0, 1000)
		if err := x.s.Check(); err != nil {
			t.Fatal(err)
		}
		if res, _ := x.get(t, 999); res.Status != index.Found {
			t.Errorf("%v", res.Status)
		}
	}
	x := newBench(t, Options{}, ClientOptions{}, false)
	for _, o := range []Options{{RowWords: -1}, {RowWords: MaxRowWords + 1}, {InitialBuckets: -1}} {
		if _, err := NewServer(x.arena, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
