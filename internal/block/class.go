package block

import (
	"math/bits"

	"drtmx/internal/mem"
)

// Class is a size class of blocks of variable size. 0 means none; classes from
// 1 have one to eight lines, then ten, twelve, fourteen, sixteen and so on,
// four classes for each doubling. So at most a fifth of a block above eight
// lines is unused, and six bits next to an address tell a reader how much to
// read.
type Class uint8

// MaxClass is the largest class.
const MaxClass Class = 1<<ClassBits - 1

// ClassBits is the width of a class.
const ClassBits = 6

const (
	lineWords   = mem.LineBytes / mem.WordBytes
	linearLines = 8 // up to this size, each number of lines is a class
	linearBits  = 3
	classesBits = 2
	perDoubling = 1 << classesBits
)

// ClassFor returns the smallest class of at least the given number of words, 0
// if there is none.
func ClassFor(words int) Class {
	lines := uint((words + lineWords - 1) / lineWords)
	if words <= 0 || lines > uint(MaxClass.Words()/lineWords) {
		return 0
	}
	if lines <= linearLines {
		return Class(lines)
	}
	// Within a doubling, classes differ by a quarter of its smallest size.
	doubling := uint(bits.Len(lines-1)) - linearBits - 1
	unit := doubling + linearBits - classesBits
	step := (lines-1)>>unit - perDoubling
	return Class(linearLines + 1 + doubling*perDoubling + step)
}

// Words returns the size of a block of the class, 0 for a class that does not
// exist.
func (c Class) Words() int {
	switch {
	case c > MaxClass:
		return 0
	case c <= linearLines:
		return int(c) * lineWords
	}
	n := uint(c) - linearLines - 1
	return int((perDoubling+1+n%perDoubling)<<(n/perDoubling+linearBits-classesBits)) * lineWords
}

// Bytes returns the size of a block of the class.
func (c Class) Bytes() uint64 { return uint64(c.Words()) * mem.WordBytes }

// Varied allocates blocks of all size classes up to a largest one, for one use.
// A freed block is reused only for its own class. Varied is safe for concurrent
// use.
type Varied struct {
	slabs []*Slab // by class
}

// NewVaried returns an allocator of blocks up to the class of maxWords.
func (a *Arena) NewVaried(maxWords int) *Varied {
	v := &Varied{slabs: make([]*Slab, ClassFor(maxWords)+1)}
	for c := range v.slabs {
		if c > 0 {
			v.slabs[c] = a.NewSlab(int(Class(c).Bytes()))
			v.slabs[c].share = chunkShareVaried
		}
	}
	return v
}

// Max returns the largest class.
func (v *Varied) Max() Class { return Class(len(v.slabs) - 1) }

// Alloc returns a block of the class, as Slab.Alloc does.
func (v *Varied) Alloc(c Class) (uint64, error) { return v.slabs[c].Alloc() }

// AllocNear is Alloc, but before it takes new memory of the region it takes a
// free block of a larger class, if it is less than twice as large. It returns
// the block's class. Blocks keep their classes, so rows whose sizes change can
// reuse each other's blocks.
func (v *Varied) AllocNear(c Class) (addr uint64, got Class, err error) {
	for got = c; int(got) < len(v.slabs) && got.Words() < 2*c.Words(); got++ {
		if addr, ok := v.slabs[got].allocOwn(); ok {
			return addr, got, nil
		}
	}
	addr, err = v.Alloc(c)
	return addr, c, err
}

// Free takes back a block of the class.
func (v *Varied) Free(addr uint64, c Class) { v.slabs[c].Free(addr) }

// Stats returns the sums over all classes.
func (v *Varied) Stats() SlabStats {
	var t SlabStats
	for _, s := range v.slabs[1:] {
		u := s.Stats()
		t.Used, t.Free, t.Bytes = t.Used+u.Used, t.Free+u.Free, t.Bytes+u.Bytes
	}
	return t
}
