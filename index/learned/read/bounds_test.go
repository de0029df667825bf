package read

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/internal/keysets"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
)

// TestNoFallbacksAtRest: on an index that does not change, no lookup and no scan
// falls back to the server, however far off the models are: they bound the
// leaves that a key may be in, and lookups READ these.
func TestNoFallbacksAtRest(t *testing.T) {
	t.Run("drawn", func(t *testing.T) { noFallbacksAtRest(t, testseed.Of(t), 20000/indextest.Scale) })
	// A client without TTs began at a leaf that it had learnt of, and followed right
	// links until their bound.
	t.Run("learnt", func(t *testing.T) { noFallbacksAtRest(t, 1795471192743885231, 2000) })
}

func noFallbacksAtRest(t *testing.T, seed uint64, n int) {
	r := rand.New(rand.NewPCG(seed, 1))
	for _, v := range []struct {
		keys   string
		family learned.Family
		text   bool
		budget Budget
		far    bool // some predictions are far off
	}{
		{"steep", learned.RMI, false, Full, true},
		{"steep", learned.RMI, false, ModelsOnly, true},
		{"steep", learned.RMI, false, RouterOnly, true},
		{"steep", learned.RMI, true, Full, false},
		{"lognormal", learned.RMI, false, Full, false},
		{"clustered", learned.RMI, false, Full, false},
		{"lognormal", learned.PLR, false, Full, false},
		{"tpcc", learned.PLR, false, Full, false},
	} {
		t.Run(fmt.Sprintf("%s/%v/text=%v/budget=%d", v.keys, v.family, v.text, v.budget), func(t *testing.T) {
			// Of steep keys a line knows next to nothing.
			keys := keysets.Of(n, func() uint64 { return uint64(math.Exp(r.Float64() * 42)) })
			for _, d := range keysets.All {
				if d.Name == v.keys {
					keys = d.Draw(r, n)
				}
			}
			o := learned.Options{RowWords: 1, Family: v.family, SlotsPerLeaf: 8, LeavesPerSubModel: 1024, Strings: v.text}
			if v.text {
				o.RowWords = 40
			}
			g := newRig(t, o, Options{Cache: Cache{Budget: v.budget}}, inproc.Options{}, false)
			if v.text {
				g.text = func(k uint64) string { return string(index.AppendNum(nil, k)) }
			}
			for i, at := range r.Perm(len(keys)) {
				if k := keys[at]; i%2 == 0 || k%2 == 0 {
					g.put(k, k)
				}
			}
			g.train()
			g.refresh()
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), g.c.NewScan()
			far := 0
			for pass := range 3 {
				before := g.c.Stats()
				for _, k := range keys {
					get.Start(g.at(k))
					d.run(get)
					if s := get.Result().Status; s != index.Found && s != index.NotFound {
						t.Fatalf("pass %d, key %d: %v", pass, k, s)
					}
					if get.(*getOp).span.was > leftsMax {
						far++
					}
				}
				for i := pass; i+20 < len(keys); i += 7 {
					k := keys[i]
					scan.Start(g.at(k), g.at(keys[i+20]), 0)
					d.run(scan)
					if res := scan.Result(); res.Status != index.Found || len(res.Entries) == 0 {
						t.Fatalf("pass %d, scan from key %d: %v, %d rows", pass, k, res.Status, len(res.Entries))
					}
				}
				s := g.c.Stats()
				t.Logf("pass %d: %d keys far off, %d chases, %.4f rounds and %.4f READs", pass, far, s.Chases-before.Chases,
					float64(s.Rounds-before.Rounds)/float64(s.Lookups-before.Lookups), float64(s.Reads-before.Reads)/float64(s.Lookups-before.Lookups))
				if n := s.Fallbacks - before.Fallbacks; n > 0 {
					t.Errorf("pass %d: %d fallbacks", pass, n)
				}
			}
			if v.far && far == 0 && n == 20000 {
				t.Error("no prediction was far off")
			}
		})
	}
}
