package exec

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// gate bounds the first attempts of Updates that run at the same time in this
// process, and keeps the sessions of the pool. Waiting Updates enter in order of
// arrival. One that is handed a session continues with it while the session is still
// in the processor's caches.
//
// Too much concurrency costs more than it gains: each conflict costs a message, and
// the caches do not hold the state of many sessions. So the limit follows the share
// of attempts that lose. Above gateStart it grows only while that raises throughput:
// see tune.
//
// Updates on sessions of the pool always pass the gate. Those on a caller's session
// pass it while many transactions lose. An attempt that lost leaves the gate, and
// waits for its turn at the server instead, so that transactions that wait for one
// row do not block others here. Views do not pass it.
//
// A body may wait for other transactions, which wait at the gate. So if none leaves
// the gate from one tick to the next, the limit doubles. While connections are being
// made it doubles after more ticks only, because more transactions would make more
// connections.
type gate struct {
	on     atomic.Bool  // some Updates wait
	losing atomic.Int32 // transactions that have lost an attempt and not ended
	dials  atomic.Int32 // connections being made, for which transactions wait
	mu     struct {
		sync.Mutex
		limit, inside int
		tries, lost   int           // since losses last set the limit
		grown         time.Duration // when the limit last grew above gateStart, by clock.Fast
		first, last   *visit
		timer         *time.Timer
		ticking       bool
		ends          window

		idle   []*Session // sessions of the pool
		closed bool       // the DB is closed: all may enter
	}
	_   [64]byte     // every Update on a caller's session writes to the next field
	own atomic.Int32 // Updates in progress of callers' own sessions
}

// window counts the attempts that end while the limit stays the same and other
// Updates wait all the time.
type window struct {
	since time.Duration // by clock.Fast; 0: none wait
	ended int
	idle  int     // ticks since one has ended
	trial int     // the limit before it was doubled on trial; 0: no trial
	rate  float64 // attempts that ended per second, before the trial
	rest  int     // windows until the next trial
}

// visit is a wait at the gate.
type visit struct {
	enter   chan struct{} // has room for one
	next    *visit
	pooled  bool     // the Update runs on a session of the pool
	takes   bool     // it must be given a session of the pool
	session *Session // the session given to it; nil: there was none
	waits   bool
	inside  bool
	own     *crowdState // of the caller's own session; nil: it has none
	depth   mem.Depth   // of the stack of the waiting goroutine
}

var visits = sync.Pool{New: func() any { return &visit{takes: true} }}

const (
	gateMin, gateStart, gateMax = 16, 256, 1 << 14
	gateTries                   = 128 // attempts between two checks of the losses
	gateTick                    = 50 * time.Millisecond
	gateDials                   = 20                    // ticks in which no Update leaves, while connections are being made
	gateWindow                  = 20 * time.Millisecond // least length of a trial
	gateRest                    = 32                    // windows between two trials
	gateAge                     = 5 * time.Second       // how long a high limit stays
	// gateGrown bounds a limit that grows by trials. gateLosers bounds the
	// transactions that have lost and keep their sessions.
	gateGrown, gateLosers = 2048, 1024
	// A session passes the gate after gateLosses of its last 32 transactions have
	// lost, until none of 64 has. All sessions pass it while some Updates wait, or
	// while gateClosed transactions that have lost are not over.
	gateLosses, gateClosed = 3, 64
)

// history has a bit for each of the last transactions, 1 if its first attempt
// was lost.
type history struct {
	bits   uint64
	passes bool // the gate
}

func (h *history) add(lost bool) {
	h.bits <<= 1
	if lost {
		h.bits |= 1
	}
	switch {
	case lost && bits.OnesCount32(uint32(h.bits)) >= gateLosses:
		h.passes = true
	case h.bits == 0:
		h.passes = false
	}
}

// closed reports whether all sessions must pass the gate.
func (g *gate) closed() bool { return g.on.Load() || g.losing.Load() >= gateClosed }

// room reports whether one more Update may enter. The caller holds the mutex.
func (g *gate) room() bool {
	if g.mu.limit == 0 {
		g.mu.limit = gateStart
	}
	return g.mu.inside < g.mu.limit && int(g.losing.Load()) < max(g.mu.limit, gateLosers) || g.mu.closed
}

// take takes an idle session from the pool, or returns nil. The caller holds the
// mutex.
func (g *gate) take() *Session {
	n := len(g.mu.idle) - 1
	if n < 0 {
		return nil
	}
	s := g.mu.idle[n]
	g.mu.idle = g.mu.idle[:n]
	return s
}

