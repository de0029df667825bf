package hash

import (
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/rng"
)

// TestVersionsOfChains: rows come and go until overflow buckets have served
// many chains. The version of a head only rises, and never by more than one
// unless the chain takes over an overflow bucket or a row of it is deleted. An
// overflow bucket that comes to another chain is above every head that has ever
// led to it, or else a reader with that head would take it for its own.
func TestVersionsOfChains(t *testing.T) {
	seed := indextest.Seed(t)
	r := rng.New(seed)
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	w := chainWatch{t: t, x: x, heads: map[uint64]uint64{}, led: map[uint64]uint64{}, in: map[uint64]uint64{}}
	w.look()
	there := map[uint64]bool{}
	const steps = 20_000 / min(indextest.Scale, 4)
	for range steps {
		// Keys of few buckets, so that chains are long while the table is small.
		k := Unhash(uint64(r.Intn(120))<<20 | uint64(r.Intn(4)))
		held, err := x.s.LockWrite(1, index.Num(k), 0)
		if err != nil {
			t.Fatal(err)
		}
		w.look()
		switch csn := x.arena.NextCSN(); {
		case r.Bool(0.2):
			x.s.Release(held)
		case there[k] || r.Bool(0.1):
			x.s.PublishDelete(held, block.Absent(csn))
			delete(there, k)
		default:
			x.s.Publish(held, []uint64{k}, block.Present(csn))
			there[k] = true
		}
		w.look()
	}
	if err := x.s.Check(); err != nil {
		t.Error(err)
	}
	if w.moves < steps/200 {
		t.Errorf("seed %d: overflow buckets came to another chain %d times only", seed, w.moves)
	}
}

// chainWatch remembers versions of buckets.
type chainWatch struct {
	t     *testing.T
	x     *bench
	heads map[uint64]uint64 // version of each head
	led   map[uint64]uint64 // by overflow bucket: the highest version of a head that led to it
	in    map[uint64]uint64 // by overflow bucket: that head
	moves int
}

func (w *chainWatch) look() {
	s := w.x.s
	last := uint64(s.arena.LastCSN())
	for b := range s.buckets.Load() {
		head := s.bucketAddr(b)
		v := s.load(head, block.HeaderWord)
		if v < w.heads[head] || v > last {
			w.t.Fatalf("head %#x: version %d after %d; the last CSN is %d", head, v, w.heads[head], last)
		}
		w.heads[head] = v
		for o := linkNext(s.load(head, linkWord)); o != 0; o = linkNext(s.load(o, linkWord)) {
			if from := w.in[o]; from != head {
				if from != 0 {
					w.moves++
				}
				if got := s.load(o, block.HeaderWord); got <= w.led[o] {
					w.t.Fatalf("overflow bucket %#x comes to another chain with version %d; a head of version %d led to it", o, got, w.led[o])
				}
			}
			w.in[o], w.led[o] = head, max(w.led[o], v)
		}
	}
}
