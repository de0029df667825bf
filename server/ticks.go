package server

import (
	"context"
	"fmt"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// runningStep is how far a stop of the process, of any length, moves the clock
// on which freed memory is in quarantine. A commit that lies in the queue of a
// stopped server then finds no memory that was freed after its reads and has
// other rows by now, although nothing tells how long it lay there.
const runningStep = 250 * time.Millisecond

// keepTime moves the clocks of the server and its partitions on until ctx ends,
// tick by tick. Commits read the server's from memory.
func (s *Server) keepTime(ctx context.Context) {
	t := time.NewTicker(clock.TickLength)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		s.readClock()
		s.closeTicks()
	}
}

// closeTicks moves the clocks of all partitions on, so that those without
// commits close ticks too. It does not wait for an executor: a busy one moves
// its clock on with every request.
func (s *Server) closeTicks() {
	for _, p := range s.parts {
		if p != nil && p.mu.TryLock() {
			p.advance()
			p.mu.Unlock()
		}
	}
}

// readClock sets the server's tick. Its own clock may go back a little; a
// partition's never does.
func (s *Server) readClock() {
	s.running.Now()
	s.present.Store(uint64(min(s.ticks.Now(), block.MaxTick)))
}

// advance moves the partition's clock up to the server's. The caller holds p.mu.
func (p *partition) advance() { p.adopt(clock.Tick(p.present.Load())) }

// adopt moves the partition's clock up to a tick. Readers see the tick before
// they can see a commit of it. The caller holds p.mu.
func (p *partition) adopt(t clock.Tick) {
	if p.ticks.Adopt(t) {
		p.arena.CoverCSN(block.NewCSN(t, 0))
		p.control.Store(tickWord, uint64(t))
		p.closeTick()
	}
}

// settle ends a vote. If it was for a commit, the share has been applied. The
// caller holds p.mu.
func (p *partition) settle(vote clock.Tick) {
	p.ticks.Settle(vote)
	p.closeTick()
}

// closeTick publishes the tick up to which everything has been applied. The
// caller holds p.mu.
func (p *partition) closeTick() {
	if t := p.ticks.Closed(); t != p.closed {
		p.closed = t
		p.control.Store(closedWord, uint64(t))
	}
}

// tick returns the present tick, as it is published.
func (p *partition) tick() clock.Tick { return clock.Tick(p.control.Load(tickWord)) }

// clockSkewMax bounds the difference between the ticks of servers that commit
// together. Ticks that are adopted cannot be taken back, so a server whose clock
// is years ahead would use up the ticks of all others.
const clockSkewMax = time.Hour

// clocksAgree refuses to take part in a transaction of a coordinator whose tick
// is too far from that of the partition here. The tick of a decision can no
// longer be refused.
func (s *Server) clocksAgree(requests []twophase.Message) verdict {
	const most = clock.Tick(clockSkewMax / clock.TickLength)
	for i := range requests {
		m := &requests[i]
		p := s.at(m.To)
		if p == nil {
			continue // a former life, which will not answer
		}
		if m.Kind == twophase.HandOver && m.Tick == 0 {
			continue // nobody else has a share, or adopts a tick
		}
		if here := p.tick(); m.Tick > here+most || here > m.Tick+most {
			return verdict{code: wire.Unavailable, text: fmt.Sprintf("the clocks of servers %s and %s are more than %v apart",
				s.cfg.Addrs[s.serverOf(m.From)], s.cfg.Addrs[s.cfg.Index], clockSkewMax)}
		}
	}
	return verdict{}
}

// nextCSN takes the CSN of a commit of this partition alone. The caller holds
// p.mu.
func (p *partition) nextCSN() block.CSN {
	p.advance()
	csn := p.arena.NextCSN()
	p.adopt(csn.Tick()) // a tick may have no sequence numbers left
	return csn
}
