package server

import (
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/redo"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// load inserts rows in bulk; b has keys and rows, one after the other.
func (p *partition) load(ix, version int, b []byte) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed {
		return verdict{code: wire.Sealed, text: fmt.Sprintf("partition %d", p.id)}
	}
	if v := p.serves(); !v.ok() {
		return v
	}
	has := p.has.Load()
	if ix >= len(has.indexes) {
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("partition %d has no index %d yet", p.id, ix)}
	}
	if version > has.catalog.Version() { // it has not heard of the change yet
		text := fmt.Sprintf("partition %d has version %d of the catalogue, and the rows are of version %d", p.id, has.catalog.Version(), version)
		return verdict{code: wire.Unavailable, text: text}
	}
	def := has.catalog.Indexes[ix]
	if def.Table.ChangedIn() > version {
		e := def.Concerns(tables.ErrCatalog, tables.Key{})
		e.Detail = "the table has changed: refresh and load again"
		return verdict{code: wire.Bad, text: exec.EncodeFault(e)}
	}
	for len(b) > 0 {
		n := ascendingRows(def, b)
		if v := p.loadPart(has.indexes[ix], version, b[:n]); !v.ok() {
			return v
		}
		b = b[n:]
	}
	return verdict{}
}

// loadPart inserts rows with ascending keys under one CSN. The caller holds p.mu.
func (p *partition) loadPart(ix *hosted, version int, b []byte) verdict {
	csn := p.ticks.nextCSN() // a row that is loaded again gets a new header
	if d := p.durable; d != nil {
		if v := d.fewCopies(); !v.ok() {
			return v
		}
		r := redo.Record{Kind: redo.Load, Partition: p.id, Index: uint16(ix.def.ID), Version: uint32(version), CSN: csn, Rows: b}
		lsn, v := d.note(&r, 0, p)
		if !v.ok() {
			return v
		}
		p.records.pend(lsn, csn)
	}
	return p.loadRows(ix, b, csn, ix.Load)
}

// loadedRow decodes the next row of a message, as a write. ok is false if it does not
// fit the index.
func loadedRow(def *tables.Index, d *wire.Decoder) (w wire.Write, ok bool) {
	w = wire.Write{Op: wire.Put, Index: uint16(def.ID)}
	if w.Strings = def.Strings; w.Strings {
		w.Key, w.Strings = d.Key()
		w.Row = d.Bytes()
	} else {
		w.Key, w.Row = index.Num(d.U64()), d.Take(def.RowBytes)
	}
	return w, d.Err() == nil && fits(def, &w)
}

// ascendingRows returns the size of the longest prefix of b in which keys ascend. A row after
// that needs another CSN: either its key has occurred, and readers and recovery must tell
// the rows apart, or it may take the place of a row with the same header that a split has
// moved, which would prove to a client that the row has not changed since. A key above all
// others never goes to a leaf whose rows have moved to the right of it. loadRows reports
// malformed rows.
func ascendingRows(def *tables.Index, b []byte) int {
	var before index.Key
	d := wire.NewDecoder(b)
	for d.Left() > 0 {
		at := len(b) - d.Left()
		w, ok := loadedRow(def, &d)
		if !ok {
			break
		}
		if at > 0 && before.Compare(w.Key) >= 0 {
			return at
		}
		before = w.Key
	}
	return len(b)
}

// loadRows inserts the rows of a message into an index with put, a method of the index.
// Rows before a fault stay. The caller holds p.mu.
func (p *partition) loadRows(ix *hosted, b []byte, csn block.CSN, put func(index.Key, []uint64, block.Header) error) verdict {
	def := ix.def
	h := block.Present(csn)
	if past := p.arena.History(); past.Keeps() {
		past.Begin(p.ticks.own.Tick()) // loading leaves no versions
	}
	mem.Release()
	d, ahead := wire.NewDecoder(b), wire.NewDecoder(b)
	near, _ := ix.Server.(index.Prefetcher)
	for i := 0; near != nil && i < nearRows; i++ {
		prefetchLoaded(near, def, &ahead)
	}
	for d.Left() > 0 {
		if near != nil {
			prefetchLoaded(near, def, &ahead)
		}
		w, ok := loadedRow(def, &d)
		if !ok {
			return verdict{code: wire.Bad, text: fmt.Sprintf("malformed rows of %s", def.Name)}
		}
		row := p.writer.rowWords(w.Row)
		if def.IsTwin() {
			row[0] = p.writer.placeIn(def, w.Key) // what a client says of it proves nothing
		}
		err := put(w.Key, row, h)
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

// nearRows is how many rows ahead loadRows prefetches into the processor's cache.
const nearRows = 8

// prefetchLoaded decodes the next row of a message, if there is one, and prefetches the
// place of its key in the index.
func prefetchLoaded(near index.Prefetcher, def *tables.Index, d *wire.Decoder) {
	if d.Left() == 0 {
		return
	}
	if w, ok := loadedRow(def, d); ok {
		near.Prefetch(w.Key, 0)
	}
}
