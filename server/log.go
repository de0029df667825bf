package server

import (
	"log/slog"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// listenOptions returns options that notify the server of peers that connect and
// disconnect.
func (s *Server) listenOptions() rdma.ListenOptions {
	return rdma.ListenOptions{
		OnDisconnect: func(id rdma.PeerID) {
			s.counters.disconnected.Add(1)
			s.outcomes.disconnected(id)
			s.oneSided.disconnected(id)
			if s.durable != nil {
				s.durable.backups.left(id)
			}
			leave := func() {
				for _, p := range s.parts.here {
					p.mu.Lock()
					p.requests.lines.leave(id)
					p.unlock()
				}
			}
			if s.slow.running.Load() > 0 { // the fabric may call this where it serves others
				s.workers.background(leave)
			} else {
				leave()
			}
			s.log.Debug("client disconnected", "peer", uint64(id))
		},
		OnRefuse: func(reason error) {
			s.log.Debug("client refused", "reason", reason.Error())
		},
	}
}

// greet answers a client's first request on a connection.
func (s *Server) greet(r *rdma.Request) {
	s.counters.greeted.Add(1)
	if s.log.Enabled(s.workers.ctx, slog.LevelDebug) {
		s.log.Debug("client connected", "peer", uint64(r.Peer))
	}
	if d := wire.NewDecoder(r.Body[1:]); d.Left() > 0 && r.From.Role == rdma.RoleServer {
		server, incarnation := placement.Server(d.U16()), d.U64()
		if d.End() == nil {
			if err := s.acquainted.heard(server, incarnation); err != nil {
				s.log.Error("hello not encoded", "error", err)
			}
		}
	}
	s.answers.reply(r, wire.AppendHello(nil, *s.acquainted.hello.Load(), s.clocks.running.Now()))
}

// logStart logs what the server serves.
func (s *Server) logStart() {
	hosted := []placement.Partition{}
	for _, p := range s.parts.here {
		hosted = append(hosted, p.id)
	}
	s.log.Info("data server listens", "address", s.ep.Addr(), "fabric", s.cfg.Provider.Name(),
		"partitions", hosted, "epoch", s.cfg.hosted.Epoch, "memory_limit_bytes", s.cfg.MemoryBytes)
}
