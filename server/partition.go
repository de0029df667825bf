package server

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// partition is one partition held by this server: its memory, its indexes and
// its executor.
type partition struct {
	id       placement.Partition
	region   *mem.Region
	rkey     rdma.RKey
	arena    *block.Arena
	has      atomic.Pointer[holdings] // changes under mu and training
	spare    []*hosted                // indexes of a version that is not used; under mu
	turn     int                      // the next ordered index to train
	started  time.Time
	training sync.Mutex // one trainer at a time
	epoch    uint32
	now      func() clock.Tick // by the server's own clock, or what it has seen
	seen     *clock.Seen       // by the server
	clock    *clock.Running    // of the server: of quarantines and the ages of proofs
	make     func(*tables.Index) (index.Server, error)
	control  mem.Span

	// mu is the executor: held for every change, and for the whole of a
	// procedure that stays in the partition.
	mu       sync.Mutex
	shared   *sharedLocks
	owners   index.Owner
	sealed   bool
	runner   *exec.Runner
	locks    []*index.Held // of the transaction being applied
	lockings uint64        // runs of lockAll
	words    []uint64      // buffer to convert a row
	parking  parking
	lines    lines
	running  atomic.Pointer[exec.Procedure] // nil between two runs
	runs     atomic.Uint64
	watched  uint64         // runs, a tick ago
	waitsFor []wire.RowName // rows that the last attempt must wait for, if they are known
	side     *side          // of the commit protocol
	ticks    clock.Logical
	closed   clock.Tick // the tick published as closed
	commits  uint64
	aborts   uint64
	nprepare int

	// Of a durable server:
	horizon horizon
	origin  origin  // of the commit that is being carried out
	logged  wal.LSN // of the last record of this partition
	encoded []byte  // buffer of a record
	written uint64  // bytes of the keys and rows that transactions have written
	debts   []debt  // records for which the log had no room yet
	frozen  int     // restored shares in doubt with reads that are not known: nothing may be written
}

// prepared is a participant's half of a distributed transaction in one
// partition, from its vote to the decision.
type prepared struct {
	p      *partition
	owner  index.Owner
	client uint64 // session of the transaction; 0: not known
	vote   clock.Tick
	held   []*index.Held
	writes []wire.Write // with copied rows
	csn    block.CSN    // of the commit, once it is in the log

	// Of a durable server:
	reads  bool             // the share has read more than the rows that it has locked to write
	logged bool             // the log has the share
	frozen bool             // restored: its reads are not known, so that nothing else is written
	record *twophase.Record // of the decision
	origin origin           // of the coordinator's client
	aside  aside            // room in the log for its records
}

// verdict is the result of a step that may refuse.
type verdict struct {
	code  wire.Code
	cause exec.Cause
	text  string
}

func (v verdict) ok() bool { return v.code == wire.OK }

// weight orders the votes of several participants: the refusal of a write is
// the answer only if no participant refuses a proof.
func (v verdict) weight() int {
	switch v.code {
	case wire.OK:
		return 0
	case wire.Exists, wire.NotFound:
		return 1
	}
	return 2
}

func (v verdict) append(b []byte) []byte {
	b = append(b, byte(v.code))
	if v.code == wire.Conflict {
		return append(b, byte(v.cause))
	}
	return append(b, v.text...)
}

func conflict(c exec.Cause) verdict { return verdict{code: wire.Conflict, cause: c} }

func newPartition(id placement.Partition, cfg *Config, r *mem.Region, checksums bool, now func() clock.Tick, seen *clock.Seen, running *clock.Running) (*partition, error) {
	p := &partition{
		id: id, region: r, epoch: cfg.Epoch, shared: newSharedLocks(),
		started: time.Now(), now: now, seen: seen, clock: running,
		arena: block.NewArena(r, block.ArenaOptions{Checksums: checksums, Tick: now(), Clock: running.Now}),
	}
	p.control = p.arena.Span(block.ControlAddr, controlWords)
	p.control.Store(horizonWord, ^uint64(0)) // in memory, published data counts as durable
	p.control.Store(epochWord, uint64(cfg.Epoch))
	p.advance()
	p.make = func(ix *tables.Index) (index.Server, error) { return p.newIndex(ix, cfg, running) }
	p.has.Store(&holdings{})
	if err := p.makeIndexes(cfg.Catalog); err != nil {
		return nil, err
	}
	p.use(cfg.Catalog)
	return p, nil
}

