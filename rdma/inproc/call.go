package inproc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Phases of a call, in the low bits of call.phase:
//
//	idle --StartCall--> sent --Reply--> replying --> replied --FinishCall--> idle
//
// The bits above number the call, so that an answer to an earlier one cannot
// be taken for an answer to this one.
const (
	phaseIdle uint64 = iota
	phaseSent
	phaseReplying
	phaseReplied

	phaseBits = 2
	phaseMask = 1<<phaseBits - 1
)

// call is the connection's RPC channel. The client's goroutine and the replier
// share it; phase says whose turn it is.
type call struct {
	parker // the client's
	phase  atomic.Uint64
	// request has two buffers, used in turn: a handler may still read the body
	// of a request it has answered while the client starts the next call. The
	// one after that waits, on the same poller, for the handler to return.
	request  [2][]byte
	response []byte
	plan     callPlan // the adversary's plan, drawn by StartCall
	// Of a modelled machine.
	node    *node         // nil if it is not modelled
	arrived time.Duration // of the request
	ready   time.Duration // when the client may see the answer
}

// body returns the request being served.
func (k *call) body() []byte { return k.request[k.phase.Load()>>phaseBits&1] }

func (c *conn) StartCall(ctx context.Context, req []byte) error {
	if err := c.linkErr(); err != nil {
		return err
	}
	k := &c.call
	phase := k.phase.Load()
	if err := provide.CheckCall(phase&phaseMask != phaseIdle, req); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	seq := phase>>phaseBits + 1
	buf := &k.request[seq&1]
	*buf = append((*buf)[:0], req...)
	c.ctr.Add(&rdma.Counters{RPCs: 1, RPCBytes: uint64(len(req))})
	if k.node = c.e.node.Load(); k.node != nil {
		k.arrived = k.node.arrive(len(req))
	}
	k.phase.Store(seq<<phaseBits | phaseSent)
	if c.adv != nil {
		c.sendSlow()
		return nil
	}
	c.poller.push(&c.callEv)
	return nil
}

func (c *conn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	k := &c.call
	if k.phase.Load()&phaseMask == phaseIdle {
		if err := c.linkErr(); err != nil {
			return nil, err
		}
		return nil, provide.ErrNoCall
	}
	if err := c.awaitReply(ctx); err != nil {
		return nil, err
	}
	if c.adv != nil {
		if err := c.holdResponse(ctx); err != nil {
			return nil, err
		}
	}
	if k.node != nil {
		if err := k.node.sleepUntil(ctx, c, k.ready); err != nil {
			return nil, err
		}
	}
	resp = append(resp[:0], k.response...)
	c.ctr.Add(&rdma.Counters{RPCBytes: uint64(len(resp))})
	k.phase.Store(k.phase.Load() &^ phaseMask) // idle
	return resp, nil
}

// awaitReply spins, then parks, until the call is answered, the connection is
// down, or ctx ends, which leaves the call outstanding.
func (c *conn) awaitReply(ctx context.Context) error {
	k := &c.call
	spins := k.spins()
	spun := spins > 0
	var at time.Duration
	if spun {
		at = clock.Fast()
	}
	for parked := false; ; parked = true {
		for ; k.phase.Load()&phaseMask != phaseReplied && spins > 0 && c.link.Up(); spins-- {
			var alone bool
			if at, alone = k.yield(at); !alone {
				parked, spins = true, 1 // as far as the budget is concerned
			}
		}
		if k.phase.Load()&phaseMask == phaseReplied {
			if spun {
				k.adapt(!parked)
			}
			return nil
		}
		if err := c.linkErr(); err != nil {
			return err
		}
		k.prepare()
		if k.phase.Load()&phaseMask == phaseReplied || !c.link.Up() {
			k.cancel()
			continue
		}
		select {
		case <-k.ch:
		case <-ctx.Done():
			k.cancel()
			return fmt.Errorf("inproc: call to %q: %w", c.e.Addr(), ctx.Err())
		}
	}
}

// replier answers the connection's outstanding call.
type replier conn

func (r *replier) Reply(body []byte) error {
	c := (*conn)(r)
	answered, err := c.answer(c.call.phase.Load()>>phaseBits, body)
	if err == nil && !answered {
		return provide.ErrReplied
	}
	return err
}

// answer replies to call seq. It reports whether the call was still unanswered.
// The caller must not touch the call after deliver, because the client may have
// started the next one.
func (c *conn) answer(seq uint64, body []byte) (bool, error) {
	if err := provide.CheckReply(c.peer, c.link.Up(), true, body); err != nil {
		return false, err
	}
	k := &c.call
	if !k.phase.CompareAndSwap(seq<<phaseBits|phaseSent, seq<<phaseBits|phaseReplying) {
		return false, nil
	}
	k.response = append(k.response[:0], body...)
	if k.node != nil {
		k.ready = k.node.answer(c, seq, len(body))
	}
	if c.adv != nil && !c.carryBack() {
		return true, nil
	}
	if !c.e.hold(c) {
		c.deliver()
	}
	return true, nil
}

// deliver makes the response visible to the client.
func (c *conn) deliver() {
	c.call.phase.Add(phaseReplied - phaseReplying)
	c.call.wake()
}
