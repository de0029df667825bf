package hash

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
)

// churnRounds is how many times each row is changed: 60, times DRTMX_LONG.
func churnRounds(t *testing.T) int {
	rounds := 60
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
// different sizes: blocks never change their class, so rows that all grow in
// step leave the blocks of every class that they passed through.
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

// ratio is the memory of rows, free blocks included, by the live data: headers,
// keys and payloads.
func (c *churn) ratio() float64 {
	live := 0
	for i, words := range c.rows {
		if !c.gone[i] {
			live += strBlockWords(len(churnKey(i).Str), words) * mem.WordBytes
		}
	}
	return float64(c.x.s.Stats().RowBytes) / float64(live)
}
