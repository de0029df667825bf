package block

import (
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// Edit is one change of a block by the server that owns it: Begin locks the
// header, Set and Write change words, Commit publishes. A remote reader sees
// the block before or after the change, or busy. An Edit is for one goroutine;
// the owner serialises edits of a block.
type Edit struct {
	s    mem.Span
	addr uint64
	sum  uint64 // of the body
	was  Header // before the change
	keep bool   // keep checksums
}

// Begin begins a change of the block of the given size at addr. The header may
// already be locked, if the caller holds the lock.
func (a *Arena) Begin(addr uint64, words int) Edit {
	e := Edit{s: a.Span(addr, words), addr: addr, keep: a.checksums}
	old := e.s.Load(HeaderWord)
	e.was = Header(old)
	if e.keep {
		e.sum = e.s.Load(ChecksumWord) - frame(addr, old&^uint64(LockBit))
	}
	e.s.Put(HeaderWord, old|uint64(LockBit))
	return e
}

// Create begins to fill a newly allocated block: it sets all words after the
// header to zero.
func (a *Arena) Create(addr uint64, words int) Edit {
	e := Edit{s: a.Span(addr, words), addr: addr, was: AbsentBit, keep: a.checksums}
	e.s.Put(HeaderWord, uint64(LockBit|AbsentBit))
	e.s.Slice(ChecksumWord, words-ChecksumWord).Zero()
	if e.keep {
		for i := BodyWord; i < words; i++ {
			e.sum += mix(0, i)
		}
	}
	return e
}

// CreateOf begins to fill a newly allocated block with a body, which has all
// words after the checksum. It makes one pass over the block, where Create and
// Write make two.
func (a *Arena) CreateOf(addr uint64, body []uint64) Edit {
	e := Edit{s: a.Span(addr, BodyWord+len(body)), addr: addr, was: AbsentBit, keep: a.checksums}
	e.s.Put(HeaderWord, uint64(LockBit|AbsentBit))
	e.s.Put(ChecksumWord, 0)
	if e.keep {
		for i, w := range body {
			e.sum += mix(w, BodyWord+i)
		}
	}
	e.s.Slice(BodyWord, len(body)).CopyIn(body)
	return e
}

// Load reads word i.
func (e *Edit) Load(i int) uint64 { return e.s.Load(i) }

// Prefetch asks the processor to bring n words from i on into its cache.
func (e *Edit) Prefetch(i, n int) { e.s.Slice(i, n).Prefetch() }

// Set writes word i, from BodyWord on.
func (e *Edit) Set(i int, v uint64) {
	if e.keep {
		e.sum += mix(v, i) - mix(e.s.Load(i), i)
	}
	e.s.Put(i, v)
}

// Write writes the words from i on.
func (e *Edit) Write(i int, src []uint64) {
	if e.keep {
		for j, v := range src {
			e.sum += mix(v, i+j) - mix(e.s.Load(i+j), i+j)
		}
	}
	e.s.Slice(i, len(src)).CopyIn(src)
}

// CopyTo copies the present state of e's block to the block at addr, whose memory is
// to, and publishes it as a version of e's block: under h, locked. The block at addr
// has the same size and is not yet published.
func (e *Edit) CopyTo(to mem.Span, addr uint64, h Header) {
	to.Slice(BodyWord, e.s.Words()-BodyWord).CopySpan(e.s.Slice(BodyWord, e.s.Words()-BodyWord))
	if e.keep {
		to.Put(ChecksumWord, e.sum+frame(addr, uint64(h.Unlock())))
	}
	to.Put(HeaderWord, uint64(h.Lock()))
}

// PatchTo is CopyTo for a patch: it copies the words of e's block up to head, and as
// many of those from word i on as to has room for.
func (e *Edit) PatchTo(to mem.Span, addr uint64, head, i int, h Header) {
	n := to.Words() - head
	to.Slice(BodyWord, head-BodyWord).CopySpan(e.s.Slice(BodyWord, head-BodyWord))
	to.Slice(head, n).CopySpan(e.s.Slice(i, n))
	if e.keep {
		sum := frame(addr, uint64(h.Unlock()))
		for j := BodyWord; j < head+n; j++ {
			sum += mix(to.Load(j), j)
		}
		to.Put(ChecksumWord, sum)
	}
	to.Put(HeaderWord, uint64(h.Lock()))
}

// Differ is [mem.Span.Differ] for the words from i on.
func (e *Edit) Differ(i int, row []uint64) (lo, hi int) { return e.s.Slice(i, len(row)).Differ(row) }

// Announce makes the header that of the row that the edit will publish, still
// locked. It is stored after the row's link to the older version, and before
// the first change of its body: so a body read between two headers of one CSN
// is that of this CSN, locked or not. See [AcceptVersion].
func (e *Edit) Announce(h Header) { e.s.Put(HeaderWord, uint64(h.Lock())) }

// Commit publishes the block under header h. The checksum is that of the
// unlocked header, so a caller that still holds its lock passes h locked and
// clears the bit later.
func (e *Edit) Commit(h Header) {
	if invariants.Enabled {
		e.checkHeader(h)
	}
	if e.keep {
		e.s.Put(ChecksumWord, e.sum+frame(e.addr, uint64(h.Unlock())))
	}
	e.s.Put(HeaderWord, uint64(h))
}

// checkHeader asserts what readers rely on: the block is locked while it
// changes, and the versions of a row that is present only grow.
func (e *Edit) checkHeader(h Header) {
	if now := Header(e.s.Load(HeaderWord)); !now.Locked() {
		invariants.Failf("block %d is published as %v, and was not locked: %v", e.addr, h, now)
	}
	if !e.was.IsAbsent() && h.CSN() <= e.was.CSN() {
		invariants.Failf("block %d is published as %v after %v", e.addr, h, e.was)
	}
}
