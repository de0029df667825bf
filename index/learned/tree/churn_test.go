package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
)

// simulated is how long churn goes on, in time of the simulation: an hour, or
// DRTMX_CHURN_HOURS of them. A week takes about three minutes.
func simulated(t *testing.T) time.Duration {
	hours := 1.0
	if v := os.Getenv("DRTMX_CHURN_HOURS"); v != "" {
		var err error
		if hours, err = strconv.ParseFloat(v, 64); err != nil {
			t.Fatal(err)
		}
	}
	return time.Duration(hours * float64(time.Hour))
}

// churn is a tree under a load that goes on for long.
type churn struct {
	*world
	t     *testing.T
	r     *rand.Rand
	live  uint64 // bytes of the rows there are, as a full leaf or a block that fits has them
	peak  uint64 // the most that live was, if memory is compared with that
	most  float64
	bound float64
	over  uint64
}

func newChurn(t *testing.T, kind leaf.Kind, rowWords int) *churn {
	seed := testseed.Of(t)
	w := newWorld(t, kind, leaf.AutoSlots(kind, rowWords), false, rowWords)
	w.quarantine = index.Quarantine
	if kind == leaf.Inline {
		w.t.freed.quarantine = index.Quarantine
	}
	return &churn{world: w, t: t, bound: 2, r: rand.New(rand.NewPCG(seed, 1))}
}

// bytes is what a row takes at the least.
func (c *churn) bytes(key index.Key, words int) uint64 {
	switch c.world.t.lay.Kind {
	case leaf.Inline:
		return uint64(2+words) * mem.WordBytes
	case leaf.Apart:
		return uint64(2+leaf.WholeLines(leaf.RowWord+words)) * mem.WordBytes
	}
	return block.ClassFor(leaf.StrBlockWords(key.Str, words)).Bytes() + 2*mem.WordBytes
}

func (c *churn) write(key index.Key, words int) {
	if v, ok := c.rows[key]; ok {
		c.live -= c.bytes(key, v.words)
	}
	c.put(key, words)
	c.live += c.bytes(key, words)
}

func (c *churn) remove(key index.Key) {
	c.live -= c.bytes(key, c.rows[key].words)
	c.del(key)
}

// measure compares all memory ever taken with the rows there are.
func (c *churn) measure(at time.Duration) {
	if c.peak > 0 {
		c.peak = max(c.peak, c.live)
	}
	ratio := float64(c.world.t.a.Used()) / float64(max(c.live, c.peak))
	c.most = max(c.most, ratio)
	if ratio > c.bound {
		if c.over++; c.over == 1 {
			c.t.Errorf("after %v: %d bytes for rows of %d, in %d leaves of which %d are freed and %d held ready",
				at, c.world.t.a.Used(), max(c.live, c.peak), c.world.t.Leaves(), c.world.t.freed.len(), c.world.t.reserve)
		}
	}
}

func (c *churn) end(at time.Duration) {
	if err := c.world.t.Check(); err != nil {
		c.t.Error(err)
	}
	t := c.world.t
	splits, merges, unlinks := t.splits.Load(), t.merges.Load(), t.unlinks.Load()
	c.t.Logf("%v: %d rows of %d bytes in %d, at most %.2f times; %d leaves, %d splits, %d merges, %d unlinks, %d moves",
		at, len(c.rows), c.live, c.world.t.a.Used(), c.most, c.world.t.Leaves(), splits, merges, unlinks, moves(c.world.t))
}

// TestQueueChurn runs queues: rows arrive in key order and are deleted in that
// order some time later, all but one in forty, which stay for far longer. All
// memory ever taken stays within twice the rows there are.
func TestQueueChurn(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			c := newChurn(t, kind, 6)
			const (
				step  = 500 * time.Millisecond
				stay  = 2 * time.Hour / step * 2 // of stragglers, in steps
				depth = 12000
				each  = 5 // rows a step
			)
			var late []index.Key
			next, oldest := uint64(0), uint64(0)
			row := func(n uint64) index.Key { return c.key(n%10<<40 | n/10) }
			end := simulated(t)
			for at := time.Duration(0); at < end; at += step {
				for range each {
					c.write(row(next), 6)
					if next++; next-oldest <= depth {
						continue
					}
					if oldest%40 == 7 {
						late = append(late, row(oldest))
						if len(late) > int(stay)/40*each/4 {
							i := c.r.IntN(len(late) / 2)
							c.remove(late[i])
							late[i] = late[0]
							late = late[1:]
						}
					} else {
						c.remove(row(oldest))
					}
					oldest++
				}
				c.clock.Advance(step)
				c.world.t.Tidy(8)
				if next > 2*depth {
					c.measure(at)
				}
			}
			c.end(end)
		})
	}
}

// TestRowsGrowAndShrink has rows that vary in size change it all the time, each
// for itself, and then all together from one range of sizes to another. Rows
// that have not changed yet hold memory of the range before, so in the latter
// case memory is compared with the most bytes that the rows have had at a time.
func TestRowsGrowAndShrink(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprintf("together=%v", together), func(t *testing.T) {
			c := newChurn(t, leaf.Strings, 1000)
			if together {
				c.peak = 1
			}
			const rows, step = 8000, time.Second
			size := func(at time.Duration) int {
				if !together {
					return c.r.IntN(1 + 1<<c.r.IntN(10))
				}
				middle := []int{10, 40, 500, 90, 20, 250}[int(at/(20*time.Minute))%6]
				return middle/2 + c.r.IntN(middle)
			}
			for i := range uint64(rows) {
				c.write(c.key(i), size(0))
			}
			end := simulated(t)
			for at := time.Duration(0); at < end; at += step {
				for range 20 {
					c.write(c.key(uint64(c.r.IntN(rows))), size(at))
				}
				c.clock.Advance(step)
				c.world.t.Tidy(8)
				c.world.t.a.Tidy()
				c.measure(at)
			}
			c.end(end)
		})
	}
}
