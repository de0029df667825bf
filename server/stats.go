package server

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime/metrics"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// Stats returns a snapshot of the server and of all its partitions. It holds
// locks only while it copies some counters, so it can be called at any rate
// while transactions run.
func (s *Server) Stats() wire.ServerStats {
	st, _ := s.stats(0, len(s.parts))
	return st
}

// stats returns a snapshot with at most limit partitions of this server,
// starting at the given one, and the next partition, 0 if there is none.
func (s *Server) stats(from, limit int) (st wire.ServerStats, next int) {
	st = s.ownStats()
	for _, p := range s.parts {
		if p == nil {
			continue
		}
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
		Server: s.cfg.Index, Address: s.ep.Addr(), Fabric: s.cfg.Provider.Name(),
		Incarnation: s.incarnation, Epoch: s.cfg.Epoch, PID: os.Getpid(),
		StartUnix: float64(s.started.UnixMilli()) / 1e3, Stopping: s.ctx.Err() != nil,
		Calls: s.calls.Load(), SlowCalls: s.slowCalls.Load(),
		Lookups: s.lookups.Load(), Scans: s.scans.Load(),
		Distributed: s.coordinated.Load(), Handovers: s.handovers.Load(),
		Decisions: s.decisionsKept(), RepliesLost: s.repliesLost.Load(),
		Greeted: s.greeted.Load(), Disconnected: s.disconnected.Load(),
		Verbs: s.ep.Counters(), Process: processStats(),
	}
	st.Outcomes, st.OutcomeBytes = s.outcomes.kept()
	if a, ok := s.ep.(rdma.Auditor); ok {
		st.Refusals = a.Refusals()
	}
	st.Refusals = append(st.Refusals, s.forbidden.refusals()...)
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) == nil {
		st.CPUSeconds = time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
	}
	return st
}

// decisionsKept is the number of transactions that the commit protocol remembers.
func (s *Server) decisionsKept() (n int) {
	for _, p := range s.parts {
		if p != nil {
			p.side.mu.Lock()
			n += p.side.machine.Records()
			p.side.mu.Unlock()
		}
	}
	return n
}

// processStats returns statistics of the process that do not stop the world.
func processStats() wire.ProcessStats {
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
		Partition: p.id, Loaded: p.sealed, Commits: p.commits, Conflicts: p.aborts, Prepared: p.nprepare,
		Parked: p.parking.parked, ParkedLong: p.parking.expired,
	}
	p.mu.Unlock()
	st.Fenced = p.control.Load(epochWord)&fenceBit != 0
	st.UsedBytes, st.MappedBytes, st.LimitBytes = p.arena.Used(), p.region.Size(), p.region.MaxBytes()
	return st
}

// indexStats takes no lock of the partition, because indexes allow it
// concurrently with their mutator.
func (p *partition) indexStats() []wire.IndexStats {
	out := make([]wire.IndexStats, len(p.indexes))
	for i, srv := range p.indexes {
		ix := p.catalog.Indexes[i]
		out[i] = wire.IndexStats{
			Index: i, Name: ix.Name, Table: ix.Table.Name(), Ordered: ix.Ordered, Partition: p.id,
			GaveUp: p.gaveUp[i].Load(), ServerStats: srv.Stats(),
		}
	}
	return out
}

// statsBytes bounds the size, in an answer, of the statistics of a partition or
// of one of its indexes.
const statsBytes = 1 << 10

// handleStats answers with as many partitions as certainly fit.
func (s *Server) handleStats(r *rdma.Request, d *wire.Decoder) {
	from := 0
	if d.Left() > 0 {
		from = int(d.U16())
	}
	if d.End() != nil {
		s.refuse(r, "malformed request for statistics")
		return
	}
	limit := max(rdma.MaxMessageBytes/2/(statsBytes*(1+len(s.cfg.Catalog.Indexes))), 1)
	st, next := s.stats(from, limit)
	st.Next = next
	b, err := json.Marshal(st)
	if err != nil {
		s.refuse(r, err.Error())
		return
	}
	if len(b) >= rdma.MaxMessageBytes {
		s.refuse(r, "the statistics of a partition do not fit a message")
		return
	}
	s.reply(r, append([]byte{byte(wire.OK)}, b...))
}
