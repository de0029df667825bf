package tcp

import (
	"sync/atomic"

	"drtmx/rdma"
)

// event is a node of a poller's queue: a call to be handled, or a peer that
// went away. Connections embed theirs, so that queueing allocates nothing.
type event struct {
	next *event
	conn *serverConn
	gone bool
}

// poller hands the requests of its share of the connections to the handler,
// one after the other. Its queue is a stack that agents push to and the poller
// takes whole.
type poller struct {
	e     *endpoint
	queue atomic.Pointer[event]
	wake  chan struct{}
}

func newPoller(e *endpoint) *poller { return &poller{e: e, wake: make(chan struct{}, 1)} }

func (p *poller) push(ev *event) {
	for {
		next := p.queue.Load()
		ev.next = next
		if p.queue.CompareAndSwap(next, ev) {
			if next == nil { // otherwise the pusher of next has woken the poller
				p.kick()
			}
			return
		}
	}
}

func (p *poller) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run handles events until the endpoint is closed.
func (p *poller) run(h rdma.Handler) {
	for !p.e.closed.Load() {
		var first *event
		for ev := p.queue.Swap(nil); ev != nil; { // oldest first
			next := ev.next
			ev.next, first = first, ev
			ev = next
		}
		if first == nil {
			<-p.wake
		}
		for first != nil && !p.e.closed.Load() {
			next := first.next // the node may be queued anew once its call is answered
			p.handle(h, first)
			first = next
		}
	}
}

func (p *poller) handle(h rdma.Handler, ev *event) {
	c := ev.conn
	if ev.gone {
		p.e.opts.OnDisconnect(c.peer)
		return
	}
	if q, ok := c.take(); ok {
		h(q)
		c.handled()
	}
}