// keepVersions switches the history on. Recovery comes before it, and so leaves
// no versions.
func (p *partition) keepVersions(cfg *Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arena.History().Keep(max(clock.Tick(cfg.Retain/clock.TickLength), 1), cfg.RetainBytes, p.ticks.Tick())
}

// Words of the control block: see docs/layouts.md. Every validation reads the
// first two.
const (
	epochWord    = 0 // epoch; readers compare it with the one of the server's hello
	horizonWord  = 1 // durable horizon, a CSN
	closedWord   = 2 // no commit of this tick or an earlier one will still be applied
	tickWord     = 3 // no commit that has been applied is of a later tick
	floorWord    = 4 // see block.FloorAddr; the two bounds of what is retained follow
	controlWords = 8
)

func (p *partition) newIndex(ix *tables.Index, cfg *Config, running *clock.Running) (index.Server, error) {
	words := ix.RowBytes / mem.WordBytes
	if !ix.Ordered {
		return hash.NewServer(p.arena, hash.Options{Strings: ix.Strings, RowWords: words, Locks: p.shared})
	}
	return learned.NewServer(p.arena, learned.Options{
		Strings: ix.Strings, RowWords: words, Locks: p.shared, Family: cfg.Family, Clock: running.Now, SlotsPerLeaf: cfg.slots,
	})
}

// validate reports whether the partition is served and every proof still holds. Under p.mu.
func (p *partition) validate(part *wire.Part) verdict {
	if v := p.serves(); !v.ok() {
		return v
	}
	if part.Memory != 0 && part.Memory != p.epoch {
		return conflict(exec.CauseFence) // its proofs are of memory that is gone, whatever this memory has at their addresses
	}
	if v := p.allows(part); !v.ok() {
		return v
	}
	for _, pr := range part.Rows {
		if !p.holds(pr) {
			return conflict(exec.CauseRow)
		}
	}
	for _, pr := range part.Gaps {
		if !p.holds(pr) {
			return conflict(exec.CauseGap)
		}
	}
	return verdict{}
}

// allows refuses writes of another version of the catalogue. A transaction of an
// earlier one may write the tables that have not changed since. What one of a
// later version writes, this partition might let others overwrite that do not
// know it.
func (p *partition) allows(part *wire.Part) verdict {
	c := p.has.Load().catalog
	if len(part.Writes) == 0 || int(part.Catalog) == c.Version() {
		return verdict{}
	}
	if int(part.Catalog) > c.Version() {
		return conflict(exec.CauseCatalog)
	}
	for i := range part.Writes {
		if ix := int(part.Writes[i].Index); ix < len(c.Indexes) && c.Indexes[ix].Table.Since() > int(part.Catalog) {
			return conflict(exec.CauseCatalog)
		}
	}
	return verdict{}
}

// holds compares one word of the region. An address from the network that is
// outside the region proves nothing.
func (p *partition) holds(pr index.Proof) bool {
	s, ok := p.region.Span(pr.Addr, mem.WordBytes)
	return ok && s.Load(0) == pr.Word
}

// lockAll locks the whole write set, in the order given, or nothing. It never
// waits for a lock of another transaction. held[i] is the lock of writes[i].
// The caller holds p.mu.
func (p *partition) lockAll(o index.Owner, writes []wire.Write, held []*index.Held) ([]*index.Held, verdict) {
	if p.frozen > 0 && len(writes) > 0 {
		p.waitsFor = append(p.waitsFor[:0], nameOf(&writes[0]))
		return held[:0], conflict(exec.CauseLocked)
	}
	p.lockings++
	for i := range writes {
		h, v := p.lock(o, &writes[i])
		if h != nil {
			if h.Turn == p.lockings { // the key is already locked by this write set
				h, v = nil, verdict{code: wire.Bad, text: "two writes of one key"}
			} else {
				h.Turn = p.lockings
				held = append(held, h)
			}
		}
		if !v.ok() {
			if v.code == wire.Conflict {
				p.waitsFor = append(p.waitsFor[:0], nameOf(&writes[i]))
			}
			for i, h := range held {
				p.index(int(writes[i].Index)).Release(h)
			}
			return held[:0], v
		}
	}
	return held, verdict{}
}

