package read

import (
	"sync"
	"sync/atomic"

	"drtmx/index/learned/model"
	"drtmx/internal/block"
)

const staleMax = 64 // sub-models checked in one Maintain

// staleList has the sub-models that Maintain must check.
type staleList struct {
	n  atomic.Int32
	mu struct {
		sync.Mutex
		of   *cache
		subs []int
	}
}

// add adds a sub-model of a cache, if the cache is still the current one, in cur: a
// late caller must not empty the list of the next cache.
func (l *staleList) add(cur *atomic.Pointer[cache], of *cache, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cur.Load() != of {
		return
	}
	if l.mu.of != of {
		l.mu.of, l.mu.subs = of, l.mu.subs[:0]
	}
	l.mu.subs = append(l.mu.subs, i)
	l.n.Store(int32(len(l.mu.subs)))
}

// take removes at most limit sub-models of the given cache.
func (l *staleList) take(of *cache, limit int, dst []int) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of != of {
		l.mu.subs = l.mu.subs[:0]
	}
	n := min(limit, len(l.mu.subs))
	dst = append(dst, l.mu.subs[:n]...)
	l.mu.subs = append(l.mu.subs[:0], l.mu.subs[n:]...)
	l.n.Store(int32(len(l.mu.subs)))
	return dst
}

// missed records that sub-model i of a cache led to a wrong leaf.
func (c *Client) missed(of *cache, i int) {
	if of == nil || !of.Trained() {
		c.doubtful.Store(true)
		return
	}
	s := &of.subs[i]
	if s.misses.Add(1) >= s.patience.Load() && c.cur.Load() == of && s.stale.CompareAndSwap(false, true) {
		c.stale.add(&c.cur, of, i)
	}
}

// again makes the next Maintain check sub-models of a cache once more.
func (c *Client) again(of *cache, subs []int) {
	for _, i := range subs {
		of.subs[i].stale.Store(true)
		c.stale.add(&c.cur, of, i)
	}
}

// refresh checks the sub-models that lookups have found stale. One round shows which
// have new blocks, and a second one fetches these.
func (f *fetcher) refresh(h *cache) error {
	var space [staleMax]int
	stale := f.c.stale.take(h, staleMax, space[:0])
	if len(stale) == 0 {
		return nil
	}
	var root [model.RootWords]uint64
	words := make([]uint64, 2*len(stale))
	f.b.Reset()
	f.b.Read(f.c.rkey, f.c.root, root[:])
	for k, i := range stale {
		f.b.Read(f.c.rkey, h.pointerAddr(i), words[2*k:2*k+1])
		if held := h.held[i].Load(); held != nil {
			f.b.Read(f.c.rkey, held.addr, words[2*k+1:2*k+2])
		}
	}
	if err := f.post(); err != nil {
		f.c.again(h, stale)
		return err
	}
	// The copy of the root may be torn: if it is not certainly current, the client
	// READs it again.
	if accepted(&f.b.WRs[0], f.c.o.InOrder) != block.OK || model.NumberOf(root[:]) != h.root.Number {
		f.c.doubtful.Store(true)
	}
	var want []int
	for k, i := range stale {
		s := &h.subs[i]
		held := h.held[i].Load()
		lacksTT := f.c.o.Budget == PartTT && held != nil && !held.model.HasTT() && s.wanted.Load() >= ttWantedLeast
		if model.Pointer(words[2*k]).Valid() && (held == nil || words[2*k] != s.pointer.Load() || words[2*k+1] != held.header || lacksTT) {
			s.pointer.Store(words[2*k])
			if f.c.o.Budget != RouterOnly {
				want = append(want, i)
			}
			s.patience.Store(1)
		} else {
			s.patience.Store(min(2*s.patience.Load(), patienceMax))
		}
		s.wanted.Store(0)
		s.misses.Store(0)
		s.stale.Store(false)
	}
	missing, err := f.fetch(h, want)
	if len(missing) > 0 {
		f.c.doubtful.Store(true)
		f.c.again(h, missing)
	}
	return err
}

// wantTT records that a lookup lacked the TT of sub-model i.
func (c *Client) wantTT(of *cache, i int) {
	s := &of.subs[i]
	if c.o.Budget == PartTT && s.wanted.Add(1) == ttWantedLeast && c.cur.Load() == of && s.stale.CompareAndSwap(false, true) {
		c.stale.add(&c.cur, of, i)
	}
}

// ttWantedLeast is the number of lookups that must lack a TT before it is
// fetched.
const ttWantedLeast = 16
