package train

import (
	"sync"

	"drtmx/index"
	"drtmx/index/learned/model"
)

const (
	// growFactor is by how much the number of leaves may grow or shrink before a new
	// partition is planned.
	growFactor = 2
	// planFactor is how many times larger than planned a sub-model may be.
	planFactor = 3
	leavesMin  = 64
)

// planning collects the fences from which a new partition is chosen.
type planning struct {
	full   bool
	at     index.Key
	fences []index.Key
	cut    []int               // not full: the sub-models to cut, finished ones first
	starts map[int][]index.Key // not full: the starts at which they are cut
}

// due begins a plan if the partition does not fit the tree any more, and reports
// whether it did.
func (t *Trainer) due(leaves uint64) bool {
	g := t.gen
	switch {
	case g == nil, leaves > growFactor*max(g.leaves, leavesMin), leaves*growFactor < g.leaves && g.leaves > leavesMin:
		t.plan = &planning{full: true}
		return true
	}
	if len(t.large) == 0 {
		return false
	}
	// Only the sub-models that have become too large are cut.
	t.plan, t.large = &planning{cut: t.large}, nil
	return true
}

// planStep collects some more fences. At the end it begins the next generation.
func (t *Trainer) planStep(lock sync.Locker) bool {
	p := t.plan
	if !p.full {
		return t.cutStep(lock)
	}
	lock.Lock()
	var more bool
	p.fences, t.addrs, p.at, more = t.fences(p.at, index.Key{}, fencesPerStep, p.fences, t.addrs[:0])
	lock.Unlock()
	if !more {
		t.begin(t.k.partition(p.fences, t.o.LeavesPerSubModel), uint64(len(p.fences)), lock)
	}
	return true
}

// cutStep cuts one of the sub-models that have become too large. In the end it joins those
// to their predecessors in which no leaf begins any more: where rows are appended and the
// oldest ones deleted, a queue, sub-models would become ever more.
func (t *Trainer) cutStep(lock sync.Locker) bool {
	p, g := t.plan, t.gen
	if len(p.cut) > 0 {
		i := p.cut[0]
		p.cut = p.cut[1:]
		end := g.end(i)
		lock.Lock()
		t.lows, t.addrs, _, _ = t.fences(g.router.Start(i), end, 4*model.MaxLeaves, t.lows[:0], t.addrs[:0])
		lock.Unlock()
		if p.starts == nil {
			p.starts = make(map[int][]index.Key)
		}
		p.starts[i] = t.k.cut(t.lows, t.o.LeavesPerSubModel)
		return true
	}
	var starts []index.Key
	for i := range g.subs {
		if i > 0 && g.subs[i].hollow {
			continue
		}
		starts = append(starts, g.router.Start(i))
		for _, f := range p.starts[i] {
			if f.Compare(starts[len(starts)-1]) > 0 {
				starts = append(starts, f)
			}
		}
	}
	lock.Lock()
	leaves := t.o.Tree.Leaves() // it fits these, so their number alone is no reason for a new partition
	lock.Unlock()
	t.begin(starts, leaves, lock)
	return true
}

// begin starts to train a generation, if the starts of its sub-models rise.
func (t *Trainer) begin(starts []index.Key, leaves uint64, lock sync.Locker) {
	t.plan = nil
	starts[0] = index.Key{}
	router, err := t.root.RouterOf(starts)
	if err != nil {
		// The fences do not rise: leaves were joined, or spoiled by a client that writes them, between
		// two looks. The present generation stays, and what made the plan due makes the next one.
		return
	}
	next := &generation{router: router, subs: make([]subState, len(starts)), leaves: leaves}
	next.Number, next.Subs = t.root.Number+1, len(starts)
	lock.Lock()
	t.next = next
	lock.Unlock()
}

// fences appends the low fences and the addresses of at most limit leaves, from the
// one that covers from up to end, or up to the last leaf if end is the zero key. more
// reports that further leaves follow, the first with low fence next. The caller keeps
// mutators out.
func (t *Trainer) fences(from, end index.Key, limit int, lows []index.Key, addrs []uint64) (l []index.Key, a []uint64, next index.Key, more bool) {
	t.o.Tree.Walk(from, func(low index.Key, leaf uint64) bool {
		if more = limit == 0 || end != (index.Key{}) && low.Compare(end) >= 0; more {
			next = low
			return false
		}
		limit--
		lows, addrs = append(lows, low), append(addrs, leaf)
		return true
	})
	return lows, addrs, next, more
}
