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
	keep bool   // keep checksums
}

// Begin begins a change of the block of the given size at addr. The header may
// already be locked, if the caller holds the lock.
func (a *Arena) Begin(addr uint64, words int) Edit {
	e := Edit{s: a.Span(addr, words), addr: addr, keep: a.checksums}
	old := e.s.Load(HeaderWord)
	if e.keep {
		e.sum = e.s.Load(ChecksumWord) - frame(addr, old&^uint64(LockBit))
	}
	e.s.Store(HeaderWord, old|uint64(LockBit))
	return e
}

// Create begins to fill a newly allocated block: it sets all words after the
// header to zero.
func (a *Arena) Create(addr uint64, words int) Edit {
	e := Edit{s: a.Span(addr, words), addr: addr, keep: a.checksums}
	e.s.Store(HeaderWord, uint64(LockBit|AbsentBit))
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
	e := Edit{s: a.Span(addr, BodyWord+len(body)), addr: addr, keep: a.checksums}
	e.s.Store(HeaderWord, uint64(LockBit|AbsentBit))
	e.s.Store(ChecksumWord, 0)
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

// Set writes word i, from BodyWord on.
func (e *Edit) Set(i int, v uint64) {
	if e.keep {
		e.sum += mix(v, i) - mix(e.s.Load(i), i)
	}
	e.s.Store(i, v)
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

// Commit publishes the block under header h. The checksum is that of the
// unlocked header, so a caller that still holds its lock passes h locked and
// clears the bit later.
func (e *Edit) Commit(h Header) {
	if invariants.Enabled {
		e.checkHeader(h)
	}
	if e.keep {
		e.s.Store(ChecksumWord, e.sum+frame(e.addr, uint64(h.Unlock())))
	}
	e.s.Store(HeaderWord, uint64(h))
}

// checkHeader asserts what readers rely on: the block is locked while it
// changes, and the versions of a row that is present only grow.
func (e *Edit) checkHeader(h Header) {
	old := Header(e.s.Load(HeaderWord))
	if !old.Locked() {
		invariants.Failf("block %d is published as %v, and was not locked: %v", e.addr, h, old)
	}
	if !old.IsAbsent() && h.CSN() <= old.CSN() {
		invariants.Failf("block %d is published as %v after %v", e.addr, h, old)
	}
}
