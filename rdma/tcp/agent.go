package tcp

import (
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// chunkWords bounds the answers that the agent gathers before it sends them,
// and the piece in which a large READ is sent.
const chunkWords = 8 << 10

// caller receives everything of a connection that is not a verb.
type caller interface {
	// emit sends words and does not keep them. It may wait for the peer.
	emit(words []uint64) error
	// ready returns nil if a call may begin: the call before it has its reply.
	ready() error
	// call receives a request. It may keep body until the next call but one.
	call(id uint64, body []byte) error
	// grant looks up a region. If there is none, the access is 0.
	grant(k rdma.RKey) grant
}

// agent performs the requests of one connection. It accepts frames in the pieces
// in which they arrive, and owns neither socket nor goroutine.
type agent struct {
	caller
	grants   []grant // by slot; of this connection
	extra    *provide.Extra
	refusals *provide.Audit
	tally    *rdma.Tally

	frame frame // whose payload is being taken, if left is not 0
	left  int   // words of it to come
	verbs int   // of it to come

	write     mem.Span // of the WRITE being taken
	writeAt   int
	writeLeft int
	writeWR   rdma.Status

	bodies [2][]uint64 // of calls, in turn: see take
	body   int

	out    []uint64 // answers not sent yet
	header int      // of the results being gathered, or -1
	count  rdma.Counters

	performed bool // verbs, in the last call of consume
}

func newAgent(c caller, x *provide.Extra, n *provide.Audit, t *rdma.Tally) *agent {
	return &agent{caller: c, extra: x, refusals: n, tally: t, header: -1}
}

// consume processes as many words of w as it can and returns their number. The
// caller offers the rest again, followed by more. An error ends the connection.
func (a *agent) consume(w []uint64) (used int, err error) {
	for {
		n, err := a.step(w[used:])
		if err != nil || n == 0 {
			a.tally.Add(&a.count)
			a.performed = a.count.Reads+a.count.Writes+a.count.Atomics > 0
			a.count = rdma.Counters{}
			return used, err
		}
		used += n
	}
}

// step processes one piece: a header, a verb, or the present part of a body. It
// returns 0 if it needs more words.
func (a *agent) step(w []uint64) (int, error) {
	if a.left == 0 {
		return a.begin(w)
	}
	if len(w) == 0 {
		return 0, nil
	}
	var n int
	var err error
	switch {
	case a.frame.kind == kindCall:
		n, err = a.takeBody(w)
	case a.writeLeft > 0:
		n, err = a.takeWrite(w)
	default:
		n, err = a.takeVerb(w)
	}
	if err != nil {
		return 0, err
	}
	a.left -= n
	if n > 0 && a.left == 0 && a.frame.kind == kindBatch {
		if a.verbs != 0 || a.writeLeft != 0 {
			return 0, fmt.Errorf("%w: a batch is shorter than its verbs", errFrame)
		}
		a.endResults()
	}
	return n, nil
}

// begin processes a header.
func (a *agent) begin(w []uint64) (int, error) {
	if len(w) < headerWords {
		return 0, nil
	}
	f, err := decodeFrame(w[0], w[1])
	if err != nil {
		return 0, err
	}
	a.frame, a.left, a.verbs = f, f.payloadWords(), 0
	switch f.kind {
	case kindBatch:
		a.verbs = int(f.count)
		if f.flags&flagMore == 0 {
			a.count.Rounds++
		}
	case kindCall:
		if err := a.ready(); err != nil {
			return 0, err
		}
		a.body ^= 1
		a.bodies[a.body] = a.bodies[a.body][:0]
		if a.left == 0 {
			return headerWords, a.call(f.id, nil)
		}
	case kindAsk:
		a.answerGrant(rdma.RKey(f.id))
	case kindPing:
		a.out = append(a.out, frame{kind: kindPong}.word0(), 0)
	default:
		return 0, fmt.Errorf("%w: kind %d from a client", errFrame, f.kind)
	}
	return headerWords, a.flushIfFull(0)
}

func (a *agent) answerGrant(k rdma.RKey) {
	g := a.grant(k)
	if slot, ok := slotOf(k); ok && g.access != 0 {
		for len(a.grants) <= slot {
			a.grants = append(a.grants, grant{})
		}
		if a.grants[slot].access == 0 {
			g.cap = newCapability()
			a.grants[slot] = g
		}
		g = a.grants[slot]
	}
	a.out = append(a.out, frame{kind: kindGrant, id: uint64(k)}.word0(), uint64(k), g.cap[0], g.cap[1], uint64(g.access))
}

// takeBody stores words of a request. Their memory grows as they arrive, so that
// a client that only claims a large request costs nothing.
func (a *agent) takeBody(w []uint64) (int, error) {
	n := min(a.left, len(w))
	body := append(a.bodies[a.body], w[:n]...)
	a.bodies[a.body] = body
	if n == a.left {
		return n, a.call(a.frame.id, mem.Bytes(body)[:a.frame.size])
	}
	return n, nil
}

// keepWords bounds the buffer of requests that a connection without one keeps.
const keepWords = provide.KeepBytes / mem.WordBytes

// large reports whether buffers are too large to be kept between requests, and
// no request is arriving.
func (a *agent) large() bool {
	return a.left == 0 && max(cap(a.bodies[0]), cap(a.bodies[1])) > keepWords
}

// shrink drops large buffers. The handler must not have a request.
func (a *agent) shrink() {
	for i := range a.bodies {
		if cap(a.bodies[i]) > keepWords {
			a.bodies[i] = nil
		}
	}
}

// takeVerb performs a verb, or prepares for the words of a WRITE.
func (a *agent) takeVerb(w []uint64) (int, error) {
	if a.verbs == 0 {
		return 0, fmt.Errorf("%w: a batch is longer than its verbs", errFrame)
	}
	if a.left < verbWords {
		return 0, fmt.Errorf("%w: a batch is shorter than its verbs", errFrame)
	}
	if len(w) < verbWords {
		return 0, nil
	}
	v, err := decodeVerb(w)
	if err != nil {
		return 0, err
	}
	n := verbWords
	if v.tailWords() > a.left-n {
		return 0, fmt.Errorf("%w: a batch is shorter than its verbs", errFrame)
	}
	if v.op != rdma.OpWrite {
		if n += v.tailWords(); len(w) < n {
			return 0, nil
		}
	}
	a.verbs--
	s, status := authorize(a.grants, a.extra, &v, a.refusals)
	switch {
	case v.op == rdma.OpWrite:
		a.write, a.writeAt, a.writeLeft, a.writeWR = s, 0, int(v.words), status
		if v.words == 0 {
			err = a.complete(v.op, 0, status)
		}
	case status != rdma.StatusOK:
		err = a.complete(v.op, 0, status)
	case v.op == rdma.OpRead:
		err = a.read(s)
	case v.op == rdma.OpCAS:
		err = a.complete(v.op, 1, status, provide.CompareAndSwap(s, w[verbWords], w[verbWords+1]))
	case v.op == rdma.OpFAA:
		err = a.complete(v.op, 1, status, s.Add(0, w[verbWords])-w[verbWords])
	}
	return n, err
}

// takeWrite stores words of a WRITE, or drops them if it is refused.
func (a *agent) takeWrite(w []uint64) (int, error) {
	n := min(a.writeLeft, len(w))
	if a.writeWR == rdma.StatusOK {
		a.write.Slice(a.writeAt, n).CopyIn(w[:n])
	}
	a.writeAt += n
	if a.writeLeft -= n; a.writeLeft == 0 {
		return n, a.complete(rdma.OpWrite, a.writeAt, a.writeWR)
	}
	return n, nil
}

// read answers a READ.
func (a *agent) read(s mem.Span) error {
	n := s.Words()
	if n > chunkWords/2 {
		return a.readLarge(s)
	}
	if err := a.flushIfFull(n + 2); err != nil {
		return err
	}
	a.result(rdma.StatusOK, n+1)
	at := len(a.out)
	a.out = a.out[:at+n+1]
	s.CopyOut(a.out[at : at+n])
	a.out[at+n] = s.Load(0)
	a.count.CountVerb(rdma.OpRead, n, rdma.StatusOK)
	return nil
}

// readLarge answers a READ that does not fit the chunk, in a frame of its own
// that is sent in pieces. The pieces are in order, as are the words in them.
func (a *agent) readLarge(s mem.Span) error {
	if err := a.flush(); err != nil {
		return err
	}
	n := s.Words()
	a.reserve(chunkWords + headerWords)
	a.out = append(a.out, frame{kind: kindResults, count: 1, size: uint32(n + 2)}.word0(), a.frame.id, uint64(rdma.StatusOK))
	for at := 0; at < n; {
		k := min(n-at, chunkWords-len(a.out))
		o := len(a.out)
		a.out = a.out[:o+k]
		s.Slice(at, k).CopyOut(a.out[o:])
		if at += k; at < n {
			if err := a.flush(); err != nil {
				return err
			}
		}
	}
	a.out = append(a.out, s.Load(0))
	a.count.CountVerb(rdma.OpRead, n, rdma.StatusOK)
	return nil
}

// complete answers a verb whose result is at most one word.
func (a *agent) complete(op rdma.Op, words int, s rdma.Status, old ...uint64) error {
	if err := a.flushIfFull(2); err != nil {
		return err
	}
	a.result(s, len(old))
	a.out = append(a.out, old...)
	a.count.CountVerb(op, words, s)
	return nil
}

// result begins a result in the frame of its batch.
func (a *agent) result(s rdma.Status, words int) {
	if a.header < 0 {
		a.reserve(words + 1 + headerWords)
		a.header = len(a.out)
		a.out = append(a.out, frame{kind: kindResults}.word0(), a.frame.id)
	}
	a.reserve(words + 1)
	a.out = append(a.out, uint64(s))
	a.out[a.header] += 1 << 16
}

// reserve makes room for n more words.
func (a *agent) reserve(n int) {
	if need := len(a.out) + n; need > cap(a.out) {
		grown := make([]uint64, len(a.out), max(need, 2*cap(a.out), 512))
		copy(grown, a.out)
		a.out = grown
	}
}

// endResults completes the frame of results that is being gathered.
func (a *agent) endResults() {
	if a.header >= 0 {
		a.out[a.header] |= uint64(len(a.out)-a.header-headerWords) << 32
		a.header = -1
	}
}

// flush sends all answers.
func (a *agent) flush() error {
	a.endResults()
	if len(a.out) == 0 {
		return nil
	}
	err := a.emit(a.out)
	a.out = a.out[:0]
	return err
}

// flushIfFull sends all answers if n more words would not fit the chunk.
func (a *agent) flushIfFull(n int) error {
	if len(a.out)+n+headerWords+grantWords <= chunkWords {
		return nil
	}
	return a.flush()
}
