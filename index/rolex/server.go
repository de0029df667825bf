package rolex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/train"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// ErrWriters reports an index that has as many writers as it may have.
var ErrWriters = errors.New("rolex: too many writers")

// extentLeaves is how many leaves a writer gets at a time.
const extentLeaves = 64

// WriterLease is how long a writer may hold a leaf that another waits for, by default.
const WriterLease = 100 * time.Millisecond

// ServerOptions configure the data server's half of an index.
type ServerOptions struct {
	Options
	// Leaves is an empty region, for slots and leaves. Writers are granted it.
	Leaves *mem.Region
	// Arena has the models. Nobody but the server writes its region.
	Arena *block.Arena
	// Revoke takes a peer's access: rdma.Endpoint's Revoke. It must not return while anything
	// of the peer can take effect.
	Revoke func(rdma.PeerID)
	// Settled, if set, is called for each writer that has been settled, with the number of the
	// transaction that Settle returns. The writer's number is free then. It is called with the
	// server's lock held, and must not call methods of the server.
	Settled func(o Owner, committed uint64)
	// Region is the number of that region in proofs; see index.Proof.
	Region uint16
	// Locks are the partition's shared locks; nil means that there are none. LockWrite and the
	// locked sections of Maintain use them. They keep no writer out.
	Locks index.SharedLocks
	// Clock measures leases; nil means clock.Now.
	Clock clock.Source
	// Swap, if set, changes the word at an address of Leaves from one value to another, and
	// reports whether the first was there. It must be set if the atomics of writers are not
	// atomic with respect to the server's processor: it goes through their device, then.
	Swap func(addr, from, to uint64) bool
	// Family of the models; 0 means PLR.
	Family model.Family
	// LeavesPerSubModel is the size of a sub-model when a generation is planned; 0 means 512.
	LeavesPerSubModel int
	// Lease is how long a writer may hold a leaf that others wait for; 0 means WriterLease.
	Lease time.Duration
	// RetrainInterval is the least time between two trainings of a sub-model; 0 means 2 ms.
	RetrainInterval time.Duration
}

// Server is the data server's half of an index: it implements index.OrderedServer. Its methods
// are safe for concurrent use, and run beside writers except for Load, Rows and Check.
type Server struct {
	l       *layout
	o       ServerOptions
	region  *mem.Region // of the leaves
	now     clock.Source
	root    uint64
	trainer *train.Trainer

	mu      sync.Mutex
	first   uint64
	last    uint64 // the leaf that Load filled last
	end     uint64 // of the leaves in use
	spares  []uint64
	writers map[Owner]*record
	written bool    // there have been some
	unused  []Owner // numbers that no header has
	known   *btree.BTreeG[knownLeaf]
	leaves  atomic.Uint64       // in known
	holds   map[uint64]*holding // leaves that the server's own transactions hold
	helds   index.Helds
	scratch image
	given   []givenLeaf   // to writers, which may have made them part of the index
	polled  int           // place in given
	swept   uint64        // leaves up to this low fence were looked at
	unlinks atomic.Uint64 // of empty leaves
}

// record is what a server knows of a writer.
type record struct {
	peer    rdma.PeerID
	settled bool
	intent  uint64 // the transaction whose intent was complete, once it is settled

	// A leaf that others wait for, what its header was, and since when.
	awaited uint64
	header  Header
	since   time.Duration
}

// NewServer makes an empty index.
func NewServer(o ServerOptions) (*Server, error) {
	published := o.Arena.NewSized()
	root, err := published.Alloc(model.RootWords * mem.WordBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", index.ErrFull, err)
	}
	l, err := newLayout(model.IndexID(root), o.Options)
	if err != nil {
		return nil, err
	}
	s := &Server{
		l: l, o: o, region: o.Leaves, now: o.Clock.Or(clock.Now), root: root, end: l.leavesAt, writers: map[Owner]*record{}, holds: map[uint64]*holding{},
		known: btree.NewG(32, knownLeaf.before),
	}
	s.scratch = image{l, make([]uint64, l.LeafWords)}
	for o := l.writers; o >= 1; o-- {
		s.unused = append(s.unused, Owner(o))
	}
	addr, err := s.newLeaf()
	if err != nil {
		return nil, err
	}
	m := image{l, make([]uint64, l.LeafWords)}
	m.blank(0, 0, true, 0)
	s.put(m, addr, s.header(addr).next())
	s.first, s.last = addr, addr
	s.known.ReplaceOrInsert(knownLeaf{0, addr})
	s.leaves.Store(1)
	s.control().Store(fenceWord, 1)
	to := train.Options{
		Arena: o.Arena, Mem: published, Root: root, Tree: leaves{s}, Family: o.Family,
		LeavesPerSubModel: cmp.Or(o.LeavesPerSubModel, 512), RetrainInterval: cmp.Or(o.RetrainInterval, 2*time.Millisecond),
	}
	s.trainer, err = train.New(to)
	return s, err
}

