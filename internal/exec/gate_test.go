package exec

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// queue starts a goroutine that waits at the gate as the nth of those that wait,
// and sends n when it has entered, or -n if its context has ended.
func queue(t *testing.T, g *gate, ctx context.Context, n int, out chan<- int) {
	t.Helper()
	go func() {
		if v := (visit{}); g.enter(ctx, &v) {
			out <- n
		} else {
			out <- -n
		}
	}()
	for end := time.Now().Add(testseed.Patience()); waiting(g) != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d wait, want %d", waiting(g), n)
		}
	}
}

func waiting(g *gate) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for v := g.mu.first; v != nil; v = v.next {
		n++
	}
	return n
}

// full returns a gate with one inside, the visit, and room for no one else, and
// whose ticks change nothing.
func full() (*gate, *visit) {
	g, v := new(gate), new(visit)
	g.mu.limit, g.mu.ticking = 1, true
	g.enter(context.Background(), v)
	return g, v
}

// TestGateIsFair: at most so many are inside as the limit says, those that wait
// enter in order of arrival, and one that gives up leaves the order and does not
// enter.
func TestGateIsFair(t *testing.T) {
	g, inside := full()
	const all = 50
	entered := make(chan int, all)
	ctx, cancel := context.WithCancel(context.Background())
	for n := 1; n <= all; n++ {
		own := context.Background()
		if n%10 == 0 {
			own = ctx
		}
		queue(t, g, own, n, entered)
	}
	if !g.on.Load() {
		t.Error("some wait, and sessions without losses would pass by")
	}
	cancel()
	for range all / 10 {
		if n := <-entered; n >= 0 || -n%10 != 0 {
			t.Fatalf("%d enters, want those that give up to say so", n)
		}
	}
	for n := 1; n <= all; n++ {
		if n%10 == 0 {
			continue
		}
		inside.inside = true
		g.leave(inside, false)
		if got := <-entered; got != n {
			t.Fatalf("%d enters, want %d", got, n)
		}
		if g.mu.inside != 1 || len(entered) > 0 {
			t.Fatalf("%d are inside, want 1", g.mu.inside)
		}
	}
	if g.on.Load() || waiting(g) != 0 {
		t.Error("no one waits, and all pass the gate")
	}
}

