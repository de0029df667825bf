package finestore

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/btree"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/train"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Options configure an index. RowWords is required.
type Options struct {
	// RowWords is the size of a row's payload, in 8-byte words.
	RowWords int
	// KeysPerArray is how many keys an array may have; 0 chooses arrays of a KiB.
	KeysPerArray int
	// LoadFill is how many keys Load and Restore put into an array if they ascend, in percent; 0
	// means 100.
	LoadFill int
	// Family of the models; 0 means PLR.
	Family model.Family
	// Locks is the partition's table of shared locks; nil if none are ever taken.
	Locks index.SharedLocks
	// LeavesPerSubModel is the number of arrays of a sub-model when a generation is planned; 0
	// means 512.
	LeavesPerSubModel int
	// RetrainInterval is the least time between two trainings of a sub-model; 0 means 2 ms.
	RetrainInterval time.Duration
}

// Server is the data server's half of an index: it implements index.OrderedServer. The caller
// serialises mutators. Lookups, scans and Stats may run beside them.
type Server struct {
	a       *block.Arena
	lay     leaf.Layout // of arrays
	bins    leaf.Layout
	locks   index.SharedLocks
	root    uint64
	trainer *train.Trainer
	fill    int // keys that ascending keys put into an array

	// mu is held by mutators while they change something, and by lookups and scans.
	mu     sync.RWMutex
	arrays *btree.BTreeG[*array] // by low fence
	byAddr map[uint64]*array
	first  *array // always the same
	held   map[uint64]*index.Held
	helds  index.Helds
	due    []*array // that should be merged
	live   uint64
	scr    scratch

	rows      *block.Rows
	arraySlab *block.Slab
	binSlab   *block.Slab
	rootSlab  *block.Slab
	splits    uint64 // arrays that merges have made
	merges    uint64
	unlinks   uint64
	binSplits uint64

	atStep func(step string) // for tests, which read between two steps
}

func (s *Server) step(name string) {
	if s.atStep != nil {
		s.atStep(name)
	}
}

// array is what a server knows of an array beside its memory.
type array struct {
	low, addr uint64
	own       int // rows and placeholders of the array
	binned    int // those in its bins
	empty     int // bins that have none
	due       bool
	gone      bool // joined to another
}

func (a *array) before(b *array) bool { return a.low < b.low }

var (
	_ index.OrderedServer = (*Server)(nil)
	_ index.Maintainer    = (*Server)(nil)
)

// NewServer makes an empty index in the arena's region.
func NewServer(a *block.Arena, o Options) (*Server, error) {
	if o.LoadFill != 0 && (o.LoadFill < 50 || o.LoadFill > 100) {
		return nil, fmt.Errorf("finestore: Options.LoadFill %d is out of range", o.LoadFill)
	}
	published := a.NewSized()
	root, err := published.Alloc(model.RootWords * mem.WordBytes)
	if err != nil {
		return nil, full(err)
	}
	lay, err := leaf.NewLayout(model.IndexID(root), leaf.Frozen, o.RowWords, cmp.Or(o.KeysPerArray, leaf.AutoSlots(leaf.Frozen, o.RowWords)))
	if err != nil {
		return nil, err
	}
	s := &Server{
		a: a, lay: lay, bins: lay.Bins(), locks: o.Locks, root: root, fill: max(lay.Slots*cmp.Or(o.LoadFill, 100)/100, 1),
		arrays: btree.NewG(32, (*array).before), byAddr: map[uint64]*array{}, held: map[uint64]*index.Held{},
		rows: a.NewRows(lay.RowBlockWords * mem.WordBytes), arraySlab: a.NewSlab(int(lay.LeafBytes())), rootSlab: a.NewSlab(leaf.RootBlockWords * mem.WordBytes),
	}
	s.binSlab = a.NewSlab(int(s.bins.LeafBytes()))
	if s.locks == nil {
		s.locks = noLocks{}
	}
	addr, err := s.arraySlab.Alloc()
	if err != nil {
		return nil, full(err)
	}
	e := a.Create(addr, lay.LeafWords)
	e.Set(leaf.MetaWord, lay.Pack(leaf.Meta{Last: true, Newest: leaf.NoNewest}))
	s.commit(&e)
	s.first = &array{addr: addr}
	s.enrol(s.first)
	s.trainer, err = train.New(train.Options{
		Arena: a, Mem: published, Root: root, Tree: arrays{s}, Family: o.Family,
		LeavesPerSubModel: cmp.Or(o.LeavesPerSubModel, 512), RetrainInterval: cmp.Or(o.RetrainInterval, 2*time.Millisecond),
	})
	return s, err
}

// noLocks is the table of no shared locks.
type noLocks struct{}

func (noLocks) Empty() bool                            { return true }
func (noLocks) SharedByOther(uint64, index.Owner) bool { return false }
func (noLocks) Move(uint64, uint64)                    {}
func (noLocks) Copy(uint64, uint64)                    {}

// full turns block.ErrFull into index.ErrFull.
func full(err error) error {
	if errors.Is(err, block.ErrFull) {
		return fmt.Errorf("%w: %w", index.ErrFull, err)
	}
	return err
}

// Root is the address of the index's root block.
func (s *Server) Root() uint64 { return s.root }

// Maintain implements index.Maintainer: it merges arrays that are due, and trains models.
func (s *Server) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.Maintain(now, lock)
}

// MaintainAll implements index.Maintainer.
func (s *Server) MaintainAll(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainAll(now, lock)
}

