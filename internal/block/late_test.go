package block

import "testing"

// TestCoverLate: late CSNs of a partition's next life are above those of the one
// before, so that rows locked over a restart get newer headers.
func TestCoverLate(t *testing.T) {
	take := func(cover ...CSN) CSN {
		a := newArena(t, ArenaOptions{})
		for _, c := range cover {
			a.CoverLate(c)
		}
		a.CoverCSN(NewCSN(9, 0))
		return a.CSNAt(7)
	}
	first := take()
	before := NewCSN(7, first.Seq()+40)
	if got := take(before, NewCSN(7, 3), first); got <= before || got.Tick() != 7 {
		t.Errorf("after %v of the former life the next late CSN is %v", before, got)
	}
	if got := take(NewCSN(7, 3)); got != first {
		t.Errorf("a CSN that is not late moves late ones: %v, want %v", got, first)
	}
}
