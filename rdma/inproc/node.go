package inproc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Node models the machine of a data server behind a fast network, such as one with a single
// slow core: what one-sided systems are made for, and what this machine is not. All
// connections of an endpoint share its NIC and cores. A verb occupies the NIC for Verb and
// Byte for each byte, an atomic besides that the atomic unit for Atomic. A request occupies
// the NIC as a verb does, then a core for RPC and for as long as the handler takes: Handler,
// or if that is 0 as long as it takes here. Queues are in the order of arrival. RTT is added
// to each round and call.
//
// Times are choices, not measurements of any hardware. All of them, and the handlers' times,
// are stretched by Dilation, so that neither sleeping nor the work of this process distorts
// them: at 1000, a second of this clock is a millisecond of the modelled one. What servers do
// besides handlers, such as training models, is neither slowed nor counted.
type Node struct {
	RTT      time.Duration `json:"rtt_ns"`
	Verb     time.Duration `json:"verb_ns"`
	Atomic   time.Duration `json:"atomic_ns"`
	Byte     float64       `json:"byte_ns"` // nanoseconds
	Cores    int           `json:"cores"`
	RPC      time.Duration `json:"rpc_ns"`
	Handler  time.Duration `json:"handler_ns,omitempty"`
	Dilation float64       `json:"dilation"`
}

// Bounds of a model.
const (
	nodeTimeMax  = time.Second
	nodeByteMax  = 1e6
	nodeCoresMax = 4096
	dilationMax  = 1e6
)

// Check reports whether the fields make sense.
func (n *Node) Check() error {
	for _, t := range []struct {
		name string
		d    time.Duration
	}{{"rtt", n.RTT}, {"verb", n.Verb}, {"atomic", n.Atomic}, {"rpc", n.RPC}, {"handler", n.Handler}} {
		if t.d < 0 || t.d > nodeTimeMax {
			return fmt.Errorf("inproc: node with %s %v: want 0 to %v", t.name, t.d, nodeTimeMax)
		}
	}
	switch { // written so that they refuse what is not a number
	case !(n.Byte >= 0 && n.Byte <= nodeByteMax):
		return fmt.Errorf("inproc: node with byte %v: want 0 to %v nanoseconds", n.Byte, nodeByteMax)
	case n.Cores < 1 || n.Cores > nodeCoresMax:
		return fmt.Errorf("inproc: node of %d cores: want 1 to %d", n.Cores, nodeCoresMax)
	case !(n.Dilation >= 1 && n.Dilation <= dilationMax):
		return fmt.Errorf("inproc: node with dilation %v: want 1 to %v", n.Dilation, dilationMax)
	}
	return nil
}

// SetNode makes all endpoints behave as such nodes from now on; nil makes them as fast as this
// machine again. The network must have neither latency nor faults. A batch under way is complete
// at once; a call under way goes on as before.
func (n *Network) SetNode(model *Node) error {
	if !n.plain {
		return fmt.Errorf("inproc: a node model beside latencies or faults: %w", rdma.ErrUnsupported)
	}
	if model != nil {
		if err := model.Check(); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.node = model
	for _, e := range n.mu.endpoints {
		e.become(model, n.opts.Clock)
	}
	return nil
}

// Handled returns how many requests all endpoints that listen now have handled while they were
// modelled, and how long that took here.
func (n *Network) Handled() (requests uint64, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.mu.endpoints {
		requests += e.requests.Load()
		took += time.Duration(e.handled.Load())
	}
	return requests, took
}

// node is the state of a modelled machine. Times are those of the network's clock.
type node struct {
	Node
	clock Clock
	mu    sync.Mutex
	nic   time.Duration // free from then on, as the others
	atom  time.Duration
	cores []time.Duration
}

func (e *endpoint) become(model *Node, clock Clock) {
	if model == nil {
		e.node.Store(nil)
		return
	}
	e.node.Store(&node{Node: *model, clock: clock, cores: make([]time.Duration, model.Cores)})
}

// stretch is a time of the model in that of the clock.
func (n *node) stretch(d time.Duration) time.Duration { return time.Duration(float64(d) * n.Dilation) }

// carry books the NIC for a message of so many bytes that arrives at a time, and returns when
// it is through. The caller holds mu.
func (n *node) carry(at time.Duration, bytes uint64) time.Duration {
	n.nic = max(n.nic, at) + n.message(bytes)
	return n.nic
}

// message is how long a message of so many bytes occupies the NIC.
func (n *node) message(bytes uint64) time.Duration {
	return n.stretch(n.Verb) + time.Duration(float64(bytes)*n.Byte*n.Dilation)
}

// batch returns when a batch that is posted now is complete.
func (n *node) batch(b *rdma.Batch) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	done := now
	for i := range b.WRs {
		wr := &b.WRs[i]
		at := n.carry(now, uint64(len(wr.Buf))*mem.WordBytes)
		if wr.Op == rdma.OpCAS || wr.Op == rdma.OpFAA {
			n.atom = max(n.atom, at) + n.stretch(n.Atomic)
			at = n.atom
		}
		done = max(done, at)
	}
	return done + n.stretch(n.RTT)
}

