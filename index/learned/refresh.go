package learned

import (
	"strings"

	"drtmx/internal/block"
	"drtmx/rdma"
)

// subModels fetches all sub-models that the budget keeps. It skips those that
// it cannot READ: they are fetched when a lookup misses them.
func (f *fetcher) subModels(h, old *cache) error {
	f.c.ttHeld = 0
	if f.c.o.Budget == RouterOnly {
		return nil
	}
	var want []int
	for i := range h.subs {
		if j := -1; old != nil {
			if j = h.same(&old.directory, i); j < 0 {
				want = append(want, i)
				continue
			}
			held := old.held[j].Load()
			if held != nil && old.subs[j].pointer.Load() == h.subs[i].pointer.Load() {
				h.held[i].Store(held)
				if held.model.HasTT() {
					f.c.ttHeld += held.model.TTBytes()
				}
				continue
			}
		}
		want = append(want, i)
	}
	_, err := f.fetch(h, want)
	return err
}

// fetch READs the blocks of the sub-models listed, in batches, and installs
// them. It returns those it could not get.
func (f *fetcher) fetch(h *cache, want []int) (missing []int, err error) {
	for len(want) > 0 {
		n, words := 0, 0
		for n < len(want) && n < fetchBatch {
			p := pointer(h.subs[want[n]].pointer.Load())
			if !p.valid() {
				p = 0
			}
			if n > 0 && words+p.words() > fetchBatchWords {
				break
			}
			words += p.words()
			n++
		}
		if cap(f.buf) < words {
			f.buf = make([]uint64, words)
		}
		buf := f.buf[:words]
		f.b.Reset()
		asked := want[:0:n]
		for _, i := range want[:n] {
			p := pointer(h.subs[i].pointer.Load())
			if !p.valid() || p.words() > len(buf) {
				missing = append(missing, i)
				continue
			}
			f.b.Read(f.c.rkey, p.addr(), buf[:p.words()])
			buf = buf[p.words():]
			asked = append(asked, i)
		}
		if len(asked) > 0 {
			if err := f.do(); err != nil {
				return nil, err
			}
		}
		for k, i := range asked {
			if !f.install(h, i, &f.b.WRs[k]) {
				missing = append(missing, i)
			}
		}
		want = want[n:]
	}
	return missing, nil
}

// install makes a sub-model just READ the current one, with as much of it as
// the budget keeps.
func (f *fetcher) install(h *cache, i int, wr *rdma.WR) bool {
	if accepted(wr, f.c.o.InOrder) != block.OK {
		return false
	}
	held := &heldSub{addr: wr.Addr, words: len(wr.Buf), header: wr.Buf[block.HeaderWord]}
	head, err := h.decode(h.root.lay.ID, i, wr.Buf, &held.model)
	if err != nil {
		return false
	}
	held.low, held.high, held.at, held.prefix = head.low, head.high, head.at, strings.Clone(head.prefix)
	s := &h.subs[i]
	if old := h.held[i].Load(); old != nil && old.model.HasTT() {
		f.c.ttHeld -= old.model.TTBytes()
	}
	if f.keepTT(h, held.model.TTBytes()) {
		f.c.ttHeld += held.model.TTBytes()
	} else {
		held = held.withoutTT(wr.Buf)
	}
	h.held[i].Store(held)
	s.wanted.Store(0)
	f.c.refreshes.Add(1)
	return true
}

// bare returns the same sub-model without its model.
func (s *heldSub) bare() *heldSub {
	return &heldSub{addr: s.addr, words: s.words, header: s.header, low: s.low, high: s.high, at: s.at, prefix: s.prefix}
}

// withoutTT returns the same sub-model with only the memory of its head.
func (s *heldSub) withoutTT(blk []uint64) *heldSub {
	h := s.bare()
	if err := h.model.DecodeHead(blk[s.at : s.at+s.model.HeadWords()]); err != nil {
		return s // cannot happen: it was just decoded with its TT
	}
	return h
}

// keepTT decides whether the budget keeps one more TT of n bytes.
func (f *fetcher) keepTT(h *cache, n int) bool {
	switch f.c.o.Budget {
	case Full:
		return true
	case PartTT:
		return n <= f.c.o.TTBytes && (f.c.ttHeld+n <= f.c.o.TTBytes || f.evict(h, n))
	}
	return false
}

// evict makes room for a TT of n bytes. It drops tables that were not used
// since the clock hand last passed them.
func (f *fetcher) evict(h *cache, n int) bool {
	c := f.c
	for range 2 * len(h.subs) {
		c.clock = (c.clock + 1) % len(h.subs)
		s := &h.subs[c.clock]
		held := h.held[c.clock].Load()
		if held == nil || !held.model.HasTT() {
			continue
		}
		if s.used.Swap(s.used.Load()/2) > 0 {
			continue
		}
		c.ttHeld -= held.model.TTBytes()
		bare := held.bare()
		if err := bare.model.DecodeHead(held.model.AppendTo(nil)); err != nil {
			bare = nil
		}
		h.held[c.clock].Store(bare)
		if c.ttHeld+n <= c.o.TTBytes {
			return true
		}
	}
	return false
}

// refresh checks the sub-models that lookups have found stale: one round shows
// which have a new block, a second one fetches these.
func (f *fetcher) refresh(h *cache) error {
	var space [staleMax]int
	stale := f.c.stale.take(h, staleMax, space[:0])
	if len(stale) == 0 {
		return nil
	}
	var root [rootWords]uint64
	words := make([]uint64, 2*len(stale))
	f.b.Reset()
	f.b.Read(f.c.rkey, f.c.root, root[:])
	for k, i := range stale {
		f.b.Read(f.c.rkey, h.pointerAddr(i), words[2*k:2*k+1])
		if held := h.held[i].Load(); held != nil {
			f.b.Read(f.c.rkey, held.addr, words[2*k+1:2*k+2])
		}
	}
	if err := f.do(); err != nil {
		return err
	}
	// The copy of the root may be torn: in any doubt the client reads it again.
	if accepted(&f.b.WRs[0], f.c.o.InOrder) != block.OK || root[rootNumber] != h.root.number {
		f.c.doubtful.Store(true)
	}
	var want []int
	for k, i := range stale {
		s := &h.subs[i]
		held := h.held[i].Load()
		lacksTT := f.c.o.Budget == PartTT && held != nil && !held.model.HasTT() && s.wanted.Load() >= ttWantedLeast
		if pointer(words[2*k]).valid() && (held == nil || words[2*k] != s.pointer.Load() || words[2*k+1] != held.header || lacksTT) {
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
	}
	return err
}

// wantTT records that a lookup lacked the TT of sub-model i.
func (c *Client) wantTT(of *cache, i int) {
	s := &of.subs[i]
	if c.o.Budget == PartTT && s.wanted.Add(1) == ttWantedLeast && c.cur.Load() == of && s.stale.CompareAndSwap(false, true) {
		c.stale.add(of, i)
	}
}

// ttWantedLeast is the number of lookups that must lack a TT before it is
// fetched.
const ttWantedLeast = 16
