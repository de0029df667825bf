package read

import (
	"encoding/binary"
	"math"
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

// leafList lists leaves in ascending order. They are disjoint. Lists share their leaves,
// which never change: a list is copied for each new leaf of a hot sub-model.
type leafList struct {
	leaves []*patchLeaf
	briefs []brief // of the leaves, so that a search touches few cache lines
	prefix string  // that the low fences of all leaves have
}

// brief is what most searches need of a leaf. Of fences it has the digests: native keys,
// or eight bytes each of string keys, behind the list's prefix.
type brief struct {
	low  uint64
	last uint64 // a key with a higher digest lies behind the leaf
	from int
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
// right links lead to it. at is the key's place. ok is false if the prediction is
// better.
func (p *patch) leafFor(at place, key index.Key, pred int) (addr uint64, ok bool) {
	if at.late == 0 && (at.before == 0 || p.before.endsBefore(at.before-1, key) && p.before.briefs[at.before-1].from != pred) {
		return 0, false
	}
	l := p.leaf(at)
	return l.addr, l.reaches(key) || l.from == pred
}

// place is where a key belongs in the lists of a patch: how many of their leaves begin at
// or before it.
type place struct{ before, late int }

func (p *patch) place(key index.Key) place { return place{p.before.upTo(key), p.lately.upTo(key)} }

// leaf returns the last leaf that begins at or before a key, whose place is at; nil if
// there is none.
func (p *patch) leaf(at place) *patchLeaf {
	late, old := p.lately.before(at.late), p.before.before(at.before)
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
func (l *patchLeaf) uncovers(o *patchLeaf) bool {
	return l.bounded && below(o.low, l.high) && o.reaches(l.high)
}

// last returns the last leaf of a list that begins at or before a key, nil if there
// is none.
func (s *leafList) last(key index.Key) *patchLeaf { return s.before(s.upTo(key)) }

// before returns the leaf before place i, nil if there is none.
func (s *leafList) before(i int) *patchLeaf {
	if i == 0 {
		return nil
	}
	return s.leaves[i-1]
}

// endsBefore reports whether leaf i is known to end before a key, without a look at the
// leaf.
func (s *leafList) endsBefore(i int, key index.Key) bool {
	d, quick := s.digest(key)
	return quick && d > s.briefs[i].last
}

// upTo returns the number of leaves that begin at or before a key.
func (s *leafList) upTo(key index.Key) int {
	digest, quick := s.digest(key)
	lo, hi := 0, len(s.leaves)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		low := s.briefs[mid].low
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

// digest returns the word that orders a key among the briefs, except for ties. ok is
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
func listOf(leaves []*patchLeaf) leafList {
	first, last := leaves[0].low.Str, leaves[len(leaves)-1].low.Str
	s := leafList{leaves: leaves, prefix: first[:leaf.Common(first, last)], briefs: make([]brief, len(leaves))}
	s.digestAll()
	return s
}

// digestAll computes all briefs, for a new prefix.
func (s *leafList) digestAll() {
	for i, l := range s.leaves {
		s.briefs[i], _ = s.briefOf(l)
	}
}

// briefOf returns the brief of a leaf. ok is false if its low fence has another prefix.
func (s *leafList) briefOf(l *patchLeaf) (e brief, ok bool) {
	e = brief{last: math.MaxUint64, from: l.from}
	if l.bounded {
		if d, ok := s.digest(l.high); ok {
			e.last = d // of strings, keys below the high fence may have its digest
			if l.high.Str == "" && d > 0 {
				e.last--
			}
		}
	}
	e.low, ok = s.digest(l.low)
	return e, ok
}

func below(a, b index.Key) bool { return a.Num < b.Num || a.Num == b.Num && a.Str < b.Str }

// all returns the leaves in ascending order. The caller must not modify the slice.
func (p *patch) all() []*patchLeaf {
	if len(p.lately.leaves) == 0 {
		return p.before.leaves
	}
	return merge(p.before.leaves, p.lately.leaves)
}

// with returns p with one more leaf, which was seen just now.
func (p *patch) with(l patchLeaf) *patch {
	lately := merge(p.lately.leaves, []*patchLeaf{&l})
	if len(lately) <= latelyMax && !(len(p.before.leaves) > 0 && slices.ContainsFunc(p.lately.leaves, l.uncovers)) {
		return &patch{lately: listOf(lately), before: p.before}
	}
	all := merge(merge(p.before.leaves, p.lately.leaves), []*patchLeaf{&l})
	// If there are too many leaves, the half farthest from the new one is dropped.
	if len(all) > patchMax {
		at, _ := slices.BinarySearchFunc(all, l.low, func(l *patchLeaf, low index.Key) int { return l.low.Compare(low) })
		from := min(max(at-patchMax/4, 0), len(all)-patchMax/2)
		all = slices.Clone(all[from : from+patchMax/2])
	}
	return &patch{before: listOf(all)}
}

// merge combines two lists, of which late was seen later. A leaf of old ends where
// one of late begins, because the keys above have been split off. A leaf of old that
// begins within one of late no longer exists.
func merge(old, late []*patchLeaf) []*patchLeaf {
	all := make([]*patchLeaf, 0, len(old)+len(late))
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
			ended := *o
			ended.high, ended.bounded = late[j].low, true
			o = &ended
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
