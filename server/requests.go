package server

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// request is a client's transaction in one partition: a procedure, or the
// commit of an Update.
//
// If it meets a row locked by a transaction in doubt, this partition cannot
// remove the lock: only a message can. The request is parked until a
// transaction in doubt is decided. It then runs from the start, before all
// requests that arrived later. This saves the client the messages of its next
// attempt. A parked request holds nothing, so no request can wait for it, and
// there is no deadlock.
type request struct {
	id     wire.ID
	r      *rdma.Request
	proc   *exec.Procedure // nil for a commit
	args   []byte          // of proc
	part   *wire.Part      // of the commit
	read   time.Duration   // when the first of the commit's proofs was read, by the server's clock
	age    time.Duration   // how long the attempt of the commit took
	wait   time.Duration   // how long the client lets it wait in all, at most; 0: it has not said
	turn   wire.Turn       // that the client of a commit asks for
	result []byte          // the answer, once it is known
	cause  exec.Cause      // why it has lost, or is refused if it must not wait any more

	at       wal.LSN // what the answer rests on is durable when the log is up to there
	bare     bool    // it is not a transaction, and has no outcome
	gone     bool    // its client has left
	reserved bool    // the answer says so
	counted  bool    // among the parked ones

	// arrived is when that was, by clock.Fast, if the request has had to wait; 0
	// if it runs at once.
	arrived time.Duration
	// deadline is when the caller of proc gives up, by clock.Fast; 0: it has not said.
	deadline time.Duration

	woken  chan struct{} // not nil: not a request but a waiting goroutine; closed when the wait is over
	leaves bool          // it needs other partitions and is not answered yet
	bytes  int           // its memory while it is parked
	until  time.Duration // by clock.Fast, while it is parked; 0: for ever

	seq   uint64         // of its first claim; 0: it has not waited in a line
	moves int            // lines, or sets of lines, in which it has waited
	rows  []wire.RowName // of all of them
}

// late reports whether the caller of a procedure has given up.
func (q *request) late() bool { return q.deadline != 0 && clock.Fast() >= q.deadline }

// keep returns a copy of a request that has its own memory; body is its message.
func (q *request) keep(body []byte) *request {
	if q.arrived == 0 {
		q.arrived = clock.Fast()
	}
	own := append([]byte(nil), body...)
	d := wire.NewDecoder(own)
	kept := &request{id: q.id, r: q.r, proc: q.proc, read: q.read, age: q.age, wait: q.wait, arrived: q.arrived, bytes: len(own), cause: q.cause, deadline: q.deadline}
	if q.proc != nil {
		var c wire.Call
		if c.Decode(&d) != nil {
			return nil // cannot happen: it was decoded before
		}
		kept.args = c.Args
	} else {
		var c wire.Commit
		if c.Decode(&d) != nil || len(c.Parts) != 1 {
			return nil
		}
		kept.part, kept.turn = &c.Parts[0], c.Turn
	}
	return kept
}

// end is how an attempt to run a request ends.
type end uint8

const (
	over     end = iota // the answer is known
	locked              // it met a lock of a transaction in doubt
	byClient            // it met a lock of a client that writes the index itself
	behind              // it would write a row that is reserved, or for which others wait
	lost                // its proofs have failed
	shipped             // it is prepared, and is committed and answered when a twin has its keys
)

// requests runs the requests of clients in a partition, each at once or after a wait:
// parked, or in lines. The partition's mutex guards what it has.
type requests struct {
	p        *partition
	parking  parking
	lines    lines
	runner   *exec.Runner
	waitsFor []wire.RowName // rows that the last attempt must wait for, if they are known
	over     []*request     // to be answered when the mutex is free
	shipment *shipment      // of the last attempt, if it ended as shipped

	held  bool          // clients that write indexes must let others pass
	quiet time.Duration // until then, by clock.Fast

	running atomic.Pointer[exec.Procedure] // nil between two runs
	runs    atomic.Uint64
	watched uint64 // runs, a tick ago
}

