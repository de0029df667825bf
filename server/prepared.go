package server

import (
	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// prepared is a participant's half of a distributed transaction in one
// partition, from its vote to the decision.
type prepared struct {
	p       *partition
	owner   index.Owner
	catalog int    // version that its transaction knows; 0 if the share was restored
	client  uint64 // session of the transaction; 0: not known
	vote    clock.Tick
	held    []*index.Held
	writes  []wire.Write // with copied rows
	csn     block.CSN    // of the commit, once it is in the log

	// Of a durable server:
	reads  bool             // the share has read more than the rows that it has locked to write
	logged bool             // the log has the share
	frozen bool             // restored: its reads are not known, so that nothing else is written
	record *twophase.Record // of the decision
	origin origin           // of the coordinator's client
	aside  aside            // room in the log for its records
}

// entered counts a prepared transaction, and left one that is decided. The caller holds p.mu.
func (p *partition) entered(t *prepared) {
	if p.nprepare++; p.under == nil {
		p.under = map[int]int{}
	}
	p.under[t.catalog]++
}

func (p *partition) left(t *prepared) {
	p.nprepare--
	if p.under[t.catalog]--; p.under[t.catalog] == 0 {
		delete(p.under, t.catalog)
	}
}

// drained reports whether all prepared transactions know a version of the catalogue. No more that
// have read an index which is not readable any more are prepared then, so that its locks are not
// missed by those who no longer maintain it. The caller holds p.mu.
func (p *partition) drained(version int) bool {
	for v := range p.under {
		if v < version {
			return false
		}
	}
	return true
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
	p.writer.owners++
	p.ticks.advance()
	t := &prepared{p: p, owner: p.writer.owners, vote: p.ticks.own.Vote(), reads: len(part.Rows)+len(part.Gaps) > 0}
	t.catalog = int(part.Catalog)
	p.entered(t)
	// Take the shared locks before the exclusive ones: an insert may split a
	// leaf that was read, and the index then moves the shared locks with the
	// rows.
	if v := p.writer.lockReads(part, t.owner); !v.ok() {
		return t, v
	}
	held, v := p.writer.lockAll(t.owner, part.Writes, nil)
	if !v.ok() {
		return t, v
	}
	t.held = held
	if t.reads && p.durable != nil {
		t.reads = p.writer.shared.beyond(t.owner, held)
	}
	for _, w := range part.Writes {
		w.Row, w.Key = append([]byte(nil), w.Row...), w.Key.Clone()
		t.writes = append(t.writes, w)
	}
	return t, p.stillHold(part, t.owner)
}

// release releases the locks on writes before the decision. The caller holds
// p.mu.
func (t *prepared) release() {
	t.p.writer.releaseAll(t.writes, t.held)
	t.held, t.writes = nil, nil
}

// decide applies a prepared part at a tick, or releases it, and runs the
// requests that waited for it.
func (t *prepared) decide(commit bool, tick clock.Tick) {
	p := t.p
	p.mu.Lock()
	t.end(commit, tick)
	p.requests.parking.wake()
	p.unlock()
}

// end applies the locked writes at a tick, or releases them. The partition
// adopts the tick first, so that no later transaction has a smaller one. The
// caller holds p.mu.
func (t *prepared) end(commit bool, tick clock.Tick) {
	p := t.p
	p.left(t)
	p.writer.endReads(t.owner)
	if t.frozen {
		p.writer.frozen--
	}
	if invariants.Enabled {
		p.checkPrepared()
	}
	if commit {
		p.requests.lines.committed(t.client)
		p.ticks.adopt(tick)
		if len(t.writes) > 0 {
			if t.csn == 0 {
				t.csn = p.arena.CSNAt(tick)
			}
			p.records.noteDecided(t)
			p.writer.applyAll(t.writes, t.held, t.csn)
		}
		if len(t.writes) == 0 {
			p.records.noteStep(t.record, t, t.origin)
		}
		p.commits++
	} else {
		p.aborts++
		p.records.noteStep(t.record, t, t.origin)
		t.release()
	}
	if d := p.durable; d != nil {
		d.log.GiveUp(t.aside.take(twophase.Decided))
	}
	p.ticks.settle(t.vote)
}

// checkPrepared asserts that the locks held for decisions match the
// transactions that await one. The caller holds p.mu.
func (p *partition) checkPrepared() {
	if p.nprepare < 0 || p.nprepare == 0 && !p.writer.shared.Empty() {
		invariants.Failf("partition %d: %d transactions prepared, %d shared locks", p.id, p.nprepare, len(p.writer.shared.owners))
	}
}
