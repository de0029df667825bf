package train

import (
	"slices"
	"testing"
	"time"

	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// TestTakeDirty: the first due sub-model leaves the list, the order of the others
// stays, and no entry that is still dirty is lost. If none of those examined is due,
// the others come first.
func TestTakeDirty(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		const now, interval = 100 * time.Second, 10 * time.Second
		n := rapid.IntRange(0, 3*dirtyExamined).Draw(t, "sub-models")
		g := &generation{subs: make([]subState, n)}
		due := -1
		var stay []int
		for i := range g.subs {
			g.dirty = append(g.dirty, i)
			switch rapid.IntRange(0, 9).Draw(t, "state") {
			case 0: // trained outside retrain
				continue
			case 1:
				g.subs[i].trained = rapid.SampledFrom([]time.Duration{0, 1, now - interval}).Draw(t, "trained")
			default:
				g.subs[i].trained = now - interval + 1
			}
			g.subs[i].dirty = true
			if due < 0 && g.subs[i].trained <= now-interval && len(stay) < dirtyExamined {
				due = i
				continue
			}
			stay = append(stay, i)
		}
		if due < 0 && len(stay) > dirtyExamined {
			stay = append(stay[dirtyExamined:], stay[:dirtyExamined]...)
		}
		if got := g.takeDirty(now, func(*subState) time.Duration { return interval }); got != due {
			t.Fatalf("took %d, want %d", got, due)
		}
		left := slices.DeleteFunc(slices.Clone(g.dirty), func(i int) bool { return !g.subs[i].dirty })
		if !slices.Equal(left, stay) {
			t.Fatalf("left %v, want %v", left, stay)
		}
	})
}
