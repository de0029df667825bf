package learned

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/train"
	"drtmx/index/learned/tree"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Inline says whether rows are in the leaves.
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

// ParseFamily parses "plr" or "rmi", in upper or lower case. The empty string is the
// default family.
func ParseFamily(s string) (Family, error) {
	for _, f := range []Family{PLR, RMI} {
		if s == "" || strings.EqualFold(s, f.String()) {
			return f, nil
		}
	}
	return 0, fmt.Errorf("learned: family of models %q, want plr or rmi", s)
}

// Options configure the server half of an index. The zero value of each field
// but RowWords picks the default.
type Options struct {
	// RowWords is the size of a row's payload, in 8-byte words; with string keys it
	// is the maximum.
	RowWords int
	// Strings says that keys are byte strings. Rows then have 0 to RowWords words,
	// each in its own block.
	Strings bool
	// Inline says whether rows are in the leaves, which makes a GET one round, or in
	// their own blocks, which makes it two.
	Inline Inline
	// SlotsPerLeaf is the capacity of a leaf; 0 chooses leaves of about a KiB.
	SlotsPerLeaf int
	// LoadFill is how many of a leaf's slots Load and Restore fill with ascending keys, in
	// percent; 0 means 100.
	LoadFill int
	// Family of the models; 0 means PLR.
	Family Family
	// Locks is the partition's table of shared locks; nil if none are ever taken.
	Locks index.SharedLocks
	// LeavesPerSubModel is the size of a sub-model when a generation is planned; 0 means 512.
	LeavesPerSubModel int
	// RetrainInterval is the least time between two trainings of a sub-model; 0 means 2 ms.
	RetrainInterval time.Duration
	// Quarantine is how long a freed leaf takes no rows moved from other leaves; 0
	// means index.Quarantine. It must be longer than the maximum age of a proof at
	// its validation. Tests that check proofs at once set it lower.
	Quarantine time.Duration
	// Clock measures the quarantine; nil means clock.Now.
	Clock clock.Source
	// PublishInner publishes the inner nodes too, for clients whose cache keeps those instead
	// of models. It has no effect with Strings.
	PublishInner bool
}

// kind returns the kind of layout that the options select.
func (o *Options) kind() leaf.Kind {
	switch {
	case o.Strings:
		return leaf.Strings
	case o.Inline == Yes:
		return leaf.Inline
	case o.Inline == No:
		return leaf.Apart
	}
	return leaf.AutoKind(o.RowWords)
}

func (o Options) withDefaults() (Options, error) {
	var errs []error
	fault := func(cond bool, field string, v any) {
		if cond {
			errs = append(errs, fmt.Errorf("learned: Options.%s %v is out of range", field, v))
		}
	}
	fault(o.RowWords < 0 || o.RowWords > leaf.MaxRowWords, "RowWords", o.RowWords)
	fault(o.Inline > No, "Inline", o.Inline)
	fault(o.Strings && o.Inline == Yes, "Inline", "with Strings")
	fault(o.SlotsPerLeaf < 0 || o.SlotsPerLeaf > leaf.MaxSlots, "SlotsPerLeaf", o.SlotsPerLeaf)
	fault(o.LoadFill != 0 && (o.LoadFill < 50 || o.LoadFill > 100), "LoadFill", o.LoadFill)
	fault(o.LeavesPerSubModel < 0 || o.LeavesPerSubModel > model.MaxLeaves/4, "LeavesPerSubModel", o.LeavesPerSubModel)
	fault(o.RetrainInterval < 0, "RetrainInterval", o.RetrainInterval)
	fault(o.Quarantine < 0, "Quarantine", o.Quarantine)
	if len(errs) > 0 {
		return o, errors.Join(errs...)
	}
	if o.SlotsPerLeaf == 0 {
		o.SlotsPerLeaf = leaf.AutoSlots(o.kind(), o.RowWords)
	}
	if o.LoadFill == 0 {
		o.LoadFill = 100
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

// Server is the server half: it implements index.OrderedServer. The caller serialises
// mutators. Get, Scan and Stats may run concurrently with one of them. One goroutine
// at a time may be in Maintain, which takes the caller's lock for the sections that
// must exclude mutators.
type Server struct {
	*tree.Tree
	root    uint64
	trainer *train.Trainer
}

var (
	_ index.OrderedServer = (*Server)(nil)
	_ index.Maintainer    = (*Server)(nil)
)

// NewServer makes an empty index in the arena's region.
func NewServer(a *block.Arena, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s, published := &Server{}, a.NewSized()
	if s.root, err = published.Alloc(model.RootWords * mem.WordBytes); err != nil {
		return nil, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	lay, err := leaf.NewLayout(model.IndexID(s.root), o.kind(), o.RowWords, o.SlotsPerLeaf)
	if err != nil {
		return nil, err
	}
	changed := func(low, high index.Key, bounded bool, leaf uint64, rising bool) {
		s.trainer.Changed(low, high, bounded, leaf, rising)
	}
	if s.Tree, err = tree.New(a, tree.Options{
		Layout: lay, Locks: o.Locks, Quarantine: o.Quarantine, Clock: o.Clock, Mirror: o.PublishInner, Changed: changed,
		LoadSlots: (lay.Slots*o.LoadFill + 50) / 100,
	}); err != nil {
		return nil, err
	}
	s.trainer, err = train.New(train.Options{
		Arena: a, Mem: published, Root: s.root, Tree: s.Tree,
		Family: o.Family, LeavesPerSubModel: o.LeavesPerSubModel, RetrainInterval: o.RetrainInterval,
	})
	return s, err
}

// Root is the address of the root block.
func (s *Server) Root() uint64 { return s.root }

// Get implements index.Server. It allocates the proofs; Lookup does not.
func (s *Server) Get(key index.Key, buf []uint64) index.GetResult {
	res := index.GetResult{Row: buf}
	s.Lookup(key, &res)
	return res
}

// Maintain does one bounded unit of background work, and reports whether there
// was any: see train.Trainer.
func (s *Server) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.Maintain(now, lock)
}

// MaintainAll is Maintain, but trains also sub-models that were trained just before.
func (s *Server) MaintainAll(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainAll(now, lock)
}

// MaintainLazily is Maintain, but sub-models from which readers lack much come first, and
// those from which they lack little rest for longer.
func (s *Server) MaintainLazily(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainLazily(now, lock)
}

// Behind returns how many splits readers lack from the models, if it is many.
func (s *Server) Behind(lock sync.Locker) uint64 { return s.trainer.Behind(lock) }

// Quality returns how well the published models find the keys on which they were
// trained, and how many generations there were.
func (s *Server) Quality() (q model.Quality, generations uint64) { return s.trainer.Quality() }

// Stats returns a snapshot of the statistics.
func (s *Server) Stats() index.ServerStats {
	var st index.ServerStats
	s.Tree.Stats(&st)
	s.trainer.Stats(&st)
	st.IndexBytes = st.InnerBytes + st.ModelBytes + st.TTBytes
	return st
}

// Check verifies the tree and everything published; see index.Server.
func (s *Server) Check() error {
	if err := s.Tree.Check(); err != nil {
		return err
	}
	return s.trainer.Check()
}
