package exec

import (
	"testing"
	"time"

	"drtmx/internal/clock"
)

// TestHopelessViewsAreNotRepeated: a View that has repeated long attempts in vain spares
// the next ones that, until one of them finds out that it pays again. Short attempts are
// repeated in any case.
func TestHopelessViewsAreNotRepeated(t *testing.T) {
	var h hopeless
	// lostBy is how many attempts a View loses before it goes on as a Snapshot.
	lostBy := func(attempt time.Duration) int {
		var e escalation
		for n := 0; ; n++ {
			if e.due(&h) {
				return n
			}
			e.n, e.lost = e.n+1, e.lost+attempt
			e.long = e.long || attempt >= longAttempt
		}
	}
	const long, short = clock.TickLength / 4, longAttempt - 1
	for round := range 2 {
		if n := lostBy(long); n != 4 {
			t.Errorf("round %d: the first View lost %d attempts, want 4", round, n)
		}
		if n, want := lostBy(short), int((clock.TickLength+short-1)/short); n != want {
			t.Errorf("round %d: a View of short attempts lost %d, want %d", round, n, want)
		}
		for i := range hopelessViews {
			if n := lostBy(long); n != 1 {
				t.Errorf("round %d: View %d after it lost %d attempts, want 1", round, i, n)
			}
		}
	}
	db := new(DB)
	db.hopeless.learn()
	began := Txn{s: &Session{db: db}, mode: view}
	for _, c := range []struct {
		e    escalation
		want time.Duration
	}{{escalation{}, 0}, {escalation{possible: true}, longAttempt}, {escalation{possible: true, again: true}, clock.TickLength}} {
		if got := c.e.recheck(&began); got != c.want {
			t.Errorf("%+v: reads are checked at %v, want %v", c.e, got, c.want)
		}
	}
	e := escalation{possible: true, long: true}
	e.ended(&began)
	if db.hopeless.use() {
		t.Error("a View that has succeeded after a long attempt in vain has taught nothing")
	}
	lostBy(long)
	h.forget()
	if n := lostBy(long); n != 4 {
		t.Errorf("after an attempt has succeeded, a View lost %d, want 4", n)
	}
	for range 3 * hopelessViews {
		lostBy(clock.TickLength) // learns, and uses nothing
	}
	if n := h.views.Load(); n != hopelessViews {
		t.Errorf("it is left for %d Views, want %d", n, hopelessViews)
	}
}
