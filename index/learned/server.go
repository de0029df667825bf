package learned

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/stree"
	"drtmx/index/learned/xtree"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Inline says where rows are kept.
type Inline uint8

// Choices of Inline.
const (
	Auto Inline = iota // inline if small
	Yes
	No
)

// Family is the kind of sub-model trained.
type Family = model.Family

// Families: XStore's linear regression, and bounded-error piecewise linear
// models as in ROLEX.
const (
	RMI = model.RMI
	PLR = model.PLR
)

// Options configure the server half of an index. The zero value of each field
// but RowWords picks the default.
type Options struct {
	// RowWords is the payload of a row, in 8-byte words; of string keys, the most there can be.
	RowWords int
	// Strings has byte strings for keys, and rows of 0 to RowWords words, each in a block of its own.
	Strings bool
	// Inline says whether rows live in the leaves (GET in one round) or in blocks of their own (two).
	Inline Inline
	// SlotsPerLeaf is the capacity of a leaf; 0 chooses leaves of about a KiB.
	SlotsPerLeaf int
	// Family of the models; 0 means PLR.
	Family Family
	// Locks is the partition's table of shared locks; nil if none are ever taken.
	Locks index.SharedLocks
	// LeavesPerSubModel is the size of a sub-model when a generation is planned; 0 means 512.
	LeavesPerSubModel int
	// RetrainInterval is the least time between two trainings of a sub-model; 0 means 2 ms.
	RetrainInterval time.Duration
	// Quarantine is how long a freed leaf takes no rows of others; 0 means
	// index.Quarantine. It must be longer than a proof may be old when it is
	// validated. Tests that check proofs at once set it lower.
	Quarantine time.Duration
	// Clock measures the quarantine; nil means clock.Now.
	Clock clock.Source
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	fault := func(cond bool, field string, v any) {
		if cond {
			errs = append(errs, fmt.Errorf("learned: Options.%s %v is out of range", field, v))
		}
	}
	fault(o.RowWords < 0 || o.RowWords > xtree.MaxRowWords, "RowWords", o.RowWords)
	fault(o.Inline > No, "Inline", o.Inline)
	fault(o.Strings && o.Inline == Yes, "Inline", "with Strings")
	fault(o.SlotsPerLeaf < 0 || o.SlotsPerLeaf > xtree.MaxSlots, "SlotsPerLeaf", o.SlotsPerLeaf)
	fault(o.LeavesPerSubModel < 0 || o.LeavesPerSubModel > model.MaxLeaves/4, "LeavesPerSubModel", o.LeavesPerSubModel)
	fault(o.RetrainInterval < 0, "RetrainInterval", o.RetrainInterval)
	fault(o.Quarantine < 0, "Quarantine", o.Quarantine)
	if len(errs) > 0 {
		return o, errors.Join(errs...)
	}
	if o.Strings {
		o.Inline = No
	}
	if o.Inline == Auto {
		o.Inline = No
		if xtree.AutoInline(o.RowWords) {
			o.Inline = Yes
		}
	}
	if o.SlotsPerLeaf == 0 && o.Strings {
		o.SlotsPerLeaf = stree.DefaultSlots
	}
	if o.SlotsPerLeaf == 0 {
		o.SlotsPerLeaf = xtree.AutoSlots(o.RowWords, o.Inline == Yes)
	}
	if o.LeavesPerSubModel == 0 {
		o.LeavesPerSubModel = 512
	}
	if o.RetrainInterval == 0 {
		o.RetrainInterval = 2 * time.Millisecond
	}
	if o.Quarantine == 0 {
		o.Quarantine = index.Quarantine
	}
	return o, nil
}

// Server is the server half: it implements index.OrderedServer. Mutators are
// serialised by the caller, Get, Scan and Stats may run beside one of them,
// and one goroutine at a time may be in Maintain, which locks for itself what
// must not run beside a mutator.
type Server struct {
	*xtree.Tree
	str       *stree.Tree // of string keys; then Tree is nil
	a         *block.Arena
	o         Options
	root      uint64
	leafBytes uint64
	mem       *block.Sized // of published models

	t training
}

