package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

const (
	// windowBytes bounds the requests in flight that Post and StartCall send
	// whether or not the server reads. The buffers of the two kernels hold that
	// much, so that Post and StartCall do not wait.
	windowBytes = 32 << 10
	// MaxInFlight bounds the batches of a connection that were posted and not
	// waited for.
	MaxInFlight = 1024
)

// flight is a batch that was posted. Its requests are sent and answered in order,
// except those that already have a status.
type flight struct {
	b     *rdma.Batch
	id    uint64
	sent  int // requests looked at for sending
	done  int // and for results
	begun bool
	count rdma.Counters
}

// conn is the client side of a connection. The goroutine that uses it does all
// the work; other goroutines touch only state, watch and the socket.
type conn struct {
	addr   string
	conn   net.Conn // TLS, or the socket
	socket net.Conn
	state  provide.Link
	ctr    rdma.Tally
	watch  watch

	caps []capability // by slot
	held []bool

	flights    []flight // in flight, oldest first
	lastID     uint64
	doneID     uint64 // batches up to this one are complete
	unanswered int    // verbs sent
	inFlight   int    // bytes of them, and of calls sent after the first
	out        []uint64

	call call

	asking rdma.RKey // 0: nothing
	refuse rdma.RKey // the region asked for last does not exist

	in      []byte
	r, fill int
	frame   frame
	inFrame bool
	left    int // words of the frame to come
	verbs   int // of results to come
	got     int // bytes of the READ being received
	reading bool
	ticks   int // time-outs since the last sign of life
}

// call is the connection's RPC channel.
type call struct {
	calling  bool
	replied  bool
	seq      uint64
	deferred bool // not sent yet: it is in request
	request  []uint64
	reqBytes int
	reply    []byte
}

var _ rdma.Conn = (*conn)(nil)

func (c *conn) linkErr() error { return c.state.Err("tcp", c.addr) }

func (c *conn) usable() bool { return c.state.Up() }

// InOrder is true: the agent loads words in ascending order.
func (c *conn) InOrder() bool { return true }

// Counters returns a snapshot of the connection's counters.
func (c *conn) Counters() rdma.Counters { return c.ctr.Snapshot() }

// Close may be called while another goroutine waits, which then sees a dead
// peer.
func (c *conn) Close() error {
	if _, open := c.state.Move(provide.Closed); !open {
		return nil
	}
	c.watch.stop()
	_ = c.conn.Close() // of a connection that may be broken already
	return nil
}

// fail breaks the connection: requests in flight complete with
// rdma.StatusPeerDown.
func (c *conn) fail() {
	if _, first := c.state.Move(provide.Broken); first {
		c.watch.stop()
	}
	_ = c.socket.Close() // not TLS's Close, which would send
	for i := range c.flights {
		f := &c.flights[i]
		for j := range f.b.WRs {
			if wr := &f.b.WRs[j]; wr.Status == rdma.StatusPending {
				wr.Status = rdma.StatusPeerDown
				f.count.Count(wr)
			}
		}
		c.ctr.Add(&f.count)
	}
	clear(c.flights)
	c.flights = c.flights[:0]
	c.doneID = c.lastID
	c.call.deferred = false
}

// Post sends the requests that fit the window. Wait sends the rest.
func (c *conn) Post(b *rdma.Batch) error {
	if !c.usable() {
		return c.linkErr()
	}
	if err := provide.CheckBatch(b); err != nil {
		return err
	}
	if len(c.flights) == MaxInFlight {
		return fmt.Errorf("tcp: %d batches in flight: %w", MaxInFlight, rdma.ErrTooLarge)
	}
	c.lastID++
	b.Token = c.lastID
	f := flight{b: b, id: c.lastID, count: rdma.Counters{Rounds: 1}}
	for i := range b.WRs {
		wr := &b.WRs[i]
		wr.Status = rdma.StatusPending
		_, ok := slotOf(wr.RKey)
		switch need, words := provide.Need(wr.Op, len(wr.Buf)); {
		case need == 0:
			wr.Status = rdma.StatusUnsupported
		case !ok || words == 0:
			wr.Status = rdma.StatusAccess
		default:
			continue
		}
		f.count.Count(wr)
	}
	c.flights = append(c.flights, f)
	if c.send(false) != nil { // Wait returns the error
		c.fail()
	}
	return nil
}

// Wait returns when the batch is complete.
func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	if c.doneID < b.Token {
		if err := c.await(ctx, func() bool { return c.doneID >= b.Token }); err != nil {
			return err
		}
	}
	return b.Err()
}

