package server

import (
	"log/slog"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// slowTurn is the duration above which a turn of the trainer is logged;
// normally a turn takes milliseconds.
const slowTurn = time.Second

// listenOptions notify the server of peers that connect and disconnect.
func (s *Server) listenOptions() rdma.ListenOptions {
	return rdma.ListenOptions{
		OnDisconnect: func(id rdma.PeerID) {
			s.disconnected.Add(1)
			s.outcomes.disconnected(id)
			if s.durable != nil {
				s.durable.backups.left(id)
			}
			for _, p := range s.parts {
				if p != nil {
					p.mu.Lock()
					p.lines.leave(id)
					p.unlock()
				}
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
	s.greeted.Add(1)
	if s.log.Enabled(s.ctx, slog.LevelDebug) {
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
	s.reply(r, wire.AppendHello(nil, *s.acquainted.hello.Load(), s.running.Now()))
}

// logStart logs what the server serves.
func (s *Server) logStart() {
	hosted := []placement.Partition{}
	for _, p := range s.parts {
		if p != nil {
			hosted = append(hosted, p.id)
		}
	}
	s.log.Info("data server listens", "address", s.ep.Addr(), "fabric", s.cfg.Provider.Name(),
		"partitions", hosted, "epoch", s.cfg.Epoch, "memory_limit_bytes", s.cfg.MemoryBytes)
}

func (s *Server) logStop() {
	if s.closeErr != nil {
		s.log.Error("data server stopped", "error", s.closeErr)
		return
	}
	s.log.Info("data server stopped")
}

// trainingLog logs new generations of models and failed trainings. It is for
// one goroutine.
type trainingLog struct {
	s    *Server
	seen map[[2]int]trained // by partition and index
}

type trained struct {
	generations, failures uint64
	lacking               bool // failures were reported since the last generation
	keys                  bool // the models have keys
}

// turn checks a partition after a turn of the trainer of the given duration.
func (l *trainingLog) turn(p *partition, took time.Duration) {
	if took > slowTurn {
		l.s.log.Warn("training took long", "partition", p.id, "took", took)
	}
	for _, h := range p.has.Load().trained {
		ix := h.def
		st, was := h.Stats(), l.seen[[2]int{int(p.id), ix.ID}]
		now, lacks := was.then(st.Generations, st.TrainFailures)
		now.keys = st.TrainedKeys > 0
		if now == was {
			continue
		}
		l.seen[[2]int{int(p.id), ix.ID}] = now
		if now.keys && (now.generations != was.generations || !was.keys) { // an empty index starts with a model without keys
			l.s.log.Info("models trained", "partition", p.id, "index", ix.Name, "generation", st.Generations,
				"submodels", st.SubModels, "keys", st.TrainedKeys, "mean_error_leaves", st.MeanError, "max_error_leaves", st.MaxError)
		}
		if lacks {
			l.s.log.Warn("training failed: out of memory; no further report before it succeeds", "partition", p.id, "index", ix.Name, "failures", st.TrainFailures)
		}
	}
}

// then returns the state after a turn, and whether to report that memory lacks:
// once between two generations of models.
func (was trained) then(generations, failures uint64) (now trained, lacks bool) {
	now = trained{generations: generations, failures: failures, lacking: was.lacking && generations == was.generations}
	lacks = failures != was.failures && !now.lacking
	now.lacking = now.lacking || lacks
	return now, lacks
}

// logSealed logs the contents of a partition when its load has ended.
func (s *Server) logSealed(p *partition, took time.Duration) {
	rows := uint64(0)
	for _, ix := range p.has.Load().indexes {
		rows += ix.Stats().Rows
	}
	s.log.Info("partition sealed", "partition", p.id, "rows", rows, "used_bytes", p.arena.Used(), "took", took)
}

// present is a time that a request which arrives now may say it was sent at.
func (s *Server) present() wire.Sent {
	return wire.Sent{Incarnation: s.incarnation, Epoch: s.cfg.Epoch, At: s.running.Last()}
}
