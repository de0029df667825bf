package server

import (
	"context"
	"math"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
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
	rs      *requests
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

func (k *parking) init(rs *requests) { k.rs, k.max, k.limit = rs, parkedMax, parkedFor }

// room reports whether the bounds leave room for a request.
func (k *parking) room(bytes int) bool {
	return len(k.queue) < k.max && k.bytes+bytes <= parkedBytesMax && !k.stopped
}

// enqueue parks a request, if there is room and a transaction in doubt whose
// decision will wake it. The caller holds p.mu.
func (k *parking) enqueue(q *request) bool {
	if !k.room(q.bytes) || k.rs.p.nprepare == 0 {
		return false
	}
	if q.until = 0; k.limit > 0 {
		now := clock.Fast()
		if q.until = min(now+k.limit, k.ends(q)); q.until <= now {
			if q.counted {
				k.expired++
			}
			return false
		}
		k.arm(q.until)
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
func (k *parking) ends(q *request) time.Duration {
	since, wait := q.arrived, q.wait
	if since == 0 {
		since = clock.Fast()
	}
	if wait == 0 {
		wait = k.limit
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
func (k *parking) awaitDecision(ctx context.Context) bool {
	q := &request{woken: make(chan struct{}), wait: awaitedFor}
	k.rs.p.mu.Lock()
	ok := k.enqueue(q)
	k.rs.p.mu.Unlock()
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
func (k *parking) wake() {
	queue := k.queue
	k.queue, k.bytes = k.spare[:0], 0
	for _, q := range queue {
		switch e := k.rs.attempt(q); {
		case e == locked && k.rs.lines.stays(q):
			k.queue = append(k.queue, q)
			k.bytes += q.bytes
		case k.rs.place(q, e, nil):
			k.rs.over = append(k.rs.over, q)
		}
	}
	clear(queue)
	k.spare = queue
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
func (k *parking) arm(at time.Duration) {
	if k.armed && (k.next <= at || !k.timer.Stop()) {
		return
	}
	if !k.armed {
		k.rs.p.srv.workers.wg.Add(1)
	}
	k.armed, k.next = true, at
	d := max(at-clock.Fast(), time.Microsecond)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.expire)
	} else {
		k.timer.Reset(d)
	}
}

// expire answers requests that have been parked for too long; their clients
// retry.
func (k *parking) expire() {
	defer k.rs.p.srv.workers.wg.Done()
	k.rs.p.mu.Lock()
	defer k.rs.p.unlock()
	k.armed = false
	now, left := clock.Fast(), k.queue[:0]
	for _, q := range k.queue {
		if q.until == 0 || q.until > now {
			left = append(left, q)
			continue
		}
		k.expired++
		if q.woken == nil {
			k.rs.lines.arrived(q.id.Client)
		}
		k.rs.refuse(q, conflict(exec.CauseLocked))
		k.rs.over = append(k.rs.over, q)
	}
	k.keep(left)
	for _, q := range left {
		if q.until > 0 {
			k.arm(q.until)
		}
	}
}
