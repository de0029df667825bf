package exec

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// A write set agrees with a map, whatever the order of writes, look-ups, scans
// and attempts, with both kinds of key and more writes than it has slots.
func TestWriteSet(t *testing.T) {
	seed := testseed.Of(t)
	rnd := rand.New(rand.NewPCG(seed, 1))
	type name struct {
		ix  int
		key index.Key
	}
	ixs := []*tables.Index{{ID: 0}, {ID: 1, Strings: true}, {ID: 64}}
	randomKey := func(ix int) index.Key {
		n := uint64(rnd.IntN(300))
		if ixs[ix].Strings {
			return index.Str(fmt.Sprint("k", n))
		}
		return index.Num(n)
	}
	var ws writeSet
	ws.init()
	for attempt := range 200 {
		model := map[name]*write{}
		check := func(n name) {
			if w := ws.find(ixs[n.ix].ID, n.key); w != model[n] {
				t.Fatalf("attempt %d: %v is found as %+v, want %+v", attempt, n, w, model[n])
			}
		}
		for range rnd.IntN(200) {
			ix := rnd.IntN(len(ixs))
			n := name{ix, randomKey(ix)}
			check(n)
			switch w := model[n]; {
			case w == nil:
				w = ws.add(ixs[ix], n.key)
				w.op = wire.Insert
				model[n] = w
			case rnd.IntN(2) == 0:
				w.hidden = true
				delete(model, n)
				check(n)
				w.hidden = false
				model[n] = w
			}
			check(n)
			if rnd.IntN(8) > 0 {
				continue
			}
			lo, hi := randomKey(ix), randomKey(ix)
			var got, want []index.Key
			ws.ascend(ixs[ix].ID, lo, hi, func(w *write) bool {
				got = append(got, w.key)
				return true
			})
			for n := range model {
				if n.ix == ix && n.key.Compare(lo) >= 0 && n.key.Compare(hi) <= 0 {
					want = append(want, n.key)
				}
			}
			slices.SortFunc(want, index.Key.Compare)
			if !slices.Equal(got, want) {
				t.Fatalf("attempt %d: writes of [%v, %v]: %v, want %v", attempt, lo, hi, got, want)
			}
		}
		ws.reset()
		if !ws.empty() || ws.find(0, index.Num(1)) != nil {
			t.Fatal("a write is left of an earlier attempt")
		}
	}
}
