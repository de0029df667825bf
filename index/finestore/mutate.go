package finestore

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// LockWrite implements index.Server. The hint is the address of an array.
func (s *Server) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	if key.Str != "" {
		return nil, fmt.Errorf("%w: %v is of the wrong kind", index.ErrKey, key.Clone())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lock(o, key.Num, hint)
}

func (s *Server) lock(o index.Owner, key, hint uint64) (*index.Held, error) {
	if h := s.held[key]; h != nil {
		if h.Owner == o {
			return h, nil
		}
		return nil, index.ErrLocked
	}
	p := s.find(key, hint)
	proof := p.row
	if proof == 0 {
		proof = p.gap()
	}
	if !s.locks.Empty() && s.locks.SharedByOther(proof, o) {
		return nil, index.ErrLocked
	}
	h := index.Held{Key: index.Num(key), Owner: o, Home: p.arr.addr}
	if p.row != 0 {
		h.Existed, h.Addr = true, p.row
		e := s.edit(&p) // a scan's quick proof is the header of what has the row
		row := s.a.Span(p.row, 1)
		h.Prev = block.Header(row.Load(block.HeaderWord))
		row.Store(block.HeaderWord, uint64(h.Prev.Lock()))
		s.commit(&e)
	} else {
		var err error
		if h.Addr, err = s.insert(p, key, block.Absent(block.CSN(s.a.NextVersion())).Lock(), nil); err != nil {
			return nil, err
		}
	}
	held := s.helds.New(h)
	s.held[key] = held
	return held, nil
}

// edit begins a change of the array or the bin that has a row.
func (s *Server) edit(p *place) block.Edit {
	if p.at >= 0 {
		return s.a.Begin(p.bin, s.bins.LeafWords)
	}
	return s.a.Begin(p.arr.addr, s.lay.LeafWords)
}

// insert adds a row, or a placeholder, and returns the address of its block. On an error no row was
// added.
func (s *Server) insert(p place, key uint64, head block.Header, row []uint64) (addr uint64, err error) {
	if addr, err = s.newRow(key, head, row); err != nil {
		return 0, err
	}
	if err := s.enter(p, key, addr); err != nil {
		s.rows.Free(addr)
		return 0, err
	}
	return addr, nil
}

// newRow makes the block of a row.
func (s *Server) newRow(key uint64, head block.Header, row []uint64) (uint64, error) {
	addr, err := s.rows.Alloc()
	if err != nil {
		return 0, full(err)
	}
	e := s.a.Create(addr, s.lay.RowBlockWords)
	e.Set(leaf.RowKeyWord, key)
	e.Set(leaf.RowIDWord, s.lay.IDTag())
	if row != nil {
		e.Write(leaf.RowWord, row)
	}
	e.Commit(head)
	return addr, nil
}

// crowdedArrays bounds the weight of an array's bins: at so many times the keys that an array may have,
// inserts merge it themselves. So merges stay short, however late the trainer is.
const crowdedArrays = 4

// enter makes a row's block that of a key that has none.
func (s *Server) enter(p place, key, row uint64) error {
	if p.arr.weight() >= crowdedArrays*s.lay.Slots && s.rebuild(p.arr) == nil {
		p = s.find(key, 0)
	}
	for {
		switch {
		case p.own:
			s.revive(&p, row)
		case p.bin == 0:
			if err := s.firstBin(&p, key, row); err != nil {
				return err
			}
		case s.addToBin(&p, key, row):
		default:
			if err := s.divide(&p, key); err != nil {
				return err
			}
			p = s.find(key, 0)
			continue
		}
		if s.crowded(p.arr) {
			s.wants(p.arr)
		}
		return nil
	}
}

// revive gives a deleted key of an array a row again.
func (s *Server) revive(p *place, row uint64) {
	e := s.a.Begin(p.arr.addr, s.lay.LeafWords)
	e.Set(s.lay.HeadsAt+p.slot, row)
	e.Set(leaf.GapWord, s.a.NextVersion())
	s.commit(&e)
	p.arr.own++
}

// interval returns the bounds of an interval of an array.
func (s *Server) interval(a *array, i int) (low, high uint64, last bool) {
	w := s.span(a.addr)
	meta := w.Load(leaf.MetaWord)
	low, high, last = w.Load(leaf.LowWord), w.Load(leaf.HighWord), leaf.IsLast(meta)
	if i > 0 {
		low = w.Load(s.lay.KeysAt+i-1) + 1
	}
	if i < leaf.CountOf(meta) {
		high, last = w.Load(s.lay.KeysAt+i), false
	}
	return low, high, last
}