// tryEnter enters if no Update waits and there is room. It takes a session of the
// pool if there is one.
func (g *gate) tryEnter() (s *Session, entered bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mu.first != nil || !g.room() {
		return nil, false
	}
	g.mu.inside++
	return g.take(), true
}

// enter waits until an Update may run its first attempt. It returns false if ctx ends
// before.
func (g *gate) enter(ctx context.Context, v *visit) bool {
	g.mu.Lock()
	if g.mu.first == nil && g.room() {
		g.let(v)
		g.mu.Unlock()
		return true
	}
	if v.enter == nil {
		v.enter = make(chan struct{}, 1)
	}
	v.next, v.waits = nil, true
	if g.mu.last == nil {
		g.mu.first = v
		g.await()
	} else {
		g.mu.last.next = v
	}
	g.mu.last = v
	g.mu.Unlock()
	if ctx.Done() == nil {
		<-v.enter
		return true
	}
	select {
	case <-v.enter:
		return true
	case <-ctx.Done():
		return g.abandon(v)
	}
}

// await notes that Updates wait, and starts the ticks. The caller holds the mutex.
func (g *gate) await() {
	g.on.Store(true)
	g.mu.ends.since, g.mu.ends.ended, g.mu.ends.idle = clock.Fast(), 0, 0
	if g.mu.ticking {
		return
	}
	if g.mu.ticking = true; g.mu.timer == nil {
		g.mu.timer = time.AfterFunc(gateTick, g.tick)
	} else {
		g.mu.timer.Reset(gateTick)
	}
}

// let admits a visit that is not in the queue any more. The caller holds the mutex.
func (g *gate) let(v *visit) {
	g.mu.inside++
	v.waits, v.inside = false, true
	if v.takes {
		v.session = g.take()
	}
}

// Bytes of a stack that an Update uses above and below the place where it has
// waited.
const (
	stackCalls   = 3 << 10
	stackCallers = 1 << 9
)

// prefetch prefetches the memory that the next Updates to enter will use, so that
// their cache misses overlap. If thousands wait, none of it is in the caches. The
// caller holds the mutex.
func (g *gate) prefetch() {
	v := g.mu.first
	if v == nil {
		return
	}
	v.depth.Prefetch(stackCalls, stackCallers)
	if v.own != nil {
		mem.PrefetchObject(v.own)
	}
	if v.next != nil {
		mem.PrefetchObject(v.next)
	}
}

// admit admits as many waiting visits as there is room for, and returns their list.
// The caller holds the mutex, and wakes them after it has released it.
func (g *gate) admit() (first *visit) {
	last := &first
	for g.mu.first != nil && g.room() {
		v := g.mu.first
		g.mu.first = v.next
		g.let(v)
		*last, last = v, &v.next
	}
	*last = nil
	g.prefetch()
	if g.mu.first == nil && g.mu.last != nil {
		g.mu.last = nil
		g.on.Store(false)
		g.mu.ends.since = 0
	}
	return first
}

// wake wakes the visits of a list that admit returned.
func (v *visit) wake() {
	for v != nil {
		next := v.next // once woken, the owner may use v again
		v.enter <- struct{}{}
		v = next
	}
}

// abandon ends a wait. It reports whether the visit was admitted meanwhile.
func (g *gate) abandon(v *visit) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !v.waits {
		<-v.enter
		return true
	}
	v.waits = false
	at := &g.mu.first
	var before *visit
	for *at != v {
		before, at = *at, &(*at).next
	}
	if *at = v.next; g.mu.last == v {
		g.mu.last = before
	}
	if g.mu.first == nil {
		g.on.Store(false)
		g.mu.ends.since = 0
	}
	return false
}

// leave ends a first attempt, and admits other Updates.
func (g *gate) leave(v *visit, lost bool) {
	if !v.inside {
		return
	}
	g.mu.Lock()
	g.out(v, lost)
	next := g.admit()
	g.mu.Unlock()
	next.wake()
}

// out ends a first attempt. The caller holds the mutex.
func (g *gate) out(v *visit, lost bool) {
	v.inside = false
	g.mu.inside--
	g.mu.tries++
	if lost {
		g.mu.lost++
	}
	if g.mu.tries >= gateTries {
		g.heed()
	}
	if w := &g.mu.ends; w.since != 0 {
		w.ended++
		w.idle = 0
		if w.ended >= gateTries {
			g.look()
		}
	}
}

