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

// TestGrowthWithoutMemory: a table that has got a chunk, and then no memory for the
// buckets of a split, is whole, and grows when there is memory.
func TestGrowthWithoutMemory(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	n := x.s.buckets.Load()
	level := levelOf(n, n+1)
	leave, rest, at := slots+1, int(rowsPerTwoBuckets*n/2)-slots-1, uint64(0)
	for ; leave > 0 || rest > 0; at++ {
		left := &rest
		if covers(n, level, hashKey(at)) { // the split moves it
			left = &leave
		}
		if *left > 0 {
			*left--
			load(t, x.s, at, at+1)
		}
	}
	if x.s.buckets.Load() != n {
		t.Fatal("the table has grown early")
	}
	size := int(x.s.geo.buckets(1) * bucketBytes)
	chunk, err := x.s.sized.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	waste := x.arena.NewSized()
	for _, size := range []int{int(x.region.SegmentBytes()) / 2, 1 << 16, 4 << 10} {
		for err == nil {
			_, err = waste.Alloc(size)
		}
		err = nil
	}
	var overflows []uint64 // one bucket has more rows than slots, so there are free ones
	for addr, err := x.s.overflow.Alloc(); err == nil; addr, err = x.s.overflow.Alloc() {
		overflows = append(overflows, addr)
	}
	x.s.sized.Free(chunk, size)
	load(t, x.s, at, at+1)
	for _, addr := range overflows {
		x.s.overflow.Free(addr)
	}
	if got := len(*x.s.chunks.Load()); got != 2 || x.s.buckets.Load() != n {
		t.Fatalf("%d chunks, %d buckets, want 2 and %d", got, x.s.buckets.Load(), n)
	}
	if err := x.s.Check(); err != nil {
		t.Error(err)
	}
	if err := x.c.Maintain(t.Context(), x.conn); err != nil {
		t.Error(err)
	}
	load(t, x.s, at+1, at+2)
	if err := x.s.Check(); err != nil || x.s.buckets.Load() != n+1 {
		t.Errorf("%d buckets, want %d: %v", x.s.buckets.Load(), n+1, err)
	}
}

// TestExpectWithoutMemory: a table that cannot get all the chunks for what is expected
// is whole.
func TestExpectWithoutMemory(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	x.s.Expect(1 << 30)
	if x.s.buckets.Load() != 1<<x.s.geo.first || len(*x.s.chunks.Load()) < 2 {
		t.Fatalf("%d buckets in %d chunks", x.s.buckets.Load(), len(*x.s.chunks.Load()))
	}
	if err := x.s.Check(); err != nil {
		t.Error(err)
	}
	load(t, x.s, 0, 1)
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
