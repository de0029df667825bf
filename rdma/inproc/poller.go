package inproc

import (
	"runtime"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/rdma/internal/provide"
)

// Spinning is by yielding: the peer is a goroutine of this process and may
// need this very processor. Budgets are in yields, each well under a
// microsecond when nothing else is runnable.
//
// When others are runnable, a goroutine that yields runs again after all of
// them, each of which may compute for 10 ms. A goroutine that parks runs as soon
// as it is woken. So the first yield that takes longer than crowdedYield ends
// the spinning, and the next crowdedCalls waits do not spin.
const (
	spinYieldsMin = 4
	spinYieldsMax = 64
	crowdedYield  = 20 * time.Microsecond
	crowdedCalls  = 64
)

// parker puts one goroutine to sleep until another wakes it. The sleeper
// calls prepare, checks its condition once more, and then receives from ch or
// calls cancel; a waker first makes the condition true. Wake-ups may be
// spurious and are never lost.
type parker struct {
	parked atomic.Bool
	ch     chan struct{}
	// budget adapts: it doubles when spinning was enough, halves when not.
	budget  int
	crowded int // waits that must not spin
}

func newParker() parker { return parker{ch: make(chan struct{}, 1), budget: spinYieldsMax} }

func (p *parker) prepare() { p.parked.Store(true) }
func (p *parker) cancel()  { p.parked.Store(false) }

func (p *parker) wake() {
	if p.parked.Load() && p.parked.CompareAndSwap(true, false) {
		provide.Signal(p.ch)
	}
}

// spins returns how many yields the next wait may take.
func (p *parker) spins() int {
	if p.crowded > 0 {
		p.crowded--
		return 0
	}
	return p.budget
}

// yield lets other goroutines run, and returns the time after that. It reports
// false if they took so long since a moment before that the caller should not
// spin.
func (p *parker) yield(since time.Duration) (now time.Duration, alone bool) {
	runtime.Gosched()
	if now = clock.Fast(); now-since < crowdedYield {
		return now, true
	}
	p.crowded = crowdedCalls
	return now, false
}

func (p *parker) adapt(enough bool) {
	if enough {
		p.budget = min(p.budget*2, spinYieldsMax)
	} else {
		p.budget = max(p.budget/2, spinYieldsMin)
	}
}

// eventKind is the kind of an event.
type eventKind uint8

const (
	eventCall eventKind = iota // the connection has sent a request
	eventGone                  // the connection is gone
)

// event is what a poller has to do. Connections keep the nodes of theirs.
type event struct {
	conn *conn
	kind eventKind
}

// poller runs the handler for its share of the endpoint's connections.
type poller struct {
	parker
	e      *endpoint
	queue  provide.Queue[event]
	early  []event     // calls and disconnects before Serve, in order
	copies []*delivery // second deliveries still to come
	turn   turn        // of a modelled machine
}

func newPoller(e *endpoint) *poller { return &poller{parker: newParker(), e: e} }

func (p *poller) push(ev *provide.Node[event]) {
	p.queue.Push(ev)
	p.wake()
}

func (p *poller) run() {
	for !p.e.Closed() {
		p.awaitResume()
		if len(p.early) > 0 && p.e.Handler() != nil {
			early := p.early
			p.early = nil
			for _, ev := range early {
				p.handle(ev)
			}
		}
		ev := p.queue.Take()
		if ev == nil {
			p.idle()
			continue
		}
		for ev != nil && !p.e.Closed() {
			p.awaitResume()
			// The node may be queued anew as soon as its call is answered.
			next := ev.Next()
			p.handle(ev.Value)
			ev = next
		}
	}
}

func (p *poller) awaitResume() {
	for p.e.paused.Load() {
		p.prepare()
		if !p.e.paused.Load() {
			p.cancel()
			return
		}
		<-p.ch
	}
}

func (p *poller) ready() bool {
	return !p.queue.Empty() || p.e.Closed() || p.e.paused.Load() ||
		len(p.early) > 0 && p.e.Handler() != nil
}

// idle spins, then parks, until there may be something to do.
func (p *poller) idle() {
	spins := p.spins()
	var at time.Duration
	if spins > 0 {
		at = clock.Fast()
	}
	for range spins {
		var alone bool
		at, alone = p.yield(at)
		if p.ready() {
			p.adapt(alone)
			return
		}
		if !alone {
			break
		}
	}
	if spins > 0 {
		p.adapt(false)
	}
	if len(p.copies) > 0 {
		time.Sleep(copyTick)
		p.deliverCopies()
		return
	}
	p.prepare()
	if p.ready() {
		p.cancel()
		return
	}
	<-p.ch
}

// handle deals with one event. Once the handler has the request, the
// connection's call state belongs to the client again.
func (p *poller) handle(ev event) {
	c := ev.conn
	if p.e.Closed() {
		return
	}
	h := p.e.Handler()
	if h == nil {
		p.early = append(p.early, ev)
		return
	}
	if ev.kind == eventGone {
		if f := p.e.opts.OnDisconnect; f != nil {
			f(c.peer)
		}
		return
	}
	if c.adv != nil {
		p.deliverTwice(c, h)
		return
	}
	c.req.Body = c.call.body()
	if n := c.call.node; n != nil {
		n.begin(p, c)
		defer n.end(p)
	}
	h(&c.req)
}
