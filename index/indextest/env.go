package indextest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// Engine is an index engine as the suite sees it.
type Engine struct {
	// NewServer makes an empty server half of rows of rowWords payload words
	// in e.Arena, with e.Locks as its table of shared locks.
	NewServer func(e *Env, rowWords int) (index.Server, error)
	// NewClient makes a client half for the index at root, in region e.RKey.
	NewClient func(e *Env, root uint64, rowWords int, inOrder bool) (index.Client, error)
	// Tick, if set, is called by the mutator between operations: background
	// work such as retraining, and its publication, goes here.
	Tick func(s index.Server)
	// Strings says that the engine has string keys and rows of up to rowWords words.
	Strings bool
	// Coarse says that rows have no headers of their own: one word locks all rows of a leaf
	// for one owner, and proves all of them and all gaps between them. There are no
	// commit sequence numbers and no older versions. The leaves may be in a region of
	// their own; see Env.AddLeaves.
	Coarse bool
}

// versionOf returns the version of a row that was found. ok is false if neither the row nor its
// header tells.
func (eng *Engine) versionOf(row []uint64, h block.Header) (csn block.CSN, ok bool) {
	switch {
	case !eng.Coarse:
		return h.CSN(), true
	case len(row) == 0:
		return 0, false
	}
	return block.CSN(row[0]), true
}

// isVersion reports whether a row that was found may be that of a commit.
func (eng *Engine) isVersion(row []uint64, h block.Header, csn block.CSN) bool {
	got, ok := eng.versionOf(row, h)
	return !ok || got == csn && (eng.Coarse || h == block.Present(csn))
}

// Variant is one kind of fabric and memory to run an engine on.
type Variant struct {
	Name string
	// Faults of the fabric. With Scramble, READs are not in order.
	Faults inproc.Faults
	// Checksums keeps checksums in the arena. It must be set if READs are not in order.
	Checksums bool
	// Provider carries the verbs instead of an in-process network, which is
	// what nil stands for. It has no faults but its own.
	Provider rdma.Provider
	// Brief, if not 0, divides the length of runs against the model.
	Brief int
}

// Variants are the fabrics every engine is run on: in-process ones, or else
// the RDMA device that DRTMX_VERBS_DEVICE names, in binaries with the tag verbs.
func Variants() []Variant {
	if v := devices(); v != nil {
		return v
	}
	return []Variant{
		{Name: "in-order"},
		{Name: "in-order-paused", Faults: inproc.Faults{Pause: 0.05, Reorder: 0.5, Defer: 0.3}},
		{Name: "breaking", Faults: inproc.Faults{DropVerb: 0.005, Pause: 0.01, Defer: 0.5}},
		{Name: "scrambled", Faults: inproc.Faults{Scramble: 1, Pause: 0.1, Reorder: 0.5, Defer: 0.3}, Checksums: true},
	}
}

func (v *Variant) inOrder() bool {
	return v.Faults.Scramble == 0 && (v.Provider == nil || !rdma.Unordered(v.Provider))
}

// Env is the memory and the fabric that one index runs on.
type Env struct {
	Arena   *block.Arena
	Locks   *SharedLocks
	RKey    rdma.RKey
	InOrder bool
	Seed    uint64
	// Leaves is the region of the leaves, and LeavesKey its key, if AddLeaves was called.
	Leaves    *mem.Region
	LeavesKey rdma.RKey

	most uint64 // bytes of a region
	net  rdma.Provider
	addr string
	ep   rdma.Endpoint

	idle atomic.Int64 // ns by which the arena's clock is ahead
}

