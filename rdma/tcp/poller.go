package tcp

import (
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// event is what a poller has to do: handle a call, or report a peer that went
// away. Connections keep the nodes of theirs.
type event struct {
	conn *serverConn
	gone bool
}

// poller hands the requests of its share of the connections to the handler,
// one after the other.
type poller struct {
	e     *endpoint
	queue provide.Queue[event]
	wake  chan struct{}
}

func newPoller(e *endpoint) *poller { return &poller{e: e, wake: make(chan struct{}, 1)} }

func (p *poller) push(ev *provide.Node[event]) {
	if p.queue.Push(ev) {
		p.kick()
	}
}

func (p *poller) kick() { provide.Signal(p.wake) }

// run handles events until the endpoint is closed.
func (p *poller) run(h rdma.Handler) {
	for !p.e.Closed() {
		ev := p.queue.Take()
		if ev == nil {
			<-p.wake
		}
		for ev != nil && !p.e.Closed() {
			next := ev.Next() // the node may be queued anew once its call is answered
			p.handle(h, ev.Value)
			ev = next
		}
	}
}

func (p *poller) handle(h rdma.Handler, ev event) {
	c := ev.conn
	if ev.gone {
		p.e.opts.OnDisconnect(c.peer)
		return
	}
	if q, ok := c.take(); ok {
		h(q)
		c.handlerReturned()
	}
}
