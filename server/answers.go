package server

import (
	"errors"
	"fmt"

	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// answer is an answer to a transaction or to another request, or a function to call,
// that rests on the log up to a position. In memory there is no log, and nothing waits.
type answer struct {
	at   wal.LSN // 0: it rests on nothing
	id   wire.ID // the transaction of a session that it ends; zero: none
	r    *rdma.Request
	resp []byte
	peer bool // to a message of the commit protocol, or to a validation: messages follow the verdict
	do   func(durable bool)
}

// release sends an answer as soon as the log is durable up to its position and this
// process is known to hold its server's place. Every answer that rests on the log goes
// through release. Answers to reads do not: their clients wait for the horizon. The
// caller may reuse a.resp at once.
func (s *Server) release(a answer) {
	if d := s.durable; d != nil && (a.at > d.safe() || !d.mayAnswer()) {
		a.resp = append([]byte(nil), a.resp...)
		d.hold(a)
		return
	}
	s.deliver(&a, true)
}

// hold keeps an answer until the log is durable up to its position. It retains a.resp,
// which the caller must not change.
func (d *durable) hold(a answer) {
	d.mu.Lock()
	if n := len(d.held); n > 0 {
		a.at = max(a.at, d.held[n-1].at)
	}
	late := d.stop || d.failed.Load() && d.safe() < a.at
	if !late {
		d.held = append(d.held, a)
	}
	d.mu.Unlock()
	switch {
	case late:
		d.s.deliver(&a, false)
	case d.safe() >= a.at || d.failed.Load(): // pass may have run before the answer was held
		d.kick()
	}
}

// logEnded is the answer when an outcome can no longer be acknowledged.
var logEnded = verdict{code: wire.InDoubt, text: "the server's log has failed or ends"}

// deliver sends an answer. If durable is false, the log is not known to become durable
// up to the answer's position, and the answer says instead that the outcome is in
// doubt.
func (s *Server) deliver(a *answer, durable bool) {
	if a.do != nil {
		a.do(durable)
		return
	}
	if v := logEnded; !durable && a.peer {
		a.resp = wire.AppendMessages(appendVerdict(a.resp[:0], v), nil)
	} else if !durable {
		a.resp = v.append(a.resp[:0])
	}
	if a.id == (wire.ID{}) {
		s.reply(a.r, a.resp)
		return
	}
	s.outcomes.end(a.id, a.r, a.resp)
}

// tell sends the outcome of a transaction. One that was recovered waits until all
// copies in sync have it, like everything that rests on what was recovered.
func (s *Server) tell(r *rdma.Request, resp []byte) {
	if d := s.durable; d != nil && d.safe() < d.recovered {
		s.release(answer{at: d.recovered, r: r, resp: resp})
		return
	}
	s.reply(r, resp)
}

// tellOutcome is tell with a tick added to answers that carry one. By then a committed
// transaction has its tick.
func (s *Server) tellOutcome(r *rdma.Request, resp []byte) {
	if wire.CarriesTick(wire.Code(resp[0])) {
		resp = wire.AppendTick(resp, s.seenHere())
	}
	s.tell(r, resp)
}

// reply answers a request with what rests on nothing in the log. It replaces an answer
// that is too large for a message by an error that says so. It only counts any other
// failure: the peer is gone, and its connection is broken.
func (s *Server) reply(r *rdma.Request, body []byte) {
	err := r.Reply(body)
	if errors.Is(err, rdma.ErrTooLarge) {
		s.log.Error("answer does not fit a message", "bytes", len(body), "limit", rdma.MaxMessageBytes)
		err = r.Reply(tooLarge("answer", len(body), rdma.MaxMessageBytes).append(nil))
	}
	if err != nil {
		s.repliesLost.Add(1)
		s.log.Debug("answer not sent", "peer", r.Peer, "error", err)
	}
}

func tooLarge(what string, bytes, limit int) verdict {
	return verdict{code: wire.TooLarge, text: fmt.Sprintf("%s of %d bytes, limit %d", what, bytes, limit)}
}

func (s *Server) refuse(r *rdma.Request, text string) {
	s.reply(r, verdict{code: wire.Bad, text: text}.append(nil))
}