var _ index.OrderedServer = (*Server)(nil)

// NewServer makes an empty index in the arena's region.
func NewServer(a *block.Arena, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{a: a, o: o, mem: a.NewSized()}
	if s.root, err = s.mem.Alloc(rootWords * mem.WordBytes); err != nil {
		return nil, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	geometry, first := uint64(0), uint64(0)
	if o.Strings {
		geometry, first, err = s.makeStrings()
	} else {
		geometry, first, err = s.makeNative()
	}
	if err != nil {
		return nil, err
	}
	e := a.Create(s.root, rootWords)
	e.Set(idWord, tag(magicRoot, indexID(s.root)))
	e.Set(rootGeometry, uint64(o.RowWords)<<32|uint64(o.SlotsPerLeaf)<<16|geometry)
	e.Set(rootFirst, first)
	e.Commit(block.Header(a.NextVersion()))
	return s, nil
}

// makeNative makes the tree and the trainer of native keys.
func (s *Server) makeNative() (inline, first uint64, err error) {
	lay, err := xtree.NewLayout(indexID(s.root), s.o.RowWords, s.o.SlotsPerLeaf, s.o.Inline == Yes)
	if err != nil {
		return 0, 0, err
	}
	t, err := newTrainer[uint64](s)
	if err != nil {
		return 0, 0, err
	}
	s.Tree, err = xtree.New(s.a, xtree.Options{
		Layout: lay, Locks: s.o.Locks, Quarantine: s.o.Quarantine, Clock: s.o.Clock, Changed: t.changed,
	})
	if err != nil {
		return 0, 0, err
	}
	t.k = &nativeKeys{t: s.Tree, family: s.o.Family}
	s.t, s.leafBytes = t, lay.LeafBytes()
	if lay.Inline {
		inline = 1
	}
	return inline, s.First(), nil
}

// makeStrings makes the tree and the trainer of string keys.
func (s *Server) makeStrings() (inline, first uint64, err error) {
	lay, err := stree.NewLayout(indexID(s.root), s.o.RowWords, s.o.SlotsPerLeaf)
	if err != nil {
		return 0, 0, err
	}
	t, err := newTrainer[string](s)
	if err != nil {
		return 0, 0, err
	}
	if s.str, err = stree.New(s.a, stree.Options{Layout: lay, Locks: s.o.Locks, Changed: t.changed}); err != nil {
		return 0, 0, err
	}
	t.k = &stringKeys{t: s.str}
	s.t, s.leafBytes = t, lay.LeafBytes()
	return uint64(leaf.Strings), s.str.First(), nil
}

// Root is the address of the root block.
func (s *Server) Root() uint64 { return s.root }

// Get is index.Server's. It allocates the proofs; Lookup does not.
func (s *Server) Get(key index.Key, buf []uint64) index.GetResult {
	res := index.GetResult{Row: buf}
	s.Lookup(key, &res)
	return res
}

// Lookup is Get into a result whose memory is used again.
func (s *Server) Lookup(key index.Key, res *index.GetResult) {
	if s.str != nil {
		s.str.Get(key.Str, res)
		return
	}
	s.Tree.Get(key.Num, res)
}

// Scan is index.OrderedServer's.
func (s *Server) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	if s.str != nil {
		return s.str.Scan(lo.Str, hi.Str, limit, res, buf)
	}
	return s.Tree.Scan(lo.Num, hi.Num, limit, res, buf)
}

// LockWrite is index.Server's.
func (s *Server) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	switch {
	case s.str != nil && key.Num == 0:
		return s.str.LockWrite(o, key.Str, hint)
	case s.str != nil || key.Str != "":
		return nil, s.wrongKind(key)
	}
	return s.Tree.LockWrite(o, key.Num, hint)
}

