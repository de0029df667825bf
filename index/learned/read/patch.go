package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
)

// patch lists leaves that chases have found since a sub-model was trained:
// what one lookup learnt of a split, the next one uses. Without it, every
// lookup of the newest rows would walk all leaves appended since the last
// training. It is immutable, and goes with the sub-model that it mends. Like
// the model it is a hint.
type patch struct {
	leaves []patchLeaf // ascending, disjoint
}

// patchLeaf is a leaf with its fences.
type patchLeaf struct {
	low, high index.Key // high is the first key above, if there is one
	bounded   bool
	addr      uint64
	from      int // the logical leaf at which the model had the chase begin; -1 if that lay right of it
}

const patchMax = 128

// leafFor is the best leaf known from which to look for a key that the model has
// in logical leaf pred: the one that covers it, or else one on the way there.
func (p *patch) leafFor(key index.Key, pred int) (addr uint64, ok bool) {
	lo, hi := 0, len(p.leaves)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if below(key, p.leaves[mid].low) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == 0 {
		return 0, false
	}
	l := &p.leaves[lo-1]
	return l.addr, !l.bounded || below(key, l.high) || l.from == pred
}

func below(a, b index.Key) bool { return a.Num < b.Num || a.Num == b.Num && a.Str < b.Str }

// with is p and one more leaf, seen now. A leaf known before ends where that
// one begins, for what it held above has been split off; one that begins
// within it is gone. The half farthest from it goes too if there are too many.
func (p *patch) with(l patchLeaf) *patch {
	q := &patch{leaves: make([]patchLeaf, 0, 1+len(p.leaves))}
	at := -1
	for _, o := range p.leaves {
		if below(o.low, l.low) {
			if !o.bounded || below(l.low, o.high) {
				o.high, o.bounded = l.low, true
			}
			q.leaves = append(q.leaves, o)
			continue
		}
		if at < 0 {
			at = len(q.leaves)
			q.leaves = append(q.leaves, l)
		}
		if l.bounded && !below(o.low, l.high) {
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
func (f *finder) learn(l patchLeaf) {
	if f.held == nil {
		return
	}
	old := f.held.patch.Load()
	if old == nil {
		f.held.patch.CompareAndSwap(nil, &patch{leaves: []patchLeaf{l}})
		return
	}
	f.held.patch.CompareAndSwap(old, old.with(l))
}

// learnNative remembers a leaf of native keys.
func (f *finder) learnNative(v *leaf.Leaf, addr uint64, from int) {
	high, bounded := v.High()
	f.learn(patchLeaf{low: index.Num(v.Low()), high: index.Num(high), bounded: bounded, addr: addr, from: from})
}

// learnStrings remembers a leaf of string keys.
func (f *finder) learnStrings(v *leaf.Fences, addr uint64, from int) {
	high, bounded := v.High()
	f.learn(patchLeaf{low: index.Str(v.Low()), high: index.Str(high), bounded: bounded, addr: addr, from: from})
}
