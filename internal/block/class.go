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

// Varied allocates blocks of all size classes up to a largest one, for rows of
// one index, as [Rows] does for one size. It is safe for concurrent use.
type Varied struct {
	rows []*Rows // by class
}

// NewVaried returns an allocator of blocks up to the class of maxWords.
func (a *Arena) NewVaried(maxWords int) *Varied {
	v := &Varied{rows: make([]*Rows, ClassFor(maxWords)+1)}
	for c := range v.rows {
		if c > 0 {
			v.rows[c] = a.NewRows(int(Class(c).Bytes()))
		}
	}
	return v
}

// Max returns the largest class.
func (v *Varied) Max() Class { return Class(len(v.rows) - 1) }

// Alloc returns a block of the class, as Rows.Alloc does.
func (v *Varied) Alloc(c Class) (uint64, error) { return v.rows[c].Alloc() }

// AllocNear is Alloc, but before it takes new memory of the region it takes a
// free block of a larger class, if it is less than twice as large. It returns
// the block's class.
func (v *Varied) AllocNear(c Class) (addr uint64, got Class, err error) {
	if addr, ok := v.rows[c].allocOwn(); ok {
		return addr, c, nil
	}
	for got = c + 1; v.near(got, c); got++ {
		if addr, ok := v.rows[got].allocPartly(); ok {
			return addr, got, nil
		}
	}
	addr, err = v.Alloc(c)
	for got = c + 1; err != nil && v.near(got, c); got++ {
		if addr, ok := v.rows[got].allocOwn(); ok {
			return addr, got, nil
		}
	}
	return addr, c, err
}

// near reports whether class got is less than twice as large as c.
func (v *Varied) near(got, c Class) bool {
	return int(got) < len(v.rows) && got.Words() < 2*c.Words()
}

// Free takes back a block of the class.
func (v *Varied) Free(addr uint64, c Class) { v.rows[c].Free(addr) }

// Stats returns the sums over all classes.
func (v *Varied) Stats() SlabStats {
	var t SlabStats
	for _, s := range v.rows[1:] {
		u := s.Stats()
		t.Used, t.Free, t.Bytes = t.Used+u.Used, t.Free+u.Free, t.Bytes+u.Bytes
	}
	return t
}
