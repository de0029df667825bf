package read

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// fetcher is the state of one Maintain.
type fetcher struct {
	c    *Client
	ctx  context.Context
	conn rdma.Conn
	b    rdma.Batch
	buf  []uint64
}

// Bounds of Maintain.
const (
	fetchTries      = 64 // of a block that is being changed
	loadTries       = 8  // of a generation that is being replaced
	fetchBatch      = 32
	fetchBatchWords = 64 << 10
)

// post posts the batch and waits for it. A READ that the fabric refuses is no error
// here: the caller checks its status, because a wrong address only shows that a hint
// is stale.
func (f *fetcher) post() error {
	err := rdma.Do(f.ctx, f.conn, &f.b)
	if err == nil || errors.Is(err, rdma.ErrAccess) {
		return nil
	}
	return err
}

// block READs one whole block until it is accepted. It returns nil if that does not
// happen.
func (f *fetcher) block(p model.Pointer) ([]uint64, error) {
	buf := make([]uint64, p.Words())
	for range fetchTries {
		f.b.Reset()
		f.b.Read(f.c.rkey, p.Addr(), buf)
		if err := f.post(); err != nil {
			return nil, err
		}
		if f.b.WRs[0].Status != rdma.StatusOK {
			return nil, nil
		}
		if accepted(&f.b.WRs[0], f.c.o.InOrder) == 0 {
			return buf, nil
		}
	}
	return nil, nil
}

// load READs root, generation and directory, and the sub-models that the budget
// keeps, and makes them current. It reuses unchanged sub-models of old.
func (f *fetcher) load(old *cache) error {
	var missing []int
	for range loadTries {
		h, err := f.rootBlock()
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		if old != nil && old.root.Number == h.root.Number {
			return f.refresh(old)
		}
		if h.root.Gen != 0 {
			ok, err := f.directory(h)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if missing, err = f.subModels(h, old); err != nil {
				return err
			}
		}
		f.c.refreshes.Add(1)
		f.c.cur.Store(h)
		f.c.again(h, missing)
		return nil
	}
	// Until the next Maintain, lookups use the old models, or the server.
	f.c.doubtful.Store(true)
	return nil
}

// rootBlock READs the root block. It returns a cache with nothing but the root, nil if the
// block was being changed.
func (f *fetcher) rootBlock() (*cache, error) {
	b, err := f.block(model.NewPointer(f.c.root, model.RootWords))
	if b == nil || err != nil {
		return nil, err
	}
	root, err := model.RootOf(f.c.root, b)
	if err != nil {
		return nil, err
	}
	if w := f.c.o.RowWords; w != 0 && w != root.Layout.RowWords {
		return nil, fmt.Errorf("%w: rows of %d words, want %d", index.ErrCorrupt, root.Layout.RowWords, w)
	}
	if (root.Layout.Kind == leaf.Strings) != f.c.o.Strings {
		return nil, fmt.Errorf("%w: string keys: %v, want %v", index.ErrCorrupt, (root.Layout.Kind == leaf.Strings), f.c.o.Strings)
	}
	return &cache{root: root}, nil
}

// directory READs generation and chunks, and returns false if the server has freed
// them meanwhile.
func (f *fetcher) directory(h *cache) (bool, error) {
	b, err := f.block(h.root.Gen)
	if b == nil || err != nil {
		return false, err
	}
	g, err := model.GenerationOf(&h.root, b)
	if err != nil {
		return false, f.unlessReplaced(h, err)
	}
	gone := errors.New("gone")
	d, pointers, err := model.NewDirectory(&h.root, g, func(p model.Pointer) ([]uint64, error) {
		b, err := f.block(p)
		if b == nil && err == nil {
			err = gone
		}
		return b, err
	})
	switch {
	case errors.Is(err, index.ErrCorrupt):
		return false, f.unlessReplaced(h, err)
	case err == gone:
		return false, nil
	case err != nil:
		return false, err
	}
	h.Directory = d
	h.subs, h.held = make([]cachedSub, d.Subs), make([]atomic.Pointer[heldSub], d.Subs)
	for i, p := range pointers {
		h.subs[i].pointer.Store(p)
		h.subs[i].patience.Store(1)
	}
	return true, nil
}