// firstBin makes the first bin of an interval, with one row. Until now the array's gap word proved
// that no key is there, so it changes, and who shares it shares the bin's, too.
func (s *Server) firstBin(p *place, key, row uint64) error {
	low, high, last := s.interval(p.arr, p.slot)
	deleted := s.span(p.arr.addr).Load(s.lay.DeleteAt)
	bin, err := s.newBin(p.arr, low, high, last, deleted, []rowAt{{key, row}})
	if err != nil {
		return err
	}
	s.step("first bin made")
	e := s.a.Begin(p.arr.addr, s.lay.LeafWords)
	e.Set(s.lay.BelowAt+p.slot, uint64(leaf.ToBin(bin)))
	e.Set(leaf.GapWord, s.a.NextVersion())
	s.commit(&e)
	s.locks.Copy(leaf.GapAddr(p.arr.addr), leaf.GapAddr(bin))
	p.arr.binned++
	return nil
}

// rowAt is a row's key and the address of its block.
type rowAt struct{ key, addr uint64 }

// newBin makes a bin of these rows, below an array. There may be none.
func (s *Server) newBin(a *array, low, high uint64, last bool, deleted uint64, rows []rowAt) (uint64, error) {
	addr, err := s.binSlab.Alloc()
	if err != nil {
		return 0, full(err)
	}
	e := s.a.Create(addr, s.bins.LeafWords)
	s.setBin(&e, low, high, last, rows)
	e.Set(s.bins.DeleteAt, deleted)
	s.commit(&e)
	if len(rows) == 0 {
		a.empty++
	}
	return addr, nil
}

// setBin writes all of a bin but its newest deletion.
func (s *Server) setBin(e *block.Edit, low, high uint64, last bool, rows []rowAt) {
	e.Set(leaf.LowWord, low)
	e.Set(leaf.HighWord, high)
	for i := range s.bins.Slots {
		r := rowAt{}
		if i < len(rows) {
			r = rows[i]
		}
		e.Set(s.bins.KeysAt+i, r.key)
		e.Set(s.bins.HeadsAt+i, r.addr)
	}
	e.Set(leaf.GapWord, s.a.NextVersion())
	e.Set(leaf.MetaWord, s.bins.Pack(leaf.Meta{Last: last, Newest: leaf.NoNewest, Live: len(rows), Count: len(rows)}))
}

// addToBin adds a row to a bin, unless that is full.
func (s *Server) addToBin(p *place, key, row uint64) bool {
	b := s.binSpan(p.bin)
	m := leaf.Unpack(b.Load(leaf.MetaWord))
	slot := m.Count
	if m.Live < m.Count {
		for slot = 0; b.Load(s.bins.HeadsAt+slot) != 0; {
			slot++
		}
	}
	if slot == s.bins.Slots {
		return false
	}
	if m.Live == 0 {
		p.arr.empty--
	}
	m.Live++
	m.Count = max(m.Count, slot+1)
	e := s.a.Begin(p.bin, s.bins.LeafWords)
	e.Set(s.bins.KeysAt+slot, key)
	e.Set(s.bins.HeadsAt+slot, row)
	e.Set(leaf.MetaWord, s.bins.Pack(m))
	e.Set(leaf.GapWord, s.a.NextVersion())
	s.commit(&e)
	p.arr.binned++
	return true
}

// Reserve implements index.Server: all rows have one size.
func (s *Server) Reserve(_ *index.Held, words int) error {
	if words != s.lay.RowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, words, s.lay.RowWords)
	}
	return nil
}

