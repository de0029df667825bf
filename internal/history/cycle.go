package history

import "slices"

var (
	maskWrites = maskOf(WW)
	maskReads  = maskOf(WW, WR)
	maskAnti   = maskOf(RW, ScanRW, LostRW, LostScanRW)
	maskItems  = maskReads | maskAnti
	maskAll    = maskItems | maskOf(ProcessOrder, RealTimeOrder)
)

// searchBudget bounds the edges followed in looking for a short cycle in one
// component at one level. A component can be as large as the history. The
// search then reports the shortest cycle that it found within the budget; it
// always finds one.
const searchBudget = 20_000_000

// findCycles reports a cycle for each strongly connected component, at the
// strongest level at which the component has one.
func (c *checker) findCycles(g *graph) {
	var at []uint32
	for _, nodes := range g.components(maskAll) {
		if len(c.report.Anomalies) >= c.o.MaxAnomalies {
			c.report.More = true
			return
		}
		if at == nil {
			at = make([]uint32, g.nodes())
		}
		slices.Sort(nodes)
		s := &search{checker: c, global: nodes, g: g.within(nodes, at)}
		s.run()
	}
}

// search looks for cycles in one component.
type search struct {
	*checker
	global   []uint32 // transaction, or helper, by node of g
	g        *graph
	reported []bool // by node: in a reported cycle
	group    []uint32
	walk     walker
}

func (s *search) run() {
	s.reported = make([]bool, s.g.nodes())
	s.group = make([]uint32, s.g.nodes())
	s.walk = walker{search: s, dist: make([]int32, s.g.nodes()), from: make([]uint32, s.g.nodes())}
	for _, level := range []kindMask{maskWrites, maskReads, maskItems, maskAll} {
		for i, nodes := range s.g.components(level) {
			if slices.ContainsFunc(nodes, func(v uint32) bool { return s.reported[v] }) {
				continue // explained by a cycle of a stronger level
			}
			clear(s.group)
			for _, v := range nodes {
				s.group[v] = uint32(i + 1)
			}
			slices.Sort(nodes)
			s.show(s.cycle(nodes, level))
		}
	}
}

// cycle returns a short cycle of a component of that level.
func (s *search) cycle(nodes []uint32, level kindMask) []step {
	s.walk.budget = searchBudget
	switch level {
	case maskItems:
		if cycle := s.singleAnti(nodes); cycle != nil {
			return cycle
		}
		s.walk.budget = searchBudget
	case maskAll:
		if cycle := s.backInTime(nodes); cycle != nil {
			return cycle
		}
	}
	var best []step
	for _, v := range nodes {
		if s.isHelper(v) || best != nil && s.walk.budget <= 0 {
			continue
		}
		if cycle := s.walk.path(v, v, level, len(best)); cycle != nil {
			best = cycle
			if len(best) == 2 {
				break
			}
		}
	}
	return best
}

func (s *search) isHelper(v uint32) bool { return int(s.global[v]) >= len(s.txns) }

// singleAnti returns the shortest cycle with exactly one anti-dependency.
func (s *search) singleAnti(nodes []uint32) []step {
	var best []step
	for _, v := range nodes {
		for _, e := range s.g.edgesOf(v) {
			to := e & targetMask
			if !maskAnti.has(e) || s.group[to] != s.group[v] {
				continue
			}
			if s.walk.budget <= 0 || len(best) == 2 {
				return best
			}
			back := s.walk.path(to, v, maskReads, max(len(best)-1, 0))
			if back != nil {
				best = append([]step{{v, EdgeKind(e >> kindShift)}}, back...)
			}
		}
	}
	return best
}

// backInTime returns a cycle of two: a transaction depends on one that was
// invoked after it completed. Almost every violation of real time alone is of
// this form, and it is found without a search.
func (s *search) backInTime(nodes []uint32) []step {
	for _, v := range nodes {
		if s.isHelper(v) {
			continue
		}
		for _, e := range s.g.edgesOf(v) {
			to := e & targetMask
			if s.isHelper(to) || s.group[to] != s.group[v] || s.completed(s.global[to]) >= s.txns[s.global[v]].earliest() {
				continue
			}
			return []step{{v, EdgeKind(e >> kindShift)}, {to, RealTimeOrder}}
		}
	}
	return nil
}

// step is a node of a cycle and the kind of the edge that leaves it.
type step struct {
	node uint32
	kind EdgeKind
}

// walker finds shortest paths by breadth. Helper nodes cost nothing, so a path
// through them counts as the one real-time edge it stands for.
type walker struct {
	*search
	budget   int
	dist     []int32  // transactions left on the way to the node, 0 if not reached
	from     []uint32 // previous node<<3 | kind of the edge from it
	reached  []uint32
	now, nxt []uint32
}

