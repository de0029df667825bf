package rolex

import (
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

var (
	_ index.OrderedServer = (*Server)(nil)
	_ index.Maintainer    = (*Server)(nil)
)

// Lookup implements index.Server. The header of an answer is that of the leaf, and so is its
// proof. Locked means that the leaf is held.
func (s *Server) Lookup(key index.Key, res *index.GetResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := res.Row[:0]
	*res = index.GetResult{Status: index.Locked, Proofs: res.Proofs[:0]}
	addr, hd, m, err := s.seek(key.Num, 0)
	switch {
	case err != nil:
		res.Status, res.Err = s.kept(err)
	case hd == nil || hd.stays():
		res.Status, res.Hint = index.NotFound, addr
		res.Proofs = append(res.Proofs, s.proof(addr, m.header()))
		if i := m.find(key.Num); i >= 0 {
			res.Status, res.Header, res.Row = index.Found, block.Header(m.header()), append(row, m.row(i)...)
		}
	}
}

// reportHeld reports the writer that holds a leaf. Clients whose reads meet its lock again and again
// ask the server, which so learns that others wait.
func (s *Server) reportHeld(err error) {
	if held, ok := err.(*HeldError); ok {
		s.report(held.Leaf, held.Header)
	}
}

// kept returns how a read ends that has found no leaf, because of an error of seek, or one that is
// held here, without an error.
func (s *Server) kept(err error) (index.Status, error) {
	s.reportHeld(err)
	switch {
	case err == nil:
		return index.Locked, nil
	case errors.Is(err, index.ErrCorrupt):
		return index.Failed, err
	}
	return index.Locked, index.ErrHeldByClient // or changed by clients all the time
}

// proof is the proof of what a leaf has that has a header.
func (s *Server) proof(addr uint64, h Header) index.Proof {
	return index.Proof{Addr: index.InRegion(s.o.Region, addr), Word: uint64(h)}
}

// Get implements index.Server.
func (s *Server) Get(key index.Key, buf []uint64) index.GetResult {
	res := index.GetResult{Row: buf}
	s.Lookup(key, &res)
	return res
}

// LookupAt implements index.Server: there are no older versions.
func (s *Server) LookupAt(_ index.Key, _ clock.Tick, res *index.GetResult) {
	*res = index.GetResult{Status: index.Gone, Row: res.Row[:0], Proofs: res.Proofs[:0]}
}

// Scan implements index.OrderedServer. Each leaf is right about its keys when it is copied; its
// header proves that.
func (s *Server) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	*res = index.ScanResult{Status: index.Found, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	buf = buf[:0]
	if lo.Num > hi.Num {
		return buf
	}
	for from, at := lo.Num, uint64(0); ; {
		addr, hd, m, err := s.seek(from, at)
		if err != nil || hd != nil && !hd.stays() {
			res.Status, res.Err = s.kept(err)
			return buf
		}
		proof := s.proof(addr, m.header())
		res.Quick, res.Gaps = append(res.Quick, proof), append(res.Gaps, proof)
		for _, i := range m.order() {
			key := m.w[m.l.KeysAt+int(i)]
			if key < from || key > hi.Num {
				continue
			}
			if limit > 0 && len(res.Entries) == limit {
				res.More = true
				return buf
			}
			n := len(buf)
			buf = append(buf, m.row(int(i))...)
			res.Entries = append(res.Entries, index.Entry{Key: index.Num(key), Row: buf[n:], Header: block.Header(m.header()), Addr: proof.Addr})
		}
		if !m.above(hi.Num) {
			return buf
		}
		if limit > 0 && len(res.Entries) == limit {
			res.More = true
			return buf
		}
		from, at = m.w[leaf.HighWord], m.right()
	}
}

// ScanAt implements index.OrderedServer.
func (s *Server) ScanAt(_, _ index.Key, _ int, _ clock.Tick, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Status: index.Gone, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	return buf
}

// Visit implements index.Server. It makes no progress while a writer holds the next leaf. It ends at a
// leaf that a hostile writer has spoiled.
func (s *Server) Visit(at *index.Place, words int, visit func(*index.Entry)) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for read := 0; read < words; read += s.l.LeafWords {
		addr, hd, m, err := s.seek(at.Key.Num, 0)
		s.reportHeld(err)
		if err != nil {
			return !errors.Is(err, index.ErrCorrupt)
		}
		h := m.header()
		if hd != nil {
			h = hd.was
		}
		for _, i := range m.order() {
			key := m.w[m.l.KeysAt+int(i)]
			if key < at.Key.Num {
				continue
			}
			if hd != nil {
				if l := hd.lock(key); l != nil && !l.Existed {
					continue
				}
			}
			visit(&index.Entry{Key: index.Num(key), Row: m.row(int(i)), Header: block.Header(h), Addr: s.proof(addr, h).Addr})
		}
		if leaf.IsLast(m.w[leaf.MetaWord]) {
			return false
		}
		at.Key = index.Num(m.w[leaf.HighWord])
	}
	return true
}

// Expect implements index.Server: leaves need no room before they are there.
func (s *Server) Expect(uint64) {}

// restorer is the owner of the locks of Restore.
const restorer = ^index.Owner(0)

// Restore implements index.Server, except that of two states of a key the one that is given last
// stays: rows have no versions. Tables that are recovered may not use this engine.
func (s *Server) Restore(key index.Key, row []uint64, h block.Header) error {
	held, err := s.LockWrite(restorer, key, 0)
	if err != nil {
		return err
	}
	if h.IsAbsent() {
		s.PublishDelete(held, h)
		return nil
	}
	if err := s.Reserve(held, len(row)); err != nil {
		s.Release(held)
		return err
	}
	s.Publish(held, row, h)
	return nil
}

// Bury implements index.Server: deletions leave no traces.
func (s *Server) Bury(clock.Tick, int) (done int) { return 0 }

// Stats implements index.Server. It looks at each leaf, because writers do not tell what they do. In
// between it lets transactions pass.
func (s *Server) Stats() (st index.ServerStats) {
	for at, more := (knownLeaf{}), true; more; {
		at, more = s.countRows(at, &st)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Leaves, st.Unlinks = s.leaves.Load(), s.unlinks.Load()
	st.RowBytes = st.Leaves * s.l.LeafBytes()
	s.trainer.Stats(&st)
	st.IndexBytes = st.ModelBytes + st.TTBytes
	return st
}

// countedAtOnce is how many leaves countRows looks at.
const countedAtOnce = 256

// countRows adds the rows of some leaves, from one on. It returns where to go on.
func (s *Server) countRows(from knownLeaf, st *index.ServerStats) (next knownLeaf, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.known.AscendGreaterOrEqual(from, func(l knownLeaf) bool {
		if n++; n > countedAtOnce {
			next, more = l, true
			return false
		}
		st.Rows += uint64(leaf.Unpack(s.span(l.addr).Load(leaf.MetaWord)).Live)
		return true
	})
	return next, more
}

// Used returns how many bytes of the region of leaves are in use.
func (s *Server) Used() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Check implements index.Server. No writer may be at work.
func (s *Server) Check() error {
	if _, err := s.Rows(); err != nil {
		return err
	}
	if err := s.trainer.Check(); err != nil {
		return fmt.Errorf("rolex: %w", err)
	}
	return nil
}