// MaintainLazily implements index.Maintainer.
func (s *Server) MaintainLazily(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainLazily(now, lock)
}

// Behind implements index.Maintainer.
func (s *Server) Behind(lock sync.Locker) uint64 { return s.trainer.Behind(lock) }

func (s *Server) enrol(a *array) {
	s.arrays.ReplaceOrInsert(a)
	s.byAddr[a.addr] = a
}

func (s *Server) span(addr uint64) mem.Span { return s.a.Span(addr, s.lay.LeafWords) }

func (s *Server) binSpan(addr uint64) mem.Span { return s.a.Span(addr, s.bins.LeafWords) }

func (s *Server) rootSpan(addr uint64) mem.Span { return s.a.Span(addr, leaf.RootBlockWords) }

// commit publishes an edit of a block under a new version.
func (s *Server) commit(e *block.Edit) { e.Commit(block.Header(s.a.NextVersion())) }

// arrayOf returns the array that covers a key.
func (s *Server) arrayOf(key uint64) (at *array) {
	s.arrays.DescendLessOrEqual(&array{low: key}, func(a *array) bool {
		at = a
		return false
	})
	return at
}

// arrayAt is arrayOf with the address of the array that may cover the key, or any number.
func (s *Server) arrayAt(key, hint uint64) *array {
	if a := s.byAddr[hint]; a != nil && key >= a.low {
		if p := s.span(hint); key < p.Load(leaf.HighWord) || leaf.IsLast(p.Load(leaf.MetaWord)) {
			return a
		}
	}
	return s.arrayOf(key)
}

// place is where a key is, or where it would be.
type place struct {
	arr  *array
	slot int    // number of the array's keys below it
	own  bool   // the array has the key in that slot
	root uint64 // of the interval, 0 if there is none
	kid  int    // child of the root
	bin  uint64 // of the interval, 0 if there is none
	at   int    // slot in the bin, -1 if it is not there
	row  uint64 // address of its block, 0 if there is none
}

// find returns the place of a key.
func (s *Server) find(key, hint uint64) (p place) {
	p.arr, p.at = s.arrayAt(key, hint), -1
	a := s.span(p.arr.addr)
	n := leaf.CountOf(a.Load(leaf.MetaWord))
	lo, hi := 0, n
	for lo < hi {
		if m := (lo + hi) / 2; a.Load(s.lay.KeysAt+m) < key {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if p.slot = lo; lo < n && a.Load(s.lay.KeysAt+lo) == key {
		p.own, p.row = true, a.Load(s.lay.HeadsAt+lo)
		return p
	}
	to := leaf.Below(a.Load(s.lay.BelowAt + lo))
	switch {
	case to == 0:
		return p
	case to.IsRoot():
		p.root = to.Addr()
		p.kid, p.bin = leaf.ChildOf(s.rootSpan(p.root), key)
	default:
		p.bin = to.Addr()
	}
	b := s.binSpan(p.bin)
	for i := range leaf.CountOf(b.Load(leaf.MetaWord)) {
		if b.Load(s.bins.KeysAt+i) == key && b.Load(s.bins.HeadsAt+i) != 0 {
			p.at, p.row = i, b.Load(s.bins.HeadsAt+i)
			break
		}
	}
	return p
}

// rootAt returns a copy of a root.
func (s *Server) rootAt(addr uint64) leaf.Root {
	buf := make([]uint64, leaf.RootBlockWords)
	s.rootSpan(addr).CopyOut(buf)
	r, ok := s.lay.ViewRoot(buf)
	if !ok {
		panic(fmt.Sprintf("finestore: no root at %#x", addr))
	}
	return r
}

// gap is the address of the word that proves that a key is not there.
func (p *place) gap() uint64 {
	if p.bin != 0 {
		return leaf.GapAddr(p.bin)
	}
	return leaf.GapAddr(p.arr.addr)
}

// Stats implements index.Server.
func (s *Server) Stats() (st index.ServerStats) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st.Rows, st.Leaves = s.live, uint64(s.arrays.Len())
	st.Splits, st.Merges, st.Unlinks = s.splits, s.merges, s.unlinks
	st.RowBytes = s.rows.Stats().Bytes + s.arraySlab.Stats().Bytes + s.binSlab.Stats().Bytes + s.rootSlab.Stats().Bytes
	s.trainer.Stats(&st)
	st.IndexBytes = st.ModelBytes + st.TTBytes
	return st
}

// Shape counts what an index consists of.
type Shape struct {
	Arrays, Bins, Roots uint64
	Keys, Binned        uint64 // rows in arrays and in bins
	Merges, BinSplits   uint64 // so far
}

// Shape returns the present shape.
func (s *Server) Shape() (sh Shape) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.arrays.Ascend(func(a *array) bool {
		sh.Keys, sh.Binned = sh.Keys+uint64(a.own), sh.Binned+uint64(a.binned)
		return true
	})
	sh.Arrays, sh.Bins, sh.Roots = uint64(s.arrays.Len()), s.binSlab.Stats().Used, s.rootSlab.Stats().Used
	sh.Merges, sh.BinSplits = s.merges, s.binSplits
	return sh
}

// Expect implements index.Server: arrays need no room before they are there.
func (s *Server) Expect(uint64) {}

// Bury implements index.Server: deletions leave no traces.
func (s *Server) Bury(clock.Tick, int) (done int) { return 0 }