// Publish implements index.Server.
func (s *Server) Publish(h *index.Held, row []uint64, head block.Header) {
	if len(row) != s.lay.RowWords {
		panic(fmt.Sprintf("finestore: publish a row of %d words, want %d", len(row), s.lay.RowWords))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(h)
	e := s.a.Begin(h.Addr, s.lay.RowBlockWords)
	e.Write(leaf.RowWord, row)
	e.Commit(head)
	if !h.Existed {
		s.live++
	}
}

// PublishDelete implements index.Server.
func (s *Server) PublishDelete(h *index.Held, head block.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(h)
	s.remove(h, head.CSN())
	if h.Existed {
		s.live--
	}
}

// Release implements index.Server.
func (s *Server) Release(h *index.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(h)
	if !h.Existed {
		s.remove(h, 0)
		return
	}
	s.a.Span(h.Addr, 1).Store(block.HeaderWord, uint64(h.Prev))
}

// end removes a lock from the table.
func (s *Server) end(h *index.Held) {
	if s.held[h.Key.Num] != h {
		panic(fmt.Sprintf("finestore: lock on key %v is not held", h.Key))
	}
	delete(s.held, h.Key.Num)
}

// remove takes a row away. deleted is the CSN of the deletion, 0 for a placeholder. A key of an array
// stays there without a row.
func (s *Server) remove(h *index.Held, deleted block.CSN) {
	p := s.find(h.Key.Num, h.Home)
	e := s.edit(&p)
	if p.own {
		e.Set(s.lay.HeadsAt+p.slot, 0)
		if deleted > block.CSN(e.Load(s.lay.DeleteAt)) {
			e.Set(s.lay.DeleteAt, uint64(deleted))
		}
		p.arr.own--
	} else {
		e.Set(s.bins.HeadsAt+p.at, 0)
		if deleted > block.CSN(e.Load(s.bins.DeleteAt)) {
			e.Set(s.bins.DeleteAt, uint64(deleted))
		}
		m := leaf.Unpack(e.Load(leaf.MetaWord))
		for m.Live--; m.Count > 0 && e.Load(s.bins.HeadsAt+m.Count-1) == 0; {
			m.Count--
		}
		e.Set(leaf.MetaWord, s.bins.Pack(m))
		p.arr.binned--
		if m.Live == 0 {
			p.arr.empty++
		}
	}
	s.commit(&e)
	s.rows.Free(p.row)
	if s.sparse(p.arr) || s.crowded(p.arr) {
		s.wants(p.arr)
	}
}

// Load implements index.Server.
func (s *Server) Load(key index.Key, row []uint64, head block.Header) error {
	if err := s.fits(key, row); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.find(key.Num, 0); p.row == 0 {
		if !s.locks.Empty() && s.locks.SharedByOther(p.gap(), 0) {
			return index.ErrLocked
		}
		return s.add(p, key.Num, row, head)
	}
	return s.replace(key.Num, row, head)
}

// fits reports a key or a row that the index cannot have.
func (s *Server) fits(key index.Key, row []uint64) error {
	if key.Str != "" {
		return fmt.Errorf("%w: %v is of the wrong kind", index.ErrKey, key.Clone())
	}
	return s.Reserve(nil, len(row))
}

// replace changes a row outside any transaction, or deletes it.
func (s *Server) replace(key uint64, row []uint64, head block.Header) error {
	if s.held[key] != nil {
		return index.ErrLocked
	}
	h, err := s.lock(0, key, 0)
	if err != nil {
		return err
	}
	s.end(h)
	if head.IsAbsent() {
		s.remove(h, head.CSN())
		s.live--
		return nil
	}
	e := s.a.Begin(h.Addr, s.lay.RowBlockWords)
	e.Write(leaf.RowWord, row)
	e.Commit(head)
	return nil
}

// Restore implements index.Server.
func (s *Server) Restore(key index.Key, row []uint64, head block.Header) error {
	if head.IsAbsent() {
		row = make([]uint64, s.lay.RowWords)
	}
	if err := s.fits(key, row); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(key.Num, 0)
	if p.row == 0 {
		if head.IsAbsent() {
			return nil
		}
		return s.add(p, key.Num, row, head)
	}
	switch now := block.Header(s.a.Span(p.row, 1).Load(block.HeaderWord)); {
	case now.Locked():
		return index.ErrLocked
	case now.CSN() >= head.CSN():
		return nil
	}
	return s.replace(key.Num, row, head)
}

// add adds a row outside any transaction. Keys that ascend fill arrays, other ones go to bins.
func (s *Server) add(p place, key uint64, row []uint64, head block.Header) error {
	a := s.span(p.arr.addr)
	m := leaf.Unpack(a.Load(leaf.MetaWord))
	if !m.Last || p.own || p.bin != 0 || p.slot < m.Count {
		if _, err := s.insert(p, key, head, row); err != nil {
			return err
		}
		s.live++
		return nil
	}
	addr, err := s.newRow(key, head, row)
	if err != nil {
		return err
	}
	if m.Count < s.fill {
		e := s.a.Begin(p.arr.addr, s.lay.LeafWords)
		e.Set(s.lay.KeysAt+m.Count, key)
		e.Set(s.lay.HeadsAt+m.Count, addr)
		e.Set(leaf.GapWord, s.a.NextVersion())
		m.Count++
		m.Live = m.Count
		e.Set(leaf.MetaWord, s.lay.Pack(m))
		s.commit(&e)
		p.arr.own++
		s.live++
		return nil
	}
	if err := s.extend(p.arr, key, addr); err != nil {
		s.rows.Free(addr)
		return err
	}
	s.live++
	return nil
}

// extend makes an array of one key after the last one.
func (s *Server) extend(last *array, key, row uint64) error {
	to, err := s.arraySlab.Alloc()
	if err != nil {
		return full(err)
	}
	w := s.span(last.addr)
	s.setArray(s.a.Create(to, s.lay.LeafWords), part{low: key, last: true, rows: []rowAt{{key, row}}}, w.Load(s.lay.DeleteAt))
	s.step("array made")
	m := leaf.Unpack(w.Load(leaf.MetaWord))
	m.Last = false
	e := s.a.Begin(last.addr, s.lay.LeafWords)
	e.Set(leaf.HighWord, key)
	e.Set(leaf.RightWord, to)
	e.Set(leaf.MetaWord, s.lay.Pack(m))
	e.Set(leaf.GapWord, s.a.NextVersion())
	s.commit(&e)
	s.locks.Copy(leaf.GapAddr(last.addr), leaf.GapAddr(to))
	s.enrol(&array{low: key, addr: to, own: 1})
	s.splits++
	s.trainer.Changed(index.Num(key), index.Key{}, false, to, true)
	return nil
}