func (p *partition) lock(o index.Owner, w *wire.Write) (*index.Held, verdict) {
	has := p.has.Load()
	if int(w.Index) >= len(has.indexes) { // nor in a later version, see allows
		return nil, verdict{code: wire.Bad, text: fmt.Sprintf("no index %d", w.Index)}
	}
	def := has.catalog.Indexes[w.Index]
	if w.Op < wire.Insert || w.Op > wire.Delete || !fits(def, w) {
		return nil, verdict{code: wire.Bad, text: fmt.Sprintf("write of %d bytes to index %d, operation %d", len(w.Row), w.Index, w.Op)}
	}
	if def.Partition.Kind == tables.Replicated {
		return nil, verdict{code: wire.Bad, text: "write to replicated table " + def.Name}
	}
	ix := has.indexes[w.Index].Server
	h, err := ix.LockWrite(o, w.Key, w.Hint)
	for err != nil && errors.Is(err, index.ErrFull) && p.makeRoom() {
		h, err = ix.LockWrite(o, w.Key, w.Hint)
	}
	switch {
	case errors.Is(err, index.ErrLocked):
		return nil, conflict(exec.CauseLocked)
	case err != nil:
		return nil, p.refusal(wire.OutOfMemory, w, err)
	case h.Existed && w.Op == wire.Insert:
		return h, p.refusal(wire.Exists, w, exec.ErrExists)
	case !h.Existed && (w.Op == wire.Update || w.Op == wire.Delete):
		return h, p.refusal(wire.NotFound, w, exec.ErrNotFound)
	case w.Op != wire.Delete && w.Strings:
		err := ix.Reserve(h, len(w.Row)/mem.WordBytes)
		for err != nil && errors.Is(err, index.ErrFull) && p.makeRoom() {
			err = ix.Reserve(h, len(w.Row)/mem.WordBytes)
		}
		if err != nil {
			return h, p.refusal(wire.OutOfMemory, w, err)
		}
	}
	return h, verdict{}
}

// refusal is the refusal of a write, with what it concerns.
func (p *partition) refusal(c wire.Code, w *wire.Write, err error) verdict {
	ix := p.has.Load().catalog.Indexes[w.Index]
	e := ix.Concerns(err, keyOf(ix, w.Key))
	e.Partition = int(p.id)
	return verdict{code: c, text: exec.Fault(e)}
}

// fits reports whether the key and the row of a write have the index's kind and
// size. Readers must check the contents of the columns.
func fits(ix *tables.Index, w *wire.Write) bool {
	switch {
	case w.Strings != ix.Strings, len(w.Key.Str) > index.MaxKeyBytes:
		return false
	case w.Op == wire.Delete:
		return true
	case ix.Strings:
		return len(w.Row) <= ix.RowBytes && len(w.Row)%mem.WordBytes == 0
	}
	return len(w.Row) == ix.RowBytes
}

// applyAll publishes the write set under a CSN and so unlocks it. Under p.mu.
func (p *partition) applyAll(writes []wire.Write, held []*index.Held, csn block.CSN) {
	if invariants.Enabled {
		checkLocked(writes, held, csn)
	}
	indexes := p.has.Load().indexes
	durable := p.parking.srv.durable != nil
	mem.Release()
	for i := range writes {
		w := &writes[i]
		if durable {
			p.count(indexes[w.Index].def, w)
		}
		if w.Op == wire.Delete {
			indexes[w.Index].PublishDelete(held[i], block.Absent(csn))
			continue
		}
		indexes[w.Index].Publish(held[i], p.rowWords(w.Row), block.Present(csn))
	}
}

