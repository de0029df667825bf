package server

import (
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// floor returns the floor of the partition's history, as it is published.
func (p *partition) floor() clock.Tick { return clock.Tick(p.control.Load(floorWord)) }

// adoptMax is how far above the server's own clock a client can move the clock
// of a partition.
const adoptMax = clock.Tick(time.Second / clock.TickLength)

// handleAdopt moves a partition's clock up to the time of a client's snapshot,
// within a bound, and at least to the server's own. Without it, a snapshot would
// wait for a clock that lags behind those of other servers.
func (s *Server) handleAdopt(r *rdma.Request, d *wire.Decoder) {
	p, tick := s.parts.get(d.Partition()), clock.Tick(d.U64())
	if p == nil || d.End() != nil {
		s.answers.refuse(r, "malformed time, or of a partition that is not here")
		return
	}
	tick = max(s.clocks.now(), min(tick, s.clocks.now()+adoptMax, block.MaxTick))
	at, err := s.clocks.adopt(p, tick)
	if err != nil {
		s.answers.reply(r, logVerdict(err).append(nil))
		return
	}
	s.answers.release(answer{at: at, r: r, resp: []byte{byte(wire.OK)}})
}
