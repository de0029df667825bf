package server

import (
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/tables"
	"drtmx/txn"
)

// TestIdleServerRests counts how often the loops of a server look for work: next to
// never once nobody has asked it for anything for a while, and all the time from the
// next request on. What the last requests left to be done is done.
func TestIdleServerRests(t *testing.T) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		cl, acct, _ := startBank(t, 2)
		idleRests(t, cl, acct)
	})
	t.Run("copies", func(t *testing.T) {
		t.Parallel()
		c := mustOpenCopied(t, vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2})
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		idleRests(t, c.Cluster, c.acct)
	})
}

// idleRests counts the turns of the first server.
func idleRests(t *testing.T, cl *Cluster, acct *tables.Table) {
	t.Helper()
	putAccounts(t, cl.DB, acct, 100, startBalance)
	s := cl.Servers[0]
	idle := func() {
		t.Helper()
		for end := time.Now().Add(testseed.Patience()); !s.pace.idle() || s.parts.records() > 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the server does not come to rest; it has records of %d transactions", s.parts.records())
			}
		}
		time.Sleep(idleRest) // each loop has its last short rest
	}
	idle()
	looks := func() uint64 {
		if s.durable == nil {
			return 0
		}
		return s.durable.group.turns.Load()
	}
	start, before, looked := time.Now(), s.pace.turns.Load(), looks()
	time.Sleep(2 * idleRest)
	turns, took := s.pace.turns.Load()-before, time.Since(start)
	if n, most := looks()-looked, uint64(3*took/time.Second)+3; n > most {
		t.Errorf("the server looked at its copies %d times in %v, want at most %d", n, took, most)
	}
	t.Logf("%d turns in %v", turns, took)
	if most := uint64(6*took/time.Second) + 6; turns > most {
		t.Errorf("the loops of an idle server looked for work %d times in %v, want at most %d", turns, took, most)
	}
	if st := s.Stats(); st.Indexes[0].Pending > 0 {
		t.Errorf("%d sub-models wait to be trained", st.Indexes[0].Pending)
	}
	before = s.pace.turns.Load()
	if err := cl.DB.Snapshot(t.Context(), func(x *txn.Txn) error {
		_, err := x.Get(acct, tables.Num(2))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Update(t.Context(), addOne(acct, 2)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testseed.Patience()); s.pace.turns.Load() < before+100; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a request does not wake the server")
		}
	}
}

// TestRest: a loop rests long only in an idle server, if it has nothing to do, and
// the next request ends its rest.
func TestRest(t *testing.T) {
	var p pace
	timer := time.NewTimer(time.Hour)
	rest := func(long time.Duration, soon bool) bool {
		return p.rest(t.Context(), timer, time.Millisecond, long, soon)
	}
	p.request()
	if !rest(time.Hour, false) {
		t.Fatal("the context has not ended")
	}
	p.last.Store(int64(clock.Fast() - 2*awakeFor))
	rest(time.Hour, true)
	rested := make(chan struct{})
	go func() {
		rest(time.Hour, false)
		close(rested)
	}()
	for end := time.Now().Add(testseed.Patience()); p.resting.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the loop does not rest")
		}
	}
	p.mu.Lock()
	wake := p.wake
	p.mu.Unlock()
	p.request()
	select {
	case <-wake:
	default:
		t.Fatal("a request does not wake the loop")
	}
	<-rested
	rest(time.Hour, false) // as before the rest
}

// TestLoopsRestUntilOneMoment: loops of an idle server that begin to rest at different
// moments wake up at the same one, and none before its own rest is over.
func TestLoopsRestUntilOneMoment(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond, time.Second, 2500 * time.Millisecond} {
		before := clock.Fast()
		rest := untilBeat(d, time.Second)
		after := clock.Fast()
		if rest < d || rest > d+time.Second {
			t.Errorf("a loop that rests for %v: %v", d, rest)
		}
		if first, last := (before+rest)%time.Second, (after+rest)%time.Second; last != 0 && first != 0 && first < last {
			t.Errorf("a loop that rests for %v wakes up between %v and %v after a second", d, first, last)
		}
	}
}