// count counts what a transaction writes. Entries of secondary indexes are not
// counted: they follow from the rows.
func (p *partition) count(ix *tables.Index, w *wire.Write) {
	switch {
	case ix != ix.Table.Primary():
	case w.Strings:
		p.written += uint64(len(w.Key.Str) + len(w.Row))
	default:
		p.written += uint64(mem.WordBytes + len(w.Row))
	}
}

// checkLocked asserts that a write set is locked, and that its commit is newer
// than the rows that it replaces.
func checkLocked(writes []wire.Write, held []*index.Held, csn block.CSN) {
	if len(held) != len(writes) {
		invariants.Failf("%d writes are applied under %d locks", len(writes), len(held))
	}
	for i, h := range held {
		if h.Existed && h.Prev.CSN() >= csn {
			invariants.Failf("commit %v replaces the newer row %v of key %v", block.Present(csn), h.Prev, writes[i].Key)
		}
	}
}

func (p *partition) rowWords(row []byte) []uint64 {
	n := len(row) / mem.WordBytes
	if cap(p.words) < n {
		p.words = make([]uint64, n)
	}
	words := p.words[:n]
	copy(mem.Bytes(words), row)
	return words
}

// commit commits a transaction of only this partition, in one step. The caller
// holds p.mu.
//
// Validation comes before the locks, so that a transaction's own placeholders
// cannot fail its own proofs. No other writer can run in between, because the
// partition has one executor.
func (p *partition) commit(part *wire.Part) verdict {
	v := p.carryOut(part)
	if !v.ok() {
		p.aborts++
	}
	return v
}

// carryOut is commit without counting refusals.
func (p *partition) carryOut(part *wire.Part) verdict {
	if v := p.validate(part); !v.ok() {
		return v
	}
	if len(part.Writes) == 0 {
		return p.noteAgent()
	}
	if v := p.parking.srv.durable.fewCopies(); !v.ok() {
		return v
	}
	p.owners++
	held, v := p.lockAll(p.owners, part.Writes, p.locks[:0])
	p.locks = held[:0]
	if !v.ok() {
		return v
	}
	csn := p.nextCSN()
	if s := p.parking.srv; s.durable != nil {
		if v := s.noteCommit(p.origin, []redo.Part{{Partition: p.id, CSN: csn, Writes: part.Writes, Held: held}}, p); !v.ok() {
			for i, h := range held {
				p.index(int(part.Writes[i].Index)).Release(h)
			}
			return v
		}
	}
	p.applyAll(part.Writes, held, csn)
	p.commits++
	return verdict{}
}

// prepare validates and locks a part, and keeps what it locked until decide.
func (p *partition) prepare(part *wire.Part) (*prepared, verdict) {
	held, v := share{parts: []*wire.Part{part}, at: []*partition{p}, read: p.clock.Last()}.prepare()
	if len(held) == 0 {
		return nil, v
	}
	return held[0], v
}

// hold takes shared locks on the reads of a validated part and exclusive locks
// on its writes. It copies rows. If a write is refused, it locks no writes but
// keeps the shared locks. The caller holds p.mu.
func (p *partition) hold(part *wire.Part) (*prepared, verdict) {
	p.owners++
	p.advance()
	t := &prepared{p: p, owner: p.owners, vote: p.ticks.Vote(), reads: len(part.Rows)+len(part.Gaps) > 0}
	p.nprepare++
	// Take the shared locks before the exclusive ones: an insert may split a
	// leaf that was read, and the index then moves the shared locks with the
	// rows.
	p.share(part, t.owner)
	held, v := p.lockAll(t.owner, part.Writes, nil)
	if !v.ok() {
		return t, v
	}
	t.held = held
	if t.reads && p.parking.srv.durable != nil {
		t.reads = p.shared.beyond(t.owner, held)
	}
	for _, w := range part.Writes {
		w.Row, w.Key = append([]byte(nil), w.Row...), w.Key.Clone()
		t.writes = append(t.writes, w)
	}
	return t, v
}

