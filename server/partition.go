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
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// partition is one partition held by this server: its memory, its indexes and
// its executor.
type partition struct {
	id       int
	catalog  *tables.Catalog
	region   *mem.Region
	rkey     rdma.RKey
	arena    *block.Arena
	indexes  []index.Server
	trained  []*learned.Server // the ordered ones of indexes
	demand   []atomic.Uint32   // by index: fallbacks of clients since the trainer's last turn
	gaveUp   []atomic.Uint64   // by index: all fallbacks of clients
	turn     int               // the next index of trained
	started  time.Time
	training sync.Mutex // one trainer at a time
	epoch    uint32
	present  *atomic.Uint64 // the server's tick
	control  mem.Span

	// mu is the executor: held for every change, and for the whole of a
	// procedure that stays in the partition.
	mu       sync.Mutex
	shared   *sharedLocks
	owners   index.Owner
	sealed   bool
	runner   *exec.Runner
	held     []*index.Held // of the transaction being applied
	seen     map[*index.Held]bool
	words    []uint64 // buffer to convert a row
	parking  parking
	side     *side // of the commit protocol
	ticks    clock.Logical
	closed   clock.Tick // the tick published as closed
	commits  uint64
	aborts   uint64
	nprepare int
}

// prepared is a participant's half of a distributed transaction in one
// partition, from its vote to the decision.
type prepared struct {
	p      *partition
	owner  index.Owner
	vote   clock.Tick
	held   []*index.Held
	writes []wire.Write // with copied rows
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

func newPartition(id int, cfg *Config, r *mem.Region, checksums bool, present *atomic.Uint64, running *clock.Running) (*partition, error) {
	p := &partition{
		id: id, catalog: cfg.Catalog, region: r, epoch: cfg.Epoch, shared: newSharedLocks(),
		seen: map[*index.Held]bool{}, started: time.Now(), present: present,
		arena: block.NewArena(r, block.ArenaOptions{Checksums: checksums, Tick: clock.Tick(present.Load()), Clock: running.Now}),
	}
	p.control = p.arena.Span(block.ControlAddr, controlWords)
	p.control.Store(horizonWord, ^uint64(0)) // in memory, published data counts as durable
	p.control.Store(epochWord, uint64(cfg.Epoch))
	p.advance()
	for _, ix := range cfg.Catalog.Indexes {
		srv, err := p.newIndex(ix, cfg, running)
		if err != nil {
			return nil, fmt.Errorf("server: partition %d: index %s: %w", id, ix.Name, err)
		}
		p.indexes = append(p.indexes, srv)
	}
	p.demand, p.gaveUp = make([]atomic.Uint32, len(p.indexes)), make([]atomic.Uint64, len(p.indexes))
	return p, nil
}

// Words of the control block: see docs/layouts.md. Every validation reads the
// first two.
const (
	epochWord    = 0 // epoch; readers compare it with the one of the server's hello
	horizonWord  = 1 // durable horizon, a CSN
	closedWord   = 2 // no commit of this tick or an earlier one will still be applied
	tickWord     = 3 // no commit that has been applied is of a later tick
	controlWords = 8
)

func (p *partition) newIndex(ix *tables.Index, cfg *Config, running *clock.Running) (index.Server, error) {
	words := ix.RowBytes / mem.WordBytes
	if !ix.Ordered {
		return hash.NewServer(p.arena, hash.Options{Strings: ix.Strings, RowWords: words, Locks: p.shared})
	}
	srv, err := learned.NewServer(p.arena, learned.Options{
		Strings: ix.Strings, RowWords: words, Locks: p.shared, Family: cfg.Family, Clock: running.Now,
	})
	if err != nil {
		return nil, err
	}
	p.trained = append(p.trained, srv)
	return srv, nil
}

// validate reports whether the partition is served and every proof still holds. Under p.mu.
func (p *partition) validate(part *wire.Part) verdict {
	if v := p.serves(); !v.ok() {
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
	clear(p.seen)
	for i := range writes {
		h, v := p.lock(o, &writes[i])
		if h != nil {
			if p.seen[h] { // the key is already locked by this write set
				h, v = nil, verdict{code: wire.Bad, text: "two writes of one key"}
			} else {
				p.seen[h] = true
				held = append(held, h)
			}
		}
		if !v.ok() {
			for i, h := range held {
				p.indexes[writes[i].Index].Release(h)
			}
			return held[:0], v
		}
	}
	return held, verdict{}
}

func (p *partition) lock(o index.Owner, w *wire.Write) (*index.Held, verdict) {
	if int(w.Index) >= len(p.indexes) || w.Op < wire.Insert || w.Op > wire.Delete ||
		!fits(p.catalog.Indexes[w.Index], w) {
		return nil, verdict{code: wire.Bad, text: fmt.Sprintf("write of %d bytes to index %d, operation %d", len(w.Row), w.Index, w.Op)}
	}
	if ix := p.catalog.Indexes[w.Index]; ix.Partition.Kind == tables.Replicated {
		return nil, verdict{code: wire.Bad, text: "write to replicated table " + ix.Name}
	}
	h, err := p.indexes[w.Index].LockWrite(o, w.Key, w.Hint)
	switch {
	case errors.Is(err, index.ErrLocked):
		return nil, conflict(exec.CauseLocked)
	case err != nil:
		return nil, verdict{code: wire.OutOfMemory, text: err.Error()}
	case h.Existed && w.Op == wire.Insert:
		return h, verdict{code: wire.Exists}
	case !h.Existed && (w.Op == wire.Update || w.Op == wire.Delete):
		return h, verdict{code: wire.NotFound}
	case w.Op != wire.Delete && w.Strings:
		if err := p.indexes[w.Index].Reserve(h, len(w.Row)/mem.WordBytes); err != nil {
			return h, verdict{code: wire.OutOfMemory, text: err.Error()}
		}
	}
	return h, verdict{}
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
	for i := range writes {
		w := &writes[i]
		if w.Op == wire.Delete {
			p.indexes[w.Index].PublishDelete(held[i], block.Absent(csn))
			continue
		}
		p.indexes[w.Index].Publish(held[i], p.rowWords(w.Row), block.Present(csn))
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
		return verdict{}
	}
	p.owners++
	held, v := p.lockAll(p.owners, part.Writes, p.held[:0])
	p.held = held[:0]
	if !v.ok() {
		return v
	}
	p.applyAll(part.Writes, held, p.nextCSN())
	p.commits++
	return verdict{}
}

// prepare validates and locks a part, and keeps what it locked until decide.
func (p *partition) prepare(part *wire.Part) (*prepared, verdict) {
	held, v := share{parts: []*wire.Part{part}, at: []*partition{p}, read: clock.Fast()}.prepare()
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
	t := &prepared{p: p, owner: p.owners, vote: p.ticks.Vote()}
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
		t.p.indexes[t.writes[i].Index].Release(h)
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
	over := p.wake()
	p.mu.Unlock()
	p.answerAll(over)
}

// end applies the locked writes at a tick, or releases them. The partition
// adopts the tick first, so that no later transaction has a smaller one. The
// caller holds p.mu.
func (t *prepared) end(commit bool, tick clock.Tick) {
	p := t.p
	p.nprepare--
	p.shared.release(t.owner)
	if invariants.Enabled {
		p.checkPrepared()
	}
	if commit {
		p.adopt(tick)
		if len(t.writes) > 0 {
			p.applyAll(t.writes, t.held, p.arena.CSNAt(tick))
		}
		p.commits++
	} else {
		p.aborts++
		t.release()
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

// load inserts rows in bulk; b has keys and rows, one after the other.
func (p *partition) load(ix int, b []byte) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return verdict{code: wire.Bad, text: "loading has ended"}
	}
	if v := p.serves(); !v.ok() {
		return v
	}
	if ix >= len(p.indexes) {
		return verdict{code: wire.Bad, text: fmt.Sprintf("index %d of %d", ix, len(p.indexes))}
	}
	h := block.Present(p.nextCSN()) // a row that is loaded again gets a new header
	d := wire.NewDecoder(b)
	for d.Left() > 0 {
		w := wire.Write{Op: wire.Put, Index: uint16(ix)}
		if w.Strings = p.catalog.Indexes[ix].Strings; w.Strings {
			w.Key, w.Strings = d.Key()
			w.Row = d.Bytes()
		} else {
			w.Key, w.Row = index.Num(d.U64()), d.Take(p.catalog.Indexes[ix].RowBytes)
		}
		if d.Err() != nil || !fits(p.catalog.Indexes[ix], &w) {
			return verdict{code: wire.Bad, text: fmt.Sprintf("malformed rows of %s", p.catalog.Indexes[ix].Name)}
		}
		err := p.indexes[ix].Load(w.Key, p.rowWords(w.Row), h)
		switch {
		case errors.Is(err, index.ErrLocked):
			return conflict(exec.CauseLocked)
		case errors.Is(err, index.ErrFull):
			return verdict{code: wire.OutOfMemory, text: err.Error()}
		case err != nil:
			return verdict{code: wire.Bad, text: err.Error()}
		}
	}
	return verdict{}
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
	for _, srv := range p.trained {
		worked = p.trainOne(srv, n) || worked
	}
	return worked
}

func (p *partition) trainOne(srv *learned.Server, n int) (worked bool) {
	for i := 0; i < n && srv.Maintain(time.Since(p.started), &p.mu); i++ {
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
	for range p.trained {
		p.turn++
		if p.trainOne(p.trained[p.turn%len(p.trained)], 1) {
			worked = true
			break
		}
	}
	at := 0
	for i := range p.indexes {
		if !p.catalog.Indexes[i].Ordered {
			continue
		}
		srv := p.trained[at]
		at++
		if d := p.demand[i].Swap(0); d > 0 {
			worked = p.trainOne(srv, min(int(d), demandUnits)) || worked
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