// path returns the shortest path of at least one edge, or nil if there is none,
// or none shorter than limit (unless that is zero). It stays within the group
// of its ends. With start and end equal it is a cycle.
func (w *walker) path(start, end uint32, mask kindMask, limit int) []step {
	for _, v := range w.reached {
		w.dist[v] = 0
	}
	w.reached = w.reached[:0]
	w.now = append(w.now[:0], start)
	best := int32(limit)
	last, lastKind := uint32(0), EdgeKind(0)
	found := false
	for d := int32(0); len(w.now) > 0 && (best == 0 || d < best); d++ {
		w.nxt = w.nxt[:0]
		for i := 0; i < len(w.now); i++ {
			v := w.now[i]
			cost := d + 1
			if w.isHelper(v) {
				cost = d
			}
			if v != start && w.dist[v] < d {
				continue // already reached more cheaply through a helper
			}
			for _, e := range w.g.edgesOf(v) {
				w.budget--
				to := e & targetMask
				if !mask.has(e) || w.group[to] != w.group[start] {
					continue
				}
				if to == end && (best == 0 || cost < best) {
					best, last, lastKind, found = cost, v, EdgeKind(e>>kindShift), true
				}
				w.reach(to, start, v, EdgeKind(e>>kindShift), cost, d)
			}
		}
		w.now, w.nxt = w.nxt, w.now
	}
	if !found {
		return nil
	}
	return w.trace(start, last, lastKind)
}

func (w *walker) reach(to, start, v uint32, kind EdgeKind, cost, d int32) {
	if to == start || w.dist[to] != 0 && w.dist[to] <= cost {
		return
	}
	if w.dist[to] == 0 {
		w.reached = append(w.reached, to)
	}
	w.dist[to] = cost
	w.from[to] = v<<3 | uint32(kind)
	if cost == d {
		w.now = append(w.now, to)
	} else {
		w.nxt = append(w.nxt, to)
	}
}

// trace follows the path back from its last node and leaves out the helpers.
func (w *walker) trace(start, last uint32, kind EdgeKind) []step {
	var steps []step
	for v := last; ; v, kind = w.from[v]>>3, EdgeKind(w.from[v]&7) {
		if !w.isHelper(v) {
			steps = append(steps, step{v, kind})
		}
		if v == start {
			break
		}
	}
	slices.Reverse(steps)
	return steps
}

// show reports a cycle.
func (s *search) show(cycle []step) {
	for _, st := range cycle {
		s.reported[st.node] = true
	}
	if len(s.report.Anomalies) >= s.o.MaxAnomalies {
		s.report.More = true
		return
	}
	a := Anomaly{}
	reasons := make([]reason, len(cycle))
	for i, st := range cycle {
		from, to := s.global[st.node], s.global[cycle[(i+1)%len(cycle)].node]
		reasons[i] = s.explain(from, to, st.kind)
		a.Txns = append(a.Txns, s.txn(from))
		a.Edges = append(a.Edges, Edge{From: s.txns[from].id, To: s.txns[to].id, Kind: st.kind, Why: reasons[i].text})
	}
	a.Kinds = classify(cycle, reasons)
	s.report.Anomalies = append(s.report.Anomalies, a)
}

// classify names a cycle, the most telling name first.
func classify(cycle []step, reasons []reason) []Kind {
	anti, reads, time, scan, lost, update := 0, 0, 0, 0, 0, 0
	single := 0 // index of the last anti-dependency
	for i, st := range cycle {
		switch st.kind {
		case WR:
			reads++
		case ProcessOrder, RealTimeOrder:
			time++
		case RW, ScanRW, LostRW, LostScanRW:
			anti++
			single = i
		}
		if st.kind == ScanRW || st.kind == LostScanRW {
			scan++
		}
		if st.kind == LostRW || st.kind == LostScanRW || reasons[i].unseen {
			lost++
		}
		if reasons[i].alsoWrites {
			update++
		}
	}
	var kinds []Kind
	note := func(k Kind, holds bool) {
		if holds {
			kinds = append(kinds, k)
		}
	}
	intoReader := cycle[(single+len(cycle)-1)%len(cycle)].kind == WR
	note(LostWrite, lost > 0)
	note(LostUpdate, update > 0 && time == 0)
	note(Phantom, scan > 0)
	if time > 0 {
		note(StaleRead, anti > 0)
		note(RealTime, anti == 0)
		return kinds
	}
	note(FracturedRead, anti == 1 && len(cycle) == 2 && reads == 1)
	note(ReadSkew, anti == 1 && intoReader && len(cycle) > 2)
	note(WriteSkew, anti == 2 && len(cycle) == 2)
	note(G0, anti == 0 && reads == 0)
	note(G1c, anti == 0 && reads > 0)
	note(GSingle, anti == 1)
	note(G2Item, anti > 1 && scan == 0)
	note(G2, anti > 1 && scan > 0)
	return kinds
}