func (rs *requests) init(p *partition) {
	rs.p, rs.runner = p, exec.NewRunner(p.srv.cfg.Catalog, len(p.srv.parts.of), onlyPartition{p})
	rs.parking.init(rs)
	rs.lines.init(rs)
}

// start runs a request, or lets it wait. body is the message without its first
// byte. A waiting request keeps a copy of body and no other memory of the
// current request. start reports whether the request is over and must be
// answered.
func (rs *requests) start(q *request, body []byte) (answer bool) {
	if !rs.p.mu.TryLock() {
		q.arrived = clock.Fast()
		rs.p.mu.Lock()
	}
	defer rs.p.unlock()
	return rs.place(q, rs.attempt(q), body)
}

// place decides what becomes of a request after an attempt. It reports whether
// the request must be answered; otherwise it waits. A nil body means that the
// request has its own memory. The caller holds p.mu.
func (rs *requests) place(q *request, e end, body []byte) (answer bool) {
	switch e {
	case over:
		if q.woken == nil {
			rs.lines.arrived(q.id.Client)
		}
		return true
	case shipped:
		rs.lines.arrived(q.id.Client)
		rs.shipment.q = request{id: q.id, r: q.r, result: rs.shipment.q.result}
		rs.p.shipments.send(rs.shipment)
		return false
	case lost:
		rs.lines.arrived(q.id.Client)
		if rs.lines.lose(q) {
			return false
		}
	case locked, behind, byClient:
		q.cause = exec.CauseLocked
		if e != byClient && rs.queue(q, e, body) { // no decision here ends the lock of a client
			return false
		}
		if e == byClient || e == locked && rs.p.nprepare == 0 && rs.p.has.Load().apart { // a client has the lock
			rs.lines.arrived(q.id.Client)
			if rs.lines.lose(q) {
				return false // for as long as it has its turn, clients stand back
			}
			rs.quiet = clock.Fast() + quietTime
		}
	}
	rs.refuse(q, conflict(q.cause))
	return true
}

// A procedure runs again if clients write rows that it has read. After so many
// runs they must let it pass, and after so many more it is refused.
const (
	runAgainAlone = 3
	runAgainMax   = 32
)

// runAgain runs a procedure again after clients have written rows that it had read.
func (rs *requests) runAgain(q *request, v verdict, tries int) end {
	switch {
	case tries == runAgainMax || v.cause == exec.CauseFence:
		rs.refuse(q, v)
		return over
	case tries == runAgainAlone:
		rs.tellWriters(true) // until the end of this turn
	}
	return rs.attemptAgain(q, tries+1)
}

// attempt runs a request from the start. The caller holds p.mu.
func (rs *requests) attempt(q *request) end { return rs.attemptAgain(q, 0) }

