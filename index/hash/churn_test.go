package hash

import (
	"fmt"
	"os"
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
