package read

import (
	"encoding/binary"
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
)

// patch lists leaves that chases have found since a sub-model was trained:
// what one lookup learnt of a split, the next one uses. Without it, every
// lookup of the newest rows would walk all leaves appended since the last
// training. It is immutable, and goes with the sub-model that it mends. Like
// the model it is a hint.
//
// A patch that learns is copied. Beside a steady load of splits this happens in
// every other transaction, so what was learnt lately stands in a short list of
// its own, which alone is copied until it is full.
type patch struct {
	lately leafList // hides leaves of before
	before leafList
}

// leafList lists leaves in ascending order. They are disjoint.
type leafList struct {
	leaves []patchLeaf
	// The low fences of leaves, so that a search touches few cache lines: native
	// keys, or eight bytes each of string keys, behind a prefix that all of them have.
	lows   []uint64
	prefix string
}

// patchLeaf is a leaf with its fences.
type patchLeaf struct {
	low, high index.Key // high is the first key above, if there is one
	bounded   bool
	addr      uint64
	from      int // the logical leaf at which the model had the chase begin; -1 if that lay right of it

	// Of an entry of a tail list.
	number uint64
	rising bool // it began as the last leaf of keys that rise
}

const (
	patchMax  = 128
	latelyMax = 12 // of them in the short list
)

// leafFor is the best leaf known from which to look for a key that the model has
// in logical leaf pred: the one that covers it, or else one on the way there.
func (p *patch) leafFor(key index.Key, pred int) (addr uint64, ok bool) {
	l := p.leaf(key)
	if l == nil {
		return 0, false
	}
	return l.addr, l.reaches(key) || l.from == pred
}

// leaf is the last leaf that begins at or before a key.
func (p *patch) leaf(key index.Key) *patchLeaf {
	late, old := p.lately.last(key), p.before.last(key)
	if late == nil || old != nil && below(late.low, old.low) && !late.reaches(old.low) {
		return old
	}
	return late
}

// reaches reports whether the leaf, which begins at or before a key, does not end before it.
func (l *patchLeaf) reaches(key index.Key) bool { return !l.bounded || below(key, l.high) }

// uncovers reports whether keys behind the leaf belonged to o, which was seen
// before. They no longer do once the leaf is listed, and o would not hide any
// more what was known of them still earlier.
func (l *patchLeaf) uncovers(o patchLeaf) bool {
	return l.bounded && below(o.low, l.high) && o.reaches(l.high)
}

// last is the last leaf of a list that begins at or before a key, nil if there is none.
func (s *leafList) last(key index.Key) *patchLeaf {
	i := s.upTo(key) - 1
	if i < 0 {
		return nil
	}
	return &s.leaves[i]
}

// upTo is the number of leaves that begin at or before a key.
func (s *leafList) upTo(key index.Key) int {
	digest, quick := s.digest(key)
	lo, hi := 0, len(s.leaves)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		low := s.lows[mid]
		if !quick || low == digest && (key.Str != "" || s.leaves[mid].low.Str != "") {
			if below(key, s.leaves[mid].low) {
				hi = mid
			} else {
				lo = mid + 1
			}
		} else if digest < low {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// digest returns what orders a key among the low fences, except for ties. ok is
// false if the key has another prefix.
func (s *leafList) digest(key index.Key) (d uint64, ok bool) {
	if key.Str == "" {
		return key.Num, s.prefix == ""
	}
	if !strings.HasPrefix(key.Str, s.prefix) {
		return 0, false
	}
	var b [8]byte
	copy(b[:], key.Str[len(s.prefix):])
	return binary.BigEndian.Uint64(b[:]), true
}

// listOf makes a list of leaves, of which there is at least one.
func listOf(leaves []patchLeaf) leafList {
	first, last := leaves[0].low.Str, leaves[len(leaves)-1].low.Str
	n := 0
	for n < min(len(first), len(last)) && first[n] == last[n] {
		n++
	}
	s := leafList{leaves: leaves, prefix: first[:n], lows: make([]uint64, len(leaves))}
	for i := range leaves {
		s.lows[i], _ = s.digest(leaves[i].low)
	}
	return s
}

func below(a, b index.Key) bool { return a.Num < b.Num || a.Num == b.Num && a.Str < b.Str }

// all lists the leaves in ascending order. The list is not the caller's to change.
func (p *patch) all() []patchLeaf {
	if len(p.lately.leaves) == 0 {
		return p.before.leaves
	}
	return merge(p.before.leaves, p.lately.leaves)
}

// with is p and one more leaf, seen now.
func (p *patch) with(l patchLeaf) *patch {
	lately := merge(p.lately.leaves, []patchLeaf{l})
	if len(lately) <= latelyMax && !(len(p.before.leaves) > 0 && slices.ContainsFunc(p.lately.leaves, l.uncovers)) {
		return &patch{lately: listOf(lately), before: p.before}
	}
	all := merge(merge(p.before.leaves, p.lately.leaves), []patchLeaf{l})
	// The half farthest from the new leaf goes if there are too many.
	if len(all) > patchMax {
		at, _ := slices.BinarySearchFunc(all, l.low, func(l patchLeaf, low index.Key) int { return l.low.Compare(low) })
		from := min(max(at-patchMax/4, 0), len(all)-patchMax/2)
		all = slices.Clone(all[from : from+patchMax/2])
	}
	return &patch{before: listOf(all)}
}

// merge lists the leaves of two lists, of which the second one was seen later. A
// leaf of the first one ends where one of the second begins, for what it held
// above has been split off; one that begins within one of the second is gone.
func merge(old, late []patchLeaf) []patchLeaf {
	all := make([]patchLeaf, 0, len(old)+len(late))
	for i, j := 0, 0; i < len(old) || j < len(late); {
		if j < len(late) && (i == len(old) || !below(old[i].low, late[j].low)) {
			all = append(all, late[j])
			j++
			continue
		}
		o := old[i]
		i++
		if j > 0 && late[j-1].reaches(o.low) {
			continue
		}
		if j < len(late) && o.reaches(late[j].low) {
			o.high, o.bounded = late[j].low, true
		}
		all = append(all, o)
	}
	return all
}

// learn remembers a leaf that a chase or a scan found. If several operations learn
// at once, some leaves may be lost. A sub-model that is not held, nil, learns nothing.
func (s *heldSub) learn(l patchLeaf) {
	if s == nil {
		return
	}
	if s.tail != nil {
		s.tail.learn(s, l)
		return
	}
	old := s.patch.Load()
	from := old
	if from == nil {
		from = &patch{}
	}
	s.patch.CompareAndSwap(old, from.with(l))
}

// learnNative remembers a leaf of native keys.
func (s *heldSub) learnNative(v *leaf.Leaf, addr uint64, from int) {
	high, bounded := v.High()
	s.learn(patchLeaf{low: index.Num(v.Low()), high: index.Num(high), bounded: bounded, addr: addr, from: from})
}

// learnStrings remembers a leaf of string keys.
func (s *heldSub) learnStrings(v *leaf.Fences, addr uint64, from int) {
	high, bounded := v.High()
	s.learn(patchLeaf{low: index.Str(v.Low()), high: index.Str(high), bounded: bounded, addr: addr, from: from})
}
