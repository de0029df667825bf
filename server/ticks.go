package server

import (
	"context"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
)

// runningStep is how far a stop of the process, of any length, moves the clock on which
// freed memory is in quarantine. So a commit that lies in the queue of a stopped
// server, for an unknown time, finds no memory that was freed after its reads and has
// other rows by now.
const runningStep = idleRest * 5 / 4

// keepTime moves the clocks of the partitions on until ctx ends, tick by tick. In an
// idle server these may be behind, and a snapshot asks for them (wire.OpAdopt); but the
// running clock must not miss any time.
func (s *Server) keepTime(ctx context.Context) {
	t := time.NewTimer(clock.TickLength)
	defer t.Stop()
	for owes := false; s.pace.rest(ctx, t, clock.TickLength, idleRest, owes); {
		s.clocks.running.Now()
		owes = s.parts.closeTicks()
		s.slow.watch(s.parts.here)
	}
}

// Work of one turn for the past that no snapshot reads any more: up to
// buryTurns turns of the executor, each for buryMost rows of each index.
const (
	buryMost  = 32
	buryTurns = 64
)

// forgetIdle is how long forget rests when it has found nothing to free. A server
// without work then wakes up only for its clock.
const forgetIdle = 5 * clock.TickLength

// forget buries the past of all partitions until ctx ends. It may wait for
// executors, so it is not part of keepTime.
func (s *Server) forget(ctx context.Context) {
	t := time.NewTimer(forgetIdle)
	defer t.Stop()
	for rest := forgetIdle; s.pace.rest(ctx, t, rest, idleRest, rest != forgetIdle); {
		rest = forgetIdle
		for _, p := range s.parts.here {
			if p.bury() {
				rest = clock.TickLength
			}
		}
	}
}

// bury frees versions, and removes the traces of deletions, that no snapshot
// reads any more, and reports whether there were traces. The executor serves
// other requests between its turns.
func (p *partition) bury() (found bool) {
	for range buryTurns {
		p.mu.Lock()
		h := p.arena.History()
		more := false
		if h.Keeps() {
			h.Close(p.ticks.closed)
			for _, ix := range p.has.Load().indexes {
				n := ix.Bury(h.Floor(), buryMost)
				found, more = found || n > 0, more || n == buryMost
			}
		}
		p.mu.Unlock()
		if !more {
			break
		}
	}
	return found
}

// makeRoom frees memory of the past for a write that lacks it. It returns false if
// there is none left. The caller holds p.mu.
func (p *partition) makeRoom() (freed bool) {
	h := p.arena.History()
	if !h.Keeps() {
		return false
	}
	freed = h.Yield()
	for _, ix := range p.has.Load().indexes {
		freed = ix.Bury(h.Floor(), roomMost) > 0 || freed
	}
	return freed
}

// roomMost bounds what makeRoom removes from each index.
const roomMost = 256

// clocks are the clocks of a server: ticks, the logical time of commits, and the time
// that it has been running, by which quarantines and the ages of proofs count.
type clocks struct {
	ticks   clock.Ticks // its own clock
	seen    clock.Seen  // the highest tick of any partition, and of what others have seen
	running *clock.Running
	life    wire.Sent // incarnation and epoch of the server
	durable *durable  // nil in memory
}

// present returns the time that a request sent now carries.
func (c *clocks) present() wire.Sent {
	sent := c.life
	sent.At = c.running.Last()
	return sent
}

// now is the tick by the server's own clock, or the highest that the server has
// seen. It may go back a little; a partition's clock never does.
func (c *clocks) now() clock.Tick { return min(max(c.ticks.Now(), c.seen.Tick()), block.MaxTick) }

// saw notes the highest tick that a client or another server has seen, so that its next
// commits here get no lower one. It ignores a clock that is far ahead. After a restart
// the clock must not go back behind a snapshot, so the log has the tick if it is ahead.
// If the log does not take the tick, what the client asks for must be refused with the
// error: a commit might get a lower tick.
func (c *clocks) saw(t clock.Tick) verdict {
	if t <= c.now() || t > c.ticks.Now()+clockSkewMax {
		return verdict{}
	}
	if c.durable != nil {
		if _, err := c.durable.noteTick(t); err != nil {
			return logVerdict(err)
		}
	}
	c.seen.Saw(t)
	return verdict{}
}

// adopt moves a partition's clock up to a tick of a client. A tick that is ahead of the
// server's clock is logged, because after a restart the clock must not be behind a
// snapshot. The answer rests on the log up to at. From then on the partition keeps
// versions for snapshots, for a while.
func (c *clocks) adopt(p *partition, tick clock.Tick) (at wal.LSN, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.durable != nil && tick > c.now() {
		if at, err = c.durable.noteTick(tick); err != nil {
			return 0, err
		}
	}
	p.ticks.adopt(tick)
	p.arena.History().Expect(p.ticks.own.Tick())
	return at, nil
}

// clockSkewMax bounds the difference between the ticks of servers that commit
// together. Ticks that are adopted cannot be taken back, so a server whose clock
// is years ahead would use up the ticks of all others.
const clockSkewMax = clock.Tick(time.Hour / clock.TickLength)

// ticks are the clock of a partition, and what it publishes of it in the control block,
// which can be read at any time. The partition's mutex guards the rest.
type ticks struct {
	server  *clocks
	arena   *block.Arena
	control mem.Span
	own     clock.Logical
	closed  clock.Tick // the tick published as closed
}

// advance moves the partition's clock up to the server's. Every commit reads
// that clock anew: with one that was read before, a transaction could get a
// lower tick than another that had ended at a server of the same machine before
// it began, and a snapshot could have the later without the earlier. The caller
// holds p.mu.
func (ts *ticks) advance() { ts.adopt(ts.server.now()) }

// adopt moves the partition's clock up to a tick. Readers see the tick before
// they can see a commit of it. The caller holds p.mu.
func (ts *ticks) adopt(t clock.Tick) {
	if ts.own.Adopt(t) {
		ts.server.seen.Saw(t)
		ts.arena.CoverCSN(block.NewCSN(t, 0))
		ts.control.Store(tickWord, uint64(t))
		ts.closeTick()
	}
}

// settle ends a vote. If it was for a commit, the share has been applied. The
// caller holds p.mu.
func (ts *ticks) settle(vote clock.Tick) {
	ts.own.Settle(vote)
	ts.closeTick()
}

// closeTick publishes the tick up to which everything has been applied. The
// caller holds p.mu.
func (ts *ticks) closeTick() {
	if t := ts.own.Closed(); t != ts.closed {
		ts.closed = t
		ts.control.Store(closedWord, uint64(t))
		ts.arena.History().Close(t)
	}
}

// present returns the present tick, as it is published.
func (ts *ticks) present() clock.Tick { return clock.Tick(ts.control.Load(tickWord)) }

// closedTick returns the closed tick, as it is published.
func (ts *ticks) closedTick() clock.Tick { return clock.Tick(ts.control.Load(closedWord)) }

// nextCSN takes the CSN of a commit of this partition alone. The caller holds
// p.mu.
func (ts *ticks) nextCSN() block.CSN {
	ts.advance()
	csn := ts.arena.NextCSN()
	ts.adopt(csn.Tick()) // a tick may have no sequence numbers left
	return csn
}
