package server

import (
	"context"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
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
	age    time.Duration   // of the commit's proofs, when the request arrived
	result []byte          // the answer, once it is known

	// arrived is when that was, by clock.Fast, if the request has had to wait; 0
	// if it runs at once.
	arrived time.Duration

	woken  chan struct{} // not nil: not a request but a waiting goroutine; closed when the wait is over
	leaves bool          // it needs other partitions and is not answered yet
	bytes  int           // its memory while it is parked
	since  time.Time
}

// Bounds of the parked requests of a partition.
const (
	parkedMax = 64
	// parkedBytesMax bounds their messages. A large request waits at its
	// client.
	parkedBytesMax = 1 << 20
	// parkedFor bounds the wait for the decision of a transaction in doubt. It
	// is many times the latency of the message that decides it. If the deciding
	// server is silent or gone, settling takes longer, and the client retries.
	parkedFor = 10 * time.Millisecond
)

// parking has the parked requests of a partition. The partition's mutex guards
// it.
type parking struct {
	srv     *Server    // the server of the partition
	queue   []*request // longest first
	bytes   int
	max     int
	limit   time.Duration // of a wait; 0: none
	timer   *time.Timer   // ends the wait of the first request in the queue, or of one that has left it
	armed   bool
	stopped bool

	parked, expired uint64 // counted
}

func (k *parking) init(s *Server) { k.srv, k.max, k.limit = s, parkedMax, parkedFor }

