package server

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

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

// answers sends the answers to requests, each when what it rests on is durable.
type answers struct {
	durable  *durable // nil in memory
	outcomes *outcomes
	clocks   *clocks
	client   *ownClient
	log      *slog.Logger
	lost     atomic.Uint64 // not sent
}

// release sends an answer as soon as the log is durable up to its position and this
// process is known to hold its server's place. Every answer that rests on the log goes
// through release. Answers to reads do not: their clients wait for the horizon. The
// caller may reuse a.resp at once.
func (as *answers) release(a answer) {
	if d := as.durable; d != nil && (a.at > d.safe() || !d.mayAnswer()) {
		a.resp = append([]byte(nil), a.resp...)
		d.hold(a)
		return
	}
	as.deliver(&a, true)
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
		d.s.answers.deliver(&a, false)
	case d.safe() >= a.at || d.failed.Load(): // pass may have run before the answer was held
		d.kick()
	}
}

// logEnded is the answer when an outcome can no longer be acknowledged.
var logEnded = verdict{code: wire.InDoubt, text: "the server's log has failed or ends"}

// deliver sends an answer. If durable is false, the log is not known to become durable
// up to the answer's position, and the answer says instead that the outcome is in
// doubt.
func (as *answers) deliver(a *answer, durable bool) {
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
		as.reply(a.r, a.resp)
		return
	}
	as.outcomes.end(a.id, a.r, a.resp)
}

// tell sends the outcome of a transaction. One that was recovered waits until all
// copies in sync have it, like everything that rests on what was recovered.
func (as *answers) tell(r *rdma.Request, resp []byte) {
	if d := as.durable; d != nil && d.safe() < d.recovered {
		as.release(answer{at: d.recovered, r: r, resp: resp})
		return
	}
	as.reply(r, resp)
}

// tellOutcome is tell with a tick added to answers that carry one. It is no lower than
// those of all commits that the answer may reveal: by then a committed transaction has
// its tick.
func (as *answers) tellOutcome(r *rdma.Request, resp []byte) {
	if wire.CarriesTick(wire.Code(resp[0])) {
		resp = wire.AppendTick(resp, max(as.clocks.now(), as.client.observed()))
	}
	as.tell(r, resp)
}

// reply answers a request with what rests on nothing in the log. It replaces an answer
// that is too large for a message by an error that says so. It only counts any other
// failure: the peer is gone, and its connection is broken.
func (as *answers) reply(r *rdma.Request, body []byte) {
	err := r.Reply(body)
	if errors.Is(err, rdma.ErrTooLarge) {
		as.log.Error("answer does not fit a message", "bytes", len(body), "limit", rdma.MaxMessageBytes)
		err = r.Reply(tooLarge("answer", len(body), rdma.MaxMessageBytes).append(nil))
	}
	if err != nil {
		as.lost.Add(1)
		as.log.Debug("answer not sent", "peer", r.Peer, "error", err)
	}
}

func tooLarge(what string, bytes, limit int) verdict {
	return verdict{code: wire.TooLarge, text: fmt.Sprintf("%s of %d bytes, limit %d", what, bytes, limit)}
}

func (as *answers) refuse(r *rdma.Request, text string) {
	as.reply(r, verdict{code: wire.Bad, text: text}.append(nil))
}

func (as *answers) forbid(r *rdma.Request, text string) {
	as.reply(r, verdict{code: wire.Forbidden, text: text}.append(nil))
}
