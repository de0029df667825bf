package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// nativeScan has the steps of a scan of native keys. It adds rows to the result
// when it consumes their leaves; rows apart get header and payload at the end.
type nativeScan struct {
	o           *scanOp
	lo, hi, cur uint64
	apart       []rowRead // of the entries of the result, if rows are apart
	sorted      []slot
}

// slot is a slot in use within the range.
type slot struct {
	key uint64
	at  int
}

// rowRead is one row block READ by a scan.
type rowRead struct {
	buf    []uint64
	wr     int
	locked int
	done   bool
}

func (s *nativeScan) start(lo, hi index.Key) { s.lo, s.hi = lo.Num, hi.Num }

func (s *nativeScan) clear() { s.cur, s.apart = s.lo, s.apart[:0] }

func (s *nativeScan) empty() bool { return s.lo > s.hi }

func (s *nativeScan) seek() { s.o.key = index.Num(s.cur) }

// complete has nothing to do: a leaf of native keys has its fences.
func (s *nativeScan) complete(*leafRead, *rdma.Batch) (asked, ok bool) { return false, true }

// onFences is never called, for the same reason.
func (s *nativeScan) onFences(_, next *rdma.Batch) bool { return s.o.consumeAll(next) }

func (s *nativeScan) side(l *leafRead) sight { return sideOf(&l.view, s.cur) }

func (s *nativeScan) learn(l *leafRead) { s.o.learnNative(&l.view, l.addr, s.o.pred.Leaf) }

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
		leaf = m.Predict(s.hi).Leaf
	}
	return sub, leaf
}

// add adds the rows of a leaf to the result, in key order, up to the limit.
func (s *nativeScan) add(l *leafRead) (more, ok bool) {
	o := s.o
	sorted := s.sorted[:0]
	for i, k := range l.view.Keys() {
		if k < s.cur || k > s.hi || !l.view.InUse(i) {
			continue
		}
		at := slot{k, i}
		sorted = append(sorted, at)
		for j := len(sorted) - 1; j > 0 && sorted[j-1].key > k; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], at
		}
	}
	s.sorted = sorted
	for _, at := range sorted {
		if o.limit > 0 && len(o.res.Entries) == o.limit {
			return true, true
		}
		e := index.Entry{Key: index.Num(at.key)}
		if o.lay.Kind == leaf.Inline {
			e.Header = block.Header(l.view.Head(at.at))
			if e.Header.Locked() {
				return false, false
			}
			e.Addr, e.Row = o.lay.HeadAddr(l.addr, at.at), l.view.Row(at.at)
		} else {
			e.Addr = l.view.Head(at.at)
		}
		o.res.Entries = append(o.res.Entries, e)
	}
	return false, true
}

// rows ends a scan whose rows are inline, or READs them.
func (s *nativeScan) rows(next *rdma.Batch) bool {
	o := s.o
	o.res.More = o.more
	if o.lay.Kind == leaf.Inline || len(o.res.Entries) == 0 {
		return o.finish(index.Found)
	}
	for n := len(o.res.Entries); len(s.apart) < n; {
		if len(s.apart) < cap(s.apart) {
			s.apart = s.apart[:len(s.apart)+1]
		} else {
			s.apart = append(s.apart, rowRead{})
		}
		r := &s.apart[len(s.apart)-1]
		*r = rowRead{buf: grow(r.buf, o.lay.RowBlockWords), wr: -1}
	}
	return s.readRows(next)
}

// readRows appends READs of the rows still missing.
func (s *nativeScan) readRows(next *rdma.Batch) bool {
	o := s.o
	n := 0
	for i := range s.apart {
		r := &s.apart[i]
		if r.wr = -1; r.done || n == maxRowsPerRound {
			continue
		}
		addr := o.res.Entries[i].Addr
		if !model.ValidAddr(addr) {
			return o.fallback()
		}
		r.wr = next.Read(o.c.rkey, addr, r.buf)
		n++
	}
	if n == 0 {
		return o.finish(index.Found)
	}
	if o.stalls++; o.stalls > maxReads {
		return o.giveUp()
	}
	o.state = scanRows
	o.n.reads.Add(uint64(n))
	o.n.rounds.Add(1)
	return false
}

func (s *nativeScan) onRows(done, next *rdma.Batch) bool {
	o := s.o
	for i := range s.apart {
		r, e := &s.apart[i], &o.res.Entries[i]
		if r.wr < 0 {
			continue
		}
		switch judgeNumRow(&done.WRs[r.wr], o.lay, e.Key.Num, o.c.o.InOrder) {
		case rowHere:
			e.Header = block.Header(r.buf[block.HeaderWord])
			e.Row = r.buf[leaf.RowWord : leaf.RowWord+o.lay.RowWords]
			r.done = true
			o.stalls = 0
		case rowLocked:
			o.busy = true
			if r.locked++; r.locked >= maxLocked {
				return o.finish(index.Locked)
			}
		case rowGone:
			// The row was deleted since its leaf was READ: the leaves have
			// changed.
			o.clear()
			return o.again(next)
		case rowNowhere:
			return o.fallback()
		case rowDown:
			o.res.Err = done.WRs[r.wr].Status.Err()
			return o.finish(index.Failed)
		}
	}
	return s.readRows(next)
}
