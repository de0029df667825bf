//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// conn is the client side of a connection.
type conn struct {
	p    *Provider
	addr string

	closed atomic.Bool
	ctr    rdma.Tally

	cm      *manager
	managed chan struct{} // closed when manage has ended

	life sync.Mutex // held to end the connection and to take it apart
	id   *C.struct_rdma_cm_id
	qp   *C.struct_vb_qp

	mu      sync.Mutex // held by the goroutine that uses the connection
	down    error      // why the connection is broken; wraps rdma.ErrPeerDown
	gone    bool       // released
	pd      *C.struct_ibv_pd
	cq      *completions
	spin    provide.Spinner
	mail    mailbox
	stage   staging
	calls   caller
	regions map[rdma.RKey]*remoteRegion
	last    *remoteRegion // used last
	query   query

	idle provide.Idle // of staging memory

	window       int // one-sided work requests in flight at most
	entries      []entry
	cmds         []C.struct_vb_wr
	posted, done uint64 // entries, ever
	flights      []flight
	first        uint64 // number of flights[0]
}

var _ rdma.Conn = (*conn)(nil)

// flight is a batch between Post and Wait.
type flight struct {
	b       *rdma.Batch
	next    int  // work request to hand to the device
	left    int  // work requests not complete
	retired bool // Wait has returned
}

// entry is a work request the device has.
type entry struct {
	flight uint64
	wr     int
	words  int    // to copy out of staging on success
	off    uint64 // in staging
	end    uint64 // position in staging to free
}

// InOrder returns false: a device stores the words that it reads in any order.
func (c *conn) InOrder() bool { return false }

func (c *conn) Counters() rdma.Counters { return c.ctr.Snapshot() }

// use locks the connection for one operation. It fails, with the lock held
// nonetheless, if the connection is unusable.
func (c *conn) use() error {
	c.mu.Lock()
	return c.usable()
}

func (c *conn) usable() error {
	if c.closed.Load() {
		return fmt.Errorf("verbs: connection to %q: %w", c.addr, rdma.ErrClosed)
	}
	return c.down
}

// fail breaks the connection for a reason and completes all that is in
// flight. The device may still write to the staging memory, which stays until
// Close, but no buffer of a caller is written to any more.
func (c *conn) fail(why error) {
	if c.down != nil {
		return
	}
	c.down = fmt.Errorf("verbs: connection to %q: %w: %v", c.addr, rdma.ErrPeerDown, why)
	for i := range c.flights {
		f := &c.flights[i]
		for j := range f.b.WRs {
			if wr := &f.b.WRs[j]; !f.retired && wr.Status == rdma.StatusPending {
				wr.Status = rdma.StatusPeerDown
			}
		}
		f.left, f.next = 0, len(f.b.WRs)
	}
	c.disconnect()
}

// Post hands the batch to the device, or as much of it as the send queue takes
// and as the connection knows the keys for; Wait feeds it the rest. It does not
// wait for the server.
func (c *conn) Post(b *rdma.Batch) error {
	err := c.use()
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := provide.CheckBatch(b); err != nil {
		return err
	}
	for i := range b.WRs {
		b.WRs[i].Status = rdma.StatusPending
	}
	c.flights = append(c.flights, flight{b: b, left: len(b.WRs)})
	b.Token = c.first + uint64(len(c.flights)) // never 0
	c.pump()
	return nil
}

// flightOf finds the batch among those in flight.
func (c *conn) flightOf(b *rdma.Batch) *flight {
	i := b.Token - 1 - c.first
	if b.Token == 0 || i >= uint64(len(c.flights)) || c.flights[i].b != b {
		return nil
	}
	return &c.flights[i]
}

// Wait polls for completions until the batch has all of its own.
func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flightOf(b) == nil {
		return b.Err() // complete, or never posted
	}
	var failed error
	for c.flightOf(b).left > 0 && failed == nil {
		if failed = c.progress(ctx); failed == nil {
			c.pump()
		}
	}
	if failed != nil && c.usable() == nil {
		return failed // ctx ended, and the batch stays in flight
	}
	n := rdma.Counters{Rounds: 1}
	for i := range b.WRs {
		n.Count(&b.WRs[i])
	}
	c.ctr.Add(&n)
	c.retire(b)
	if failed != nil && (ctx.Err() != nil || c.closed.Load()) {
		return failed
	}
	err := b.Err()
	if errors.Is(err, rdma.ErrPeerDown) && c.down != nil {
		err = fmt.Errorf("%w: %w", err, c.down) // which says why
	}
	return err
}

// retire removes a batch from the batches in flight. Later batches may have
// completed before it.
func (c *conn) retire(b *rdma.Batch) {
	c.flightOf(b).retired = true
	b.Token = 0
	n := 0
	for n < len(c.flights) && c.flights[n].retired {
		n++
	}
	c.first += uint64(n)
	c.flights = c.flights[:copy(c.flights, c.flights[n:])]
}

// pump hands work requests to the device, in the order they were posted in,
// as far as there is room in its send queue and in staging, and up to the first
// that needs an answer of the server (see query).
func (c *conn) pump() {
	for i := 0; i < len(c.flights) && c.down == nil; i++ {
		if f := &c.flights[i]; f.next < len(f.b.WRs) && !c.feed(i) {
			return
		}
	}
}

