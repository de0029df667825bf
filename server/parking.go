package server

import (
	"context"
	"fmt"
	"math"
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

// end is how an attempt to run a request ends.
type end uint8

const (
	over   end = iota // the answer is known
	locked            // it met a lock of a transaction in doubt
	behind            // it would write a row that is reserved, or for which others wait
	lost              // its proofs have failed
)

// Bounds of the parked requests of a partition.
const (
	parkedMax = 1 << 12
	// parkedBytesMax bounds their messages. A large request waits at its
	// client.
	parkedBytesMax = 4 << 20
	// parkedFor bounds the wait for the decision of a transaction in doubt, if
	// the client does not. It is many times the latency of the message that
	// decides it, because a client that retries loses its place. If the deciding
	// server is silent or gone, settling takes longer, and the client retries.
	parkedFor = 500 * time.Millisecond
	// awaitedFor bounds the wait of a goroutine for any decision, which may be
	// that of another lock than the one it met.
	awaitedFor = 10 * time.Millisecond
)

// parking has the parked requests of a partition. The partition's mutex guards
// it.
type parking struct {
	srv     *Server    // the server of the partition
	queue   []*request // longest first
	spare   []*request // memory for the next queue
	bytes   int
	max     int
	limit   time.Duration // of a wait; 0: none
	timer   *time.Timer   // ends the wait of the request whose wait ends first, or of one that has left
	next    time.Duration // when that is
	armed   bool
	stopped bool

	parked, expired uint64 // counted
}

func (k *parking) init(s *Server) { k.srv, k.max, k.limit = s, parkedMax, parkedFor }

// start runs a request, or lets it wait. body is the message without its first
// byte. A waiting request keeps a copy of body and no other memory of the
// current request. start reports whether the request is over and must be
// answered.
func (p *partition) start(q *request, body []byte) (answer bool) {
	if !p.mu.TryLock() {
		q.arrived = clock.Fast()
		p.mu.Lock()
	}
	defer p.unlock()
	return p.place(q, p.attempt(q), body)
}

// place decides what becomes of a request after an attempt. It reports whether
// the request must be answered; otherwise it waits. A nil body means that the
// request has its own memory. The caller holds p.mu.
func (p *partition) place(q *request, e end, body []byte) (answer bool) {
	switch e {
	case over:
		if q.woken == nil {
			p.lines.arrived(q.id.Client)
		}
		return true
	case lost:
		p.lines.arrived(q.id.Client)
		if p.lose(q) {
			return false
		}
	case locked, behind:
		q.cause = exec.CauseLocked
		if p.queue(q, e, body) {
			return false
		}
	}
	p.refuse(q, conflict(q.cause))
	return true
}

// attempt runs a request from the start. The caller holds p.mu.
func (p *partition) attempt(q *request) end {
	if q.woken != nil {
		return over // its goroutine does the rest
	}
	p.advance()
	if v := p.serves(); !v.ok() {
		p.refuse(q, v)
		return over
	}
	if q.part != nil {
		if v := p.fresh(q.read); !v.ok() {
			p.refuse(q, v)
			return over
		}
	}
	part, result := q.part, []byte(nil)
	if q.proc != nil {
		if q.late() {
			p.refuse(q, tooLate)
			return over
		}
		ctx := p.srv.workers.ctx
		if q.deadline != 0 {
			call := &callTime{Context: ctx, ends: q.deadline, late: tooLate}
			defer call.end()
			ctx = call
		}
		p.runs.Add(1)
		p.running.Store(q.proc)
		res, commit, leaves, abandoned, err := p.runner.Run(ctx, q.proc, p.id, q.args)
		p.running.Store(nil)
		switch {
		case leaves:
			q.leaves = true
			return over
		case abandoned:
			p.waitsFor = p.waitsFor[:0]
			if row, known := p.runner.BlockedBy(); known {
				p.waitsFor = append(p.waitsFor, row)
			}
			return locked
		case err != nil:
			q.at = p.logged
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
		} else if p.lines.blocks(q.id.Client, part.Writes) {
			if v = p.validate(part); v.ok() {
				return behind
			}
		} else {
			p.origin = origin{id: q.id, result: result}
			v = p.carryOut(part)
			p.origin = origin{}
		}
	}
	q.at = p.logged // of the commit, or of what a refusal or a result reveals
	switch {
	case v.code == wire.Conflict && v.cause == exec.CauseLocked:
		return locked
	case v.code == wire.Conflict && (v.cause == exec.CauseRow || v.cause == exec.CauseGap):
		q.cause = v.cause
		return lost
	case !v.ok():
		p.refuse(q, v)
	default:
		q.result = append(v.append(q.result[:0]), result...)
		p.lines.committed(q.id.Client)
	}
	return over
}

func (p *partition) refuse(q *request, v verdict) {
	if q.woken == nil {
		p.aborts++
	}
	q.result = v.append(q.result[:0])
}

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

// room reports whether the bounds leave room for a request.
func (k *parking) room(bytes int) bool {
	return len(k.queue) < k.max && k.bytes+bytes <= parkedBytesMax && !k.stopped
}

// enqueue parks a request, if there is room and a transaction in doubt whose
// decision will wake it. The caller holds p.mu.
func (p *partition) enqueue(q *request) bool {
	k := &p.parking
	if !k.room(q.bytes) || p.nprepare == 0 {
		return false
	}
	if q.until = 0; k.limit > 0 {
		now := clock.Fast()
		if q.until = min(now+k.limit, p.ends(q)); q.until <= now {
			if q.counted {
				k.expired++
			}
			return false
		}
		k.arm(p, q.until)
	}
	k.queue = append(k.queue, q)
	k.bytes += q.bytes
	k.count(q)
	return true
}

// count counts a request that waits, once.
func (k *parking) count(q *request) {
	if !q.counted {
		q.counted = true
		k.parked++
	}
}

// forever is a time by clock.Fast that does not come.
const forever = time.Duration(math.MaxInt64)

// ends returns the time by clock.Fast at which the waits of a request end.
func (p *partition) ends(q *request) time.Duration {
	since, wait := q.arrived, q.wait
	if since == 0 {
		since = clock.Fast()
	}
	if wait == 0 {
		wait = p.parking.limit
	}
	end := forever
	if wait != 0 {
		end = since + wait
	}
	if q.deadline != 0 {
		end = min(end, q.deadline)
	}
	return end
}

// awaitDecision waits until a transaction in doubt in the partition is decided,
// for at most awaitedFor. It returns false at once if there is none, or if the
// queue is full. The caller must not have prepared anything here.
func (p *partition) awaitDecision(ctx context.Context) bool {
	q := &request{woken: make(chan struct{}), wait: awaitedFor}
	p.mu.Lock()
	ok := p.enqueue(q)
	p.mu.Unlock()
	if !ok {
		return false
	}
	select {
	case <-q.woken:
	case <-ctx.Done():
	}
	return true
}

// wake runs the parked requests in order of arrival, after a transaction in
// doubt has been decided. A request that still meets a lock stays parked. The
// requests that are over are answered by unlock. The caller holds p.mu since the
// decision, so that no other request runs in between.
func (p *partition) wake() {
	k := &p.parking
	queue := k.queue
	k.queue, k.bytes = k.spare[:0], 0
	for _, q := range queue {
		switch e := p.attempt(q); {
		case e == locked && p.stays(q):
			k.queue = append(k.queue, q)
			k.bytes += q.bytes
		case p.place(q, e, nil):
			p.lines.over = append(p.lines.over, q)
		}
	}
	clear(queue)
	k.spare = queue
}

// stays reports whether a parked request that has met a lock again stays parked:
// it has its place in the line of the row, or is in none.
func (p *partition) stays(q *request) bool {
	c := p.lines.of[q.id.Client]
	return c == nil && len(p.waitsFor) == 0 || c != nil && (!c.parked || c.stands(p.waitsFor))
}

// keep replaces the queue by left, which shares its memory.
func (k *parking) keep(left []*request) {
	clear(k.queue[len(left):])
	k.queue, k.bytes = left, 0
	for _, q := range left {
		k.bytes += q.bytes
	}
}

// arm sets the timer, unless it ends a wait earlier. The server waits for the
// timer's function as for its goroutines. The caller holds p.mu.
func (k *parking) arm(p *partition, at time.Duration) {
	if k.armed && (k.next <= at || !k.timer.Stop()) {
		return
	}
	if !k.armed {
		k.srv.workers.wg.Add(1)
	}
	k.armed, k.next = true, at
	d := max(at-clock.Fast(), time.Microsecond)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, p.expire)
	} else {
		k.timer.Reset(d)
	}
}