// NewEnv makes a region of at most maxBytes (0: plenty) and a fabric for it.
func NewEnv(v Variant, seed uint64, maxBytes uint64) (*Env, error) {
	if maxBytes == 0 {
		maxBytes = 1 << 30
	}
	r, err := mem.New(mem.Options{MaxBytes: maxBytes, SegmentBytes: min(1<<20, maxBytes)})
	if err != nil {
		return nil, err
	}
	e := &Env{
		Locks: NewSharedLocks(), InOrder: v.inOrder(), Seed: seed, net: v.Provider, most: maxBytes,
	}
	e.Arena = block.NewArena(r, block.ArenaOptions{
		Checksums: v.Checksums, Tick: 1,
		Clock: func() time.Duration { return clock.Now() + time.Duration(e.idle.Load()) },
	})
	at := ""
	if e.net == nil {
		e.net, at = inproc.New(inproc.Options{Faults: v.Faults, Seed: seed}), "index"
	}
	if !e.InOrder && !v.Checksums {
		return nil, fmt.Errorf("indextest: variant %s needs checksums", v.Name)
	}
	if e.ep, err = e.net.Listen(at, rdma.ListenOptions{}); err != nil {
		return nil, err
	}
	e.addr = e.ep.Addr()
	e.RKey, err = e.ep.Register(r, rdma.AccessRead)
	return e, err
}

// AddLeaves makes a region for the leaves of an index, whose words prove its answers.
func (e *Env) AddLeaves() (err error) {
	if e.Leaves, err = mem.New(mem.Options{MaxBytes: e.most, SegmentBytes: min(1<<20, e.most)}); err != nil {
		return err
	}
	e.LeavesKey, err = e.ep.Register(e.Leaves, rdma.AccessRead)
	return err
}

// word is a word that proves something.
func (e *Env) word(addr uint64) uint64 {
	if e.Leaves != nil {
		_, addr = index.RegionOf(addr)
		return e.Leaves.MustSpan(addr, mem.WordBytes).Load(0)
	}
	return e.Arena.Span(addr, 1).Load(0)
}

// proofKey is the key of the region of such words.
func (e *Env) proofKey() rdma.RKey {
	if e.Leaves != nil {
		return e.LeavesKey
	}
	return e.RKey
}

// used is the memory in use.
func (e *Env) used() uint64 {
	if e.Leaves != nil {
		return e.Arena.Used() + e.Leaves.Size()
	}
	return e.Arena.Used()
}

// Idle lets time pass for freed memory. Nobody may read the index meanwhile.
func (e *Env) Idle(d time.Duration) {
	e.idle.Add(int64(d))
	e.Arena.Tidy()
}

// Close ends the fabric.
func (e *Env) Close() { _ = e.ep.Close() }

// Dial connects to the region.
func (e *Env) Dial() (rdma.Conn, error) { return e.net.Dial(context.Background(), e.addr) }

// Seed is the seed of this run: see testseed.Of.
func Seed(tb testing.TB) uint64 {
	tb.Helper()
	return testseed.Of(tb)
}

// newRand is a stream of the run for one purpose.
func newRand(seed uint64, name string) *rng.Stream { return rng.New(seed).Split(name) }

// SharedLocks is a table of shared locks: the naive index.SharedLocks. It is
// safe for concurrent use.
type SharedLocks struct {
	mu sync.Mutex
	m  map[uint64]map[index.Owner]bool
}

var _ index.SharedLocks = (*SharedLocks)(nil)

// NewSharedLocks makes an empty table.
func NewSharedLocks() *SharedLocks {
	return &SharedLocks{m: map[uint64]map[index.Owner]bool{}}
}

// Share takes a shared lock on the word at addr for o.
func (l *SharedLocks) Share(addr uint64, o index.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m[addr] == nil {
		l.m[addr] = map[index.Owner]bool{}
	}
	l.m[addr][o] = true
}

// Drop gives up all locks of o.
func (l *SharedLocks) Drop(o index.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for addr, owners := range l.m {
		if delete(owners, o); len(owners) == 0 {
			delete(l.m, addr)
		}
	}
}

// Empty implements index.SharedLocks.
func (l *SharedLocks) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.m) == 0
}

// SharedByOther implements index.SharedLocks.
func (l *SharedLocks) SharedByOther(addr uint64, o index.Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for owner := range l.m[addr] {
		if owner != o {
			return true
		}
	}
	return false
}

// Move implements index.SharedLocks.
func (l *SharedLocks) Move(from, to uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copyLocked(from, to)
	delete(l.m, from)
}

// Copy implements index.SharedLocks.
func (l *SharedLocks) Copy(from, to uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copyLocked(from, to)
}

func (l *SharedLocks) copyLocked(from, to uint64) {
	for o := range l.m[from] {
		if l.m[to] == nil {
			l.m[to] = map[index.Owner]bool{}
		}
		l.m[to][o] = true
	}
}
