package model

import (
	"fmt"
	"math/bits"

	"drtmx/index"
)

// MaxSubModels is the largest number of sub-models of one router.
const MaxSubModels = 1 << 24

// A Router maps a key to the sub-model whose interval [start, next start) holds it.
// It is exact: routing at training and at lookup cannot differ, whatever the
// distribution, so no key set collapses onto one sub-model. Like XStore's top model
// (§5.1) it begins with a linear dispatch, here to a bucket of starts. Where a skewed
// set crowds a bucket, a second linear dispatch divides that bucket's own range; a
// search among the few starts that remain ends it.
//
// A Router is immutable and may be read by any number of goroutines.
type Router struct {
	starts []uint64
	top    dispatch
	// table holds the top's entries, then those of each crowded bucket. Entry
	// b and the next bound the answer for keys of bucket b; an entry with
	// crowded set names the bucket's own dispatch instead.
	table   []uint32
	buckets []dispatch
}

// crowded marks a table entry as an index into buckets.
const crowded = 1 << 31

// crowdedStarts is how many starts make a bucket crowded.
const crowdedStarts = 8

// A dispatch spreads the keys of one range evenly over n entries of table.
type dispatch struct {
	anchor uint64 // where its first bucket begins
	norm   uint8  // leading zeros of the range's width
	at, n  uint32 // its entries are table[at : at+n+1]
}

// bucket returns the bucket, in [0, n), of a key at or above the anchor.
func (d *dispatch) bucket(key uint64) uint32 {
	x := min(key-d.anchor, ^uint64(0)>>(d.norm&63))
	b, _ := bits.Mul64(x<<(d.norm&63), uint64(d.n))
	return uint32(b)
}

// NewRouter makes a router from the sub-models' first keys, strictly ascending.
// Keys below starts[0] belong to the first sub-model. It copies starts.
func NewRouter(starts []uint64) (*Router, error) {
	r := new(Router)
	if err := r.set(starts); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Router) set(starts []uint64) error {
	if len(starts) == 0 || len(starts) > MaxSubModels {
		return fmt.Errorf("%w: router of %d sub-models", index.ErrCorrupt, len(starts))
	}
	for i := 1; i < len(starts); i++ {
		if starts[i] <= starts[i-1] {
			return fmt.Errorf("%w: router start %d does not rise", index.ErrCorrupt, i)
		}
	}
	r.starts = append(r.starts[:0], starts...)
	r.build()
	return nil
}

// build derives the dispatch tables.
func (r *Router) build() {
	r.table, r.buckets = r.table[:0], r.buckets[:0]
	r.top = dispatch{anchor: ^uint64(0)}
	n := len(r.starts)
	if n == 1 {
		return
	}
	r.top = r.spread(1, n)
	for b := range r.top.n {
		// The entries above b are still numbers of starts.
		from, to := r.table[b]+1, r.table[b+1]+1
		if to-from >= crowdedStarts {
			d := r.spread(int(from), int(to))
			r.table[b] = crowded | uint32(len(r.buckets))
			r.buckets = append(r.buckets, d)
		}
	}
}

// spread makes the dispatch of starts[from:to], 0 < from < to, appending its
// entries to the table.
func (r *Router) spread(from, to int) dispatch {
	d := dispatch{anchor: r.starts[from], at: uint32(len(r.table)), n: uint32(to - from)}
	reach := r.starts[to-1] - d.anchor
	d.norm = uint8(min(bits.LeadingZeros64(reach), 63))
	i := from
	for b := range d.n {
		r.table = append(r.table, uint32(i-1))
		for i < to && d.bucket(r.starts[i]) <= b {
			i++
		}
	}
	r.table = append(r.table, uint32(to-1))
	return d
}

// Route returns the sub-model of key, in [0, Len()). It does not allocate.
func (r *Router) Route(key uint64) int {
	if key < r.top.anchor || r.top.n == 0 {
		return 0
	}
	b := r.top.bucket(key)
	lo := r.table[b]
	if lo&crowded != 0 {
		return r.routeCrowded(lo&^crowded, key)
	}
	hi := r.table[b+1]
	if hi&crowded != 0 {
		hi = r.table[r.buckets[hi&^crowded].at]
	}
	return r.among(int(lo), int(hi), key)
}

func (r *Router) routeCrowded(i uint32, key uint64) int {
	d := &r.buckets[i]
	if key < d.anchor { // in the bucket, below its first start
		return int(r.table[d.at])
	}
	b := d.at + d.bucket(key)
	return r.among(int(r.table[b]), int(r.table[b+1]), key)
}

// among returns the sub-model of key, known to be in [lo, hi].
func (r *Router) among(lo, hi int, key uint64) int {
	if hi-lo > 3 {
		return searchKeys(r.starts, lo, hi+1, key)
	}
	if lo+4 > len(r.starts) {
		return searchKeys(r.starts, max(len(r.starts)-4, 0), len(r.starts), key)
	}
	// Comparing with three starts, needed or not, spares a branch that random
	// keys would mispredict.
	s := r.starts[lo : lo+4 : lo+4]
	_, b1 := bits.Sub64(key, s[1], 0)
	_, b2 := bits.Sub64(key, s[2], 0)
	_, b3 := bits.Sub64(key, s[3], 0)
	return lo + 3 - int(b1+b2+b3)
}

