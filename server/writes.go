package server

import (
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/exec"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// lockAll locks the whole write set, in the order given, or nothing. It never
// waits for a lock of another transaction. held[i] is the lock of writes[i].
// The caller holds p.mu.
func (p *partition) lockAll(o index.Owner, writes []wire.Write, held []*index.Held) ([]*index.Held, verdict) {
	if p.frozen > 0 && len(writes) > 0 {
		p.requests.waitsFor = append(p.requests.waitsFor[:0], nameOf(&writes[0]))
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
				p.requests.waitsFor = append(p.requests.waitsFor[:0], nameOf(&writes[i]))
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
	return verdict{code: c, text: exec.EncodeFault(e)}
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
	durable := p.durable != nil
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
