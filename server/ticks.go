package server

import (
	"context"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// runningStep is how far a stop of the process, of any length, moves the clock
// on which freed memory is in quarantine. A commit that lies in the queue of a
// stopped server then finds no memory that was freed after its reads and has
// other rows by now, although nothing tells how long it lay there.
const runningStep = 250 * time.Millisecond

// keepTime moves the server's clock on until ctx ends, tick by tick. Commits
// read it from memory.
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

// adopt moves the partition's clock up to a tick. The caller holds p.mu.
func (p *partition) adopt(t clock.Tick) {
	if p.ticks.Adopt(t) {
		p.arena.CoverCSN(block.NewCSN(t, 0))
	}
}

// nextCSN takes the CSN of a commit of this partition alone. The caller holds
// p.mu.
func (p *partition) nextCSN() block.CSN {
	p.advance()
	csn := p.arena.NextCSN()
	p.adopt(csn.Tick()) // a tick may have no sequence numbers left
	return csn
}
