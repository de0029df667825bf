package read

import (
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// nativeScan has the steps of a scan of native keys. It adds rows to the result when
// it consumes their leaves. Rows apart get header and payload at the end.
type nativeScan struct {
	o           *scanOp
	lo, hi, cur uint64
}

func (s *nativeScan) start(lo, hi index.Key) { s.lo, s.hi = lo.Num, hi.Num }

func (s *nativeScan) clear() { s.cur = s.lo }

func (s *nativeScan) empty() bool { return s.lo > s.hi }

func (s *nativeScan) seek() { s.o.key = index.Num(s.cur) }

// complete has nothing to do: a leaf of native keys holds its fences.
func (s *nativeScan) complete(*leafRead, *rdma.Batch) (asked, ok bool) { return false, true }

// onFences is never called, for the same reason.
func (s *nativeScan) onFences(_, next *rdma.Batch) bool { return s.o.consumeAll(next) }

func (s *nativeScan) side(l *leafRead) leafVerdict { return sideOf(&l.view, s.cur) }

func (s *nativeScan) learn(of *heldSub, l *leafRead, from int) {
	of.learnNative(&l.view, l.addr, from)
}

func (s *nativeScan) cover(l *leafRead) bool {
	high, bounded := l.view.High()
	s.cur = high
	return !bounded || high > s.hi
}

func (s *nativeScan) have() int { return len(s.o.res.Entries) }

func (s *nativeScan) full() bool { return s.o.limit > 0 && len(s.o.res.Entries) == s.o.limit }

func (s *nativeScan) end() (sub, leaf int) {
	sub = s.o.h.Route(index.Num(s.hi))
	if m := s.o.modelOf(sub); m != nil {
		leaf = lastOf(m.Predict(s.hi))
	}
	return sub, leaf
}

func (s *nativeScan) beyond(key index.Key) bool { return key.Num > s.hi }

func (s *nativeScan) keys(*leafRead) (from, to uint64) { return s.cur, s.hi }

// inRange returns the part of the order whose keys are in the range and not covered.
func (s *nativeScan) inRange(l *leafRead, order []byte) []byte {
	keys := l.view.Keys()
	for len(order) > 0 && keys[order[0]] < s.cur {
		order = order[1:]
	}
	for len(order) > 0 && keys[order[len(order)-1]] > s.hi {
		order = order[:len(order)-1]
	}
	return order
}

// add adds the rows of a leaf to the result, in key order, up to the limit.
func (s *nativeScan) add(l *leafRead, order []byte) (more, ok bool) {
	o, keys, heads := s.o, l.view.Keys(), l.view.Heads()
	order = s.inRange(l, order)
	if left := o.limit - len(o.res.Entries); o.limit > 0 && len(order) > left {
		order, more = order[:left], true
	}
	if !o.lay.Kind.Within() {
		for _, at := range order {
			o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Num(keys[at]), Addr: heads[at]})
		}
		return more, true
	}
	before, rests, whole := len(o.res.Entries), o.res.Rests, o.lay.Whole()
	o.res.Entries = slices.Grow(o.res.Entries, len(order))[:before+len(order)]
	for i, at := range order {
		at := int(at)
		h, addr := block.Header(heads[at]), o.lay.HeadAddr(l.addr, at)
		if whole {
			h, addr = block.Header(l.view.Header()), o.proofAddr(l.addr)
		} else if h.Locked() {
			return false, false
		} else {
			rests = max(rests, h.CSN())
		}
		// Field by field: the processor stalls if it copies an Entry that it has just made.
		e := &o.res.Entries[before+i]
		e.Key.Num, e.Key.Str, e.Row, e.Header, e.Addr = keys[at], "", l.view.Row(at), h, addr
	}
	o.res.Rests = rests
	return more, true
}

func (s *nativeScan) list() bool {
	o := s.o
	if o.lay.Kind.Within() {
		return true
	}
	o.apart.clear(len(o.res.Entries) * o.lay.RowBlockWords)
	for i := range o.res.Entries {
		if addr := o.res.Entries[i].Addr; !o.apart.list(addr, o.lay.RowBlockWords) {
			return false
		}
	}
	return true
}

func (s *nativeScan) judge(i int, wr *rdma.WR) rowVerdict {
	o, e := s.o, &s.o.res.Entries[i]
	see := judgeNumRow(wr, o.lay, e.Key.Num, o.c.o.InOrder)
	if see == rowHere {
		e.Header, e.Row = block.Header(wr.Buf[block.HeaderWord]), wr.Buf[leaf.RowWord:leaf.RowWord+o.lay.RowWords]
		o.res.Rests = max(o.res.Rests, e.Header.CSN())
	}
	return see
}

func (s *nativeScan) assemble(*rdma.Batch) bool { return s.o.finish(index.Found) }
