package server

import (
	"context"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// request is a transaction of one partition, sent by a client: a procedure, or
// the commit of an Update.
//
// If it meets a row that a transaction in doubt has locked, nothing that this
// partition does by itself removes the lock: it waits for a message. The
// request is parked until a transaction in doubt is decided, and then carried
// out from the start, before anybody who has come meanwhile; the client, and
// the messages of its next attempt, are spared. A parked request holds nothing,
// so that nobody can wait for it in turn: no deadlock.
type request struct {
	id     wire.ID
	r      *rdma.Request
	proc   *exec.Procedure // nil for a commit
	args   []byte          // of proc
	part   *wire.Part      // of the commit
	read   time.Duration   // of the commit: when its first read was
	result []byte          // the answer, once there is one

	woken  chan struct{} // not nil: no request but a goroutine that waits; closed when over
	leaves bool          // needs other partitions; not answered yet
	bytes  int           // that it takes while it is parked
	since  time.Time
}

// Bounds of what is parked in a partition.
const (
	parkedMax = 64
	// parkedBytesMax bounds their requests. One that is large waits at its client.
	parkedBytesMax = 1 << 20
	// parkedFor is the patience with transactions in doubt, many times what the
	// message takes that decides one. A server that is silent or gone takes
	// longer to be without.
	parkedFor = 10 * time.Millisecond
)

// parking is the part of a partition that keeps requests waiting. Guarded by
// the partition's mutex.
type parking struct {
	srv     *Server    // whose requests they are
	queue   []*request // longest first
	bytes   int
	max     int
	limit   time.Duration // of a wait; 0: none
	timer   *time.Timer   // ends the patience with the first of the queue, or one that has gone
	armed   bool
	stopped bool

	parked, expired uint64 // counted
}

func (k *parking) init(s *Server) { k.srv, k.max, k.limit = s, parkedMax, parkedFor }

// start carries out a request, or parks it. body is the message without its
// first byte: what is parked keeps a copy, and nothing else of the request
// handled now. It reports whether the request is over, for answer.
func (p *partition) start(q *request, body []byte) (over bool) {
	p.mu.Lock()
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

// attempt carries out a request from the start, and reports that it is over,
// or else that a lock stood in the way and nothing but a lock. Under p.mu.
func (p *partition) attempt(q *request) (over bool) {
	if q.woken != nil {
		return true // its goroutine sees to the rest
	}
	if v := p.serves(); !v.ok() {
		p.refuse(q, v)
		return true
	}
	if q.part != nil {
		if v := fresh(q.read); !v.ok() {
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

func (p *partition) refuse(q *request, v verdict) {
	if q.woken == nil {
		p.aborts++
	}
	q.result = v.append(q.result[:0])
}

// park keeps a request that met a lock. Under p.mu.
func (p *partition) park(q *request, body []byte) bool {
	if !p.parking.room(len(body)) {
		return false
	}
	own := append([]byte(nil), body...)
	d := wire.NewDecoder(own)
	kept := &request{id: q.id, r: q.r, proc: q.proc, read: q.read, bytes: len(own)}
	if q.proc != nil {
		var c wire.Call
		if c.Decode(&d) != nil {
			return false // cannot be: it was decoded before
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

// enqueue parks a request, if there is room and somebody who will wake it. Under p.mu.
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
// at most for as long as a request is parked. It reports false at once if there
// is none, or no room. The caller has nothing prepared here.
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

// wake carries out what was parked, in the order in which it came, now that a
// transaction in doubt has been decided; what still meets a lock stays. It
// returns the requests that are over, for answer. Under p.mu, in the same step
// as the decision, so that nobody comes in between.
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

// keep makes left, which shares its memory, the queue.
func (k *parking) keep(left []*request) {
	clear(k.queue[len(left):])
	k.queue, k.bytes = left, 0
	for _, q := range left {
		k.bytes += q.bytes
	}
}

// arm sets the timer; its function counts as one of the server's goroutines
// from now on. Under p.mu.
func (k *parking) arm(p *partition, d time.Duration) {
	k.armed = true
	k.srv.wg.Add(1)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, p.expire)
	} else {
		k.timer.Reset(d)
	}
}

// expire answers requests that have been parked for too long: their clients
// try again.
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

// stopParking answers whatever is parked: the server stops.
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

// answerAll ends requests that are over. Not under p.mu.
func (p *partition) answerAll(over []*request) {
	for _, q := range over {
		p.answer(q)
	}
}

// answer ends a request: it is answered, or goes on in a goroutine that may
// wait for other servers. Not under p.mu.
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
	if q.bytes == 0 { // was not parked: the memory is the handler's
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
