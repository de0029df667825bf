package block

import (
	"fmt"
	"math/bits"
	"sync"

	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// Chunks grow with the slab, so that small tables stay small and large ones are
// in long contiguous runs.
const (
	chunkMin = 8 << 10
	chunkMax = 1 << 20
	// A slab's next chunk is one part in chunkShare of what the slab has.
	chunkShare = 4
)

// Slab allocates blocks of one size for one use, which keep their memory: only
// the same slab reuses a freed block, so each word keeps its role for ever, and
// an address of any age leads to a block of this use. For rows see [Rows]. Slab
// is safe for concurrent use.
type Slab struct {
	arena *Arena
	bytes uint64

	mu struct {
		sync.Mutex
		free      []uint64
		next, end uint64
		total     uint64          // blocks carved
		isFree    map[uint64]bool // the contents of free; only with assertions
	}
}

// SlabStats count blocks.
type SlabStats struct {
	Used, Free uint64 // blocks
	Bytes      uint64 // total size of all blocks carved
}

// NewSlab returns a slab of blocks of the given size, a multiple of a line.
func (a *Arena) NewSlab(blockBytes int) *Slab {
	if blockBytes <= 0 || blockBytes%mem.LineBytes != 0 {
		panic(fmt.Sprintf("block: slab of %d-byte blocks; want whole lines", blockBytes))
	}
	return &Slab{arena: a, bytes: uint64(blockBytes)}
}

// BlockBytes returns the size of each block.
func (s *Slab) BlockBytes() uint64 { return s.bytes }

// Alloc returns a block whose header is locked and absent; the other words have
// any values. Addresses are multiples of BlockBytes. Blocks allocated one after
// another are neighbours where possible.
func (s *Slab) Alloc() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if addr, ok := s.take(); ok {
		return addr, nil
	}
	want := min(max(s.mu.total*s.bytes/chunkShare, chunkMin), chunkMax)
	start, end, err := s.arena.pages.carve(s.bytes, want, s.bytes)
	if err != nil {
		return 0, err
	}
	s.mu.next, s.mu.end = start, start+(end-start)/s.bytes*s.bytes
	addr, _ := s.take()
	return addr, nil
}

// take takes a free block, or one of the latest chunk. The caller has the mutex.
func (s *Slab) take() (addr uint64, ok bool) {
	if n := len(s.mu.free); n > 0 {
		addr = s.mu.free[n-1]
		s.mu.free = s.mu.free[:n-1]
		if invariants.Enabled {
			delete(s.mu.isFree, addr)
		}
		return addr, true
	}
	if s.mu.next == s.mu.end {
		return 0, false
	}
	addr = s.mu.next
	s.mu.next += s.bytes
	s.mu.total++
	s.arena.Span(addr, 1).Store(0, uint64(LockBit|AbsentBit))
	return addr, true
}

// AllocRun returns the first of n contiguous blocks, all as Alloc returns them,
// at a multiple of n blocks. It does not reuse freed blocks.
func (s *Slab) AllocRun(n int) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run := uint64(n) * s.bytes
	start := (s.mu.next + run - 1) / run * run
	if start+run > s.mu.end {
		want := min(max(s.mu.total*s.bytes/chunkShare, chunkMin), chunkMax)
		addr, end, err := s.arena.pages.carve(run, want, run)
		if err != nil {
			return 0, err
		}
		s.giveUp(s.mu.end)
		s.mu.next, s.mu.end, start = addr, addr+(end-addr)/s.bytes*s.bytes, addr
	}
	s.giveUp(start)
	s.mu.next = start + run
	s.mu.total += uint64(n)
	for addr := start; addr < s.mu.next; addr += s.bytes {
		s.arena.Span(addr, 1).Store(0, uint64(LockBit|AbsentBit))
	}
	return start, nil
}

// giveUp frees the unused blocks below end.
func (s *Slab) giveUp(end uint64) {
	for ; s.mu.next < end; s.mu.next += s.bytes {
		s.arena.Span(s.mu.next, 1).Store(0, uint64(LockBit|AbsentBit))
		s.addFree(s.mu.next)
		s.mu.total++
	}
}

// Free frees a block. It makes the header locked and absent at once, and the
// header stays so until the block is published again, so no reader accepts it.
func (s *Slab) Free(addr uint64) {
	s.arena.Span(addr, 1).Store(0, uint64(LockBit|AbsentBit))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addFree(addr)
}

// addFree makes a block available to Alloc. The caller holds s.mu.
func (s *Slab) addFree(addr uint64) {
	if invariants.Enabled {
		if s.mu.isFree == nil {
			s.mu.isFree = map[uint64]bool{}
		}
		if s.mu.isFree[addr] || addr == 0 || addr%mem.LineBytes != 0 {
			invariants.Failf("slab of %d-byte blocks: block %d is freed, and is free already or no block", s.bytes, addr)
		}
		s.mu.isFree[addr] = true
	}
	s.mu.free = append(s.mu.free, addr)
}

// Stats returns a snapshot.
func (s *Slab) Stats() SlabStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := uint64(len(s.mu.free))
	return SlabStats{Used: s.mu.total - f, Free: f, Bytes: s.mu.total * s.bytes}
}

// Sized allocates blocks of any size for one use, from slabs whose sizes are
// powers of two. It is safe for concurrent use.
type Sized struct {
	arena *Arena
	mu    sync.Mutex
	slabs [64]*Slab
}

// NewSized returns an empty allocator.
func (a *Arena) NewSized() *Sized { return &Sized{arena: a} }

func (z *Sized) slab(n int) *Slab {
	c := max(bits.Len(uint(n-1)), 6)
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.slabs[c] == nil {
		z.slabs[c] = z.arena.NewSlab(1 << c)
	}
	return z.slabs[c]
}

// Alloc returns a block of at least n bytes.
func (z *Sized) Alloc(n int) (uint64, error) { return z.slab(n).Alloc() }

// Free frees a block that was allocated with the same n.
func (z *Sized) Free(addr uint64, n int) { z.slab(n).Free(addr) }

// Stats returns the sums over all sizes.
func (z *Sized) Stats() SlabStats {
	z.mu.Lock()
	defer z.mu.Unlock()
	var t SlabStats
	for _, s := range z.slabs {
		if s != nil {
			u := s.Stats()
			t.Used, t.Free, t.Bytes = t.Used+u.Used, t.Free+u.Free, t.Bytes+u.Bytes
		}
	}
	return t
}
