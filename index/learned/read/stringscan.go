package read

import (
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// scanWordsMax bounds the words of the rows of one scan of string keys, which are
// kept until the next scan: 32 MiB. Larger scans fall back to the server, which
// answers page by page.
const scanWordsMax = 4 << 20

// stringScan has the steps of a scan of string keys. A leaf has only a digest of each
// key, so the scan first lists candidates: slots whose rows may be within the range.
// It READs their rows when the leaves cover the range, or certainly have as many rows
// as the limit. Then the keys in the rows decide.
type stringScan struct {
	o           *scanOp
	lo, hi, cur string // in the buffers below
	kept        []byte
	curKey      []byte

	cands []candidate
	sure  int // candidates known to be within the range
	words int // of all their blocks
}

// candidate is a slot whose row may be within the range.
type candidate struct {
	p      leaf.Pointer
	digest uint64
	part   int
	key    string
	row    []uint64
	header block.Header
}

func (s *stringScan) start(lo, hi index.Key) {
	s.kept = append(append(s.kept[:0], lo.Str...), hi.Str...)
	both := mem.String(s.kept)
	s.lo, s.hi = both[:len(lo.Str)], both[len(lo.Str):]
}

func (s *stringScan) clear() {
	s.cur, s.cands, s.sure, s.words = s.lo, s.cands[:0], 0, 0
}

func (s *stringScan) empty() bool { return s.lo > s.hi }

func (s *stringScan) seek() { s.o.key = index.Str(s.cur) }

// complete takes the fences from the leaf, or READs them.
func (s *stringScan) complete(l *leafRead, next *rdma.Batch) (asked, ok bool) {
	if l.fences, l.known = l.view.Fences(); l.known {
		return false, true
	}
	addr, words, ok := l.view.FenceBlock()
	if !ok {
		return false, false
	}
	l.fence = grow(l.fence, words)
	l.fenceWR = next.Read(s.o.c.rkey, addr, l.fence)
	return true, true
}

func (s *stringScan) onFences(done, next *rdma.Batch) bool {
	return s.takeFences(done) || s.o.consumeAll(next)
}

// takeFences judges the fences that were READ, and reports whether that ends the
// scan.
func (s *stringScan) takeFences(done *rdma.Batch) (finished bool) {
	o := s.o
	for i := o.at; i < len(o.leaves); i++ {
		l := &o.leaves[i]
		if l.state != readOK || l.known {
			continue
		}
		wr := &done.WRs[l.fenceWR]
		var see leafVerdict
		switch l.fences, see = o.judgeFence(wr, &l.view, l.addr); see {
		case seeHere:
			l.known = true
		case seeDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		default:
			l.state = readBusy // the fences of the leaf have changed
		}
	}
	return false
}

func (s *stringScan) side(l *leafRead) leafVerdict { return sideOfFences(&l.fences, s.cur) }

func (s *stringScan) learn(of *heldSub, l *leafRead, from int) {
	of.learnStrings(&l.fences, l.addr, from)
}

func (s *stringScan) cover(l *leafRead) bool {
	if l.view.Last() || !l.fences.Above(s.hi) {
		return true
	}
	s.curKey = l.fences.AppendHigh(s.curKey[:0])
	s.cur = mem.String(s.curKey)
	return false
}

func (s *stringScan) have() int { return s.sure }

func (s *stringScan) full() bool {
	return s.o.goal > 0 && s.sure >= s.o.goal || s.words > scanWordsMax
}

func (s *stringScan) end() (sub, leafAt int) {
	o := s.o
	sub = o.h.Route(index.Str(s.hi))
	m := o.modelOf(sub)
	switch held := o.h.held[sub].Load(); {
	case held != nil && m == &held.model:
		leafAt = lastOf(m.Predict(leaf.DigestAfter(held.prefix, s.hi)))
	case m != nil:
		leafAt = m.Leaves() - 1 // fetched for this scan only, and its prefix was not kept
	}
	return sub, leafAt
}

func (s *stringScan) beyond(key index.Key) bool { return key.Str > s.hi }

func (s *stringScan) keys(l *leafRead) (from, to uint64) {
	return leaf.DigestAfter(l.fences.Prefix, s.cur), leaf.DigestAfter(l.fences.Prefix, s.hi)
}

// add lists the slots of a leaf whose digests may be within the range, in the order
// of digests, up to the limit and including those that tie with the last one. dropped
// says that it left out others.
func (s *stringScan) add(l *leafRead, order []byte) (dropped, ok bool) {
	o, p, first, part := s.o, &l.fences, len(s.cands), s.o.indexOf(l)
	from, to := s.keys(l)
	for _, at := range order {
		if d := l.view.Key(int(at)); d >= from && d <= to {
			s.cands = append(s.cands, candidate{p: l.view.Pointer(int(at)), digest: d, part: part})
		}
	}
	lowSure, highSure := p.StartsAt(s.cur), p.Above(s.hi)
	for i := first; i < len(s.cands); i++ {
		c := &s.cands[i]
		if o.goal > 0 && s.sure >= o.goal && c.digest != s.cands[i-1].digest {
			s.cands = s.cands[:i]
			return true, true
		}
		if (lowSure || c.digest > from) && (highSure || c.digest < to) {
			s.sure++
		}
		s.words += c.p.Words()
	}
	return false, true
}

// list adds the blocks of the candidates.
func (s *stringScan) list() bool {
	if s.words > scanWordsMax {
		return false
	}
	s.o.apart.clear(s.words)
	for i := range s.cands {
		if p := s.cands[i].p; !p.Valid() || !s.o.apart.list(p.Addr(), p.Words()) {
			return false
		}
	}
	return true
}

func (s *stringScan) judge(i int, wr *rdma.WR) rowVerdict {
	c := &s.cands[i]
	see, key, row := judgeStrRow(wr, s.o.lay, s.o.c.o.InOrder)
	if see == rowHere && !s.fits(c, key) {
		return rowOther // the block has been reused
	}
	c.key, c.row, c.header = key, row, block.Header(wr.Buf[block.HeaderWord])
	return see
}

// fits reports whether a row with the key may be that of the slot.
func (s *stringScan) fits(c *candidate, key string) bool {
	f := &s.o.leaves[c.part].fences
	return leaf.Tag(key) == c.p.Tag() && sideOfFences(f, key) == seeHere && leaf.DigestAt(key, len(f.Prefix)) == c.digest
}

// assemble puts the rows into the result in the order of their keys.
func (s *stringScan) assemble(next *rdma.Batch) bool {
	o := s.o
	for i := 0; i < len(s.cands); {
		j := i + 1
		for j < len(s.cands) && s.cands[j].part == s.cands[i].part && s.cands[j].digest == s.cands[i].digest {
			j++
		}
		if j > i+1 {
			slices.SortFunc(s.cands[i:j], func(a, b candidate) int { return strings.Compare(a.key, b.key) })
		}
		for ; i < j; i++ {
			c := &s.cands[i]
			if c.key < s.lo || c.key > s.hi {
				continue
			}
			n := len(o.res.Entries)
			if n > 0 && c.key <= o.res.Entries[n-1].Key.Str {
				return o.restart(next) // the same row in two blocks: it moved between the READs
			}
			if o.limit > 0 && n == o.limit {
				o.res.More = true
				return o.finish(index.Found)
			}
			o.res.Rests = max(o.res.Rests, c.header.CSN())
			o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Str(c.key), Row: c.row, Header: c.header, Addr: c.p.Addr()})
		}
	}
	return o.finish(index.Found)
}
