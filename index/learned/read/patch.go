package read

import (
	"encoding/binary"
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
)

// patch lists leaves that chases of right links have found since a sub-model was
// trained, so that a later lookup benefits from an earlier one's chase. Without it,
// every lookup of the newest rows would walk all leaves appended since the last
// training. It is immutable, and belongs to the sub-model that it corrects. Like the
// model it is a hint.
//
// To learn, a patch is copied. Under a steady load of splits this happens in every
// other transaction. So the latest leaves are in a separate short list, and only that
// is copied until it is full.
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
	from      int // the logical leaf at which the chase began; -1 if that is to the right of this leaf

	// Of an entry of a tail list.
	number uint64
	rising bool // it began as the last leaf of ascending keys
}

const (
	patchMax  = 128
	latelyMax = 12 // leaves in the short list
)

// leafFor returns the best known leaf from which to search for a key that the model
// predicts in logical leaf pred: the leaf that covers the key, or one from which
// right links lead to it. ok is false if the prediction is better.
func (p *patch) leafFor(key index.Key, pred int) (addr uint64, ok bool) {
	l := p.leaf(key)
	if l == nil {
		return 0, false
	}
	return l.addr, l.reaches(key) || l.from == pred
}

// leaf returns the last leaf that begins at or before a key.
func (p *patch) leaf(key index.Key) *patchLeaf {
	late, old := p.lately.last(key), p.before.last(key)
	if late == nil || old != nil && below(late.low, old.low) && !late.reaches(old.low) {
		return old
	}
	return late
}

// reaches reports whether the leaf, which begins at or before a key, does not end before it.
func (l *patchLeaf) reaches(key index.Key) bool { return !l.bounded || below(key, l.high) }

// uncovers reports whether o, which was seen before the leaf, covers keys after the
// leaf. Once the leaf is listed o ends before it, and would no longer hide older
// entries for these keys.
func (l *patchLeaf) uncovers(o patchLeaf) bool {
	return l.bounded && below(o.low, l.high) && o.reaches(l.high)
}

// last returns the last leaf of a list that begins at or before a key, nil if there
// is none.
func (s *leafList) last(key index.Key) *patchLeaf {
	i := s.upTo(key) - 1
	if i < 0 {
		return nil
	}
	return &s.leaves[i]
}

// upTo returns the number of leaves that begin at or before a key.
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

// digest returns the word that orders a key among s.lows, except for ties. ok is
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

// listOf makes a list of leaves; there must be at least one.
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

// all returns the leaves in ascending order. The caller must not modify the slice.
func (p *patch) all() []patchLeaf {
	if len(p.lately.leaves) == 0 {
		return p.before.leaves
	}
	return merge(p.before.leaves, p.lately.leaves)
}

// with returns p with one more leaf, which was seen just now.
func (p *patch) with(l patchLeaf) *patch {
	lately := merge(p.lately.leaves, []patchLeaf{l})
	if len(lately) <= latelyMax && !(len(p.before.leaves) > 0 && slices.ContainsFunc(p.lately.leaves, l.uncovers)) {
		return &patch{lately: listOf(lately), before: p.before}
	}
	all := merge(merge(p.before.leaves, p.lately.leaves), []patchLeaf{l})
	// If there are too many leaves, the half farthest from the new one is dropped.
	if len(all) > patchMax {
		at, _ := slices.BinarySearchFunc(all, l.low, func(l patchLeaf, low index.Key) int { return l.low.Compare(low) })
		from := min(max(at-patchMax/4, 0), len(all)-patchMax/2)
		all = slices.Clone(all[from : from+patchMax/2])
	}
	return &patch{before: listOf(all)}
}

// merge combines two lists, of which late was seen later. A leaf of old ends where
// one of late begins, because the keys above have been split off. A leaf of old that
// begins within one of late no longer exists.
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
// concurrently, some leaves may be lost. A nil sub-model, one that is not held,
// ignores it.
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