// heed lowers the limit if many attempts lose. It lowers a high limit after gateAge,
// to see whether it is still needed, and raises a low one while few attempts lose.
func (g *gate) heed() {
	was := g.mu.limit
	switch {
	case g.mu.lost > g.mu.tries/32:
		g.mu.limit = max(was-was/4, gateMin)
	case was < gateStart && g.mu.lost < g.mu.tries/64:
		g.mu.limit = min(was+was/4, gateStart)
	case was > gateStart && clock.Fast()-g.mu.grown > gateAge:
		g.grow(max(was/2, gateStart))
	}
	if g.mu.limit < was {
		g.mu.ends.trial = 0
	}
	g.mu.tries, g.mu.lost = 0, 0
}

// grow sets a limit, which heed reconsiders after gateAge.
func (g *gate) grow(limit int) { g.mu.limit, g.mu.grown = limit, clock.Fast() }

// look ends a window that has lasted long enough. Its rate is ignored if connections
// were being made in it.
func (g *gate) look() {
	w := &g.mu.ends
	if now := clock.Fast(); now-w.since >= gateWindow {
		if g.dials.Load() == 0 {
			g.tune(float64(w.ended)/(now-w.since).Seconds(), w.ended < g.mu.limit)
		}
		w.since, w.ended = now, 0
	}
}

// tune decides at the end of a window whether a higher limit is better. If the
// transactions wait for the network or in their bodies, twice as many at the same
// time give twice the throughput. If they need the processor, it makes no difference.
// slow says that the Updates inside have not all changed once in the window.
func (g *gate) tune(rate float64, slow bool) {
	w := &g.mu.ends
	if was := w.trial; was != 0 {
		if w.trial = 0; rate < w.rate*5/4 {
			g.mu.limit, w.rest = was, gateRest
			return
		}
	}
	if w.rest--; !slow && (w.rest >= 0 || g.mu.limit < gateStart) || g.mu.limit >= gateGrown {
		return
	}
	w.rate, w.trial = rate, g.mu.limit
	g.grow(min(g.mu.limit*2, gateGrown))
}

// tick doubles the limit if no Update has left since the last ticks: see gate.
func (g *gate) tick() {
	g.mu.Lock()
	w := &g.mu.ends
	switch {
	case g.mu.first == nil:
		g.mu.ticking = false
		g.mu.Unlock()
		return
	case w.ended > 0:
		g.look()
	case w.idle >= gateDials || w.idle > 0 && g.dials.Load() == 0:
		w.trial = 0
		g.grow(min(g.mu.limit*2, gateMax))
	}
	w.idle++
	next := g.admit()
	g.mu.timer.Reset(gateTick)
	g.mu.Unlock()
	next.wake()
}

// close admits all waiting Updates and returns the idle sessions.
func (g *gate) close() (idle []*Session) {
	g.mu.Lock()
	idle, g.mu.idle, g.mu.closed = g.mu.idle, nil, true
	next := g.admit()
	g.mu.Unlock()
	next.wake()
	return idle
}

// admission is a session's relation to the gate.
type admission struct {
	gate   *gate
	past   history
	losing bool // the transaction is counted in gate.losing
	visit  visit
}

// pass passes the gate before a first attempt, if the session has lost often or all
// sessions must. It reports whether it has. A procedure at its home server does not.
func (a *admission) pass(ctx context.Context, atServer bool) bool {
	switch {
	case a.visit.inside: // DB.admit has passed it already
		return true
	case atServer || !a.past.passes && !a.gate.closed():
		return false
	}
	return a.gate.enter(ctx, &a.visit)
}

// firstEnded records a first attempt.
func (a *admission) firstEnded(t *Txn, gated bool) {
	lost := t.err == errAbandoned
	a.past.add(lost)
	a.loses(lost)
	if gated && (t.err != nil || !a.visit.pooled) { // release ends the visit of a session of the pool
		a.gate.leave(&a.visit, lost)
	}
}

// loses notes whether the session's transaction has lost an attempt and not ended:
// see gate.losing.
func (a *admission) loses(now bool) {
	if a.losing == now {
		return
	}
	n := int32(1)
	if a.losing = now; !now {
		n = -1
	}
	g := a.gate
	if g.losing.Add(n); !now && !a.visit.pooled && g.on.Load() {
		g.mu.Lock()
		next := g.admit()
		g.mu.Unlock()
		next.wake()
	}
}