// await sends and receives until done reports true, which it also does for
// batches of a broken connection. Its only error is that of ctx; the caller
// checks whether the connection is broken. The end of ctx breaks it only if a
// frame was sent in part.
func (c *conn) await(ctx context.Context, done func() bool) error {
	if !c.watch.begin(ctx) {
		return ctx.Err()
	}
	c.ticks = 0
	for !done() && c.usable() {
		err := c.send(true)
		whole := err == nil
		if whole && !done() {
			err = c.receive()
		}
		if err != nil {
			ended := ctx.Err()
			late := ended != nil && errors.Is(err, os.ErrDeadlineExceeded)
			if !late || !whole || !c.watch.fired() {
				c.fail()
			}
			c.watch.end()
			if late {
				return ended
			}
			return nil
		}
	}
	c.watch.end()
	if !c.usable() {
		c.fail() // closed by another goroutine
	}
	return nil
}

// send sends posted requests, in frames. Without wait it stops at the end of the
// window. With wait it continues if the server has answered everything, because
// the server then reads.
func (c *conn) send(wait bool) error {
	if c.call.deferred && c.room(len(c.call.request)*mem.WordBytes, wait) {
		if err := c.sendCall(); err != nil {
			return err
		}
	}
	if c.asking != 0 {
		return nil
	}
	defer c.retire() // a request may have been refused
	for i := range c.flights {
		f := &c.flights[i]
		for f.sent < len(f.b.WRs) {
			more, err := c.sendFrame(f, wait)
			if err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// room reports whether n more bytes may be sent.
func (c *conn) room(n int, wait bool) bool {
	return c.inFlight+n <= windowBytes || wait && c.unanswered == 0
}

// noteResult subtracts a verb from the requests in flight. When none is left, the
// agent reads again, and will read all that was sent.
func (c *conn) noteResult(wr *rdma.WR) {
	c.inFlight -= requestWords(wr) * mem.WordBytes
	if c.unanswered--; c.unanswered == 0 {
		c.inFlight = 0
	}
}

// sendFrame sends the next requests of a batch. It reports whether the next
// ones may follow.
func (c *conn) sendFrame(f *flight, wait bool) (bool, error) {
	out := append(c.out[:0], 0, f.id)
	count, ask := 0, rdma.RKey(0)
	full := false
	for ; f.sent < len(f.b.WRs); f.sent++ {
		wr := &f.b.WRs[f.sent]
		if wr.Status != rdma.StatusPending {
			continue
		}
		slot, _ := slotOf(wr.RKey)
		if slot >= len(c.caps) || !c.held[slot] {
			if wr.RKey == c.refuse && count == 0 {
				wr.Status, c.refuse = rdma.StatusAccess, 0
				f.count.Count(wr)
				continue
			}
			ask = wr.RKey
			break
		}
		if n := requestWords(wr); !c.room((len(out)-headerWords+n)*mem.WordBytes, wait && count == 0) || len(out)+n > frameWordsMax && count > 0 {
			full = true
			break
		}
		out = appendWR(out, wr, uint16(slot), c.caps[slot])
		count++
	}
	if cap(out) <= keepWords {
		c.out = out[:0]
	}
	if count > 0 {
		h := frame{kind: kindBatch, count: uint16(count), size: uint32(len(out) - headerWords)}
		if f.begun {
			h.flags = flagMore
		}
		out[0], f.begun = h.word0(), true
		c.unanswered += count
		c.inFlight += (len(out) - headerWords) * mem.WordBytes
		if err := c.write(out); err != nil {
			return false, err
		}
	}
	if ask != 0 {
		c.asking, c.refuse = ask, 0
		return false, c.write(append(c.out[:0], frame{kind: kindAsk}.word0(), uint64(ask)))
	}
	return !full || count > 0 && wait, nil
}

func (c *conn) write(w []uint64) error {
	_, err := c.conn.Write(mem.Bytes(w))
	return err
}

// retire removes complete batches from those in flight.
func (c *conn) retire() {
	n := 0
	for n < len(c.flights) {
		f := &c.flights[n]
		for f.done < len(f.b.WRs) && f.b.WRs[f.done].Status != rdma.StatusPending {
			f.done++
		}
		if f.done < len(f.b.WRs) {
			break
		}
		c.ctr.Add(&f.count)
		c.doneID = f.id
		n++
	}
	if n > 0 {
		rest := copy(c.flights, c.flights[n:])
		clear(c.flights[rest:])
		c.flights = c.flights[:rest]
	}
}

// receive waits for bytes from the server and processes them.
func (c *conn) receive() error {
	var n int
	var err error
	if dst := c.readInto(); len(dst) > 0 {
		n, err = c.conn.Read(dst) // past the buffer
		c.got += n
	} else {
		n, err = c.conn.Read(c.in[c.fill:])
		c.fill += n
	}
	if n > 0 {
		c.ticks = 0
		if perr := c.take(); perr != nil {
			return perr
		}
	}
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.watch.fired() {
		return c.tick()
	}
	return err
}

// tick sends a ping, and gives up if nothing has arrived since the last one.
func (c *conn) tick() error {
	if c.ticks++; c.ticks > 2 {
		return rdma.ErrPeerDown
	}
	if err := c.watch.extend(); err != nil {
		return err
	}
	if c.ticks == 1 {
		return nil // the time may have been set before this wait began
	}
	return c.write(append(c.out[:0], frame{kind: kindPing}.word0(), 0))
}