// start runs a request, or parks it. body is the message without its first
// byte. A parked request keeps a copy of body and no other memory of the
// current request. start reports whether the request is over and must be
// answered.
func (p *partition) start(q *request, body []byte) (over bool) {
	if !p.mu.TryLock() {
		q.arrived = clock.Fast()
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	switch {
	case p.attempt(q):
	case p.park(q, body):
		return false
	default:
		p.refuse(q, conflict(exec.CauseLocked))
	}
	return true
}

// attempt runs a request from the start. It returns true if the request is
// over, and false if only a lock stopped it. The caller holds p.mu.
func (p *partition) attempt(q *request) (over bool) {
	if q.woken != nil {
		return true // its goroutine does the rest
	}
	p.advance()
	if v := p.serves(); !v.ok() {
		p.refuse(q, v)
		return true
	}
	if q.part != nil {
		if v := q.fresh(); !v.ok() {
			p.refuse(q, v)
			return true
		}
	}
	part, result := q.part, []byte(nil)
	if q.proc != nil {
		res, commit, leaves, abandoned, err := p.runner.Run(p.parking.srv.ctx, q.proc, p.id, q.args)
		switch {
		case leaves:
			q.leaves = true
			return true
		case abandoned:
			return false
		case err != nil:
			q.result = verdictOf(err).append(q.result[:0])
			return true
		}
		result, part = res, nil
		if len(commit.Parts) > 0 {
			part = &commit.Parts[0]
		}
	}
	var v verdict
	if part != nil {
		v = p.carryOut(part)
	}
	switch {
	case v.code == wire.Conflict && v.cause == exec.CauseLocked:
		return false
	case !v.ok():
		p.refuse(q, v)
	default:
		q.result = append(v.append(q.result[:0]), result...)
	}
	return true
}

// fresh refuses a commit whose proofs are too old.
func (q *request) fresh() verdict {
	if q.arrived != 0 {
		return fresh(q.arrived - q.age)
	}
	if q.age > index.MaxProofAge {
		return conflict(exec.CauseRow)
	}
	return verdict{}
}

func (p *partition) refuse(q *request, v verdict) {
	if q.woken == nil {
		p.aborts++
	}
	q.result = v.append(q.result[:0])
}

// park parks a request that met a lock. The caller holds p.mu.
func (p *partition) park(q *request, body []byte) bool {
	if !p.parking.room(len(body)) {
		return false
	}
	if q.arrived == 0 {
		q.arrived = clock.Fast()
	}
	own := append([]byte(nil), body...)
	d := wire.NewDecoder(own)
	kept := &request{id: q.id, r: q.r, proc: q.proc, age: q.age, arrived: q.arrived, bytes: len(own)}
	if q.proc != nil {
		var c wire.Call
		if c.Decode(&d) != nil {
			return false // cannot happen: it was decoded before
		}
		kept.args = c.Args
	} else {
		var c wire.Commit
		if c.Decode(&d) != nil || len(c.Parts) != 1 {
			return false
		}
		kept.part = &c.Parts[0]
	}
	return p.enqueue(kept)
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
	q.since = time.Now()
	k.queue = append(k.queue, q)
	k.bytes += q.bytes
	k.parked++
	if !k.armed && k.limit > 0 {
		k.arm(p, k.limit)
	}
	return true
}

// awaitDecision waits until a transaction in doubt in the partition is decided,
// for at most parkedFor. It returns false at once if there is none, or if the
// queue is full. The caller must not have prepared anything here.
func (p *partition) awaitDecision(ctx context.Context) bool {
	q := &request{woken: make(chan struct{})}
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
// doubt has been decided. A request that still meets a lock stays parked. wake
// returns the requests that are over, for answerAll. The caller holds p.mu
// since the decision, so that no other request runs in between.
func (p *partition) wake() (over []*request) {
	k := &p.parking
	left := k.queue[:0]
	for _, q := range k.queue {
		if !p.attempt(q) {
			left = append(left, q)
			continue
		}
		over = append(over, q)
	}
	k.keep(left)
	return over
}

// keep replaces the queue by left, which shares its memory.
func (k *parking) keep(left []*request) {
	clear(k.queue[len(left):])
	k.queue, k.bytes = left, 0
	for _, q := range left {
		k.bytes += q.bytes
	}
}

// arm sets the timer. The server waits for the timer's function as for its
// goroutines. The caller holds p.mu.
func (k *parking) arm(p *partition, d time.Duration) {
	k.armed = true
	k.srv.wg.Add(1)
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
	defer k.srv.wg.Done()
	p.mu.Lock()
	k.armed = false
	n := 0
	for n < len(k.queue) && time.Since(k.queue[n].since) >= k.limit {
		p.refuse(k.queue[n], conflict(exec.CauseLocked))
		n++
	}
	k.expired += uint64(n)
	over := append([]*request(nil), k.queue[:n]...)
	k.keep(append(k.queue[:0], k.queue[n:]...))
	if len(k.queue) > 0 {
		k.arm(p, max(k.limit-time.Since(k.queue[0].since), time.Microsecond))
	}
	p.mu.Unlock()
	p.answerAll(over)
}

// stopParking answers all parked requests, because the server stops.
func (p *partition) stopParking() {
	k := &p.parking
	p.mu.Lock()
	k.stopped = true
	over := append([]*request(nil), k.queue...)
	for _, q := range over {
		p.refuse(q, verdict{code: wire.Unavailable, text: "the server stops"})
	}
	k.keep(k.queue[:0])
	if k.armed && k.timer.Stop() {
		k.armed = false
		k.srv.wg.Done()
	}
	p.mu.Unlock()
	p.answerAll(over)
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
	s := p.parking.srv
	if q.woken != nil {
		close(q.woken)
		return
	}
	if !q.leaves {
		s.outcomes.end(q.id, q.r, q.result)
		return
	}
	s.slowCalls.Add(1)
	id, r, proc, args := q.id, q.r, q.proc, q.args
	if q.bytes == 0 { // not parked: the memory belongs to the handler
		args = append([]byte(nil), args...)
	}
	s.background(func() {
		result, v := s.runElsewhere(s.ctx, p, proc, args)
		resp := v.append(nil)
		if v.ok() {
			resp = append(resp, result...)
		}
		s.outcomes.end(id, r, resp)
	})
}