// wrongKind is the error for a number where keys are strings, and the reverse.
func (s *Server) wrongKind(key index.Key) error {
	want := "a number"
	if s.str != nil {
		want = "a string"
	}
	return fmt.Errorf("%w: %v, want %s", index.ErrKey, key, want)
}

// Reserve is index.Server's: rows of one size always have their room.
func (s *Server) Reserve(held *index.Held, words int) error {
	if s.str != nil {
		return s.str.Reserve(held, words)
	}
	if want := s.Layout().RowWords; words != want {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, words, want)
	}
	return nil
}

// Publish is index.Server's.
func (s *Server) Publish(held *index.Held, row []uint64, h block.Header) {
	if s.str != nil {
		s.str.Publish(held, row, h)
		return
	}
	s.Tree.Publish(held, row, h)
}

// PublishDelete is index.Server's.
func (s *Server) PublishDelete(held *index.Held, h block.Header) {
	if s.str != nil {
		s.str.PublishDelete(held, h)
		return
	}
	s.Tree.PublishDelete(held, h)
}

// Release is index.Server's.
func (s *Server) Release(held *index.Held) {
	if s.str != nil {
		s.str.Release(held)
		return
	}
	s.Tree.Release(held)
}

// Load is index.Server's. Keys in ascending order load fastest and fill leaves.
func (s *Server) Load(key index.Key, row []uint64, h block.Header) error {
	switch {
	case s.str != nil && key.Num == 0:
		return s.str.Load(key.Str, row, h)
	case s.str != nil || key.Str != "":
		return s.wrongKind(key)
	}
	return s.Tree.Load(key.Num, row, h)
}

// Stats is a snapshot.
func (s *Server) Stats() index.ServerStats {
	var st index.ServerStats
	if s.str != nil {
		s.str.Stats(&st)
	} else {
		s.Tree.Stats(&st)
	}
	s.t.stats(&st)
	st.IndexBytes = st.InnerBytes + st.ModelBytes + st.TTBytes
	return st
}

// Check verifies the tree and what is published; see index.Server.
func (s *Server) Check() error {
	var err error
	if s.str != nil {
		err = s.str.Check()
	} else {
		err = s.Tree.Check()
	}
	if err != nil {
		return err
	}
	return s.t.check()
}

// noLock is for callers whose mutators are kept out otherwise.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

var _ sync.Locker = noLock{}

// Latched is a Server for several goroutines: a latch stands in for the
// executor that otherwise serialises mutators. Get and Scan take no latch.
type Latched struct {
	*Server
	mu sync.Mutex
}

var _ index.OrderedServer = (*Latched)(nil)

// Latch wraps a server; it is used through the wrapper from then on.
func Latch(s *Server) *Latched { return &Latched{Server: s} }

// LockWrite is Server.LockWrite under the latch. Held.Addr may change until
// the lock ends, under the latch too.
func (l *Latched) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Server.LockWrite(o, key, hint)
}

// Publish is Server.Publish under the latch.
func (l *Latched) Publish(held *index.Held, row []uint64, h block.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Server.Publish(held, row, h)
}

// Reserve is Server.Reserve under the latch.
func (l *Latched) Reserve(held *index.Held, words int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Server.Reserve(held, words)
}

// PublishDelete is Server.PublishDelete under the latch.
func (l *Latched) PublishDelete(held *index.Held, h block.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Server.PublishDelete(held, h)
}

// Release is Server.Release under the latch.
func (l *Latched) Release(held *index.Held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Server.Release(held)
}

// Load is Server.Load under the latch.
func (l *Latched) Load(key index.Key, row []uint64, h block.Header) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Server.Load(key, row, h)
}

// Maintain is Server.Maintain with the latch for a lock.
func (l *Latched) Maintain(now time.Duration) bool { return l.Server.Maintain(now, &l.mu) }
