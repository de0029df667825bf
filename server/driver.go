package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

const (
	// tickEvery is the time between ticks of the commit protocol.
	tickEvery = 100 * time.Millisecond
	// askAfter is the number of ticks after which a partition in doubt asks the
	// coordinator and the last agent. After as many again it asks all parties.
	askAfter = 5
	// warnAfter is the number of ticks in doubt after which a transaction is logged as a
	// warning, and the least number between warnings.
	warnAfter = 50
)

// driver carries out what the machines of the commit protocol ask for, at this server
// and by messages to the others.
type driver struct {
	parts    *partitions
	peers    []*peer // by server; connections are made when first needed
	clocks   *clocks
	answers  *answers
	outcomes *outcomes
	workers  *workers
	durable  *durable // nil in memory
	log      *slog.Logger
	tasks    sync.Pool // *task
	quiet    int       // ticks until the next warning may be logged

	coordinated, handovers atomic.Uint64 // counted
}

// run ticks the machines until ctx ends, and logs transactions that stay in
// doubt.
func (dr *driver) run(ctx context.Context, pace *pace) {
	t := time.NewTimer(tickEvery)
	defer t.Stop()
	for open := true; pace.rest(ctx, t, tickEvery, idleRest, open); {
		dr.tick()
		dr.look()
		open = dr.outcomes.tellLate() || dr.parts.records() > 0
	}
}

// look logs a warning if a transaction stays in doubt. It is called after each tick, and
// follows the age of the oldest one: under load some transaction is in doubt at any
// moment.
func (dr *driver) look() {
	n, id, oldest := 0, twophase.ID{}, 0
	for _, p := range dr.parts.here {
		p.protocol.mu.Lock()
		n += p.protocol.machine.InDoubt()
		if of, ticks := p.protocol.machine.Oldest(); ticks > oldest {
			id, oldest = of, ticks
		}
		p.protocol.mu.Unlock()
	}
	if dr.quiet--; oldest >= warnAfter && dr.quiet <= 0 {
		dr.quiet = warnAfter
		dr.log.Warn("transactions stay in doubt", "transactions", n, "coordinator", id.Coordinator.Partition, "seq", id.Seq,
			"for", time.Duration(oldest)*tickEvery)
	}
}

// tick advances the time of all machines by one tick. It does not wait for
// other servers, nor for a log that has no room.
func (dr *driver) tick() {
	b := &batch{driver: dr}
	tick := func(m *twophase.Machine) { m.Tick(&b.out) }
	for _, p := range dr.parts.here {
		switch {
		case dr.durable == nil:
			b.step(p, tick)
		case p.protocol.turn.tryTake():
			b.stepInTurn(p, tick)
		default:
			dr.tickLater(p)
		}
	}
	b.settle()
}

// tickLater advances the time of a machine when it has its turn, in the background, unless
// an earlier tick still waits for that.
func (dr *driver) tickLater(p *partition) {
	if !p.protocol.late.CompareAndSwap(false, true) {
		return
	}
	dr.workers.background(func() {
		b := &batch{driver: dr}
		p.protocol.turn.take()
		p.protocol.late.Store(false)
		b.stepInTurn(p, func(m *twophase.Machine) { m.Tick(&b.out) })
		b.settle()
	})
}

// handle handles messages of the commit protocol. A Prepare or a HandOver comes with
// this server's parts of the transaction. The answer has this server's verdict on its
// share, and the messages to the sender.
func (dr *driver) handle(r *rdma.Request, w *work, d *wire.Decoder, op wire.Op) {
	w.messages = d.Messages(w.messages)
	b := &w.batch
	b.driver = dr
	defer b.reset()
	if op == wire.OpPrepare || op == wire.OpHandOver {
		if err := w.commit.DecodeParts(d); err != nil {
			dr.answers.refuse(r, err.Error())
			return
		}
		b.share.of(dr.parts, &w.commit)
	}
	if err := d.End(); err != nil || len(w.messages) == 0 {
		dr.answers.refuse(r, "malformed messages of the commit protocol")
		return
	}
	from := w.messages[0].From
	sender, _ := dr.parts.placement.Primary(from.Partition)
	for i := range w.messages {
		m := &w.messages[i]
		if !dr.parts.isAt(m.From, sender) || m.From.Incarnation != from.Incarnation || !allowed(op, m.Kind) || !dr.parts.known(m) {
			dr.answers.refuse(r, "message of the commit protocol that does not belong here")
			return
		}
	}
	if op == wire.OpPrepare || op == wire.OpHandOver {
		v := dr.clocksAgree(w.messages)
		if v.ok() {
			v = dr.clocks.saw(w.commit.Seen)
		}
		if !v.ok() {
			w.resp = wire.AppendMessages(appendVerdict(w.resp[:0], v), nil)
			dr.answers.reply(r, w.resp)
			return
		}
	}
	if op == wire.OpHandOver {
		dr.handovers.Add(1)
	}
	b.out.Messages = append(b.out.Messages, w.messages...)
	b.here()
	answers, others := b.remote[:0], []twophase.Message(nil)
	for _, m := range b.remote {
		if dr.parts.isAt(m.To, sender) && m.To.Incarnation == from.Incarnation {
			answers = append(answers, m)
		} else {
			others = append(others, m)
		}
	}
	dr.post(others)
	if (op == wire.OpPrepare || op == wire.OpHandOver) && b.v.ok() && refused(answers) {
		// Repeated, late, or one too many. The coordinator's client hears of it
		// only once the transaction is decided against, and may try again.
		b.v = conflict(exec.CauseRemote)
	}
	if dr.durable.owes(answers) {
		b.v, answers = dr.durable.owing(), nil
	}
	w.resp = wire.AppendMessages(appendVerdict(w.resp[:0], b.v), answers)
	dr.answers.release(answer{at: dr.durable.end(), r: r, resp: w.resp, peer: true})
}

