package read

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
)

// TestBefore checks that the guesses of a trained client are good: the number
// of rows from the guess to the key is near the number asked for.
func TestBefore(t *testing.T) {
	const rows = 40_000
	for name, v := range map[string]struct {
		text   func(uint64) string
		budget Budget
	}{
		"numbers":     {},
		"strings":     {text: func(k uint64) string { return fmt.Sprintf("user/%08d/profile", k) }},
		"inner nodes": {budget: Tree},
	} {
		t.Run(name, func(t *testing.T) {
			text := v.text
			g := newRig(t, learned.Options{RowWords: 32, Strings: text != nil}, Options{Cache: Cache{Budget: v.budget}}, inproc.Options{}, false)
			g.text = text
			if guess := g.c.Before(g.at(7), 3); guess != (index.Key{}) {
				t.Errorf("a client that has read nothing guesses %v", guess)
			}
			for k := range uint64(rows) {
				g.put(k, 1)
			}
			g.train()
			g.refresh()
			seed := testseed.Of(t)
			r := rand.New(rand.NewPCG(seed, 0))
			near, asked := 0, 0
			for range 200 {
				k, n := r.Uint64N(rows), 50+r.IntN(1000)
				guess := g.c.Before(g.at(k), n)
				if guess.Compare(g.at(k)) > 0 {
					t.Fatalf("the guess %v is above %v", guess, g.at(k))
				}
				lo, hi := uint64(0), k
				for lo < hi { // the first row not below the guess
					if mid := (lo + hi) / 2; g.at(mid).Compare(guess) < 0 {
						lo = mid + 1
					} else {
						hi = mid
					}
				}
				got := int(k - lo + 1)
				if asked++; got >= n/3 && got <= 3*n || lo == 0 {
					near++
				}
			}
			t.Logf("%d of %d guesses within a factor of 3", near, asked)
			if near < asked*2/3 {
				t.Errorf("%d of %d guesses within a factor of 3", near, asked)
			}
		})
	}
}

// TestBeforeKnowsOfSplits checks guesses for keys behind what the models cover, in
// sub-models with a tail list and without: after one scan of the newest rows they
// are as good as of trained rows.
func TestBeforeKnowsOfSplits(t *testing.T) {
	for _, hot := range []bool{false, true} {
		eachTail(t, func(t *testing.T, o learned.Options) {
			var g *rig
			n := uint64(1000)
			if hot {
				g, n = tailRig(t, o, Options{})
			} else {
				g = newRig(t, o, Options{}, inproc.Options{}, false)
				if o.Strings {
					g.text = func(k uint64) string { return fmt.Sprintf("user%08d", k) }
				}
				for k := range n {
					g.put(k, k)
				}
				g.train()
				g.refresh()
			}
			const fresh = 300
			for range fresh {
				g.put(n, n)
				n++
			}
			d, scan := driver{conn: g.conn}, g.c.NewScan()
			scan.Start(g.at(n-fresh), g.at(n), fresh)
			d.run(scan)
			if res := scan.Result(); res.Status != index.Found || len(res.Entries) != fresh {
				t.Fatalf("hot %v: %v, %d rows", hot, res.Status, len(res.Entries))
			}
			r := rand.New(rand.NewPCG(testseed.Of(t), 0))
			for range 100 {
				k, rows := n-1-r.Uint64N(fresh), 10+r.IntN(200)
				guess, got := g.c.Before(g.at(k), rows), 0
				for got = 0; got < int(k) && g.at(k-uint64(got)).Compare(guess) >= 0; got++ {
				}
				if got < rows/3 || got > 3*rows+o.SlotsPerLeaf {
					t.Errorf("hot %v: %d rows before row %d of %d, want %d", hot, got, k, n, rows)
				}
			}
		})
	}
}

// TestScansReadAheadWhatScansFound: where leaves split rarely there is no tail list. A
// scan then READs all leaves together that an earlier scan has found by right links,
// among those of the models and behind them.
func TestScansReadAheadWhatScansFound(t *testing.T) {
	eachTail(t, func(t *testing.T, o learned.Options) {
		for _, behind := range []bool{false, true} {
			g := newRig(t, o, Options{}, inproc.Options{}, false)
			if o.Strings {
				g.text = func(k uint64) string { return fmt.Sprintf("user%08d", k) }
			}
			const old, fresh = 1000, 150
			step := uint64(2)
			if behind {
				step = 1
			}
			for k := range uint64(old) {
				g.put(k*step, k)
			}
			g.train()
			g.refresh()
			lo, hi := uint64(old), uint64(old+2*fresh) // every other row is fresh
			for k := lo + 1; !behind && k < hi; k += 2 {
				g.put(k, k)
			}
			if behind {
				lo, hi = old-5, old+fresh
				for k := uint64(old); k < hi; k++ {
					g.put(k, k)
				}
			}
			d, scan := driver{conn: g.conn}, g.c.NewScan()
			var rounds, reads [3]uint64
			for i := range rounds {
				before := g.c.Stats()
				scan.Start(g.at(lo), g.at(hi-1), int(hi-lo))
				d.run(scan)
				if res := scan.Result(); res.Status != index.Found || uint64(len(res.Entries)) != hi-lo {
					t.Fatalf("behind %v: %v, %d rows", behind, res.Status, len(res.Entries))
				}
				s := g.c.Stats()
				rounds[i], reads[i] = s.Rounds-before.Rounds, s.Reads-before.Reads
			}
			most := uint64(1 + (hi-lo)/uint64(o.SlotsPerLeaf/2)/leavesPerRoundMax) // leaves are at least half full
			if o.Strings || o.Inline == learned.No {
				most += 2 // fences; rows
			}
			if rounds[2] > most {
				t.Errorf("behind %v: rounds of three scans %d, of the last at most %d; READs %d", behind, rounds, most, reads)
			}
			t.Logf("behind %v: rounds %d, READs %d", behind, rounds, reads)
		}
	})
}
