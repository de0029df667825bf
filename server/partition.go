package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/engine"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// partition is one partition held by this server: its memory, its indexes and
// its executor.
type partition struct {
	srv      *Server
	durable  *durable // of the server; nil in memory
	id       placement.Partition
	region   *mem.Region
	rkey     rdma.RKey
	arena    *block.Arena
	has      atomic.Pointer[holdings] // changes under mu and training
	spare    []*hosted                // indexes of a version that is not used; under mu
	training training
	epoch    uint32
	clock    *clock.Running // of the server: of quarantines and the ages of proofs
	control  mem.Span

	// mu is the executor: held for every change, and for the whole of a
	// procedure that stays in the partition.
	mu        sync.Mutex
	sealed    bool
	requests  requests
	writer    writer
	protocol  *protocol // of the commit protocol
	shipments shipments
	taken     map[placement.Partition]*taken // shipments of other partitions
	ticks     ticks
	commits   uint64
	aborts    uint64
	nprepare  int
	under     map[int]int // how many of these, by the version of the catalogue that they know
	records   recording
}

func newPartition(s *Server, id placement.Partition, r *mem.Region) (*partition, error) {
	p := &partition{
		srv: s, durable: s.durable, id: id, region: r, epoch: s.cfg.hosted.Epoch, clock: s.clocks.running,
		arena: block.NewArena(r, block.ArenaOptions{
			Checksums: s.cfg.Checksums, Tick: s.clocks.now(), Clock: s.clocks.running.Now,
		}),
	}
	p.control = p.arena.Span(block.ControlAddr, controlWords)
	p.control.Store(horizonWord, ^uint64(0)) // in memory, published data counts as durable
	p.ticks = ticks{server: &s.clocks, arena: p.arena, control: p.control}
	p.writer.p, p.writer.shared, p.records.p = p, newSharedLocks(), p
	p.ticks.advance()
	p.has.Store(&holdings{})
	if err := p.makeIndexes(s.cfg.Catalog); err != nil {
		return nil, err
	}
	p.use(s.cfg.Catalog)
	var err error
	if p.rkey, err = s.ep.Register(r, rdma.AccessRead); err != nil {
		return nil, err
	}
	p.training.p, p.training.since = p, time.Now()
	p.protocol = newProtocol(s.parts.party(p))
	p.requests.init(p)
	p.shipments.init(p)
	return p, nil
}

// keepVersions switches the history on. Recovery comes before it, and so leaves
// no versions.
func (p *partition) keepVersions() {
	cfg := &p.srv.cfg
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arena.History().Keep(max(clock.Tick(cfg.Retain/clock.TickLength), 1), cfg.RetainBytes, p.ticks.own.Tick())
	p.arena.History().OnDemand()
}

// Words of the control block: see docs/layouts.md. Every validation reads the
// first two.
const (
	epochWord    = 0 // epoch, and the version of the catalogue that readers need: see Txn.allowed of package exec
	horizonWord  = 1 // durable horizon, a CSN
	closedWord   = 2 // no commit of this tick or an earlier one will still be applied
	tickWord     = 3 // no commit that has been applied is of a later tick
	floorWord    = 4 // see block.FloorAddr; the other words of block.History follow
	controlWords = 8
)

// newIndex makes an empty index.
func (p *partition) newIndex(ix *tables.Index) (*hosted, error) {
	if p.durable != nil && ix.KeepsInMemory() {
		return nil, inMemoryOnly(ix)
	}
	cfg := &p.srv.cfg
	h := &hosted{def: ix}
	o := engine.ServerOptions{
		Arena: p.arena, Locks: p.writer.shared, Clock: p.clock.Now, Family: cfg.Family, SlotsPerLeaf: cfg.slots,
		PublishInner: cfg.PublishInner, LoadFill: ix.LoadFill(),
	}
	d := engine.Def{Ordered: ix.Ordered, Strings: ix.Strings, RowWords: ix.RowBytes / mem.WordBytes, Rolex: ix.Engine == tables.Rolex, FineStore: ix.Engine == tables.FineStore}
	if d.Rolex {
		var err error
		if h.leaves, err = p.newLeaves(ix); err != nil {
			return nil, err
		}
		o.Leaves = engine.LeavesOptions{Region: h.leaves.region, Number: h.leaves.number, Revoke: p.srv.ep.Revoke, Settled: p.srv.oneSided.onSettled(h), Lease: cfg.WriterLease, Checksums: cfg.Checksums, Swap: p.srv.oneSided.swapOf(h)}
	}
	srv, err := engine.NewServer(d, o)
	if err != nil {
		return nil, err
	}
	h.Server = srv
	h.trains, _ = srv.(index.Maintainer)
	return h, nil
}

// seal ends loading and trains every model.
func (p *partition) seal() {
	p.mu.Lock()
	p.sealed = true
	p.mu.Unlock()
	p.training.trainAll()
}

// holds reports whether a proof still holds, for a transaction that has locked what it writes
// in the region that the proof names, if that is not the partition's. An address from the
// network that is in no region proves nothing.
func (p *partition) holds(pr index.Proof, o index.Owner) bool {
	number, addr := index.RegionOf(pr.Addr)
	if number != 0 {
		l := p.leavesIn(number)
		return l != nil && l.Holds(pr, o)
	}
	s, ok := p.region.Span(addr, mem.WordBytes)
	return ok && s.Load(0) == pr.Word
}

// serves refuses every transaction of a fenced partition, as readers refuse its
// memory. A partition whose ticks are used up fences itself: a repeated CSN
// would make a changed row look unchanged. The caller holds p.mu.
func (p *partition) serves() verdict {
	if p.control.Load(epochWord)&fenceBit != 0 {
		return conflict(exec.CauseFence)
	}
	if p.arena.Exhausted() {
		p.setFence()
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("partition %d has reached the last tick, %d", p.id, uint64(block.MaxTick))}
	}
	return verdict{}
}

// unlock ends a turn of the executor: it runs the requests whose turn in a line has
// come, unlocks the mutex, and answers all requests that are over.
func (p *partition) unlock() {
	answers := p.requests.finish()
	p.mu.Unlock()
	p.requests.answerAll(answers)
}

// fence makes every validation against this partition fail: it is no longer served.
func (p *partition) fence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setFence()
}

// word returns the epoch word of a partition that is served.
func (p *partition) word() uint64 {
	return uint64(p.epoch) | uint64(p.has.Load().catalog.ReadersNeed())<<exec.NeedsShift
}

func (p *partition) setFence() {
	p.control.Store(epochWord, p.word()|fenceBit)
}

// fenceBit in the epoch word means that the primary was deposed or has stopped.
const fenceBit = 1 << 63
