package exec

import (
	"errors"
	"testing"
	"time"
)

// TestNestedCallsChangeNothing: what a session refuses while its transaction is in
// progress leaves the transaction as it was.
func TestNestedCallsChangeNothing(t *testing.T) {
	for name, begin := range map[string]func(*Session){
		"in progress":   func(s *Session) { s.txn.mode = snapshot },
		"on the pool's": func(s *Session) { s.lent = true },
	} {
		s := newSession(busyDB(t), 1, 1)
		k, _ := spareLink()
		s.net.links[0] = k.l
		s.net.lacks = make([]bool, 1)
		begin(s)
		fn := BodyFunc(func(*Txn) error { return errors.New("the body ran") })
		_, call := s.Call(t.Context(), 0, "procedure", nil)
		for what, err := range map[string]error{
			"Call": call, "Snapshot": s.Snapshot(t.Context(), time.Hour, fn), "View": s.View(t.Context(), fn), "Update": s.Update(t.Context(), fn),
		} {
			if !errors.Is(err, ErrClosed) || !errors.Is(err, errNested) {
				t.Errorf("%s, while a transaction is %s: %v, want errNested", what, name, err)
			}
		}
		if s.snap.stale != 0 || s.net.lacks == nil || s.net.links[0] != k.l || s.outcomes.next().Seq != 1 {
			t.Errorf("a refused call changed the session whose transaction is %s: staleness %v", name, s.snap.stale)
		}
	}
}