// Root is the address of the index's root block, in the arena's region.
func (s *Server) Root() uint64 { return s.root }

// Maintain implements index.Maintainer.
func (s *Server) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.Maintain(now, s.within(lock))
}

// MaintainAll implements index.Maintainer.
func (s *Server) MaintainAll(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainAll(now, s.within(lock))
}

// MaintainLazily implements index.Maintainer.
func (s *Server) MaintainLazily(now time.Duration, lock sync.Locker) (worked bool) {
	return s.trainer.MaintainLazily(now, s.within(lock))
}

// within returns a lock that keeps out what lock does, among others who uses the shared locks,
// and the methods of the server.
func (s *Server) within(lock sync.Locker) sync.Locker {
	if lock == nil {
		return &s.mu
	}
	return locks{lock, &s.mu}
}

// locks are taken in their order.
type locks [2]sync.Locker

func (l locks) Lock() {
	l[0].Lock()
	l[1].Lock()
}

func (l locks) Unlock() {
	l[1].Unlock()
	l[0].Unlock()
}

// Behind implements index.Maintainer.
func (s *Server) Behind(sync.Locker) uint64 { return s.trainer.Behind(&s.mu) }

func (s *Server) control() mem.Span { return s.region.MustSpan(controlAddr, mem.LineBytes) }

// span is the memory of a leaf.
func (s *Server) span(addr uint64) mem.Span { return s.region.MustSpan(addr, s.l.LeafBytes()) }

// leafAt returns the memory of a leaf; ok is false if none can be at that address, which may
// be a writer's.
func (s *Server) leafAt(addr uint64) (p mem.Span, ok bool) {
	if !s.l.mayBe(addr) || addr >= s.end {
		return p, false
	}
	return s.region.Span(addr, s.l.LeafBytes())
}

func (s *Server) header(addr uint64) Header { return Header(s.span(addr).Load(block.HeaderWord)) }

// newLeaf returns a dead leaf.
func (s *Server) newLeaf() (uint64, error) {
	for n := len(s.spares); n > 0; n-- {
		addr := s.spares[n-1]
		s.spares = s.spares[:n-1]
		if s.holds[addr] == nil { // else a hostile writer has linked it, and a transaction holds it
			return addr, nil
		}
	}
	for {
		for s.region.Size() < s.end+s.l.LeafBytes() {
			if _, err := s.region.Grow(); err != nil {
				return 0, fmt.Errorf("%w: %w", index.ErrFull, err)
			}
		}
		addr := s.end
		s.end += s.l.LeafBytes()
		p, ok := s.leafAt(addr)
		if !ok {
			continue // it would lie in two segments
		}
		p.Store(block.HeaderWord, uint64(dead(0)))
		return addr, nil
	}
}

// put writes a leaf that no writer knows.
func (s *Server) put(m image, addr uint64, h Header) {
	m.seal(addr, h)
	p := s.span(addr)
	p.Slice(1, s.l.LeafWords-1).CopyIn(m.w[1:])
	p.Store(block.HeaderWord, uint64(h))
}

// Load implements index.Server: it adds a row. The row gets no header. It fails with index.ErrLocked
// if a writer or a transaction of the data server holds the leaf, or shares it. As long as there have
// been no writers, and no leaf is held or shared, it needs no locks.
func (s *Server) Load(at index.Key, row []uint64, h block.Header) error {
	key := at.Num
	if len(row) != s.l.RowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(row), s.l.RowWords)
	}
	s.mu.Lock()
	if s.written || len(s.holds) > 0 || s.o.Locks != nil && !s.o.Locks.Empty() {
		s.mu.Unlock()
		return s.Restore(at, row, h)
	}
	defer s.mu.Unlock()
	m := image{s.l, make([]uint64, s.l.LeafWords)}
	addr := s.last
	if s.span(addr).CopyOut(m.w); key < m.low() {
		addr = s.first
		s.span(addr).CopyOut(m.w)
	}
	for m.above(key) {
		addr = m.right()
		s.span(addr).CopyOut(m.w)
	}
	if !m.put(key, row) {
		to, err := s.newLeaf()
		if err != nil {
			return err
		}
		right := image{s.l, make([]uint64, s.l.LeafWords)}
		m.split(right, to, key)
		if right.covers(key) {
			right.put(key, row)
		} else {
			m.put(key, row)
		}
		s.put(right, to, s.header(to).next())
		s.last = to
		s.put(m, addr, m.header().next())
		s.learn(right, to)
		return nil
	}
	s.put(m, addr, m.header().next())
	return nil
}

