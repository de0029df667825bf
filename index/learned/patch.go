package learned

import "drtmx/index/learned/leaf"

// patch lists leaves that chases have found since a sub-model was trained:
// what one lookup learnt of a split, the next one uses. Without it, every
// lookup of the newest rows would walk all leaves appended since the last
// training. It is immutable, and goes with the sub-model that it mends. Like
// the model it is a hint.
type patch struct {
	leaves []patchLeaf // ascending, disjoint
}

type patchLeaf struct {
	low, last uint64 // keys, both included
	addr      uint64
	from      int // the logical leaf at which the model had the chase begin
}

const patchMax = 128

// find is the best leaf known from which to look for a key that the model has
// in logical leaf pred: the one that covers it, or else one on the way there.
func (p *patch) find(key uint64, pred int) (uint64, bool) {
	lo, hi := 0, len(p.leaves)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if p.leaves[mid].low <= key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0, false
	}
	l := &p.leaves[lo-1]
	return l.addr, key <= l.last || l.from == pred
}

// with is p and one more leaf, seen now. A leaf known before ends where that
// one begins, for what it held above has been split off; one that begins
// within it is gone. The half farthest from it goes too if there are too many.
func (p *patch) with(l patchLeaf) *patch {
	q := &patch{leaves: make([]patchLeaf, 0, 1+len(p.leaves))}
	at := -1
	for _, o := range p.leaves {
		if o.low < l.low {
			o.last = min(o.last, l.low-1)
			q.leaves = append(q.leaves, o)
			continue
		}
		if at < 0 {
			at = len(q.leaves)
			q.leaves = append(q.leaves, l)
		}
		if o.low > l.last {
			q.leaves = append(q.leaves, o)
		}
	}
	if at < 0 {
		at = len(q.leaves)
		q.leaves = append(q.leaves, l)
	}
	if len(q.leaves) > patchMax {
		from := min(max(at-patchMax/4, 0), len(q.leaves)-patchMax/2)
		q.leaves = q.leaves[from : from+patchMax/2]
	}
	return q
}

// learn remembers a leaf that a chase found. If several operations learn at
// once, some leaves may be lost.
func (f *finder) learn(v *leaf.Leaf, addr uint64, from int) {
	if f.held == nil {
		return
	}
	l := patchLeaf{low: v.Low(), last: ^uint64(0), addr: addr, from: from}
	if high, bounded := v.High(); bounded {
		l.last = high - 1
	}
	old := f.held.patch.Load()
	if old == nil {
		f.held.patch.CompareAndSwap(nil, &patch{leaves: []patchLeaf{l}})
		return
	}
	f.held.patch.CompareAndSwap(old, old.with(l))
}