// TestGateHonoursDeadlines: an Update whose deadline is over while it waits ends
// with it, needs no session, and is not inside afterwards. Views and calls, which
// use sessions of the same pool, do not wait.
func TestGateHonoursDeadlines(t *testing.T) {
	db := &DB{}
	db.gate.mu.limit, db.gate.mu.ticking = 1, true
	mine := &Session{db: db}
	db.release(mine)
	s, err := db.admit(context.Background(), nil)
	if err != nil || s != mine {
		t.Fatalf("admitted %p, %v, want the session of the pool", s, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if s, err := db.admit(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || s != nil {
		t.Fatalf("admitted %p, %v, want the end of the deadline", s, err)
	}
	db.gate.mu.idle = append(db.gate.mu.idle, &Session{db: db})
	if s, err := db.acquire(context.Background()); err != nil || s == nil {
		t.Fatalf("a View has %p, %v, want a session at once", s, err)
	}
	db.release(mine)
	if g := &db.gate; g.mu.inside != 0 || waiting(g) != 0 || g.on.Load() {
		t.Errorf("%d inside and %d wait, want none", g.mu.inside, waiting(g))
	}
}

// TestGateHandsOver: a session goes from one Update to the next that waits.
func TestGateHandsOver(t *testing.T) {
	db := &DB{}
	db.gate.mu.limit, db.gate.mu.ticking = 1, true
	db.release(&Session{db: db})
	first, err := db.admit(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Session)
	go func() {
		s, _ := db.admit(context.Background(), nil)
		got <- s
	}()
	for waiting(&db.gate) == 0 {
		time.Sleep(time.Millisecond)
	}
	if db.release(first); <-got != first {
		t.Error("another session")
	}
}

// TestGateFollowsLosses: many losses make it narrow, few make it wide again.
func TestGateFollowsLosses(t *testing.T) {
	var g gate
	var v visit
	try := func(n int, lost bool) int {
		for range n {
			g.enter(context.Background(), &v)
			g.leave(&v, lost)
		}
		return g.mu.limit
	}
	if got := try(40*gateTries, true); got != gateMin {
		t.Errorf("limit %d after losses, want %d", got, gateMin)
	}
	if got := try(60*gateTries, false); got != gateStart {
		t.Errorf("limit %d after successes, want %d", got, gateStart)
	}
}

// TestGateGrowsWhileItPays: a limit above gateStart stays if it makes the rate
// higher, ends if it does not, and is tried again after a while.
func TestGateGrowsWhileItPays(t *testing.T) {
	g := &gate{}
	g.mu.limit = gateStart
	rate := 1000.0
	for want := 2 * gateStart; want <= gateGrown; want *= 2 {
		if g.tune(rate, false); g.mu.limit != want {
			t.Fatalf("limit %d at a rate of %v, want %d", g.mu.limit, rate, want)
		}
		rate *= 1.8
	}
	if g.tune(rate, false); g.mu.limit != gateGrown {
		t.Fatalf("limit %d, want %d", g.mu.limit, gateGrown)
	}
	g.mu.grown -= 2 * gateAge
	for range gateTries {
		var v visit
		g.enter(context.Background(), &v)
		g.leave(&v, false)
	}
	if g.mu.limit != gateGrown/2 {
		t.Fatalf("limit %d after a while, want half of %d", g.mu.limit, gateGrown)
	}
	g.mu.ends = window{}
	for range 3 {
		g.mu.limit = gateStart
		g.tune(1000, false)
		if g.mu.limit != 2*gateStart {
			t.Fatalf("limit %d on trial, want %d", g.mu.limit, 2*gateStart)
		}
		for range gateRest + 1 {
			if g.tune(1100, false); g.mu.limit != gateStart {
				t.Fatalf("limit %d does not pay, want %d", g.mu.limit, gateStart)
			}
		}
	}
}

// TestGateOpensForThoseThatWaitForOthers: if those inside do not leave, others
// enter, how many there may be.
func TestGateOpensForThoseThatWaitForOthers(t *testing.T) {
	var g gate
	var done sync.WaitGroup
	for range 10 * gateStart {
		done.Go(func() { g.enter(context.Background(), new(visit)) })
	}
	done.Wait()
	if g.mu.inside != 10*gateStart {
		t.Errorf("%d are inside, want %d", g.mu.inside, 10*gateStart)
	}
}

// TestLosersCloseTheGate: while many transactions lose at the same time, all pass
// the gate, also those of sessions that have not lost yet.
func TestLosersCloseTheGate(t *testing.T) {
	var g gate
	lost := Txn{err: errAbandoned}
	var losers [gateClosed]admission
	for i := range losers {
		if g.closed() {
			t.Fatalf("%d losers close the gate, want %d", i, gateClosed)
		}
		losers[i].gate = &g
		losers[i].firstEnded(&lost, false)
	}
	newcomer := admission{gate: &g}
	if !newcomer.pass(context.Background(), false) {
		t.Error("a session does not pass the gate")
	}
	newcomer.firstEnded(&Txn{}, true)
	for range 2 {
		losers[0].loses(false) // it has ended
	}
	if n := g.losing.Load(); n != gateClosed-1 || newcomer.pass(context.Background(), false) {
		t.Errorf("%d losers are left, want %d, and the gate is open", n, gateClosed-1)
	}
	for i := range losers {
		losers[i].loses(false)
	}
	if n, inside := g.losing.Load(), g.mu.inside; n != 0 || inside != 0 {
		t.Errorf("%d losers and %d at the gate are left", n, inside)
	}
}

// TestHistoryOfLosses: few losses of many keep a session away from the gate.
func TestHistoryOfLosses(t *testing.T) {
	var h history
	for i := range 1000 {
		if h.add(i%20 == 0); h.passes {
			t.Fatalf("passes the gate after %d transactions, of which every twentieth has lost", i)
		}
	}
	for range gateLosses {
		h.add(true)
	}
	if !h.passes {
		t.Error("does not pass the gate after losses")
	}
	for range 64 {
		h.add(false)
	}
	if h.passes {
		t.Error("still passes the gate")
	}
}
