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

// writer locks the rows of write sets in a partition, and publishes the new ones. The
// partition's mutex guards it.
type writer struct {
	p        *partition
	owners   index.Owner // the last one
	shared   *sharedLocks
	frozen   int           // restored shares in doubt with reads that are not known: nothing may be written
	lockings uint64        // runs of lockAll
	held     []*index.Held // of the transaction being applied
	shipment []wire.Write  // memory
	found    index.GetResult
	places   bool     // the transaction being applied is a shipment, whose twins have the places of rows
	words    []uint64 // buffer to convert a row
	written  uint64   // bytes of the keys and rows that transactions of a durable server have written
}

// lockAll locks the whole write set, in the order given, or nothing. It never
// waits for a lock of another transaction. held[i] is the lock of writes[i].
// The caller holds p.mu.
func (wr *writer) lockAll(o index.Owner, writes []wire.Write, held []*index.Held) ([]*index.Held, verdict) {
	if wr.frozen > 0 && len(writes) > 0 {
		wr.p.requests.waitsFor = append(wr.p.requests.waitsFor[:0], nameOf(&writes[0]))
		return held[:0], conflict(exec.CauseLocked)
	}
	wr.lockings++
	for i := range writes {
		h, v := wr.lock(o, &writes[i])
		if h != nil {
			if h.Turn == wr.lockings { // the key is already locked by this write set
				h, v = nil, verdict{code: wire.Bad, text: "two writes of one key"}
			} else {
				h.Turn = wr.lockings
				held = append(held, h)
			}
		}
		if !v.ok() {
			if v.code == wire.Conflict {
				wr.p.requests.waitsFor = append(wr.p.requests.waitsFor[:0], nameOf(&writes[i]))
			}
			wr.releaseAll(writes, held)
			return held[:0], v
		}
	}
	return held, verdict{}
}

// releaseAll releases the locks of the first writes.
func (wr *writer) releaseAll(writes []wire.Write, held []*index.Held) {
	for i, h := range held {
		wr.p.index(int(writes[i].Index)).Release(h)
	}
}

// lockReads takes shared locks on the reads of a part. Leaves that clients write are held as well:
// a writer does not know of shared locks. endReads ends both, also if lockReads has failed.
func (wr *writer) lockReads(part *wire.Part, o index.Owner) verdict {
	for _, pr := range part.Rows {
		if !wr.lockRead(pr, o) {
			return conflict(exec.CauseRow)
		}
	}
	for _, pr := range part.Gaps {
		if !wr.lockRead(pr, o) {
			return conflict(exec.CauseGap)
		}
	}
	return verdict{}
}

func (wr *writer) lockRead(pr index.Proof, o index.Owner) bool {
	if l := wr.p.inLeaves(pr.Addr); l != nil && !l.Share(pr, o) {
		return false
	}
	wr.shared.add(pr.Addr, o)
	return true
}

func (wr *writer) endReads(o index.Owner) {
	if wr.p.has.Load().apart {
		for _, addr := range wr.shared.words[o] {
			if l := wr.p.inLeaves(addr); l != nil {
				l.Unshare(addr, o)
			}
		}
	}
	wr.shared.release(o)
}

func (wr *writer) lock(o index.Owner, w *wire.Write) (*index.Held, verdict) {
	has := wr.p.has.Load()
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
	for err != nil && errors.Is(err, index.ErrFull) && wr.p.makeRoom() {
		h, err = ix.LockWrite(o, w.Key, w.Hint)
	}
	switch {
	case errors.Is(err, index.ErrLocked):
		v := conflict(exec.CauseLocked)
		v.byClient = errors.Is(err, index.ErrHeldByClient)
		return nil, v
	case errors.Is(err, index.ErrCorrupt):
		return nil, verdict{code: wire.Bad, text: err.Error()}
	case err != nil:
		return nil, wr.refusal(wire.OutOfMemory, w, err)
	case h.Existed && w.Op == wire.Insert:
		return h, wr.refusal(wire.Exists, w, exec.ErrExists)
	case !h.Existed && (w.Op == wire.Update || w.Op == wire.Delete):
		return h, wr.refusal(wire.NotFound, w, exec.ErrNotFound)
	case w.Op != wire.Delete && w.Strings:
		err := ix.Reserve(h, len(w.Row)/mem.WordBytes)
		for err != nil && errors.Is(err, index.ErrFull) && wr.p.makeRoom() {
			err = ix.Reserve(h, len(w.Row)/mem.WordBytes)
		}
		if err != nil {
			return h, wr.refusal(wire.OutOfMemory, w, err)
		}
	}
	return h, verdict{}
}