func (rs *requests) attemptAgain(q *request, tries int) end {
	if q.woken != nil {
		return over // its goroutine does the rest
	}
	rs.p.ticks.advance()
	if v := rs.p.serves(); !v.ok() {
		rs.refuse(q, v)
		return over
	}
	if q.part != nil {
		if v := rs.p.fresh(q.read); !v.ok() {
			rs.refuse(q, v)
			return over
		}
	}
	part, result := q.part, []byte(nil)
	if q.proc != nil {
		if q.late() {
			rs.refuse(q, tooLate)
			return over
		}
		ctx := rs.p.srv.workers.ctx
		if q.deadline != 0 {
			call := &callTime{Context: ctx, ends: q.deadline, late: tooLate}
			defer call.end()
			ctx = call
		}
		rs.runs.Add(1)
		rs.running.Store(q.proc)
		res, commit, leaves, abandoned, err := rs.runner.Run(ctx, q.proc, rs.p.id, q.args)
		rs.running.Store(nil)
		if err != nil && len(commit.Parts) > 0 {
			if v := rs.p.validate(&commit.Parts[0]); !v.ok() {
				return rs.runAgain(q, v, tries)
			}
		}
		switch {
		case leaves:
			q.leaves = true
			return over
		case abandoned && rs.runner.HeldByClient():
			return byClient
		case abandoned:
			rs.waitsFor = rs.waitsFor[:0]
			if row, known := rs.runner.BlockedBy(); known {
				rs.waitsFor = append(rs.waitsFor, row)
			}
			return locked
		case err != nil:
			q.at = rs.p.records.logged
			q.result = failed(ctx, err).append(q.result[:0])
			return over
		}
		result, part = res, nil
		if len(commit.Parts) > 0 {
			part = &commit.Parts[0]
		}
	}
	var v verdict
	if part != nil {
		if q.late() {
			v = tooLate
		} else if rs.lines.blocks(q.id.Client, part.Writes) {
			if v = rs.p.validate(part); v.ok() {
				return behind
			}
		} else if sh := &rs.p.shipments; sh.wants(part.Writes) {
			if rs.shipment, v = sh.prepare(part); rs.shipment != nil {
				rs.shipment.t.client = q.id.Client
				rs.shipment.q.result = append(v.append(nil), result...)
				return shipped
			}
		} else {
			rs.p.records.origin = origin{id: q.id, result: result}
			v = rs.p.carryOut(part)
			rs.p.records.origin = origin{}
		}
	}
	q.at = rs.p.records.logged // of the commit, or of what a refusal or a result reveals
	switch {
	case v.byClient:
		return byClient
	case v.code == wire.Conflict && v.cause == exec.CauseLocked:
		return locked
	case v.code == wire.Conflict && (v.cause == exec.CauseRow || v.cause == exec.CauseGap) && q.proc != nil:
		return rs.runAgain(q, v, tries)
	case v.code == wire.Conflict && (v.cause == exec.CauseRow || v.cause == exec.CauseGap):
		q.cause = v.cause
		return lost
	case !v.ok():
		rs.refuse(q, v)
	default:
		q.result = append(v.append(q.result[:0]), result...)
		rs.lines.committed(q.id.Client)
	}
	return over
}

func (rs *requests) refuse(q *request, v verdict) {
	if q.woken == nil {
		rs.p.aborts++
	}
	q.result = v.append(q.result[:0])
}

// queue lets a request that must not write yet, or that met a lock, wait in the lines
// of the rows that it waits for. It reports whether the request waits. A nil body means
// that the request has its own memory.
func (rs *requests) queue(q *request, e end, body []byte) bool {
	if e == locked && rs.p.nprepare == 0 {
		return false // no decision would end the wait
	}
	if body != nil {
		if q = q.keep(body); q == nil {
			return false
		}
	}
	mine := rs.lines.of[q.id.Client]
	if mine != nil && mine.parked {
		rs.lines.remove(mine, true) // it moves
		mine = nil
	}
	if e == locked && (len(rs.waitsFor) == 0 || mine != nil && mine.granted) {
		return rs.parking.enqueue(q) // for an unknown row, or while its reservation lasts
	}
	q.rows = append(q.rows, rs.waitsFor...)
	names := slices.Clone(rs.waitsFor)
	if q.moves++; q.moves > movesMax {
		names = slices.Clone(q.rows)
	}
	c := &claim{session: q.id.Client, peer: q.r.Peer, q: q, bytes: q.bytes, names: names, ends: rs.parking.ends(q), seq: q.seq}
	if !rs.lines.enter(c) {
		return false
	}
	rs.parking.count(q)
	if e == locked && c.granted {
		rs.lines.ready = rs.lines.ready[:len(rs.lines.ready)-1] // it has just run
		if !rs.lines.park(c) {
			rs.lines.remove(c, true)
			return false
		}
	}
	return true
}