// unlessReplaced returns err, or nil if the root now names another generation: then
// the memory that could not be decoded was that of the old one.
func (f *fetcher) unlessReplaced(h *cache, err error) error {
	b, rerr := f.block(model.NewPointer(f.c.root, model.RootWords))
	if rerr != nil || b == nil {
		return rerr
	}
	root, rerr := model.RootOf(f.c.root, b)
	if rerr != nil {
		return rerr
	}
	if root.Number != h.root.Number {
		return nil
	}
	return err
}

// subModels fetches all sub-models that the budget keeps. It returns those that it
// could not READ because they were trained again meanwhile.
func (f *fetcher) subModels(h, old *cache) (missing []int, err error) {
	f.c.ttHeld = 0
	if f.c.o.Budget == RouterOnly {
		return nil, nil
	}
	var want []int
	for i := range h.subs {
		if j := -1; old != nil {
			if j = h.Same(&old.Directory, i); j < 0 {
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
	return f.fetch(h, want)
}

// fetch READs the blocks of the sub-models in want, in batches, and installs them. It
// returns those that it could not READ. It overwrites want.
func (f *fetcher) fetch(h *cache, want []int) (missing []int, err error) {
	for len(want) > 0 {
		n, words := 0, 0
		for n < len(want) && n < fetchBatch {
			p := model.Pointer(h.subs[want[n]].pointer.Load())
			if !p.Valid() {
				p = 0
			}
			if n > 0 && words+p.Words() > fetchBatchWords {
				break
			}
			words += p.Words()
			n++
		}
		if cap(f.buf) < words {
			f.buf = make([]uint64, words)
		}
		buf := f.buf[:words]
		f.b.Reset()
		asked := want[:0:n]
		for _, i := range want[:n] {
			p := model.Pointer(h.subs[i].pointer.Load())
			if !p.Valid() || p.Words() > len(buf) {
				missing = append(missing, i)
				continue
			}
			f.b.Read(f.c.rkey, p.Addr(), buf[:p.Words()])
			buf = buf[p.Words():]
			asked = append(asked, i)
		}
		if len(asked) > 0 {
			if err := f.post(); err != nil {
				return append(missing, want...), err
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

// install makes a sub-model that was just READ the current one, with the parts that
// the budget keeps.
func (f *fetcher) install(h *cache, i int, wr *rdma.WR) bool {
	if accepted(wr, f.c.o.InOrder) != block.OK {
		return false
	}
	held := &heldSub{addr: wr.Addr, header: wr.Buf[block.HeaderWord]}
	head, err := h.Sub(i, wr.Buf, &held.model)
	if err != nil {
		return false
	}
	held.low, held.high, held.at, held.prefix = head.Low, head.High, head.At, strings.Clone(head.Prefix)
	held.tail = newTailList(head.Tail)
	s, old := &h.subs[i], h.held[i].Load()
	if held.adopt(old, h); old != nil && old.model.HasTT() {
		f.c.ttHeld -= old.model.TTBytes()
	}
	if f.c.o.Budget == Decoded {
		held.model.Unpack()
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

// bare returns a copy of s without its model.
func (s *heldSub) bare() *heldSub {
	return &heldSub{addr: s.addr, header: s.header, low: s.low, high: s.high, at: s.at, prefix: s.prefix, tail: s.tail}
}

// withoutTT returns a copy of s that holds only the head of its model, which it
// decodes from blk.
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
	case Full, Decoded:
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

// accepted returns the verdict of block.Accept on a whole block that was READ.
func accepted(wr *rdma.WR, inOrder bool) block.Verdict {
	if wr.Status != rdma.StatusOK || len(wr.Buf) < mem.LineBytes/mem.WordBytes {
		return block.Torn
	}
	return block.Accept(wr.Buf, wr.Tail, wr.Addr, inOrder)
}
