package server

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/metrics"
	"strconv"
	"sync/atomic"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/txn/stats"
)

// counters count what a server does. Each counts from the start of the server.
type counters struct {
	calls, lookups, scans atomic.Uint64
	greeted, disconnected atomic.Uint64 // peers
}

// Stats returns a snapshot of the server and of all its partitions. It holds
// locks only while it copies some counters, so it can be called at any rate
// while transactions run.
func (s *Server) Stats() wire.ServerStats {
	st, _ := s.stats(0, len(s.parts.of))
	return st
}

// stats returns a snapshot with at most limit partitions of this server,
// starting at the given one, and the next partition, 0 if there is none.
func (s *Server) stats(from placement.Partition, limit int) (st wire.ServerStats, next placement.Partition) {
	st = s.ownStats()
	for _, p := range s.parts.here {
		ps := p.stats()
		st.Commits += ps.Commits
		st.Conflicts += ps.Conflicts
		st.Prepared += ps.Prepared
		st.RegionBytes += ps.UsedBytes
		switch {
		case p.id < from || next != 0:
		case limit == 0:
			next = p.id
		default:
			limit--
			st.Partitions = append(st.Partitions, ps)
			st.Indexes = append(st.Indexes, p.indexStats()...)
		}
	}
	return st, next
}

// ownStats returns the statistics that belong to no partition.
func (s *Server) ownStats() wire.ServerStats {
	st := wire.ServerStats{
		Server: int(s.parts.self), Address: s.ep.Addr(), Fabric: s.cfg.Provider.Name(),
		Incarnation: s.parts.incarnation, Epoch: s.cfg.hosted.Epoch, PID: os.Getpid(),
		StartUnix: float64(s.started.UnixMilli()) / 1e3, Stopping: s.workers.ctx.Err() != nil,
		Calls: s.counters.calls.Load(), SlowCalls: s.slow.calls.Load(),
		Lookups: s.counters.lookups.Load(), Scans: s.counters.scans.Load(),
		Distributed: s.driver.coordinated.Load(), Handovers: s.driver.handovers.Load(),
		Decisions: s.parts.records(), RepliesLost: s.answers.lost.Load(),
		Greeted: s.counters.greeted.Load(), Disconnected: s.counters.disconnected.Load(),
		Verbs: s.ep.Counters(), Process: processStats(), Durability: s.cfg.Durability.String(), Recovery: s.Recovery(),
	}
	st.Outcomes, st.OutcomeBytes = s.outcomes.kept()
	st.Writers, st.WritersOpened, st.WritersSettled = s.oneSided.counts()
	if a, ok := s.ep.(rdma.Auditor); ok {
		st.Refusals = a.Refusals()
	}
	st.Refusals = append(st.Refusals, s.permissions.refusals()...)
	if s.durable.leased() {
		left := s.durable.left().Seconds()
		st.LeaseLeft = &left
	}
	st.Log = s.durable.stats()
	if a, ok := s.ep.(rdma.Agent); ok {
		st.AgentSeconds = a.AgentTime().Seconds()
	}
	st.CPUSeconds = cpuTimeOfProcess().Seconds()
	return st
}

// Recovery returns how the server recovered its data when it started, nil if it did
// not.
func (s *Server) Recovery() *stats.Recovery {
	r := s.Recovered()
	if r.Records == 0 && r.CheckpointRows == 0 {
		return nil
	}
	rec := &stats.Recovery{Rows: r.Rows, Records: r.Records, InDoubt: r.InDoubt}
	if r.CheckpointRows > 0 {
		rec.Phases = append(rec.Phases, stats.Phase{Name: "checkpoint", Seconds: r.Checkpoint.Seconds(), Done: r.CheckpointRows})
	}
	rec.Phases = append(rec.Phases,
		stats.Phase{Name: "log", Seconds: r.Replay.Seconds(), Done: r.Records},
		stats.Phase{Name: "models", Seconds: r.Train.Seconds()})
	return rec
}

