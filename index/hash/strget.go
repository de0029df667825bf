package hash

import (
	"runtime"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// This file looks up string keys. All rows of a bucket with the right fingerprint are
// READ in one round.
//
// Rows move, so a slot may lead to a block that has since been reused for
// another key, while the row of the sought key was in another block all the
// time. A row with another key therefore proves nothing until the head of the
// chain is seen unchanged afterwards: while the chain is unchanged, the block
// has the same row, and the key of a row in a chain never changes.

// candidate is a row that may be the key's.
type candidate struct {
	ref   uint64
	wr    int // of its READ
	words []uint64
}

// readRows posts the READs of the first n candidates.
func (o *getOp) readRows(p phase, n int, next *rdma.Batch) bool {
	if o.rounds == roundsMax {
		return o.finish(index.Fallback)
	}
	o.rounds++
	o.extra += uint64(n - 1)
	o.phase, o.nrows = p, n
	for i := range o.rows[:n] {
		c := &o.rows[i]
		c.wr = next.Read(o.c.rkey, refAddr(c.ref), c.words)
	}
	return false
}

// candidates assigns memory to the first n candidates.
func (o *getOp) candidates(n int) {
	words := 0
	for i := range o.rows[:n] {
		words += o.v.blockWords(o.rows[i].ref)
	}
	o.row = resize(o.row, words)
	rest := o.row
	for i := range o.rows[:n] {
		w := o.v.blockWords(o.rows[i].ref)
		o.rows[i].words, rest = rest[:w:w], rest[w:]
	}
}

// resize returns a buffer of so many words, buf itself if it has room.
func resize(buf []uint64, words int) []uint64 {
	if cap(buf) < words {
		return make([]uint64, words)
	}
	return buf[:words]
}

// goodRef reports whether a reference is valid.
func (v *view) goodRef(ref uint64) bool {
	words := refClass(ref).Words()
	return words > 0 && words <= v.rowBlock && goodAddr(refAddr(ref), mem.LineBytes)
}

// keepStr keeps a copy of the key, apart from Start so that a native key does
// not pay for it.
//
//go:noinline
func (o *getOp) keepStr(key string) { o.str = append(o.str[:0], key...) }

func (o *getOp) beginStr(next *rdma.Batch) bool {
	if !o.v.strings || o.key != 0 || len(o.str) > index.MaxKeyBytes {
		return o.wrongKey()
	}
	o.hash = hashStr(o.str)
	if o.tick != 0 {
		return o.beginAt(next)
	}
	if ref := o.location(); ref != 0 {
		o.rows[0].ref = ref
		o.candidates(1)
		return o.readRows(phaseCachedRow, 1, next)
	}
	return o.readHead(next)
}

// searchStr READs all rows of the bucket that may be the key's, or follows the chain
// if there are no more.
func (o *getOp) searchStr(next *rdma.Batch) bool {
	n := 0
	for ; o.slot < slots; o.slot++ {
		w := o.bucket[slotWord+o.slot]
		if !slotMatches(w, o.hash) {
			continue
		}
		if !o.v.goodRef(slotRef(w)) {
			return o.finish(index.Fallback)
		}
		o.rows[n].ref = slotRef(w)
		n++
	}
	if n == 0 {
		return o.follow(next)
	}
	o.candidates(n)
	return o.readRows(phaseRows, n, next)
}

// onRows trusts only the rows themselves. It READs a row that is being changed
// again, unless the row is locked and has another key.
func (o *getOp) onRows(done, next *rdma.Batch) bool {
	again, busy := 0, false
	for i := range o.rows[:o.nrows] {
		c := &o.rows[i]
		wr := &done.WRs[c.wr]
		if wr.Status != rdma.StatusOK {
			o.addr = refAddr(c.ref)
			return o.failed(wr.Status)
		}
		verdict := block.Accept(c.words, wr.Tail, refAddr(c.ref), o.c.inOrder)
		row, ok := decodeStrRow(c.words, o.v.tag)
		ours := ok && string(row.key) == string(o.str)
		switch {
		case !ok && verdict == block.OK && o.phase == phaseRows:
			return o.finish(index.Fallback) // the index has no such rows
		case !ours && verdict != block.Torn:
			o.unsure = true
		case verdict == block.OK && !block.Header(c.words[block.HeaderWord]).IsAbsent():
			return o.foundStr(c, row)
		case verdict == block.OK && o.phase == phaseRows:
			if o.newer(block.Header(c.words[block.HeaderWord])) {
				return o.again(next)
			}
		case verdict == block.OK: // at the cached place: the chain has the proof
		default:
			o.rows[again] = *c
			again++
			busy = busy || verdict != block.Torn
		}
	}
	switch {
	case again > 0 && !(busy && o.phase == phaseCachedRow):
		return o.rowsAgain(again, busy, next)
	case busy && o.endsAtLock():
		return o.finish(index.Locked)
	case o.phase == phaseCachedRow:
		// Locked, or moved or freed and so locked, or of another key: only the chain shows which.
		o.cache.drop(o.hash, o.rows[0].ref)
		return o.readHead(next)
	}
	return o.searchStr(next)
}

func (o *getOp) foundStr(c *candidate, row strRow) bool {
	o.cache.put(o.hash, c.ref)
	o.res.Row = row.row
	addr, h := refAddr(c.ref), c.words[block.HeaderWord]
	o.res.Header = block.Header(h)
	o.res.Rests = o.res.Header.CSN()
	o.res.Hint = addr
	o.proof[0] = index.Proof{Addr: addr, Word: h}
	o.res.Proofs = o.proof[:]
	return o.finish(index.Found)
}

// rowsAgain READs the first n candidates again, because a writer has locked them or
// was changing them: see notAtRest.
func (o *getOp) rowsAgain(n int, busy bool, next *rdma.Batch) bool {
	o.retries++
	runtime.Gosched()
	if busy {
		if o.endsAtLock() {
			return o.finish(index.Locked)
		}
		if o.rowBusy++; o.rowBusy > busyRowRereads {
			o.rowBusy = 0
			return o.readHead(next)
		}
	}
	return o.readRows(o.phase, n, next)
}

// onConfirm ends a search that met rows of other keys, if the chain has not changed
// since its slots led to them.
func (o *getOp) onConfirm(next *rdma.Batch) bool {
	if o.scratch[0] != o.version {
		return o.again(next)
	}
	return o.absent()
}