// release releases the locks on writes before the decision. The caller holds
// p.mu.
func (t *prepared) release() {
	for i, h := range t.held {
		t.p.index(int(t.writes[i].Index)).Release(h)
	}
	t.held, t.writes = nil, nil
}

// share takes shared locks on the reads of a part.
func (p *partition) share(part *wire.Part, o index.Owner) {
	for _, pr := range part.Rows {
		p.shared.add(pr.Addr, o)
	}
	for _, pr := range part.Gaps {
		p.shared.add(pr.Addr, o)
	}
}

// decide applies a prepared part at a tick, or releases it, and runs the
// requests that waited for it.
func (t *prepared) decide(commit bool, tick clock.Tick) {
	p := t.p
	p.mu.Lock()
	t.end(commit, tick)
	p.wake()
	p.unlock()
}

// end applies the locked writes at a tick, or releases them. The partition
// adopts the tick first, so that no later transaction has a smaller one. The
// caller holds p.mu.
func (t *prepared) end(commit bool, tick clock.Tick) {
	p := t.p
	p.nprepare--
	p.shared.release(t.owner)
	if t.frozen {
		p.frozen--
	}
	if invariants.Enabled {
		p.checkPrepared()
	}
	if commit {
		p.lines.committed(t.client)
		p.adopt(tick)
		if len(t.writes) > 0 {
			if t.csn == 0 {
				t.csn = p.arena.CSNAt(tick)
			}
			p.noteDecided(t)
			p.applyAll(t.writes, t.held, t.csn)
		}
		if len(t.writes) == 0 {
			p.noteStep(t.record, t, t.origin)
		}
		p.commits++
	} else {
		p.aborts++
		p.noteStep(t.record, t, t.origin)
		t.release()
	}
	if d := p.parking.srv.durable; d != nil {
		d.log.GiveUp(t.aside.take(twophase.Decided))
	}
	p.settle(t.vote)
}

// checkPrepared asserts that the locks held for decisions match the
// transactions that await one. The caller holds p.mu.
func (p *partition) checkPrepared() {
	if p.nprepare < 0 || p.nprepare == 0 && !p.shared.Empty() {
		invariants.Failf("partition %d: %d transactions prepared, %d shared locks", p.id, p.nprepare, len(p.shared.owners))
	}
}

// seal ends loading and trains every model.
func (p *partition) seal() {
	p.mu.Lock()
	p.sealed = true
	p.mu.Unlock()
	p.train(1 << 20)
}

// train does at most n units of training for each index and reports whether it did any.
func (p *partition) train(n int) (worked bool) {
	p.training.Lock()
	defer p.training.Unlock()
	for _, ix := range p.has.Load().trained {
		worked = p.trainOne(ix, n) || worked
	}
	return worked
}

func (p *partition) trainOne(ix *hosted, n int) (worked bool) {
	for i := 0; i < n && ix.learned.Maintain(time.Since(p.started), &p.mu); i++ {
		worked = true
	}
	return worked
}

// demandUnits bounds the units of one turn of the trainer for an index whose
// clients fell back to the server.
const demandUnits = 8

// trainTurn is the trainer's turn: one unit for the next index that has work,
// and several for each index whose clients fell back to the server since the
// last turn. An index that no client reads through its models therefore costs
// little.
func (p *partition) trainTurn() (worked bool) {
	p.training.Lock()
	defer p.training.Unlock()
	trained := p.has.Load().trained
	for range trained {
		p.turn++
		if p.trainOne(trained[p.turn%len(trained)], 1) {
			worked = true
			break
		}
	}
	for _, ix := range trained {
		if d := ix.demand.Swap(0); d > 0 {
			worked = p.trainOne(ix, min(int(d), demandUnits)) || worked
		}
	}
	return worked
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

// fence makes every validation against this partition fail: it is no longer served.
func (p *partition) fence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setFence()
}

func (p *partition) setFence() {
	p.control.Store(epochWord, uint64(p.epoch)|fenceBit)
}

// fenceBit in the epoch word means that the primary was deposed or has stopped.
const fenceBit = 1 << 63