// refusal is the refusal of a write, with what it concerns.
func (wr *writer) refusal(c wire.Code, w *wire.Write, err error) verdict {
	ix := wr.p.has.Load().catalog.Indexes[w.Index]
	e := ix.Concerns(err, keyOf(ix, w.Key))
	e.Partition = int(wr.p.id)
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
	case ix.IsTwin():
		return len(w.Row) == ix.RowBytes
	case ix.Strings:
		return len(w.Row) <= ix.RowBytes && len(w.Row)%mem.WordBytes == 0
	}
	return len(w.Row) == ix.RowBytes
}

// applyAll publishes the write set under a CSN and so unlocks it. Under p.mu.
func (wr *writer) applyAll(writes []wire.Write, held []*index.Held, csn block.CSN) {
	if invariants.Enabled {
		checkLocked(writes, held, csn)
	}
	indexes := wr.p.has.Load().indexes
	durable := wr.p.durable != nil
	mem.Release()
	for i := range writes {
		w := &writes[i]
		if durable {
			wr.count(indexes[w.Index].def, w)
		}
		if w.Op == wire.Delete {
			indexes[w.Index].PublishDelete(held[i], block.Absent(csn))
			continue
		}
		row := wr.rowWords(w.Row)
		if indexes[w.Index].def.IsTwin() && !wr.places {
			if i > 0 && !durable && isRowOf(indexes, w, &writes[i-1]) { // what a client says of it proves nothing
				row[0] = held[i-1].Addr
			} else {
				row[0] = wr.placeIn(indexes[w.Index].def, w.Key)
			}
		}
		indexes[w.Index].Publish(held[i], row, block.Present(csn))
	}
}

// isRowOf reports whether a write is of the row of a key that is written in a twin, in the same
// partition. The address of such a row is in the entry: rows of one size keep it, as long as the memory
// lives.
func isRowOf(indexes []*hosted, twin, row *wire.Write) bool {
	return !row.Strings && row.Key == twin.Key && indexes[row.Index].def.ID == indexes[twin.Index].def.Table.Primary().ID
}

// placeIn returns the address of the row of a key of a twin, if it is in the same partition and does not
// move; else 0. The caller holds the mutex.
func (wr *writer) placeIn(twin *tables.Index, key index.Key) uint64 {
	rows := wr.p.has.Load().indexes[twin.Table.Primary().ID]
	if twin.Table.Def().Twin != tables.TwinLocal || wr.p.durable != nil || rows.def.Strings {
		return 0
	}
	return wr.rowAt(rows, key)
}

// rowAt returns the address of a row, 0 if it is not there or is locked. The caller holds the mutex.
func (wr *writer) rowAt(rows *hosted, key index.Key) uint64 {
	if rows.Lookup(key, &wr.found); wr.found.Status != index.Found {
		return 0
	}
	return wr.found.Proofs[0].Addr
}

// count counts what a transaction writes. Entries of secondary indexes are not
// counted: they follow from the rows.
func (wr *writer) count(ix *tables.Index, w *wire.Write) {
	switch {
	case ix != ix.Table.Primary():
	case w.Strings:
		wr.written += uint64(len(w.Key.Str) + len(w.Row))
	default:
		wr.written += uint64(mem.WordBytes + len(w.Row))
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

func (wr *writer) rowWords(row []byte) []uint64 {
	n := len(row) / mem.WordBytes
	if cap(wr.words) < n {
		wr.words = make([]uint64, n)
	}
	words := wr.words[:n]
	copy(mem.Bytes(words), row)
	return words
}
