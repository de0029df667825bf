package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/rdma"
)

// belowRead is what is in one interval of an array that a scan has READ: a bin, or a root with its
// children.
type belowRead struct {
	at     leaf.Below // 0: nothing
	low    uint64     // of the interval, or of the child
	high   uint64     // and its upper bound, which it does not have if last is set
	last   bool
	buf    []uint64
	wr     int
	asked  bool      // it is READ in the batch under way
	wanted bool      // it is READ in a later one
	view   leaf.Leaf // of a bin, once accepted
	root   leaf.Root // of a root, once accepted
	childs []belowRead
}

// binScan has the steps of a scan of arrays with bins. When an array has arrived, the scan READs
// what is in the intervals that the range meets, in the state scanFences, and the children of
// roots in one round more.
type binScan struct {
	nativeScan
	belowReader
	sorted  [leaf.BinSlots]byte // scratch
	round   int                 // of the scan, in which
	inRound int                 // so many blocks are READ
}

// belowPerRoundMax bounds the blocks below arrays that a scan READs in one round.
const belowPerRoundMax = 1024

// withBins makes the scan one of arrays.
func (o *scanOp) withBins() {
	s := &binScan{nativeScan: *o.kind.(*nativeScan), belowReader: belowReader{f: &o.finder}}
	o.bins, o.kindNow, o.kind = s, s, s
}

func (s *binScan) clear() {
	s.nativeScan.clear()
	s.round = -1
}

// complete READs what is in the intervals of an array that the range meets. The limit bounds them:
// keys of the array count, unless they are deleted.
func (s *binScan) complete(l *leafRead, next *rdma.Batch) (asked, ok bool) {
	s.of(s.o.lay)
	v := &l.view
	if !v.Ascending() {
		return false, false
	}
	l.below = l.below[:0]
	if v.Low() > s.hi || v.Above(s.lo) {
		return false, true // READ ahead, and not in the range
	}
	var found bool
	l.first, found = v.Interval(max(s.lo, v.Low()))
	end, _ := v.Interval(s.hi)
	for i := l.first; i <= end; i++ { // before the first READ is appended: nobody would wait for it
		if b := v.Below(i); b != 0 && !b.Valid() {
			return false, false
		}
	}
	rows := 0
	for i := l.first; i <= end; i++ {
		n := len(l.below)
		if n < cap(l.below) {
			l.below = l.below[:n+1]
		} else {
			l.below = append(l.below, belowRead{})
		}
		b := &l.below[n]
		b.at, b.childs = v.Below(i), b.childs[:0]
		b.low, b.last = v.Low(), v.Last()
		b.high, _ = v.High()
		if i > 0 {
			b.low = v.Key(i-1) + 1
		}
		if i < v.Count() {
			b.high, b.last = v.Key(i), false
		}
		if i == l.first && found {
			b.at = 0 // the range begins at the key that ends the interval
		}
		if b.asked, b.wanted = false, false; b.at != 0 {
			n := s.ask(b, next)
			if asked {
				s.o.reads += n // the caller counts the first
			}
			asked = asked || n > 0
		}
		if i < v.Count() && v.Head(i) != 0 {
			if rows++; s.o.limit > 0 && rows > s.o.limit {
				break
			}
		}
	}
	return asked, true
}

// ask READs one block, in this round or in a later one. It returns the number of READs.
func (s *binScan) ask(b *belowRead, next *rdma.Batch) int {
	if s.round != s.o.rounds {
		s.round, s.inRound = s.o.rounds, 0
	}
	if b.asked, b.wanted = s.inRound < belowPerRoundMax, s.inRound >= belowPerRoundMax; b.wanted {
		return 0
	}
	s.inRound++
	b.buf = grow(b.buf, s.words(b.at))
	b.wr = next.Read(s.o.c.o.Leaves, b.at.Addr(), b.buf)
	return 1
}

// onFences goes on with what was READ below arrays.
func (s *binScan) onFences(done, next *rdma.Batch) bool {
	o := s.o
	reads := 0
	for i := o.at; i < len(o.leaves); i++ {
		l := &o.leaves[i]
		if l.state != readOK {
			continue
		}
		for j := range l.below {
			n, see := s.arrived(&l.below[j], done, next)
			switch see {
			case seeDown:
				o.res.Err = s.down(&l.below[j], done)
				return o.finish(index.Failed)
			case seeNowhere:
				l.state = readLost
			case seeDead: // it was divided or merged since the array was READ
				l.state = readBusy
			}
			reads += n
		}
	}
	if reads == 0 {
		return o.consumeAll(next)
	}
	o.reads += reads
	finished := o.wait()
	if !finished {
		o.state = scanFences
	}
	return finished
}

