package server

import (
	"context"
	"errors"
	"slices"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// call is a running request to another server.
type call struct {
	l   *link
	ms  []twophase.Message
	err error
	v   verdict
}

// run performs the machine's effects until nothing is left to do or to wait
// for. It sends the requests to other servers before it prepares this server's
// share, and waits for the answers afterwards. The requests of a round have one
// deadline.
func (t *task) run() {
	for len(t.out.Messages) > 0 || len(t.locks) > 0 || len(t.remote) > 0 {
		t.local()
		t.start()
		t.lock()
		t.finish()
	}
}

// start sends the machine's messages to other servers, one request per server
// and kind of message.
func (t *task) start() {
	t.sent, t.remote = t.remote, t.sent[:0]
	for left := t.sent; len(left) > 0; {
		to, ok := t.driver.parts.placement.Primary(left[0].To.Partition)
		n := 1
		for i := n; i < len(left); i++ {
			if m := left[i]; m.Kind == left[0].Kind && t.driver.parts.isAt(m.To, to) {
				copy(left[n+1:i+1], left[n:i])
				left[n] = m
				n++
			}
		}
		ms := left[:n]
		left = left[n:]
		l, kind := t.link(to), ms[0].Kind
		if !ok || l == nil || ms[0].To.Incarnation != l.incarnation || kind != twophase.Prepare && kind != twophase.HandOver && kind != twophase.Decide {
			t.driver.post(ms)
			continue
		}
		if kind != twophase.Prepare && !t.driver.durable.awaitLog(ms) {
			continue // the machine asks, or repeats it
		}
		if len(t.calls) == 0 {
			t.ctx = t.driver.workers.deadline()
			if c := t.share.call; c != nil && kind == twophase.Prepare && c.ends < clock.Fast()+peerTimeout {
				t.ctx = c // a vote that comes later does not count
			}
		}
		t.calls = append(t.calls, call{l: l, ms: ms, err: l.conn.StartCall(t.ctx, t.request(to, ms))})
	}
}

// request encodes messages of one kind to one server. Prepare and HandOver come
// with that server's parts of the transaction.
func (t *task) request(to placement.Server, ms []twophase.Message) []byte {
	switch ms[0].Kind {
	case twophase.Decide:
		t.buf = wire.AppendMessages(append(t.buf[:0], byte(wire.OpDecide)), ms)
		return t.buf
	case twophase.HandOver:
		t.handed, t.asked = true, true
		t.buf = append(t.buf[:0], byte(wire.OpHandOver))
	default:
		t.asked = true
		for i := range ms {
			ms[i].Tick = t.home.ticks.present()
		}
		t.buf = append(t.buf[:0], byte(wire.OpPrepare))
	}
	t.buf = wire.AppendParts(wire.AppendMessages(t.buf, ms), &t.msg, func(part placement.Partition) bool { return t.driver.parts.placement.At(part) == to })
	return t.buf
}

// finish waits for the answers of all servers. They have one deadline, so that
// the order of waiting does not matter.
func (t *task) finish() {
	if len(t.calls) == 0 {
		return
	}
	for i := range t.calls {
		if c := &t.calls[i]; c.err == nil {
			c.v, c.err = c.l.finish(t.ctx)
		}
		if i+1 < len(t.calls) && t.ctx.Err() != nil && t.driver.workers.ctx.Err() == nil {
			// This server did not answer. The answers of the others have arrived, or are late too.
			ctx, cancel := context.WithTimeout(t.driver.workers.ctx, answeredTimeout)
			defer cancel()
			t.ctx = ctx
		}
	}
	for i := range t.calls {
		t.answer(&t.calls[i])
	}
	clear(t.calls)
	t.calls, t.ctx = t.calls[:0], nil
}

// answer takes the result of a request: the messages and the verdict of the
// other server, or an error, which loses the request.
func (t *task) answer(c *call) {
	if c.err == nil && c.v.code == wire.InDoubt {
		t.failed = true
		if c.ms[0].Kind != twophase.Decide {
			t.v = heavier(t.v, t.logFailed(c.l, c.ms[0].To.Partition, c.v))
		}
	} else if w := t.share.ended(); c.ms[0].Kind == twophase.Prepare && !w.ok() {
		t.v = heavier(t.v, w) // the vote does not count: it counts as lost, and the decision is an abort
		if c.err != nil {
			t.close(c.l) // only this one: the wait was short, so others to the server may be good
		}
	} else if c.err == nil {
		t.v = heavier(t.v, c.v)
		if c.ms[0].Kind != twophase.Decide {
			t.unheard -= len(c.ms)
		}
		t.out.Messages = append(t.out.Messages, c.l.messages...)
		t.local()
	} else {
		if !errors.Is(c.err, rdma.ErrTooLarge) {
			t.drop(c.l)
		}
		if c.ms[0].Kind != twophase.Decide {
			t.v = heavier(t.v, unreachable(c.err))
		}
	}
	if c.ms[0].Kind == twophase.Decide {
		if c.err != nil {
			t.driver.post(c.ms) // now, over another connection; the machine repeats it later
		}
		return
	}
	for _, m := range c.ms { // the machine ignores this if the message was answered
		t.step(t.home, func(machine *twophase.Machine) { machine.Lost(m.ID, m.To, &t.out) })
	}
}

// logFailed returns the verdict on a transaction that needs a server whose log has
// failed or is closed: that server acknowledges nothing.
func (t *task) logFailed(l *link, part placement.Partition, v verdict) verdict {
	return unreachable(&tables.Error{Err: exec.ErrUnavailable, Partition: int(part), Server: t.driver.parts.addrs[l.peer.server], Cause: errors.New(v.text)})
}

// confirm returns the answer to a transaction whose write the home server refused
// before it handed the decision over. The proofs at the home server held at that
// moment. The refusal counts if the proofs at the other server still hold now, and if that server
// would write what it was to write: what an index has that it does not maintain any more says
// nothing. The home server does not validate again, because its own placeholders have changed the
// proven words.
func (t *task) confirm() verdict {
	reads := wire.Commit{ID: t.msg.ID}
	to := placement.Server(0)
	for i := range t.msg.Parts {
		part := t.msg.Parts[i]
		if t.driver.parts.get(part.Partition) == nil {
			to = t.driver.parts.placement.At(part.Partition)
			part.Writes = slices.Clone(part.Writes)
			for k := range part.Writes {
				part.Writes[k].Row = nil
			}
			reads.Parts = append(reads.Parts, part)
		}
	}
	t.asked = true
	ctx := t.driver.workers.deadline()
	l := t.link(to)
	if l == nil {
		return verdict{code: wire.Unavailable, text: "the connection to the other server is lost"}
	}
	err := l.conn.StartCall(ctx, wire.AppendCommit(t.buf[:0], wire.OpValidate, &reads, nil))
	var v verdict
	if err == nil {
		v, err = l.finish(ctx)
	}
	switch {
	case err != nil:
		t.drop(l)
		return unreachable(err)
	case v.code == wire.InDoubt:
		return t.logFailed(l, reads.Parts[0].Partition, v)
	}
	return heavier(t.v, v)
}