// Open makes a peer a writer, or tells one that is a writer already the present fence. The caller
// grants it WRITE and atomics on the region.
func (s *Server) Open(peer rdma.PeerID, key rdma.RKey) (Opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, w := range s.writers {
		if w.peer == peer && !w.settled {
			return s.opened(o, key), nil
		}
	}
	n := len(s.unused)
	if n == 0 {
		return Opened{}, fmt.Errorf("%w: %d", ErrWriters, s.l.writers)
	}
	o := s.unused[n-1]
	s.unused, s.written = s.unused[:n-1], true
	s.region.MustSpan(s.l.slotAddr(o), intentHeadWords*mem.WordBytes).Zero() // there is no complete intent then
	s.writers[o] = &record{peer: peer}
	return s.opened(o, key), nil
}

func (s *Server) opened(o Owner, key rdma.RKey) Opened {
	return Opened{ID: s.l.ID, Owner: o, Key: key, Fence: s.control().Load(fenceWord), First: s.first}
}

// Extend gives a writer of a peer leaves for splits.
func (s *Server) Extend(o Owner, peer rdma.PeerID) ([]Spare, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writers[o]
	if w == nil || w.settled || w.peer != peer {
		return nil, fmt.Errorf("%w: writer %d", ErrFenced, o)
	}
	var spares []Spare
	for range extentLeaves {
		addr, err := s.newLeaf()
		if err != nil && len(spares) == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		s.given = append(s.given, givenLeaf{addr, w})
		spares = append(spares, Spare{addr, s.header(addr)})
	}
	return spares, nil
}

// Fence makes all writers open the index again before their next transaction. One that has its locks
// already may still commit: what it locks has not changed since.
func (s *Server) Fence() {
	c := s.control()
	c.Store(fenceWord, c.Load(fenceWord)+1)
}

// Busy says whether transactions wait at the data server for their turn. Writers then send theirs to
// the server, too, so that nobody waits for ever: they would not see who came first.
func (s *Server) Busy(busy bool) {
	word := uint64(0)
	if busy {
		word = 1
	}
	s.control().Store(busyWord, word)
}

// Options returns what writers must know of the layout.
func (s *Server) Options() Options {
	o := s.o.Options
	o.SlotsPerLeaf, o.Writers = s.l.Slots, s.l.writers
	return o
}

// Report tells that somebody waits for a leaf whose header is as given. It settles the leaf's
// owner if others have waited for the same lock for WriterLease, and reports whether it did.
// Nothing is proved by that time: the owner may be alive, and then finds its access revoked.
func (s *Server) Report(addr uint64, h Header) (settled bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report(addr, h), nil
}

func (s *Server) report(addr uint64, h Header) (settled bool) {
	if p, ok := s.leafAt(addr); !ok || !h.Held() || Header(p.Load(block.HeaderWord)) != h {
		return false // it is not held any more
	}
	w, now := s.writers[h.Owner()], s.now()
	switch {
	case w == nil || w.settled:
		return false
	case w.awaited == 0 || s.header(w.awaited) != w.header:
		w.awaited, w.header, w.since = addr, h, now
		return false
	case now-w.since < cmp.Or(s.o.Lease, WriterLease):
		return false
	}
	s.settle(h.Owner(), w)
	return true
}

// Gone settles the writers of a peer that has disconnected.
func (s *Server) Gone(peer rdma.PeerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o, w := range s.writers {
		if w.peer == peer && !w.settled {
			s.settle(o, w)
		}
	}
}

// Settle ends a writer, and completes or undoes what it has begun. It returns the number of the
// transaction whose intent is complete, 0 if there is none: an intent that was begun has
// overwritten the one before. A transaction whose outcome its writer does not know has committed
// if it is that one, and has not happened otherwise. Forget makes the writer's number free.
//
// The writer must be of the peer: others may have got its number since.
func (s *Server) Settle(o Owner, peer rdma.PeerID) (committed uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writers[o]
	if w == nil || w.peer != peer {
		return 0, fmt.Errorf("%w: writer %d", ErrFenced, o)
	}
	if !w.settled {
		s.settle(o, w)
	}
	return w.intent, nil
}

func (s *Server) settle(o Owner, w *record) {
	s.o.Revoke(w.peer) // first: from here on nothing of the writer takes effect
	slot := make([]uint64, slotWords)
	s.region.MustSpan(s.l.slotAddr(o), slotBytes).CopyOut(slot)
	if seq, leaves, err := decodeIntent(s.l.slotAddr(o), slot); err == nil {
		w.intent = seq
		for i := range leaves {
			s.redo(o, w, &leaves[i])
		}
	}
	s.release(o)
	s.reclaim(w)
	if w.settled = true; s.o.Settled != nil {
		s.o.Settled(o, w.intent)
		s.forget(o)
	}
}