// expire answers requests that have been parked for too long; their clients
// retry.
func (p *partition) expire() {
	k := &p.parking
	defer k.srv.workers.wg.Done()
	p.mu.Lock()
	defer p.unlock()
	k.armed = false
	now, left := clock.Fast(), k.queue[:0]
	for _, q := range k.queue {
		if q.until == 0 || q.until > now {
			left = append(left, q)
			continue
		}
		k.expired++
		if q.woken == nil {
			p.lines.arrived(q.id.Client)
		}
		p.refuse(q, conflict(exec.CauseLocked))
		p.lines.over = append(p.lines.over, q)
	}
	k.keep(left)
	for _, q := range left {
		if q.until > 0 {
			k.arm(p, q.until)
		}
	}
}

// stopParking answers all parked requests, because the server stops.
func (p *partition) stopParking() {
	k := &p.parking
	p.mu.Lock()
	k.stopped = true
	over := append([]*request(nil), k.queue...)
	for _, q := range over {
		p.refuse(q, stops)
	}
	k.keep(k.queue[:0])
	if k.armed && k.timer.Stop() {
		k.armed = false
		k.srv.workers.wg.Done()
	}
	p.lines.stop()
	p.lines.over = append(p.lines.over, over...)
	p.unlock()
}

// answerAll answers requests that are over. The caller must not hold p.mu.
func (p *partition) answerAll(over []*request) {
	for _, q := range over {
		p.answer(q)
	}
}

// answer answers a request, or continues it in a goroutine that may wait for
// other servers. The caller must not hold p.mu.
func (p *partition) answer(q *request) {
	s := p.srv
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
		p.mu.Lock()
		p.refuse(q, verdict{code: wire.Unavailable, text: text})
		p.mu.Unlock()
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
		result, v := s.elsewhere.run(s.workers.ctx, p, proc, args, id, deadline)
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

// tellsNothing reports whether an answer reveals no row: it need not wait for the log.
func tellsNothing(c wire.Code) bool {
	return c == wire.Conflict || c == wire.FewCopies || c == wire.Unavailable || c == wire.Late
}
