package hash

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
)

// churnRounds is how many times each row is changed: 60, times DRTMX_LONG.
func churnRounds(t *testing.T) int {
	rounds := 60
	if testing.Short() { // a few rounds reach the worst of it, and one goroutine races with nobody
		rounds = 12
	}
	if s := os.Getenv("DRTMX_LONG"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("DRTMX_LONG=%q", s)
		}
		rounds *= n
	}
	return rounds
}

// TestMemoryOfGrowingRows: rows grow and shrink for a long time, and come and
// go. The memory of rows stays within twice the live data. The rows begin with
// different sizes.
func TestMemoryOfGrowingRows(t *testing.T) {
	seed := indextest.Seed(t)
	const wordsMax = 400
	walk := func(r *rng.Stream, _, old int) int { return min(max(old+r.Intn(41)-20, 0), wordsMax) }
	for _, c := range []struct {
		name  string
		size  func(r *rng.Stream, round, old int) int
		leave float64 // share of changes that are deletions
	}{
		{"any size", func(r *rng.Stream, _, _ int) int { return r.Intn(wordsMax + 1) }, 0},
		{"step by step", walk, 0},
		{"step by step, keys come and go", walk, 0.2},
		{"grow, then shrink at once", func(r *rng.Stream, _, old int) int {
			if old > wordsMax-40 {
				return r.Intn(10)
			}
			return old + r.Intn(40)
		}, 0.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Options{Strings: true, RowWords: wordsMax}, ClientOptions{}, false)
			ch := churn{x: x, r: rng.New(seed), rows: make([]int, 3000), gone: make([]bool, 3000)}
			for i := range ch.rows {
				if err := ch.put(i, ch.r.Intn(wordsMax)); err != nil {
					t.Fatal(err)
				}
			}
			worst := 0.0
			for round := range churnRounds(t) {
				for i := range ch.rows {
					var err error
					if !ch.gone[i] && ch.r.Bool(c.leave) {
						err = ch.remove(i)
					} else {
						err = ch.put(i, c.size(ch.r, round, ch.rows[i]))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				worst = max(worst, ch.ratio())
			}
			t.Logf("seed %d: at most %.2f times the live data", seed, worst)
			if worst > 2 {
				t.Errorf("rows take %.2f times the live data", worst)
			}
			if err := x.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMemoryOfRowsResizedTogether: all rows change from one range of sizes to
// another, again and again. The memory in use stays within twice the most bytes
// that the rows have had at a time.
func TestMemoryOfRowsResizedTogether(t *testing.T) {
	seed := indextest.Seed(t)
	const wordsMax, each = 1000, 100
	now := &clocktest.Clock{}
	x := newBenchAt(t, Options{Strings: true, RowWords: wordsMax}, ClientOptions{}, false, now.Now)
	ch := churn{x: x, r: rng.New(seed), rows: make([]int, 3000), gone: make([]bool, 3000)}
	peak, worst := 0, 0.0
	for round := range churnRounds(t) {
		middle := []int{10, 40, 500, 90, 20, 250, 660, 330, 5}[round%9]
		for i := range ch.rows {
			if err := ch.put(i, middle/2+ch.r.Intn(middle)); err != nil {
				t.Fatal(err)
			}
			if i%each == 0 {
				now.Advance(20 * time.Second)
				x.arena.Tidy()
				peak = max(peak, ch.live())
				if round > 2 { // from then on the index itself is small beside the rows
					worst = max(worst, float64(x.arena.Used())/float64(peak))
				}
			}
		}
	}
	t.Logf("seed %d: at most %.2f times the most live data", seed, worst)
	if worst > 2 {
		t.Errorf("rows take %.2f times the most live data", worst)
	}
	if err := x.s.Check(); err != nil {
		t.Error(err)
	}
}

// TestMemoryOfBursts: all rows go through many sizes within a second, which no
// quarantine is fast enough for. In the burst their memory is at most the blocks that
// have been written, and at most the rows once in each size class up to that of the
// largest. 46 s later, after Tidy, it is at most twice the blocks that the rows need.
// A batch was closed just before the burst, so what the burst empties waits as long as
// it can.
func TestMemoryOfBursts(t *testing.T) {
	seed := indextest.Seed(t)
	const wordsMax, tidyEvery = 500, 50 * time.Millisecond // 4,000 bytes; see the server's trainer
	rows := 2000
	if testing.Short() { // one goroutine races with nobody
		rows /= 4
	}
	upIn := func(steps int) (all []int) {
		for i := range steps {
			all = append(all, 1+(wordsMax-1)*(i+1)/steps)
		}
		return all
	}
	down := slices.Clone(upIn(64))
	slices.Reverse(down)
	for _, c := range []struct {
		name  string
		start int
		sizes []int
		stay  float64 // share of rows that stay as they are, at each size
	}{
		{"grow at once", 1, upIn(1), 0},
		{"grow in eight steps", 1, upIn(8), 0},
		{"grow in 64 steps", 1, upIn(64), 0},
		{"shrink at once", wordsMax, []int{1}, 0},
		{"grow and shrink in 64 steps", 1, slices.Concat(upIn(64), down, []int{1}), 0},
		{"grow and shrink again and again", 1, slices.Repeat([]int{wordsMax, 1}, 10), 0},
		{"grow in eight steps, some stay", 1, upIn(8), 1.0 / 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := &clocktest.Clock{}
			x := newBenchAt(t, Options{Strings: true, RowWords: wordsMax}, ClientOptions{}, false, now.Now)
			ch := churn{x: x, r: rng.New(seed), rows: make([]int, rows), gone: make([]bool, rows)}
			put := func(i, words int) {
				if err := ch.put(i, words); err != nil {
					t.Fatal(err)
				}
			}
			for _, words := range []int{20, c.start} {
				for i := range ch.rows {
					put(i, words)
				}
				now.Advance(time.Minute)
				x.arena.Tidy()
			}
			now.Advance(time.Minute)
			x.arena.Tidy()
			for i := range ch.rows { // what closes a batch
				put(i, 20)
				put(i, c.start)
			}
			memory := func() uint64 { return x.s.Stats().RowBytes }
			before := memory()
			// A span has about one part in 32 that no block takes, and that of the latest
			// block of a class may be all but empty.
			const spanBytes = 32 * 4096
			var once, spans uint64 // up to the class of the largest
			for class := block.Class(1); class <= block.ClassFor(strBlockWords(len(churnKey(0).Str), slices.Max(c.sizes))); class++ {
				once += class.Bytes() * uint64(len(ch.rows))
				spans += spanBytes
			}
			bound := func(blocks uint64) uint64 { return before + blocks + blocks/16 + spans }
			written, most, worst := uint64(0), uint64(0), 0.0
			stays := make([]bool, len(ch.rows))
			for _, words := range c.sizes {
				for i := range ch.rows {
					if stays[i] = stays[i] || ch.r.Bool(c.stay); stays[i] {
						continue
					}
					put(i, words)
					now.Advance(time.Second / time.Duration(len(c.sizes)*len(ch.rows)))
					written += ch.block(i).Bytes()
					if i%64 > 0 {
						continue
					}
					have := memory()
					most = max(most, have)
					if have > bound(min(written, once)) {
						t.Fatalf("rows take %d bytes, and took %d before %d were written; once in each class they take %d", have, before, written, once)
					}
				}
				worst = max(worst, ch.ratio())
			}
			end := ch.ratio()
			pass := func(d time.Duration) {
				for ; d > 0; d -= tidyEvery {
					now.Advance(tidyEvery)
					x.arena.Tidy()
				}
			}
			pass(33 * time.Second)
			later := ch.ratio()
			pass(13 * time.Second)
			t.Logf("times the live data: %.2f in the burst, %.2f at its end, %.2f after 33 s, %.2f after 46 s; at most %.2f times the blocks written, %.2f times the rows once in each class",
				worst, end, later, ch.ratio(), float64(most)/float64(before+written), float64(most)/float64(before+once))
			if m := x.arena.Memory(); m.Quarantined > m.Used/16 {
				t.Errorf("%d bytes are in quarantine beside %d in use", m.Quarantined, m.Used)
			}
			if need := ch.need(); c.stay == 0 && memory() > 2*need+need/16 {
				t.Errorf("rows take %d bytes after the quarantine, and need %d", memory(), need)
			}
			if err := x.s.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// churn is an index whose rows change size.
type churn struct {
	x    *bench
	r    *rng.Stream
	rows []int // words
	gone []bool
}

func churnKey(i int) index.Key { return index.Str(fmt.Sprintf("key-%06d", i)) }

func (c *churn) put(i, words int) error {
	held, err := c.x.s.LockWrite(1, churnKey(i), 0)
	if err != nil {
		return err
	}
	if err := c.x.s.Reserve(held, words); err != nil {
		return err
	}
	c.x.s.Publish(held, make([]uint64, words), block.Present(c.x.arena.NextCSN()))
	c.rows[i], c.gone[i] = words, false
	return nil
}

func (c *churn) remove(i int) error {
	held, err := c.x.s.LockWrite(1, churnKey(i), 0)
	if err != nil {
		return err
	}
	c.x.s.PublishDelete(held, block.Absent(c.x.arena.NextCSN()))
	c.gone[i] = true
	return nil
}

// ratio is the memory of rows, free blocks included, by the live data.
func (c *churn) ratio() float64 { return float64(c.x.s.Stats().RowBytes) / float64(c.live()) }

// live is the live data: headers, keys and payloads.
func (c *churn) live() (live int) {
	for i, words := range c.rows {
		if !c.gone[i] {
			live += strBlockWords(len(churnKey(i).Str), words) * mem.WordBytes
		}
	}
	return live
}

// block is the size class that a row needs.
func (c *churn) block(i int) block.Class {
	return block.ClassFor(strBlockWords(len(churnKey(i).Str), c.rows[i]))
}

// need is the blocks that the rows need.
func (c *churn) need() (need uint64) {
	for i := range c.rows {
		if !c.gone[i] {
			need += c.block(i).Bytes()
		}
	}
	return need
}
