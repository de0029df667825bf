package hash

import (
	"errors"
	"runtime"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// This file looks up keys as of the end of a tick that the partition had closed
// before the lookup began. The data of that time do not change any more, so locks do
// not matter, and an answer needs no proof:
//
//   - The row that a slot led to, when its chain was read, leads along its
//     versions to that of the tick, wherever the row is now.
//   - A key without a slot, in a chain read as of one version of its head, was
//     absent at the tick: inserts since are of later ticks.
//   - A block may have been freed since the slot was read. Either what it held is
//     of no tick that is asked for, or the floor has passed the tick, which the
//     caller finds out, or the row has moved within a later tick, and so the
//     chain has changed: see onConfirm.
//   - A block that the location cache leads to is the row's only if it is
//     unlocked. A locked one may be an old version.
//   - A version that is a patch is applied to a copy of the row, or version, that
//     leads to it: of any moment at which that had its CSN and this word older.

// tornMax bounds how often a torn version is READ again.
const tornMax = 4

// beginAt begins with the row's place in the location cache, or with the chain if
// there is none.
func (o *getOp) beginAt(next *rdma.Batch) bool {
	o.start = o.c.clock()
	ref := o.location()
	if ref == 0 {
		return o.readHead(next)
	}
	o.rows[0].ref = ref
	o.candidates(1)
	return o.readRows(phaseCachedAt, 1, next)
}

// blockWords returns the size of the block of a reference, in words.
func (v *view) blockWords(ref uint64) int {
	if v.strings {
		return refClass(ref).Words()
	}
	return v.rowBlock
}

// goodVersion reports whether a link to a version is valid.
func (v *view) goodVersion(o block.Older) bool {
	return o.Valid() && goodAddr(o.Addr(), mem.LineBytes) && (!v.strings && !o.IsPatch() || v.goodRef(uint64(o.Block())))
}

// readSlots READs all rows of the bucket that may be the key's, or follows the chain
// if there are no more.
func (o *getOp) readSlots(next *rdma.Batch) bool {
	n := 0
	for ; o.slot < slots; o.slot++ {
		w := o.bucket[slotWord+o.slot]
		if !slotMatches(w, o.hash) {
			continue
		}
		if ref := slotRef(w); !goodAddr(refAddr(ref), mem.LineBytes) || o.v.strings && !o.v.goodRef(ref) {
			return o.finish(index.Fallback)
		}
		o.rows[n].ref = slotRef(w)
		n++
	}
	if n == 0 {
		return o.follow(next)
	}
	o.candidates(n)
	return o.readRows(phaseRowsAt, n, next)
}

// look is the verdict on one READ of a block.
type look uint8

const (
	lookOurs  look = iota // a row, tombstone or version of the key
	lookOther             // not of the key
	lookTorn
)

func (o *getOp) look(c *candidate, tail uint64) look {
	h := block.Header(c.words[block.HeaderWord])
	switch {
	case h.Unlock() == block.AbsentBit: // a placeholder, or freed
		return lookOther
	case block.AcceptVersion(c.words, tail, refAddr(c.ref), o.c.inOrder) != block.OK:
		return lookTorn
	case o.patch != 0:
		if o.patchOf(c.words) && o.patch.Apply(patchWord, o.base, c.words) {
			return lookOurs
		}
		return lookOther
	case !o.v.strings:
		if c.words[keyWord] == o.key {
			return lookOurs
		}
		return lookOther
	}
	if row, ok := decodeStrRow(c.words, o.v.tag); ok && string(row.key) == string(o.str) {
		return lookOurs
	}
	return lookOther
}

// onRowsAt handles the READs of rows, or of a version.
func (o *getOp) onRowsAt(done, next *rdma.Batch) bool {
	torn := 0
	for i := range o.rows[:o.nrows] {
		c := &o.rows[i]
		wr := &done.WRs[c.wr]
		if wr.Status != rdma.StatusOK {
			return o.failedAt(c, wr.Status)
		}
		switch o.look(c, wr.Tail) {
		case lookOurs:
			return o.takeAt(c, next)
		case lookTorn:
			o.rows[torn] = *c
			torn++
		default:
			// A row with a string key may be in another block: see strget.go.
			o.unsure = o.unsure || o.v.strings
		}
	}
	switch {
	case o.phase == phaseCachedAt:
		if torn == 0 {
			o.cache.drop(o.hash, o.rows[0].ref)
		}
		return o.readHead(next)
	case o.phase == phaseOlder && (torn == 0 || o.rowBusy == tornMax):
		return o.finish(index.Gone)
	case torn > 0:
		o.retries++
		o.rowBusy++
		runtime.Gosched()
		return o.readRows(o.phase, torn, next)
	}
	return o.readSlots(next)
}

// failedAt handles a READ that the fabric has refused. The link to a version may have
// been READ from reused memory.
func (o *getOp) failedAt(c *candidate, s rdma.Status) bool {
	if o.phase == phaseOlder && errors.Is(s.Err(), rdma.ErrAccess) {
		return o.finish(index.Gone)
	}
	o.addr = refAddr(c.ref)
	return o.failed(s)
}

// takeAt answers with the row, tombstone or version of the key, or continues with the
// next older one.
func (o *getOp) takeAt(c *candidate, next *rdma.Batch) bool {
	h := block.Header(c.words[block.HeaderWord])
	older := block.Older(c.words[olderWord])
	if o.v.strings {
		older = block.Older(c.words[strOlderWord])
	}
	switch {
	case o.phase == phaseCachedAt && h.Locked():
		o.cache.drop(o.hash, c.ref)
		return o.readHead(next)
	case o.phase == phaseOlder && (!h.Locked() || h.CSN() > o.bound):
		return o.finish(index.Gone)
	case o.phase == phaseRowsAt && !h.IsAbsent():
		o.cache.put(o.hash, c.ref)
	}
	switch {
	case h.CSN().Tick() > o.tick && older != 0:
		return o.readOlder(h.CSN(), older, o.payload(c), next)
	case h.CSN().Tick() > o.tick || h.IsAbsent():
		return o.finish(index.NotFound)
	}
	o.res.Row = o.payload(c)
	o.res.Header, o.res.Rests, o.res.Hint = h.Unlock(), h.CSN(), refAddr(c.ref)
	return o.finish(index.Found)
}

// payload returns the payload of the row or version in c.
func (o *getOp) payload(c *candidate) []uint64 {
	switch {
	case o.patch != 0:
		return o.base
	case !o.v.strings:
		return c.words[rowWord : rowWord+o.v.rowWords]
	}
	row, _ := decodeStrRow(c.words, o.v.tag)
	return row.row
}

// patchOf reports whether the copy of a patch belongs to the key's row.
func (o *getOp) patchOf(words []uint64) bool {
	if o.v.strings {
		l := lengthsOf(words[lengthWord])
		return l.tag == o.v.tag && l.key == len(o.str) && l.row == len(o.base)
	}
	return words[keyWord] == o.key
}

// readOlder READs the version that is next older than the one with the payload. CSNs
// fall from version to version, so the walk ends. But a row whose change was under
// way when its header was READ may lead to a version with the same CSN.
func (o *getOp) readOlder(csn block.CSN, older block.Older, payload []uint64, next *rdma.Batch) bool {
	if !o.v.goodVersion(older) {
		return o.finish(index.Gone)
	}
	if o.bound = csn; o.phase == phaseOlder {
		o.bound--
	}
	o.chases++
	o.rowBusy = 0
	o.rows[0].ref = uint64(older.Block())
	if !older.IsPatch() {
		o.patch = 0
		o.candidates(1)
		return o.readRows(phaseOlder, 1, next)
	}
	if o.patch == 0 {
		o.base = append(o.base[:0], payload...)
	}
	o.patch = older
	o.row = resize(o.row, older.Words())
	o.rows[0].words = o.row
	return o.readRows(phaseOlder, 1, next)
}

// finishAt ends a lookup of the past. The caller does not validate the answer. So the
// lookup itself must be young enough that the memory which it has READ still belongs
// to this index.
func (o *getOp) finishAt(s index.Status) index.Status {
	o.res.Proofs = nil
	if s == index.NotFound {
		o.res.Rests = 0
	}
	if (s == index.Found || s == index.NotFound) && o.c.clock()-o.start > index.MaxProofAge {
		return index.Gone
	}
	return s
}