// finish is unlock without its last two steps. It returns the requests to answer.
func (rs *requests) finish() (answers []*request) {
	if len(rs.lines.ready) > 0 {
		rs.lines.serve()
	}
	if busy := rs.lines.busy() || rs.isQuiet(); busy != rs.held {
		rs.tellWriters(busy)
	}
	answers, rs.over = rs.over, nil
	return answers
}

// quietTime is for how long clients that write indexes themselves stand back after a request here that
// gets no turn, such as a procedure, has met a lock of one of them. It is longer than the rest before that request's next attempt, which
// would meet the next lock otherwise, and the next.
const quietTime = 2 * time.Millisecond

// isQuiet reports whether clients stand back because a procedure has met a lock of theirs.
func (rs *requests) isQuiet() bool {
	if rs.quiet != 0 && rs.quiet <= clock.Fast() {
		rs.quiet = 0
	}
	return rs.quiet != 0
}

// tellWriters makes clients that write indexes themselves send their transactions here as long
// as others wait: they do not see the lines.
func (rs *requests) tellWriters(busy bool) {
	rs.held = busy
	has := rs.p.has.Load()
	if !has.apart {
		return
	}
	for _, h := range has.indexes {
		if h.leaves != nil {
			h.written().Busy(busy)
		}
	}
}

// answer answers a request, or continues it in a goroutine that may wait for
// other servers. The caller must not hold p.mu.
func (rs *requests) answer(q *request) {
	s := rs.p.srv
	if q.woken != nil {
		close(q.woken)
		return
	}
	if q.bare {
		s.answers.reply(q.r, q.result)
		return
	}
	if !q.leaves {
		if tellsNothing(wire.Code(q.result[0])) {
			q.at = 0
		}
		s.answers.release(answer{at: q.at, id: q.id, r: q.r, resp: q.result})
		return
	}
	if !s.elsewhere.begin() {
		text := fmt.Sprintf("server %d: %d procedures outside their partitions are under way, the limit (MaxCallsElsewhere)", s.parts.self, s.elsewhere.max)
		rs.p.mu.Lock()
		rs.refuse(q, verdict{code: wire.Unavailable, text: text})
		rs.p.mu.Unlock()
		s.answers.release(answer{id: q.id, r: q.r, resp: q.result})
		return
	}
	s.slow.calls.Add(1)
	id, r, proc, args, deadline := q.id, q.r, q.proc, q.args, q.deadline
	if q.bytes == 0 { // not parked: the memory belongs to the handler
		args = append([]byte(nil), args...)
	}
	s.workers.background(func() {
		defer s.elsewhere.end()
		result, v := s.elsewhere.run(s.workers.ctx, rs.p, proc, args, id, deadline)
		resp := v.append(nil)
		if v.ok() {
			resp = append(resp, result...)
		}
		at := s.durable.end()
		if tellsNothing(v.code) {
			at = 0
		}
		s.answers.release(answer{at: at, id: id, r: r, resp: resp})
	})
}

// answerAll answers requests that are over. The caller must not hold p.mu.
func (rs *requests) answerAll(over []*request) {
	for _, q := range over {
		rs.answer(q)
	}
}

// tellsNothing reports whether an answer reveals no row: it need not wait for the log.
func tellsNothing(c wire.Code) bool {
	return c == wire.Conflict || c == wire.FewCopies || c == wire.Unavailable || c == wire.Late
}

// stop answers all parked requests, because the server stops.
func (rs *requests) stop() {
	rs.p.mu.Lock()
	rs.parking.stopped = true
	over := append([]*request(nil), rs.parking.queue...)
	for _, q := range over {
		rs.refuse(q, stops)
	}
	rs.parking.keep(rs.parking.queue[:0])
	if rs.parking.armed && rs.parking.timer.Stop() {
		rs.parking.armed = false
		rs.p.srv.workers.wg.Done()
	}
	rs.lines.stop()
	rs.over = append(rs.over, over...)
	rs.p.unlock()
}
