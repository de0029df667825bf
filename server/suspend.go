package server

import (
	"time"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A durable server that is registered in a membership store has its place as long
// as its lease. When the lease has ended, another process may have taken the place
// with a copy of the directory. Until the store says that none has, this server
// acknowledges nothing, and readers refuse its memory.

// placePause is the time between looks at answers that are kept back.
const placePause = 10 * time.Millisecond

// mayAnswer reports whether the server is known to have its place.
func (d *durable) mayAnswer() bool {
	return !d.suspended.Load() && (d.group == nil || !d.group.deposed.Load()) && (d.s.cfg.hosted.Holds == nil || d.s.cfg.hosted.Holds())
}

// leased reports whether another process may take the server's place when a lease
// has ended. A server in memory has nothing that another one could go on with.
func (d *durable) leased() bool { return d != nil && d.s.cfg.hosted.Left != nil }

// left returns for how long the server certainly has its place, counted from a moment
// during the call.
func (d *durable) left() time.Duration {
	if !d.leased() {
		return wire.NoLease
	}
	left := d.s.cfg.hosted.Left()
	if d.suspended.Load() || d.group != nil && d.group.deposed.Load() {
		return 0
	}
	return left
}

// handleLease tells a client how long it may trust what it READs here. It waits
// for nothing.
func (s *Server) handleLease(r *rdma.Request, rest int) {
	if rest > 0 {
		s.answers.refuse(r, "malformed question about the lease")
		return
	}
	s.answers.reply(r, wire.AppendLease(nil, wire.Lease{Incarnation: s.parts.incarnation, Epoch: s.cfg.hosted.Epoch, Left: s.durable.left(), Now: s.clocks.running.Now()}))
}

// Suspend fences all partitions of a durable server, and keeps back its answers, until
// Resume. Nothing is lost: clients repeat what they ask, within their deadlines. A
// server in memory ignores it.
func (s *Server) Suspend() {
	if s.durable == nil || s.durable.suspended.Swap(true) {
		return
	}
	s.log.Warn("suspended: the server's place is not certain")
	s.parts.fence()
}

// Resume ends Suspend: the caller has made sure that no other process has had the
// place meanwhile. Partitions that are fenced for another reason stay so.
func (s *Server) Resume() {
	d := s.durable
	if d == nil || !d.suspended.Load() || d.group != nil && d.group.deposed.Load() {
		return
	}
	for _, p := range s.parts.here {
		p.mu.Lock()
		if s.workers.ctx.Err() == nil && !d.ending.Load() && !d.failed.Load() && !p.arena.Exhausted() {
			p.control.Store(epochWord, p.word())
		}
		p.mu.Unlock()
	}
	d.suspended.Store(false)
	s.log.Info("resumed")
	d.kick()
}