// searchKeys returns the highest i in [from, to) with keys[i] ≤ key, from if
// there is none. The steps do not depend on a branch, since lookups of random
// keys would mispredict every other one.
func searchKeys(keys []uint64, from, to int, key uint64) int {
	n := to - from
	for n > 1 {
		half := n >> 1
		_, below := bits.Sub64(key, keys[from+half], 0)
		from += half & (int(below) - 1)
		n -= half
	}
	return from
}

// searchFew does the same as searchKeys over all of at most 32 keys, in two steps of
// several comparisons each. A number of steps that differed between sub-models would
// be mispredicted, too.
func searchFew(keys []uint64, key uint64) int {
	n := len(keys)
	if n < 4 || n > 32 {
		return searchKeys(keys, 0, n, key)
	}
	last := n - 1
	if n < 8 {
		_, b := bits.Sub64(key, keys[min(4, last)], 0)
		from := (n - 4) & (int(b) - 1)
		k := keys[from : from+4 : from+4]
		_, b1 := bits.Sub64(key, k[1], 0)
		_, b2 := bits.Sub64(key, k[2], 0)
		_, b3 := bits.Sub64(key, k[3], 0)
		return from + 3 - int(b1+b2+b3)
	}
	_, b8 := bits.Sub64(key, keys[min(8, last)], 0)
	_, b16 := bits.Sub64(key, keys[min(16, last)], 0)
	_, b24 := bits.Sub64(key, keys[min(24, last)], 0)
	from := min(8*(3-int(b8+b16+b24)), n-8)
	k := keys[from : from+8 : from+8]
	_, b1 := bits.Sub64(key, k[1], 0)
	_, b2 := bits.Sub64(key, k[2], 0)
	_, b3 := bits.Sub64(key, k[3], 0)
	_, b4 := bits.Sub64(key, k[4], 0)
	_, b5 := bits.Sub64(key, k[5], 0)
	_, b6 := bits.Sub64(key, k[6], 0)
	_, b7 := bits.Sub64(key, k[7], 0)
	return from + 7 - int(b1+b2+b3+b4+b5+b6+b7)
}

// Len returns the number of sub-models, at least 1.
func (r *Router) Len() int { return max(1, len(r.starts)) }

// Start returns the first key of sub-model i.
func (r *Router) Start(i int) uint64 {
	if len(r.starts) == 0 {
		return 0
	}
	return r.starts[i]
}

// Bytes returns the memory the router takes at a client.
func (r *Router) Bytes() int {
	return 8*len(r.starts) + 4*len(r.table) + 24*len(r.buckets)
}

// Partition chooses sub-model starts from the ascending low fences of all leaves:
// about targetLeaves each, never more than MaxLeaves, and cut where the key density
// breaks (the end of a warehouse or district in a composite key, or of a cluster),
// since no line fits both sides of a wide gap. The first start is fences[0]. It is
// used for the first training and, with the fences of that moment, for expansion and
// shrinking, which rebuild the partition (XStore §5.3).
func Partition(fences []uint64, targetLeaves int) []uint64 {
	if len(fences) == 0 {
		return nil
	}
	target := min(max(targetLeaves, 1), MaxLeaves/2)
	starts := []uint64{fences[0]}
	from := 0
	cut := func(to int) { // chop [from, to) evenly and start anew at to
		n := to - from
		pieces := max(1, (n+target/2)/target)
		for p := 1; p < pieces; p++ {
			starts = append(starts, fences[from+n*p/pieces])
		}
		if to < len(fences) {
			starts = append(starts, fences[to])
		}
		from = to
	}
	least := max(target/8, 2)
	for i := 1; i < len(fences); i++ {
		if i-from >= least && len(fences)-i >= least && breaks(fences, i) {
			cut(i)
		}
	}
	cut(len(fences))
	return starts
}

// Join drops starts of a [Partition] where the key density breaks, as long as
// sub-models have no more than twice targetLeaves. It is for [PLR], whose sub-models
// have a segment for each cluster of keys, which takes less memory than another
// sub-model. It modifies starts.
func Join(fences, starts []uint64, targetLeaves int) []uint64 {
	most := 2 * min(max(targetLeaves, 1), MaxLeaves/2)
	joined, first, at := starts[:0], 0, 0
	for k, s := range starts {
		for fences[at] < s {
			at++
		}
		end := at
		for end < len(fences) && (k+1 == len(starts) || fences[end] < starts[k+1]) {
			end++
		}
		if k == 0 || end-first > most || !breaks(fences, at) {
			joined, first = append(joined, s), at
		}
	}
	return joined
}

const (
	// gapNeighbours is how many leaves on each side determine the local density.
	gapNeighbours = 16
	// gapFactor is how many local leaf widths are a gap.
	gapFactor = 16
)

// breaks reports whether the step to fence i is a gap: it is wider than gapFactor
// leaves on either side of it, so that a mere change of density does not count.
func breaks(fences []uint64, i int) bool {
	step := fences[i] - fences[i-1]
	if step/gapFactor == 0 {
		return false
	}
	lo, hi := max(i-1-gapNeighbours, 0), min(i+gapNeighbours, len(fences)-1)
	if lo == i-1 || hi == i {
		return false
	}
	left := (fences[i-1] - fences[lo]) / uint64(i-1-lo)
	right := (fences[hi] - fences[i]) / uint64(hi-i)
	return step/gapFactor > max(left, right)
}