// redo applies one leaf of a complete intent, unless that was done.
func (s *Server) redo(o Owner, w *record, l *intended) {
	p, ok := s.leafAt(l.addr)
	if !ok {
		return
	}
	// A hostile writer may have intended anything: it may change only what it holds.
	own := l.from.Held() && l.from.Owner() == o
	if !own && !(l.from.Dead() && !l.from.Held() && s.gave(w, l.addr)) || l.to.Held() || l.to.Dead() || l.to.Version() != l.from.Version()+1 {
		return
	}
	if Header(p.Load(block.HeaderWord)) != l.from {
		return
	}
	l.each(func(first int, words []uint64) {
		if first >= block.ChecksumWord && first+len(words) <= s.l.LeafWords {
			p.Slice(first, len(words)).CopyIn(words)
		}
	})
	s.swap(l.addr, l.from, l.to)
}

// swap changes the header of a leaf, and reports whether it was as expected.
func (s *Server) swap(addr uint64, from, to Header) bool {
	if s.o.Swap != nil {
		return s.o.Swap(addr, uint64(from), uint64(to))
	}
	return s.span(addr).CompareAndSwap(block.HeaderWord, uint64(from), uint64(to))
}

// release undoes the locks of a writer whose leaves are as they were.
func (s *Server) release(o Owner) {
	for addr := s.l.leavesAt; addr < s.end; addr += s.l.LeafBytes() {
		p, ok := s.leafAt(addr)
		if !ok {
			continue
		}
		if h := Header(p.Load(block.HeaderWord)); h.Held() && h.Owner() == o {
			s.swap(addr, h, h.release())
		}
	}
}

// reclaim takes back the leaves that a writer has not used.
func (s *Server) reclaim(w *record) {
	s.given = slices.DeleteFunc(s.given, func(g givenLeaf) bool {
		if g.to != w {
			return false
		}
		if s.header(g.addr).Dead() {
			s.spares = append(s.spares, g.addr)
			return true
		}
		return s.discover(g.addr)
	})
	s.polled = 0
}

// gave reports whether a writer has a leaf that was not part of the index when it was last
// looked at.
func (s *Server) gave(w *record, addr uint64) bool {
	return slices.Contains(s.given, givenLeaf{addr, w})
}

// Forget makes the number of a settled writer free for another.
func (s *Server) Forget(o Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.writers[o]; w != nil && w.settled {
		s.forget(o)
	}
}

func (s *Server) forget(o Owner) {
	delete(s.writers, o)
	s.unused = append(s.unused, o)
}

// walk calls f for the leaves from left to right. Writers may have written anything: walk
// ends with an error after as many steps as there are leaves. No writer may be at work.
func (s *Server) walk(f func(addr uint64, m image) error) error {
	low, addr := uint64(0), s.first
	for steps := (s.end - s.l.leavesAt) / s.l.LeafBytes(); ; steps-- {
		p, ok := s.leafAt(addr)
		if steps == 0 || !ok {
			return fmt.Errorf("%w: rolex: right links lead to %#x", index.ErrCorrupt, addr)
		}
		m := s.scratch
		if hd := s.holds[addr]; hd != nil {
			m = hd.m
		} else if p.CopyOut(m.w); m.header().Held() || m.header().Dead() {
			return fmt.Errorf("%w: rolex: leaf %#x: %v", index.ErrCorrupt, addr, m.header())
		} else if err := m.check(addr); err != nil {
			return fmt.Errorf("%w: %w", index.ErrCorrupt, err)
		}
		if m.low() != low {
			return fmt.Errorf("%w: rolex: leaf %#x begins at key %d, want %d", index.ErrCorrupt, addr, m.low(), low)
		}
		if err := f(addr, m); err != nil {
			return err
		}
		if leaf.IsLast(m.w[leaf.MetaWord]) {
			return nil
		}
		low, addr = m.w[leaf.HighWord], m.right()
	}
}

// Row is a row of the index.
type Row struct {
	Key uint64
	Row []uint64
}

// Rows returns all rows in the order of their keys, and checks the structure. No writer may
// be at work.
func (s *Server) Rows() ([]Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []Row
	err := s.walk(func(_ uint64, m image) error {
		for _, i := range m.order() {
			rows = append(rows, Row{m.w[m.l.KeysAt+int(i)], append([]uint64(nil), m.row(int(i))...)})
		}
		return nil
	})
	if err == nil && !slices.IsSortedFunc(rows, func(a, b Row) int { return cmp.Compare(a.Key, b.Key) }) {
		err = fmt.Errorf("%w: rolex: keys do not ascend", index.ErrCorrupt)
	}
	return rows, err
}
