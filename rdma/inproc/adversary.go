package inproc

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// adversary adds latency and faults to a connection. Only the client's
// goroutine uses it.
type adversary struct {
	o        *Options
	faulty   bool // it also injects faults
	rng      *rng.Stream
	linkFree time.Duration // when the link has carried everything posted so far
	token    uint64        // of the last batch posted
	pending  []pendingBatch
	// ended says that the connection broke at a request that has not taken effect, or in part:
	// those after it in an ordered batch never will.
	ended bool
	perm  []uint32 // scratch
}

// pendingBatch is a batch between Post and Wait. Its work requests that are
// still to be performed have StatusPending.
type pendingBatch struct {
	token    uint64
	performs time.Duration // when its remaining requests are performed
	done     time.Duration // when its completions arrive
	shuffle  bool
	ordered  bool
}

func newAdversary(o *Options, s *rng.Stream) *adversary {
	return &adversary{o: o, rng: s, faulty: o.Faults != Faults{MaxDelay: o.Faults.MaxDelay}}
}

// carry books n bytes on the link and returns when they have arrived.
func (a *adversary) carry(now time.Duration, n uint64, base time.Duration) time.Duration {
	a.linkFree = max(a.linkFree, now) + time.Duration(math.Ceil(float64(n)*a.o.Latency.ByteNs))
	done := a.linkFree + base
	if f := &a.o.Faults; a.rng.Bool(f.Delay) {
		done += time.Duration(a.rng.Uint64n(uint64(f.MaxDelay) + 1))
	}
	return done
}

func (a *adversary) order(n int) []uint32 {
	if cap(a.perm) < n {
		a.perm = make([]uint32, n)
	}
	a.perm = a.perm[:n]
	return a.perm
}

// postSlow is Post with latency and faults.
func (c *conn) postSlow(b *rdma.Batch) {
	a := c.adv
	c.e.late.perform(a.rng)
	c.ctr.Add(&rdma.Counters{Rounds: 1})
	var bytes uint64
	var base time.Duration
	for i := range b.WRs {
		wr := &b.WRs[i]
		wr.Status = rdma.StatusPending
		switch l := &a.o.Latency; wr.Op {
		case rdma.OpRead:
			base = max(base, l.Read)
		case rdma.OpWrite:
			base = max(base, l.Write)
		default:
			base = max(base, l.Atomic)
		}
		bytes += uint64(len(wr.Buf)) * mem.WordBytes
	}
	now := a.o.Clock.Now()
	a.token++
	p := pendingBatch{token: a.token, done: a.carry(now, bytes, base), shuffle: a.rng.Bool(a.o.Faults.Reorder) && !b.Ordered, ordered: b.Ordered}
	p.performs = now + (p.done-now)/2
	b.Token = a.token
	a.pending = append(a.pending, p)
	c.performAll(b, p.shuffle, a.o.Faults.Defer, p.done > now)
}

// performAll performs the pending requests of b except those deferred to Wait:
// all of them if the link is slow, otherwise each with probability putOff, in an
// ordered batch with all after it.
func (c *conn) performAll(b *rdma.Batch, shuffle bool, putOff float64, slow bool) {
	a := c.adv
	if slow {
		return
	}
	// perform needs the scratch permutation too, so a shuffled batch is
	// walked by a random start and an odd stride instead.
	n := len(b.WRs)
	at, stride := 0, 1
	if shuffle {
		at, stride = a.rng.Intn(n), coprimeStride(a.rng, n)
	}
	for range n {
		wr := &b.WRs[at]
		at = (at + stride) % n
		if wr.Status != rdma.StatusPending {
			continue
		}
		if a.rng.Bool(putOff) {
			if b.Ordered {
				return
			}
			continue
		}
		if !c.link.Up() {
			return
		}
		if !a.rng.Bool(a.o.Faults.DropVerb) {
			c.complete(wr, c.perform(wr))
		} else {
			a.ended = !c.performPart(wr)
			c.leave(provide.Broken)
			c.complete(wr, rdma.StatusPeerDown)
			return
		}
		if a.faulty {
			a.o.Yield()
		}
	}
}

// performPart performs a request at which the connection breaks, or not, or the first words of
// a WRITE. It reports whether the request has taken effect as a whole.
func (c *conn) performPart(wr *rdma.WR) bool {
	if c.adv.rng.Bool(0.5) {
		c.perform(wr)
		return true
	}
	if words := len(wr.Buf); wr.Op == rdma.OpWrite && words > 1 {
		part := *wr
		part.Buf = wr.Buf[:c.adv.rng.Intn(words)]
		if len(part.Buf) > 0 {
			c.perform(&part)
		}
	}
	return false
}

// coprimeStride draws a step that visits all of n places.
func coprimeStride(s *rng.Stream, n int) int {
	for {
		stride := 1 + s.Intn(n)
		x, y := stride, n
		for y != 0 {
			x, y = y, x%y
		}
		if x == 1 {
			return stride
		}
	}
}

func (c *conn) complete(wr *rdma.WR, s rdma.Status) {
	wr.Status = s
	var n rdma.Counters
	n.Count(wr)
	c.ctr.Add(&n)
}

