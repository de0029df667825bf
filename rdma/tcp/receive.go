package tcp

import (
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// directBytes is the least rest of a READ that is received into its own buffer
// rather than through the connection's.
const directBytes = 4 << 10

// current returns the work request whose result comes next.
func (c *conn) current() *rdma.WR {
	f := &c.flights[0]
	return &f.b.WRs[f.done]
}

// readInto returns the buffer for the words of a large READ. It is empty if they
// are received through the connection's buffer.
func (c *conn) readInto() []byte {
	if !c.reading || c.r < c.fill {
		return nil
	}
	if rest := mem.Bytes(c.current().Buf)[c.got:]; len(rest) >= directBytes {
		return rest
	}
	return nil
}

// take processes all complete items in the buffer, and parts of items that may
// come in parts. An error ends the connection.
func (c *conn) take() error {
	for {
		more, err := c.takeOne()
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if c.r > 0 {
		c.fill = copy(c.in, c.in[c.r:c.fill])
		c.r = 0
	}
	return nil
}

// next returns the next n words, if they have arrived.
func (c *conn) next(n int) ([]byte, bool) {
	b := c.in[c.r:c.fill]
	if len(b) < n*mem.WordBytes {
		return nil, false
	}
	c.r += n * mem.WordBytes
	return b, true
}

func (c *conn) takeOne() (bool, error) {
	if !c.inFrame {
		b, ok := c.next(headerWords)
		if !ok {
			return false, nil
		}
		return true, c.begin(word(b), word(b[8:]))
	}
	switch c.frame.kind {
	case kindResults:
		return c.takeResult()
	case kindReply:
		return c.takeReply()
	}
	return c.takeGrant() // begin lets nothing else through
}

// begin processes a header.
func (c *conn) begin(w0, w1 uint64) error {
	f, err := decodeFrame(w0, w1)
	if err != nil {
		return err
	}
	c.frame, c.inFrame, c.left, c.verbs, c.got = f, true, f.payloadWords(), int(f.count), 0
	switch k := &c.call; f.kind {
	case kindResults:
		if len(c.flights) == 0 || c.flights[0].id != f.id {
			return fmt.Errorf("%w: results of batch %d, which is not the next", errFrame, f.id)
		}
	case kindReply:
		if !k.calling || k.replied || k.deferred || k.seq != f.id {
			return fmt.Errorf("%w: reply to call %d, which does not wait for one", errFrame, f.id)
		}
		k.reply = k.reply[:0]
		if f.size == 0 {
			k.replied, c.inFrame = true, false
		}
	case kindGrant:
	case kindPong:
		c.inFrame = false
	default:
		return fmt.Errorf("%w: kind %d from a server", errFrame, f.kind)
	}
	return nil
}

// takeResult processes a result, or the present part of the words of a READ.
func (c *conn) takeResult() (bool, error) {
	if c.reading {
		return c.takeRead()
	}
	if c.verbs == 0 {
		if c.left != 0 {
			return false, fmt.Errorf("%w: results are longer than their verbs", errFrame)
		}
		c.inFrame = false
		return true, nil
	}
	if len(c.flights) == 0 || c.flights[0].id != c.frame.id || c.flights[0].done >= c.flights[0].sent {
		return false, fmt.Errorf("%w: more results than requests", errFrame)
	}
	if c.fill-c.r < mem.WordBytes {
		return false, nil
	}
	wr := c.current()
	status, n := word(c.in[c.r:]), 1
	if status == uint64(rdma.StatusOK) {
		switch wr.Op {
		case rdma.OpRead:
			n += len(wr.Buf) + 1
		case rdma.OpCAS, rdma.OpFAA:
			n++
		}
	} else if status != uint64(rdma.StatusAccess) && status != uint64(rdma.StatusUnsupported) {
		return false, fmt.Errorf("%w: status %d", errFrame, status)
	}
	if c.left < n {
		return false, fmt.Errorf("%w: results are shorter than their verbs", errFrame)
	}
	if n > 2 {
		c.r += mem.WordBytes
		c.left -= n
		c.reading, c.got = true, 0
		return true, nil
	}
	b, ok := c.next(n)
	if !ok {
		return false, nil
	}
	if n == 2 {
		wr.Buf[0] = word(b[8:])
	}
	c.left -= n
	c.complete(wr, rdma.Status(status))
	return true, nil
}

// takeRead stores words of a READ, and finally its tail.
func (c *conn) takeRead() (bool, error) {
	wr := c.current()
	dst := mem.Bytes(wr.Buf)
	n := copy(dst[c.got:], c.in[c.r:c.fill])
	c.r += n
	c.got += n
	if c.got < len(dst) {
		return false, nil
	}
	b, ok := c.next(1)
	if !ok {
		return false, nil
	}
	wr.Tail = word(b)
	c.reading = false
	c.complete(wr, rdma.StatusOK)
	return true, nil
}

// complete completes a work request, and with the last one its batch.
func (c *conn) complete(wr *rdma.WR, s rdma.Status) {
	f := &c.flights[0]
	wr.Status = s
	f.count.Count(wr)
	c.verbs--
	c.noteResult(wr)
	for f.done < len(f.b.WRs) && f.b.WRs[f.done].Status != rdma.StatusPending {
		f.done++
	}
	if f.done == len(f.b.WRs) {
		c.retire()
	}
}

// takeReply stores the present part of a response.
func (c *conn) takeReply() (bool, error) {
	k := &c.call
	n := min(c.fill-c.r, c.left*mem.WordBytes-c.got) // with the padding
	body := max(0, min(n, int(c.frame.size)-len(k.reply)))
	k.reply = append(k.reply, c.in[c.r:c.r+body]...)
	c.r += n
	c.got += n
	if c.got < c.left*mem.WordBytes {
		return false, nil
	}
	k.replied, c.inFrame = true, false
	return true, nil
}

// takeGrant stores a capability.
func (c *conn) takeGrant() (bool, error) {
	b, ok := c.next(grantWords)
	if !ok {
		return false, nil
	}
	c.inFrame = false
	key := rdma.RKey(c.frame.id)
	slot, ok := slotOf(key)
	if key == c.asking {
		c.asking = 0
	}
	if !ok || word(b[16:]) == 0 {
		c.refuse = key
		return true, nil
	}
	if n := slot + 1 - len(c.caps); n > 0 {
		c.caps, c.held = append(c.caps, make([]capability, n)...), append(c.held, make([]bool, n)...)
	}
	c.caps[slot], c.held[slot] = capability{word(b), word(b[8:])}, true
	return true, nil
}