// arrived takes in one block, or the children of a root, and READs again what was being changed. It
// returns seeDead if an array must be READ again.
func (s *binScan) arrived(b *belowRead, done, next *rdma.Batch) (reads int, see leafVerdict) {
	for i := range b.childs {
		n, see := s.arrived(&b.childs[i], done, next)
		if reads += n; see != seeHere {
			return reads, see
		}
	}
	if b.wanted {
		return reads + s.ask(b, next), seeHere
	}
	if !b.asked {
		return reads, seeHere
	}
	b.asked = false // it has arrived
	wr := &done.WRs[b.wr]
	if b.at.IsRoot() {
		if see, b.root = s.judgeRoot(wr); see == seeHere && !b.root.Is(b.low, b.high, b.last) {
			see = seeDead
		}
	} else if see, b.view = s.judgeBin(wr); see == seeHere && !b.is(&b.view) {
		see = seeDead
	}
	switch see {
	case seeBusy:
		s.o.n.retries.Add(1)
		return reads + s.ask(b, next), seeHere
	case seeHere:
	default:
		return reads, see
	}
	if !b.at.IsRoot() {
		return reads, seeHere
	}
	for i := range b.root.Len() {
		low, high, last := b.root.Fence(i), b.high, b.last
		if i+1 < b.root.Len() {
			high, last = b.root.Fence(i+1), false
		}
		if low > s.hi || !last && high <= s.lo {
			continue
		}
		n := len(b.childs)
		if n < cap(b.childs) {
			b.childs = b.childs[:n+1]
		} else {
			b.childs = append(b.childs, belowRead{})
		}
		c := &b.childs[n]
		c.at, c.low, c.high, c.last, c.childs = leaf.ToBin(b.root.Child(i)), low, high, last, nil
		reads += s.ask(c, next)
	}
	return reads, seeHere
}

// is reports whether a bin is that of the interval.
func (b *belowRead) is(v *leaf.Leaf) bool {
	high, bounded := v.High()
	return v.Low() == b.low && bounded != b.last && (b.last || high == b.high)
}

// down returns the error of a READ of a block, or of a child.
func (s *binScan) down(b *belowRead, done *rdma.Batch) error {
	for i := range b.childs {
		if err := s.down(&b.childs[i], done); err != nil {
			return err
		}
	}
	if b.at == 0 || b.wr >= len(done.WRs) {
		return nil
	}
	return done.WRs[b.wr].Status.Err()
}

// add adds the rows of an array and of what is in its intervals, in key order.
func (s *binScan) add(l *leafRead, order []byte) (more, ok bool) {
	o, v := s.o, &l.view
	order = s.inRange(l, order)
	for i := range l.below {
		slot := l.first + i // of the key that ends the interval
		if s.full() {
			return true, true
		}
		if s.addBelow(&l.below[i]) {
			return true, true
		}
		if len(order) > 0 && int(order[0]) == slot {
			if s.full() {
				return true, true
			}
			o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Num(v.Key(slot)), Addr: v.Head(slot)})
			order = order[1:]
		}
	}
	return len(order) > 0, true
}

// addBelow adds the rows in an interval. It reports whether it left rows out because of the limit.
func (s *binScan) addBelow(b *belowRead) (more bool) {
	switch {
	case b.at == 0:
		return false
	case b.at.IsRoot():
		for i := range b.childs {
			if s.addBelow(&b.childs[i]) {
				return true
			}
			if s.full() && i+1 < len(b.childs) {
				return true
			}
		}
		return false
	}
	o, v := s.o, &b.view
	o.res.Quick = append(o.res.Quick, index.Proof{Addr: o.proofAddr(b.at.Addr()), Word: v.Header()})
	o.res.Gaps = append(o.res.Gaps, o.gapProof(v, b.at.Addr()))
	o.res.Rests = max(o.res.Rests, v.LastDelete())
	for _, at := range v.Sorted(s.sorted[:0], s.cur, s.hi) {
		if s.full() {
			return true
		}
		o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Num(v.Key(int(at))), Addr: v.Head(int(at))})
	}
	return false
}
