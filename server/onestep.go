package server

import (
	"drtmx/internal/exec"
	"drtmx/internal/redo"
	"drtmx/internal/wire"
)

// commit commits a transaction of only this partition, in one step. The caller
// holds p.mu.
//
// Validation comes before the locks, so that a transaction's own placeholders
// cannot fail its own proofs. No other writer can run in between, because the
// partition has one executor. Leaves that clients write are looked at again after the locks.
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
		return p.records.noteAgent()
	}
	if v := p.durable.fewCopies(); !v.ok() {
		return v
	}
	p.writer.owners++
	held, v := p.writer.lockAll(p.writer.owners, part.Writes, p.writer.held[:0])
	p.writer.held = held[:0]
	switch v.code {
	case wire.OK:
		if v = p.stillHold(part, p.writer.owners); !v.ok() {
			p.writer.releaseAll(part.Writes, held)
		}
	case wire.Exists, wire.NotFound: // the answer, if what the client has read held then, too
		if w := p.stillHold(part, 0); !w.ok() {
			v = w
		}
	}
	if !v.ok() {
		return v
	}
	csn := p.ticks.nextCSN()
	if s := p.srv; s.durable != nil {
		if v := s.durable.noteCommit(p.records.origin, []redo.Part{{Partition: p.id, CSN: csn, Writes: part.Writes, Held: held}}, p); !v.ok() {
			p.writer.releaseAll(part.Writes, held)
			return v
		}
	}
	p.writer.applyAll(part.Writes, held, csn)
	p.commits++
	return verdict{}
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
		if !p.holds(pr, 0) {
			return conflict(exec.CauseRow)
		}
	}
	for _, pr := range part.Gaps {
		if !p.holds(pr, 0) {
			return conflict(exec.CauseGap)
		}
	}
	return verdict{}
}

// allows refuses writes that were made under another version of the catalogue. A
// transaction of an earlier version may write the tables that have not changed since.
// One of a later version is refused: transactions that do not know that version could
// overwrite its rows here. It refuses reads of an index that the version here does not
// maintain. (A share that proves nothing may belong to a transaction whose other share
// has read it before: see drained.)
func (p *partition) allows(part *wire.Part) verdict {
	c := p.has.Load().catalog
	if int(part.Catalog) < c.ReadersNeed() && part.Proves() {
		return conflict(exec.CauseCatalog)
	}
	if len(part.Writes) == 0 || int(part.Catalog) == c.Version() {
		return verdict{}
	}
	if int(part.Catalog) > c.Version() {
		return conflict(exec.CauseCatalog)
	}
	for i := range part.Writes {
		if ix := int(part.Writes[i].Index); ix < len(c.Indexes) && c.Indexes[ix].Table.ChangedIn() > int(part.Catalog) {
			return conflict(exec.CauseCatalog)
		}
	}
	return verdict{}
}