// feed hands over what it can of one batch, with one doorbell, and reports
// whether that was all.
func (c *conn) feed(i int) bool {
	f := &c.flights[i]
	if c.posted == c.done && c.stage.empty() {
		need := stagingFor(f)
		if err := c.stage.grow(c.pd, need); err != nil {
			c.fail(err)
			return false
		}
		if need > stagingBytesMin {
			c.idle.Used(c.giveBack)
		}
	}
	n := 0
	for f.next < len(f.b.WRs) && int(c.posted-c.done)+n < c.window {
		wr := &f.b.WRs[f.next]
		r, status := c.target(wr, c.first+uint64(i))
		if c.down != nil {
			return false // the query could not be sent
		}
		if r == nil && status == rdma.StatusPending {
			break // until the server has answered
		}
		if status != rdma.StatusPending {
			wr.Status = status
			f.left--
			f.next++
			continue
		}
		if !c.prepare(c.posted+uint64(n), i, r, wr, &c.cmds[n]) {
			break
		}
		f.next++
		n++
	}
	if n > 0 {
		// The last completion accounts for all; some before it let long
		// batches flow.
		for k := c.window/4 - 1; k > 0 && k < n; k += c.window / 4 {
			c.cmds[k].signaled = 1
		}
		c.cmds[n-1].signaled = 1
		c.posted += uint64(n)
		if err := errno("post", C.vb_qp_post(c.qp, &c.cmds[0], C.int(n))); err != nil {
			c.fail(err)
		}
	}
	return f.next == len(f.b.WRs)
}

// stagingFor bounds the staging memory that the rest of a batch needs.
func stagingFor(f *flight) (n uint64) {
	for i := f.next; i < len(f.b.WRs) && n < stagingBytesMax; i++ {
		n += (uint64(len(f.b.WRs[i].Buf))*mem.WordBytes + mem.LineBytes - 1) &^ (mem.LineBytes - 1)
	}
	return n
}

// giveBack returns staging memory that no batch has needed for a while.
func (c *conn) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.down != nil || !c.idle.Over(c.posted != c.done || !c.stage.empty()) {
		return
	}
	// If it fails, the connection keeps what it has.
	_ = c.stage.resize(c.pd, stagingBytesMin)
}

// prepare fills entry number at and the device's form of a work request; it
// reports false if there is no staging memory for it now.
func (c *conn) prepare(at uint64, i int, r *remoteRegion, wr *rdma.WR, cmd *C.struct_vb_wr) bool {
	words := len(wr.Buf)
	if wr.Op == rdma.OpCAS || wr.Op == rdma.OpFAA {
		words = 1
	}
	off, end, ok := c.stage.alloc(uint64(words) * mem.WordBytes)
	if !ok {
		return false
	}
	e := &c.entries[at%uint64(c.window)]
	*e = entry{flight: c.first + uint64(i), wr: c.flights[i].next, words: words, off: off, end: end}
	*cmd = C.struct_vb_wr{
		id:     C.uint64_t(idOneSided | at&idLowMask),
		remote: C.uint64_t(wr.Addr), rkey: C.uint32_t(r.keys[wr.Addr>>r.shift]),
		local: C.uint64_t(c.stage.mem.addr + off), lkey: C.uint32_t(c.stage.mem.lkey()), bytes: C.uint32_t(words * mem.WordBytes),
	}
	if f := &c.flights[i]; f.b.Ordered && f.next > 0 {
		// A queue pair begins its requests in order, and only a fence makes one wait until the
		// READs and atomics before it are complete.
		cmd.fenced = 1
	}
	switch wr.Op {
	case rdma.OpRead:
		cmd.op = C.VB_READ
	case rdma.OpWrite:
		c.stage.mem.span.Slice(int(off/mem.WordBytes), words).CopyIn(wr.Buf)
		cmd.op, cmd.inlined = C.VB_WRITE, 1
		e.words = 0
	case rdma.OpCAS:
		cmd.op, cmd.arg, cmd.swap = C.VB_CAS, C.uint64_t(wr.Arg), C.uint64_t(wr.Swap)
	case rdma.OpFAA:
		cmd.op, cmd.arg = C.VB_FAA, C.uint64_t(wr.Arg)
	}
	return true
}

// complete accounts for the entries up to the one with these low bits. Those
// before it have succeeded: the queue pair completes in order and stops at
// the first error.
func (c *conn) complete(low uint64, status wcStatus) {
	n := (low-c.done)&idLowMask + 1
	if n > c.posted-c.done {
		c.fail(fmt.Errorf("%w: completion of a work request that was not posted", errWire))
		return
	}
	for ; n > 1; n-- {
		c.finish(rdma.StatusOK)
	}
	c.finish(status.status())
	if status != wcSuccess {
		c.fail(errors.New(status.String()))
	}
}

// finish completes the oldest entry.
func (c *conn) finish(s rdma.Status) {
	e := &c.entries[c.done%uint64(c.window)]
	c.done++
	c.stage.tail = e.end
	f := &c.flights[e.flight-c.first]
	wr := &f.b.WRs[e.wr]
	if s == rdma.StatusOK && e.words > 0 {
		c.stage.mem.span.Slice(int(e.off/mem.WordBytes), e.words).CopyOut(wr.Buf[:e.words])
	}
	wr.Status = s
	f.left--
}

// Close ends the connection: an operation under way returns first.
func (c *conn) Close() error {
	c.closed.Store(true)
	c.disconnect() // what waits for a completion gets one
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil
	}
	c.gone = true
	c.idle.Stop()
	c.fail(rdma.ErrClosed)
	c.release()
	return nil
}
