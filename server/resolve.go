package server

import (
	"context"
	"time"

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

// ticker ticks the machines until ctx ends, and logs transactions that stay in
// doubt.
func (s *Server) ticker(ctx context.Context) {
	t := time.NewTimer(tickEvery)
	defer t.Stop()
	watch := doubtWatch{s: s}
	for open := true; s.pace.rest(ctx, t, tickEvery, idleRest, open); {
		s.tick()
		watch.look()
		open = s.outcomes.tellLate() || s.parts.records() > 0
	}
}

// doubtWatch logs a warning if a transaction stays in doubt. It follows the age
// of the oldest one: under load some transaction is in doubt at any moment.
type doubtWatch struct {
	s     *Server
	quiet int // ticks until the next warning may be logged
}

// look is called after each tick.
func (w *doubtWatch) look() {
	n, id, oldest := 0, twophase.ID{}, 0
	for _, p := range w.s.parts.here {
		p.protocol.mu.Lock()
		n += p.protocol.machine.InDoubt()
		if of, ticks := p.protocol.machine.Oldest(); ticks > oldest {
			id, oldest = of, ticks
		}
		p.protocol.mu.Unlock()
	}
	if w.quiet--; oldest >= warnAfter && w.quiet <= 0 {
		w.quiet = warnAfter
		w.s.log.Warn("transactions stay in doubt", "transactions", n, "coordinator", id.Coordinator.Partition, "seq", id.Seq,
			"for", time.Duration(oldest)*tickEvery)
	}
}

// tick advances the time of all machines by one tick. It does not wait for
// other servers.
func (s *Server) tick() {
	b := &batch{s: s}
	for _, p := range s.parts.here {
		b.step(p, func(m *twophase.Machine) { m.Tick(&b.out) })
	}
	b.settle()
}

// handleMessages handles messages of the commit protocol. A Prepare or a
// HandOver comes with this server's parts of the transaction. The answer has
// this server's verdict on its share, and the messages to the sender.
func (s *Server) handleMessages(r *rdma.Request, w *work, d *wire.Decoder, op wire.Op) {
	w.messages = d.Messages(w.messages)
	b := &w.batch
	b.s = s
	defer b.reset()
	if op == wire.OpPrepare || op == wire.OpHandOver {
		if err := w.commit.DecodeParts(d); err != nil {
			s.answers.refuse(r, err.Error())
			return
		}
		b.share.of(s, &w.commit)
	}
	if err := d.End(); err != nil || len(w.messages) == 0 {
		s.answers.refuse(r, "malformed messages of the commit protocol")
		return
	}
	from := w.messages[0].From
	sender, _ := s.parts.placement.Primary(from.Partition)
	for i := range w.messages {
		m := &w.messages[i]
		if !s.parts.isAt(m.From, sender) || m.From.Incarnation != from.Incarnation || !allowed(op, m.Kind) || !s.parts.known(m) {
			s.answers.refuse(r, "message of the commit protocol that does not belong here")
			return
		}
	}
	if op == wire.OpPrepare || op == wire.OpHandOver {
		if v := s.clocksAgree(w.messages); !v.ok() {
			w.resp = wire.AppendMessages(appendVerdict(w.resp[:0], v), nil)
			s.answers.reply(r, w.resp)
			return
		}
		s.clocks.saw(w.commit.Seen)
	}
	if op == wire.OpHandOver {
		s.counters.handovers.Add(1)
	}
	b.out.Messages = append(b.out.Messages, w.messages...)
	b.here()
	answers, others := b.remote[:0], []twophase.Message(nil)
	for _, m := range b.remote {
		if s.parts.isAt(m.To, sender) && m.To.Incarnation == from.Incarnation {
			answers = append(answers, m)
		} else {
			others = append(others, m)
		}
	}
	s.post(others)
	if (op == wire.OpPrepare || op == wire.OpHandOver) && b.v.ok() && refused(answers) {
		// Repeated, late, or one too many. The coordinator's client hears of it
		// only once the transaction is decided against, and may try again.
		b.v = conflict(exec.CauseRemote)
	}
	if s.durable.owes(answers) {
		b.v, answers = s.durable.owing(), nil
	}
	w.resp = wire.AppendMessages(appendVerdict(w.resp[:0], b.v), answers)
	s.answers.release(answer{at: s.durable.end(), r: r, resp: w.resp, peer: true})
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