// clocksAgree refuses to take part in a transaction of a coordinator whose tick
// is too far from that of the partition here. The tick of a decision can no
// longer be refused.
func (dr *driver) clocksAgree(requests []twophase.Message) verdict {
	for i := range requests {
		m := &requests[i]
		p := dr.parts.at(m.To)
		if p == nil {
			continue // a former life, which will not answer
		}
		if m.Kind == twophase.HandOver && m.Tick == 0 {
			continue // nobody else has a share, or adopts a tick
		}
		if here := p.ticks.present(); m.Tick > here+clockSkewMax || here > m.Tick+clockSkewMax {
			return verdict{code: wire.Unavailable, text: fmt.Sprintf("the clocks of servers %s and %s are more than %v apart",
				dr.parts.addrs[dr.parts.placement.At(m.From.Partition)], dr.parts.addrs[dr.parts.self], time.Duration(clockSkewMax)*clock.TickLength)}
		}
	}
	return verdict{}
}

// commit commits a transaction of any partitions. asked reports that other
// servers have been asked for their verdicts.
func (dr *driver) commit(ctx context.Context, c *wire.Commit, o origin) (v verdict, asked bool) {
	if len(c.Parts) == 0 {
		return verdict{}, false
	}
	t := dr.tasks.Get().(*task)
	v, again := t.decide(ctx, c, o)
	asked = t.asked
	if again {
		t.free()
	}
	return v, asked
}

// post sends messages to other servers in the background. It does not wait.
func (dr *driver) post(ms []twophase.Message) {
	if dr.durable != nil {
		ms = dr.durable.withhold(ms)
	}
	dr.postNow(ms)
}

// postNow is post for messages that need not wait for the log.
func (dr *driver) postNow(ms []twophase.Message) {
	for len(ms) > 0 {
		to, ok := dr.parts.placement.Primary(ms[0].To.Partition)
		n := 1
		for n < len(ms) && dr.parts.isAt(ms[n].To, to) {
			n++
		}
		if ok && to != dr.parts.self {
			dr.peers[to].post(ms[:n])
		}
		ms = ms[n:]
	}
}

// finishOutcome answers a session about a transaction that was in doubt when the
// server was restored.
func (dr *driver) finishOutcome(o origin, commit bool) {
	v := verdict{}
	if !commit {
		v = conflict(exec.CauseRemote)
	}
	resp := v.append(nil)
	if commit {
		resp = append(resp, o.result...)
	}
	dr.durable.hold(answer{at: dr.durable.end(), do: func(durable bool) {
		if durable {
			dr.outcomes.settle(o.id, resp)
		}
	}})
}

// refused reports whether a machine refused a request without trying to lock or
// commit the share.
func refused(answers []twophase.Message) bool {
	for i := range answers {
		m := &answers[i]
		if m.Kind == twophase.Vote && m.Ballot == twophase.No || m.Kind == twophase.Answer && m.Known != twophase.Committed {
			return true
		}
	}
	return len(answers) == 0
}

// allowed reports whether a request may carry messages of a kind.
func allowed(op wire.Op, k twophase.Kind) bool {
	switch op {
	case wire.OpPrepare:
		return k == twophase.Prepare
	case wire.OpHandOver:
		return k == twophase.HandOver
	case wire.OpDecide:
		return k == twophase.Decide
	}
	return k == twophase.Ask || k == twophase.Settled || k == twophase.Noted
}