// stats returns the statistics of the log, nil if there is none.
func (d *durable) stats() *stats.Log {
	if d == nil {
		return nil
	}
	l, c := d.log.Stats(), &d.checkpoints
	written := uint64(0)
	for _, p := range d.s.parts.here {
		p.mu.Lock()
		written += p.writer.written
		p.mu.Unlock()
	}
	copies, inSync, lag := d.s.Copies(), 0, uint64(0)
	var list []stats.Copy
	for _, c := range copies {
		list = append(list, stats.Copy{Keeper: c.Server, InSync: c.InSync, LagBytes: c.Lag, Failed: c.Failed})
		if lag = max(lag, c.Lag); c.InSync {
			inSync++
		}
	}
	return &stats.Log{
		Copies: max(d.s.cfg.Replicas, 1) - 1, CopiesInSync: inSync, CopyLagBytes: lag, CopyList: list, CopySentBytes: d.s.Sent(),
		RowBytes: written,
		Bytes:    l.Bytes, Records: l.Records, Groups: l.Groups, Syncs: l.Syncs, PendingBytes: l.Lag, Segments: l.Segments,
		Full: l.NoSpace, Failed: d.failed.Load(), ReplayBytes: uint64(d.log.End()) - c.from.Load(),
		Checkpoints: c.done.Load(), CheckpointFailures: c.failed.Load(), CheckpointRows: c.rows.Load(), CheckpointRowsTotal: c.total.Load(),
	}
}

// processStats returns statistics of the process that do not stop the world. A
// simulated process has none, since they differ from run to run.
func processStats() wire.ProcessStats {
	if clock.Simulated() {
		return wire.ProcessStats{}
	}
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/sched/goroutines:goroutines"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	get := func(i int) uint64 {
		if samples[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return samples[i].Value.Uint64()
	}
	return wire.ProcessStats{ResidentBytes: residentBytes(), HeapBytes: get(0), Goroutines: get(1), GCCycles: get(2)}
}

// residentBytes returns the resident set of this process, 0 if it is unknown.
func residentBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm") // in pages: size, resident, shared, …
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}

// stats holds the executor only while it copies the executor's counters.
func (p *partition) stats() wire.PartitionStats {
	p.mu.Lock()
	st := wire.PartitionStats{
		Partition: int(p.id), Loaded: p.sealed, Commits: p.commits, Conflicts: p.aborts, Prepared: p.nprepare,
		Parked: p.requests.parking.parked, ParkedLong: p.requests.parking.expired,
		Shipped: p.shipments.shipped, ShippedMessages: p.shipments.messages,
		ShippedWait: p.shipments.waited.Seconds(), ShippedTime: p.shipments.underWay.Seconds(),
	}
	st.HorizonLag = p.records.horizon.lag()
	h := p.arena.History().Stats()
	st.Versions, st.VersionBytes, st.VersionsForced = h.Blocks, h.Bytes, h.Forced
	if h.Floor != block.NoFloor {
		st.FloorSeconds = (time.Duration(max(p.ticks.own.Tick(), h.Floor)-h.Floor) * clock.TickLength).Seconds()
	}
	p.mu.Unlock()
	st.Fenced = p.control.Load(epochWord)&fenceBit != 0
	st.UsedBytes, st.MappedBytes, st.LimitBytes = p.arena.Used(), p.region.Size(), p.region.MaxBytes()
	for _, h := range p.has.Load().indexes {
		if h.leaves != nil {
			st.UsedBytes += h.written().Used()
			st.MappedBytes += h.leaves.region.Size()
			st.LimitBytes += h.leaves.region.MaxBytes()
		}
	}
	return st
}

// indexStats takes no lock of the partition, because indexes allow it
// concurrently with their mutator.
func (p *partition) indexStats() []wire.IndexStats {
	indexes := p.has.Load().indexes
	out := make([]wire.IndexStats, len(indexes))
	for i, h := range indexes {
		ix := h.def
		out[i] = wire.IndexStats{
			Index: i, Name: ix.Name, Table: ix.Table.Name(), Ordered: ix.Ordered, Partition: int(p.id),
			GaveUp: h.gaveUp.Load(), ServerStats: h.Stats(),
		}
	}
	return out
}

// statsBytes bounds the size, in an answer, of the statistics of a partition or
// of one of its indexes.
const statsBytes = 1 << 10

// handleStats answers with as many partitions as certainly fit.
func (s *Server) handleStats(r *rdma.Request, d *wire.Decoder) {
	from := placement.Partition(0)
	if d.Left() > 0 {
		from = d.Partition()
	}
	if d.End() != nil {
		s.answers.refuse(r, "malformed request for statistics")
		return
	}
	limit := max(rdma.MaxMessageBytes/2/(statsBytes*(1+len(s.catalog.Load().Indexes))), 1)
	st, next := s.stats(from, limit)
	st.Next = int(next)
	b, err := json.Marshal(st)
	if err != nil {
		s.answers.refuse(r, err.Error())
		return
	}
	if len(b) >= rdma.MaxMessageBytes {
		s.answers.refuse(r, "the statistics of a partition do not fit a message")
		return
	}
	s.answers.reply(r, append([]byte{byte(wire.OK)}, b...))
}
