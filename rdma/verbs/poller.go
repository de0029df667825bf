//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// perConn bounds the completions that one connection of a server can have
// outstanding.
const perConn = receiveSlots + sendSlots + 1

const initialConns = 64

// poller serves the RPCs of its share of the connections, which complete into
// its queue. One goroutine polls and runs the handlers. While a handler takes
// long, a relief polls in its place, so that flow control and queries about
// regions do not wait for handlers; requests do.
type poller struct {
	e      *endpoint
	kicked atomic.Bool

	// Used by the goroutine that polls.
	cq      *completions
	spin    provide.Spinner
	ready   []*serverConn // have a request to handle
	touched []*serverConn // in this pass

	relief   *time.Timer
	relieved chan struct{} // the relief has gone
	handled  atomic.Bool   // the handler has returned

	mu struct {
		sync.Mutex
		conns map[uint32]*serverConn
	}
}

func newPoller(e *endpoint) (*poller, error) {
	p := &poller{e: e}
	p.spin.Init(e.p.opts.Spin)
	p.mu.conns = make(map[uint32]*serverConn)
	p.relieved = make(chan struct{}, 1)
	p.relief = time.AfterFunc(time.Hour, p.relieve)
	p.relief.Stop()
	var err error
	p.cq, err = newCompletions(e.id.verbs, min(initialConns*perConn, e.lim.completions))
	return p, err
}

// add makes room for the completions of one more connection. What connections
// that are gone have left in the queue may take as much again.
func (p *poller) add(c *serverConn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if need := 2 * perConn * (len(p.mu.conns) + 1); need > p.cq.size {
		to := min(2*p.cq.size, p.e.lim.completions)
		if to < need {
			return fmt.Errorf("verbs: the device has no room for more completions: %w", rdma.ErrTooLarge)
		}
		if err := p.cq.resize(to); err != nil {
			return err
		}
	}
	p.mu.conns[c.number] = c
	return nil
}

func (p *poller) remove(c *serverConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, c.number)
}

// connection returns a connection by its number, nil if it is gone.
func (p *poller) connection(number uint32) *serverConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.conns[number]
}

// kick makes the poller look around.
func (p *poller) kick() {
	p.kicked.Store(true)
	p.cq.w.expire()
}

// reliefAfter is how long a handler may run before another goroutine polls.
const reliefAfter = time.Millisecond

// run serves until the endpoint is closed.
func (p *poller) run() {
	for p.look() {
		for len(p.ready) > 0 && p.e.Handler() != nil && !p.e.Closed() {
			c := p.ready[0]
			p.ready = p.ready[:copy(p.ready, p.ready[1:])]
			p.serve(c)
		}
	}
}

// look waits for completions and processes them. It reports false if the endpoint
// is closed.
func (p *poller) look() bool {
	n := p.cq.spin(&p.spin)
	if n == 0 {
		n = p.sleep()
	}
	for n > 0 && !p.e.Closed() {
		p.pass(n)
		n = p.cq.poll(1)
	}
	return !p.e.Closed()
}

// relieve polls while a handler runs.
func (p *poller) relieve() {
	for !p.handled.Load() && p.look() {
	}
	p.relieved <- struct{}{}
}

// sleep parks the goroutine until there is a completion or a kick.
func (p *poller) sleep() int {
	if p.kicked.Swap(false) {
		return 0
	}
	if p.cq.arm() != nil {
		time.Sleep(time.Millisecond) // a device that is going away
		return 0
	}
	if n := p.cq.poll(1); n > 0 {
		return n
	}
	// A kick changes the deadline: an earlier kick is seen in kicked, a later one
	// ends the wait.
	_ = p.cq.w.file.SetReadDeadline(time.Time{})
	if !p.kicked.Swap(false) {
		_ = p.cq.w.raw.Read(p.cq.w.step)
	}
	return 0
}

// pass deals with n completions.
func (p *poller) pass(n int) {
	for i := range n {
		wc := &p.cq.wcs[i]
		id := uint64(wc.id)
		c := p.connection(uint32(id >> idConnShift))
		if c == nil {
			continue // of a connection that is gone
		}
		if c.dispatch(id, wcStatus(wc.status), uint32(wc.bytes)) {
			p.ready = append(p.ready, c)
		}
		if !c.touched {
			c.touched = true
			p.touched = append(p.touched, c)
		}
	}
	for i, c := range p.touched {
		c.touched = false
		c.settle()
		p.touched[i] = nil
	}
	p.touched = p.touched[:0]
}

// serve hands the request of a connection to the handler.
func (p *poller) serve(c *serverConn) {
	c.handling.Lock()
	defer c.handling.Unlock()
	if c.buried {
		return // its disconnect has been reported
	}
	c.req = rdma.Request{Body: c.in.buf, Peer: rdma.PeerID(c.number), From: &c.who, Replier: c}
	p.handled.Store(false)
	p.relief.Reset(reliefAfter)
	p.e.Handler()(&c.req)
	p.handled.Store(true)
	if !p.relief.Stop() {
		p.kick()
		<-p.relieved
	}
}

// clerk performs the slow work of an endpoint: it registers memory for clients,
// frees connections, and looks after those that are silent or idle. It never waits
// for a handler or for OnDisconnect, which may wait for an answer of the clerk.
type clerk struct {
	e    *endpoint
	wake chan struct{}
	mu   struct {
		sync.Mutex
		jobs    []func()
		stopped bool
	}
}

func newClerk(e *endpoint) *clerk { return &clerk{e: e, wake: make(chan struct{}, 1)} }

// do queues a job, which must not run code of the endpoint's user. A connection
// queues two at most at a time: its query, and its end.
func (k *clerk) do(job func()) {
	k.mu.Lock()
	k.mu.jobs = append(k.mu.jobs, job)
	k.mu.Unlock()
	provide.Signal(k.wake)
}

func (k *clerk) stop() {
	k.mu.Lock()
	k.mu.stopped = true
	k.mu.Unlock()
	provide.Signal(k.wake)
}

// pingEvery is how often a server pings its clients. It detects clients whose
// machine is gone; a client that disconnects is noticed at once.
const pingEvery = 10 * time.Second

func (k *clerk) run() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.wake:
		case <-tick.C:
			for _, c := range k.e.all() {
				c.ping()
				c.giveBack()
			}
		}
		k.mu.Lock()
		jobs, stopped := k.mu.jobs, k.mu.stopped
		k.mu.jobs = nil
		k.mu.Unlock()
		if stopped {
			return // the endpoint frees all connections
		}
		for _, job := range jobs {
			job()
		}
	}
}
