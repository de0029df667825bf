package learned

import (
	"slices"
	"sort"

	"drtmx/index/learned/leaf"
)

// strPatch is patch for string keys.
type strPatch struct {
	leaves []strLeaf // ascending, disjoint
}

type strLeaf struct {
	low, high string // high excluded, "" if there is no bound
	addr      uint64
	from      int // the logical leaf at which the model had the chase begin; -1 if that lay right of it
}

func (p *strPatch) find(key string, pred int) (uint64, bool) {
	i := sort.Search(len(p.leaves), func(i int) bool { return p.leaves[i].low > key })
	if i == 0 {
		return 0, false
	}
	l := &p.leaves[i-1]
	return l.addr, l.high == "" || key < l.high || l.from == pred
}

// with is p and one more leaf, seen now: see patch.with.
func (p *strPatch) with(l strLeaf) *strPatch {
	q := &strPatch{}
	for _, o := range p.leaves {
		if o.low < l.low {
			if o.high == "" || o.high > l.low {
				o.high = l.low
			}
			q.leaves = append(q.leaves, o)
		}
	}
	at := len(q.leaves)
	q.leaves = append(q.leaves, l)
	for _, o := range p.leaves {
		if l.high != "" && o.low >= l.high {
			q.leaves = append(q.leaves, o)
		}
	}
	if len(q.leaves) > patchMax {
		from := min(max(at-patchMax/4, 0), len(q.leaves)-patchMax/2)
		q.leaves = slices.Clone(q.leaves[from : from+patchMax/2])
	}
	return q
}

// learnStr remembers a leaf that a search found from a predicted leaf.
func (f *finder) learnStr(v *leaf.Fences, addr uint64, from int) {
	if f.held == nil {
		return
	}
	high, _ := v.High()
	l := strLeaf{low: v.Low(), high: high, addr: addr, from: from}
	old := f.held.strPatch.Load()
	if old == nil {
		f.held.strPatch.CompareAndSwap(nil, &strPatch{leaves: []strLeaf{l}})
		return
	}
	f.held.strPatch.CompareAndSwap(old, old.with(l))
}
