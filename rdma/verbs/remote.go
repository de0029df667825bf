//go:build verbs

package verbs

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// queryTimeout bounds how long a server may take to register memory.
const queryTimeout = 30 * time.Second

// remoteRegion describes a region of the server, as far as the connection knows it.
type remoteRegion struct {
	key    rdma.RKey
	access rdma.Access
	shift  uint // log2 of the segment's bytes
	max    uint64
	keys   []uint32 // of the device, for each segment so far
	asked  uint64   // round in which the server was last asked how far it has grown
	denied uint64   // round in which the server was last asked for more access
}

// query is the state of a connection's query about segments. There is one at a
// time.
type query struct {
	seq      uint32
	asking   bool
	answered bool
	list     segmentList
	round    uint64 // counts Posts; no query is repeated within one
	missing  rdma.RKey
	missed   uint64 // round in which missing was not there
}

func (a *query) take(h header, payload []byte) (err error) {
	if !a.asking || a.answered || h.seq != a.seq {
		return fmt.Errorf("%w: answer %d without a query", errWire, h.seq)
	}
	a.list, err = decodeSegments(payload)
	a.answered = err == nil
	return err
}

// target checks a work request and returns its region, with StatusPending if the
// request can be passed to the device. The server's device enforces the grants;
// target checks them too, so that a mistake does not cost the connection.
func (c *conn) target(wr *rdma.WR) (*remoteRegion, rdma.Status) {
	need, words := provide.Need(wr.Op, len(wr.Buf))
	if need == 0 {
		return nil, rdma.StatusUnsupported
	}
	if words == 0 || wr.Addr%mem.WordBytes != 0 {
		return nil, rdma.StatusAccess
	}
	r := c.last
	if r == nil || r.key != wr.RKey {
		if r = c.region(wr.RKey); r == nil {
			return nil, rdma.StatusAccess
		}
		c.last = r
	}
	if need != rdma.AccessRead && r.access&need == 0 {
		if r = c.again(r, need); r == nil {
			return nil, rdma.StatusAccess
		}
	}
	n := uint64(words) * mem.WordBytes
	if wr.Addr >= r.max || wr.Addr&(1<<r.shift-1)+n > 1<<r.shift {
		return nil, rdma.StatusAccess
	}
	for wr.Addr>>r.shift >= uint64(len(r.keys)) {
		if r.asked == c.query.round || !c.askSegments(r.key, len(r.keys)) {
			return nil, rdma.StatusAccess
		}
		if !r.learn(&c.query.list) {
			r.asked = c.query.round
		}
	}
	return r, rdma.StatusPending
}

// region returns a region. It asks the server about one that it does not know.
func (c *conn) region(key rdma.RKey) *remoteRegion {
	if r := c.regions[key]; r != nil {
		return r
	}
	if c.query.missing == key && c.query.missed == c.query.round {
		return nil
	}
	if !c.askSegments(key, 0) {
		c.query.missing, c.query.missed = key, c.query.round
		return nil
	}
	return c.learnRegion(key)
}

// learnRegion keeps the answer about the first segments of a region.
func (c *conn) learnRegion(key rdma.RKey) *remoteRegion {
	t := &c.query.list
	r := &remoteRegion{key: key, access: t.access, shift: uint(bits.TrailingZeros64(t.segment)), max: t.max}
	r.learn(t)
	c.regions[key], c.last = r, r
	return r
}

// again asks about a region once more, in case that the server has granted more access since.
// It returns nil if that is not so.
func (c *conn) again(r *remoteRegion, need rdma.Access) *remoteRegion {
	if r.denied == c.query.round {
		return nil
	}
	r.denied = c.query.round
	if !c.askSegments(r.key, 0) || c.query.list.access&need == 0 {
		return nil
	}
	return c.learnRegion(r.key)
}

// learn stores the keys of further segments, and reports whether there were any.
func (r *remoteRegion) learn(t *segmentList) bool {
	if int(t.first) != len(r.keys) || len(t.keys) == 0 {
		return false
	}
	r.keys = append(r.keys, t.keys...)
	return true
}

// askSegments asks the server where the segments of a region are, from one on. It
// reports false if there is no such region, or the connection broke.
func (c *conn) askSegments(key rdma.RKey, first int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
	defer cancel()
	c.query.seq++
	c.query.asking, c.query.answered = true, false
	defer func() { c.query.asking = false }()
	for !c.mail.ready() {
		if err := c.progress(ctx); err != nil {
			c.fail(err)
			return false
		}
	}
	q := segmentQuery{key, uint32(first)}
	b := q.encode()
	if err := c.mail.send(fragQuery, queryBytes, c.query.seq, b[:]); err != nil {
		c.fail(err)
		return false
	}
	for !c.query.answered {
		if err := c.progress(ctx); err != nil && !c.query.answered {
			c.fail(err) // a server that does not answer in queryTimeout
			return false
		}
	}
	if c.query.list.key != key || int(c.query.list.first) != first {
		c.fail(fmt.Errorf("%w: answer about another region", errWire))
		return false
	}
	return c.query.list.reason == reasonNone
}