// arrive returns when a request that is sent now has arrived.
func (n *node) arrive(bytes int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.carry(n.clock.Now(), uint64(bytes))
}

// serve books the core that is free first for a request that has arrived and took so long, and
// returns that core and when it is free again. The caller holds mu.
func (n *node) serve(arrived, took time.Duration) (core int, end time.Duration) {
	for i := range n.cores {
		if n.cores[i] < n.cores[core] {
			core = i
		}
	}
	if n.Handler > 0 {
		took = n.Handler
	}
	n.cores[core] = max(n.cores[core], arrived) + n.stretch(n.RPC+took)
	return core, n.cores[core]
}

// turn is a poller's turn at a request: the call, and the core once that is booked. Of a
// modelled machine, under node.mu.
type turn struct {
	of       *conn // nil while there is no request
	seq      uint64
	began    time.Duration
	answered time.Duration // how long the handler had run when it answered
	core     int           // -1 before the answer
}

// begin notes that a poller hands a request to the handler.
func (n *node) begin(p *poller, c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.turn = turn{of: c, seq: c.call.phase.Load() >> phaseBits, began: n.clock.Now(), core: -1}
}

// answer returns when the answer to call seq of a connection is back at the client. A handler
// that answers before it returns has used a core until now; an answer that comes later, from
// elsewhere, needs none.
func (n *node) answer(c *conn, seq uint64, bytes int) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	end := n.clock.Now()
	if t := &c.poller.turn; t.of == c && t.seq == seq && t.core < 0 {
		t.answered = end - t.began
		t.core, end = n.serve(c.call.arrived, t.answered)
	}
	// The NIC takes the answer in turn with what has arrived by now, not with what arrives until
	// the handler has ended.
	through := n.carry(n.clock.Now(), uint64(bytes))
	return max(end+n.message(uint64(bytes)), through) + n.stretch(n.RTT)
}

// end notes that the handler of a poller's turn has returned.
func (n *node) end(p *poller) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &p.turn
	took := n.clock.Now() - t.began
	p.e.requests.Add(1)
	p.e.handled.Add(int64(took))
	switch {
	case t.core < 0:
		n.serve(t.began, took)
	case n.Handler == 0:
		n.cores[t.core] += n.stretch(took - t.answered)
	}
	t.of = nil
}

// sleepUntil returns at a time of the clock, or with an error when ctx ends or the connection
// is down. It does not spin: times are stretched so that a timer's slack does not matter.
func (n *node) sleepUntil(ctx context.Context, c *conn, until time.Duration) error {
	for c.link.Up() {
		d := until - n.clock.Now()
		if d <= 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("inproc: wait for %q: %w", c.e.Addr(), err)
		}
		time.Sleep(min(d, 10*sleepMax))
	}
	return c.linkErr()
}