// waitSlow is Wait with latency and faults.
func (c *conn) waitSlow(ctx context.Context, b *rdma.Batch) error {
	a := c.adv
	i := 0
	for i < len(a.pending) && a.pending[i].token != b.Token {
		i++
	}
	if i == len(a.pending) {
		return b.Err() // not posted here, or already waited for
	}
	p := a.pending[i]
	if a.faulty {
		a.o.Yield()
	}
	if err := c.sleepUntil(ctx, p.performs); err != nil {
		return err // the batch stays in flight
	}
	c.performAll(b, p.shuffle, 0, false)
	if err := c.sleepUntil(ctx, p.done); err != nil {
		return err
	}
	mem.Acquire()
	a.pending = append(a.pending[:i], a.pending[i+1:]...)
	b.Token = 0
	c.abandon(b)
	return b.Err()
}

// abandon completes the pending requests after the connection broke. Writes may
// still be in flight and take effect later; they use copies of the buffers.
func (c *conn) abandon(b *rdma.Batch) {
	var inOrder []rdma.WR
	for i := range b.WRs {
		wr := &b.WRs[i]
		if wr.Status != rdma.StatusPending {
			continue
		}
		if wr.Op != rdma.OpRead && c.adv.rng.Bool(c.adv.o.Faults.Late) && !(b.Ordered && c.adv.ended) {
			w := *wr
			w.Buf = append([]uint64(nil), wr.Buf...)
			if b.Ordered {
				inOrder = append(inOrder, w)
			} else {
				c.e.late.add(c, w)
			}
		} else if wr.Op != rdma.OpRead {
			c.adv.ended = true // of an ordered batch those after it are lost, too
		}
		c.complete(wr, rdma.StatusPeerDown)
	}
	c.e.late.add(c, inOrder...)
}

// sleepUntil sleeps until t on the network's clock, the end of ctx, whose
// error it returns, or the end of the connection.
func (c *conn) sleepUntil(ctx context.Context, t time.Duration) error {
	for clock := c.adv.o.Clock; c.link.Up(); {
		d := t - clock.Now()
		if d <= 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("inproc: wait for %q: %w", c.e.Addr(), err)
		}
		clock.Sleep(min(d, sleepMax))
	}
	return nil
}

// read loads the words of a READ in the worst way that the contract allows.
func (a *adversary) read(s mem.Span, wr *rdma.WR) {
	f := &a.o.Faults
	if !a.rng.Bool(f.Scramble) {
		if f.Pause == 0 {
			s.CopyOut(wr.Buf)
		} else {
			for i := range wr.Buf {
				wr.Buf[i] = s.Load(i)
				a.pause()
			}
		}
		wr.Tail = s.Load(0)
	} else {
		for _, i := range a.scrambled(wr.Addr, len(wr.Buf)) {
			wr.Buf[i] = s.Load(int(i))
			a.pause()
		}
	}
	if f.Scramble > 0 {
		// The contract promises nothing about Tail. The most likely value is
		// the worst one: a reader that trusts it accepts any block.
		switch a.rng.Intn(3) {
		case 0:
			wr.Tail = wr.Buf[0]
		case 1:
			wr.Tail = a.rng.Uint64()
		default:
			wr.Tail = 0
		}
	}
}

func (a *adversary) pause() {
	if a.rng.Bool(a.o.Faults.Pause) {
		a.o.Yield()
	}
}

// scrambled returns an order for n words at addr: either any permutation of
// them, or the cache lines in any order and the words of each line in any
// order, as with a NIC that fetches lines.
func (a *adversary) scrambled(addr uint64, n int) []uint32 {
	order := a.order(n)
	if a.rng.Bool(0.5) {
		rng.Perm(a.rng, order, 0)
		return order
	}
	skew := int(addr/mem.WordBytes) % (mem.LineBytes / mem.WordBytes)
	const words = mem.LineBytes / mem.WordBytes
	lines := (skew + n + words - 1) / words
	at, stride := a.rng.Intn(lines), coprimeStride(a.rng, lines)
	order = order[:0]
	for range lines {
		first, last := max(at*words-skew, 0), min(at*words-skew+words, n)
		start := len(order)
		for i := first; i < last; i++ {
			order = append(order, uint32(i))
		}
		rng.Shuffle(a.rng, order[start:])
		at = (at + stride) % lines
	}
	return order
}

// lateWRs are the work requests of broken connections that may still take
// effect.
type lateWRs struct {
	some atomic.Bool
	mu   struct {
		sync.Mutex
		list []lateWR
	}
}

// lateWR are requests that take effect one after the other.
type lateWR struct {
	c   *conn
	wrs []rdma.WR
}

func (l *lateWRs) add(c *conn, wrs ...rdma.WR) {
	if len(wrs) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.list = append(l.mu.list, lateWR{c, wrs})
	l.some.Store(true)
}

// drop forgets those of a peer.
func (l *lateWRs) drop(peer rdma.PeerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.list = slices.DeleteFunc(l.mu.list, func(w lateWR) bool { return w.c.peer == peer })
	l.some.Store(len(l.mu.list) > 0)
}

// perform lets some of them happen now.
func (l *lateWRs) perform(s *rng.Stream) {
	if !l.some.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.mu.list[:0]
	for _, w := range l.mu.list {
		for len(w.wrs) > 0 && s.Bool(0.5) {
			w.c.perform(&w.wrs[0])
			w.wrs = w.wrs[1:]
		}
		if len(w.wrs) > 0 {
			rest = append(rest, w)
		}
	}
	clear(l.mu.list[len(rest):])
	l.mu.list = rest
	l.some.Store(len(rest) > 0)
}
