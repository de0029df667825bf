//go:build verbs

package verbs

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// queryTimeout bounds how long a server may take to register memory.
const queryTimeout = 30 * time.Second

var errUnanswered = errors.New("the server does not answer a query about a region")

// remoteRegion describes a region of the server, as far as the connection knows it. For asked and
// denied see ask.
type remoteRegion struct {
	key    rdma.RKey
	access rdma.Access
	shift  uint // log2 of the segment's bytes
	max    uint64
	keys   []uint32 // of the device, for each segment so far
	asked  uint64   // batches posted when the server was last asked and had no further segments
	denied uint64   // batches posted when the server was last asked which access there is
}

// query is the state of a connection's queries about regions. At most one is open.
//
// A batch that needs the answer is parked: the requests that the device has go on, and the others
// wait, as do the batches behind it, because requests are handed over in order. So only the first
// request that was not handed over asks. Every operation that waits takes the answer when it comes
// (learn), and pump then looks at that request again.
type query struct {
	seq    uint32
	open   bool // sent, and not answered
	asked  segmentQuery
	since  time.Time // when it was sent
	posted uint64    // batches posted until then

	missing rdma.RKey // a region that does not exist
	missed  uint64    // batches posted when the server was asked about it
}

// late reports whether the server should have answered by now.
func (a *query) late(now time.Time) bool { return a.open && now.Sub(a.since) > queryTimeout }

// asking reports whether a query is open.
func (c *conn) asking() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.query.open
}

// target checks a work request and returns its region. number is that of its batch, as in
// conn.first. StatusPending without a region means that the request waits for an answer of the
// server. Any other status is that of a refusal. The server's device enforces the grants; target
// checks them too, so that a mistake does not cost the connection.
func (c *conn) target(wr *rdma.WR, number uint64) (*remoteRegion, rdma.Status) {
	need, words := provide.Need(wr.Op, len(wr.Buf))
	if need == 0 {
		return nil, rdma.StatusUnsupported
	}
	if words == 0 || wr.Addr%mem.WordBytes != 0 {
		return nil, rdma.StatusAccess
	}
	r := c.last
	if r == nil || r.key != wr.RKey {
		if r = c.regions[wr.RKey]; r == nil {
			return nil, c.ask(segmentQuery{wr.RKey, 0}, c.query.missing == wr.RKey && c.query.missed > number)
		}
		c.last = r
	}
	if need != rdma.AccessRead && r.access&need == 0 {
		return nil, c.ask(segmentQuery{r.key, 0}, r.denied > number) // it may have been granted since
	}
	n := uint64(words) * mem.WordBytes
	if wr.Addr >= r.max || wr.Addr&(1<<r.shift-1)+n > 1<<r.shift {
		return nil, rdma.StatusAccess
	}
	if wr.Addr>>r.shift >= uint64(len(r.keys)) {
		return nil, c.ask(segmentQuery{r.key, uint32(len(r.keys))}, r.asked > number)
	}
	return r, rdma.StatusPending
}

// ask asks the server for what a request needs, and returns StatusPending. If the server has been
// asked already, and does not have it, ask returns StatusAccess: a request does not ask for ever about
// what is not there. The query must have been sent after the batch was posted, which is so if more
// batches had been posted by then than the batch's number. An earlier query may have missed what the
// batch relies on, such as a grant that a response has announced.
func (c *conn) ask(q segmentQuery, refused bool) rdma.Status {
	if refused {
		return rdma.StatusAccess
	}
	a := &c.query
	if a.open || !c.mail.ready() {
		return rdma.StatusPending // pump comes here again
	}
	a.seq++
	b := q.encode()
	if err := c.mail.send(fragQuery, queryBytes, a.seq, b[:]); err != nil {
		c.fail(err)
		return rdma.StatusPending
	}
	a.open, a.asked, a.since, a.posted = true, q, time.Now(), c.first+uint64(len(c.flights))
	return rdma.StatusPending
}

// learn takes the server's answer to the open query.
func (c *conn) learn(h header, payload []byte) error {
	a := &c.query
	if !a.open || h.seq != a.seq {
		return fmt.Errorf("%w: answer %d without a query", errWire, h.seq)
	}
	t, err := decodeSegments(payload)
	if err != nil {
		return err
	}
	if t.key != a.asked.key || t.first != a.asked.first {
		return fmt.Errorf("%w: answer about another region", errWire)
	}
	a.open = false
	r, found := c.regions[t.key], t.reason == reasonNone
	if found && t.first == 0 && (r == nil || r.access != t.access) {
		// With other access the segments have other keys.
		r = &remoteRegion{key: t.key, access: t.access, shift: uint(bits.TrailingZeros64(t.segment)), max: t.max}
		c.regions[t.key], c.last = r, r
	}
	if r == nil {
		a.missing, a.missed = t.key, a.posted
		return nil
	}
	if t.first == 0 {
		r.denied = a.posted
	}
	if int(t.first) == len(r.keys) {
		r.keys = append(r.keys, t.keys...)
		if len(t.keys) == 0 {
			r.asked = a.posted
		}
	}
	return nil
}
