package history

import (
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/testseed"
)

// sim is a database that runs one transaction after the other, correctly unless
// a field makes it wrong, and records what clients would.
type sim struct {
	r          *rand.Rand
	gen        Generator // template; each process has its own copy
	processes  int
	overlap    int64 // how far invocation and completion lie from the effect, ns; 0 for serial histories
	aborts     float64
	unknowns   float64
	snapshotOf int // how many transactions ago the snapshot was that reads see; 0 is correct
	reading    snapshotReads

	state     map[Key][]Value
	snapshots []map[Key][]Value
	now       int64
	clients   []*simClient
}

// snapshotReads is what snapshots do.
type snapshotReads struct {
	share float64 // of transactions
	stale int64   // bound of half of them, ns; 0: all are strict
	late  int64   // how much older than allowed their state may be, ns; 0 is correct
	torn  bool    // each operation reads a state of its own

	states []simState // by time, the last few
}

// simState is a state and the time from which on it is not the latest.
type simState struct {
	state map[Key][]Value
	until int64
}

const simStatesMax = 24

// note keeps the state that a transaction is about to change.
func (r *snapshotReads) note(state map[Key][]Value, now int64) {
	r.states = append(r.states, simState{cloneState(state), now})
	if len(r.states) > simStatesMax {
		r.states = r.states[1:]
	}
}

// pick returns a state that was the latest after a time.
func (r *snapshotReads) pick(rnd *rand.Rand, state map[Key][]Value, earliest int64) map[Key][]Value {
	first := len(r.states)
	for first > 0 && r.states[first-1].until > earliest-r.late {
		first--
	}
	if i := first + rnd.IntN(len(r.states)-first+1); i < len(r.states) {
		return r.states[i].state
	}
	return state
}

type simClient struct {
	gen  Generator
	rec  *Recorder
	free int64 // when its last transaction completed
}

func (s *sim) run(txns int) []*Log {
	s.state = map[Key][]Value{}
	for p := range s.processes {
		g := s.gen
		g.Process = uint32(p)
		s.clients = append(s.clients, &simClient{gen: g, rec: NewRecorder(uint32(p))})
	}
	var plan []PlanOp
	for range txns {
		c := s.clients[s.r.IntN(len(s.clients))]
		if s.reading.share > 0 && s.r.Float64() < s.reading.share {
			plan = c.gen.NextSnapshot(plan[:0])
			s.snapshot(c, plan)
			continue
		}
		plan = c.gen.Next(plan[:0])
		s.step(c, plan)
	}
	var logs []*Log
	for _, c := range s.clients {
		logs = append(logs, c.rec.Log())
	}
	return logs
}

// times returns those of a transaction that takes effect now.
func (s *sim) times(c *simClient) (invoke, complete int64) {
	s.now = max(s.now, c.free) + 10
	invoke, complete = s.now, s.now+1
	if s.overlap > 0 {
		invoke = max(c.free, s.now-s.r.Int64N(s.overlap))
		complete = s.now + s.r.Int64N(s.overlap)
	}
	c.free = complete
	return invoke, complete
}

// snapshot runs a transaction that only reads.
func (s *sim) snapshot(c *simClient, plan []PlanOp) {
	invoke, complete := s.times(c)
	stale := int64(0)
	if s.reading.stale > 0 && s.r.IntN(2) == 0 {
		stale = 1 + s.r.Int64N(s.reading.stale)
	}
	c.rec.Begin(invoke)
	c.rec.Snapshot(stale)
	view := &overlay{base: s.reading.pick(s.r, s.state, invoke-stale)}
	for i := range plan {
		s.execute(c, view, plan[i:i+1])
		if s.reading.torn {
			view.base = s.reading.pick(s.r, s.state, invoke-stale)
		}
	}
	c.rec.End(Committed, complete)
}

func (s *sim) step(c *simClient, plan []PlanOp) {
	invoke, complete := s.times(c)
	outcome, effect := Committed, true
	switch share := s.r.Float64(); {
	case share < s.aborts:
		outcome, effect = Aborted, false
	case share < s.aborts+s.unknowns:
		outcome, effect = Unknown, s.r.IntN(2) == 0
	}
	view := &overlay{base: s.state, own: map[Key][]Value{}}
	if s.snapshotOf > 0 && len(s.snapshots) > 0 {
		view.base = s.snapshots[s.r.IntN(len(s.snapshots))]
	}
	c.rec.Begin(invoke)
	s.execute(c, view, plan)
	c.rec.End(outcome, complete)
	if effect {
		if s.reading.share > 0 {
			s.reading.note(s.state, s.now)
		}
		view.apply(s.state)
	}
	if s.snapshotOf > 0 {
		s.snapshots = append(s.snapshots, cloneState(s.state))
		if len(s.snapshots) > s.snapshotOf {
			s.snapshots = s.snapshots[1:]
		}
	}
}

func (s *sim) execute(c *simClient, view *overlay, plan []PlanOp) {
	for _, o := range plan {
		switch o.Kind {
		case OpAppend:
			view.append(o.Key, o.Value)
			c.rec.Append(o.Key, o.Value)
		case OpRead:
			list := view.get(o.Key)
			c.rec.Read(o.Key, list)
			c.gen.Observe(o.Key, len(list))
		case OpDelete:
			c.rec.Delete(o.Key, view.get(o.Key))
			view.delete(o.Key)
		case OpScan:
			var rows []Row
			for k := o.Key; k <= o.Hi; k++ {
				if list := view.get(k); len(list) > 0 {
					rows = append(rows, Row{k, list})
					c.gen.Observe(k, len(list))
				}
			}
			c.rec.Scan(o.Key, o.Hi, rows)
		}
	}
}

func cloneState(state map[Key][]Value) map[Key][]Value {
	c := make(map[Key][]Value, len(state))
	for k, list := range state {
		c[k] = list
	}
	return c
}

// overlay buffers a transaction's writes over the state that it reads.
type overlay struct {
	base    map[Key][]Value
	own     map[Key][]Value // appends since the deletion, if any
	deleted map[Key]bool
}

func (v *overlay) get(k Key) []Value {
	if v.deleted[k] {
		return v.own[k]
	}
	if len(v.own[k]) == 0 {
		return v.base[k]
	}
	return append(slices.Clip(v.base[k]), v.own[k]...)
}

func (v *overlay) append(k Key, value Value) { v.own[k] = append(v.own[k], value) }

func (v *overlay) delete(k Key) {
	if v.deleted == nil {
		v.deleted = map[Key]bool{}
	}
	v.deleted[k] = true
	delete(v.own, k)
}

func (v *overlay) apply(state map[Key][]Value) {
	for k := range v.deleted {
		delete(state, k)
	}
	for k, values := range v.own {
		state[k] = append(slices.Clip(state[k]), values...)
	}
}

func mustMerge(t testing.TB, logs []*Log) *History {
	t.Helper()
	h, err := Merge(logs...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustBeLegal(t testing.TB, h *History) {
	t.Helper()
	r, err := Check(h, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() {
		t.Fatalf("a legal history: %v", r)
	}
}

// Histories of a correct database pass, whatever the mix.
func TestCorrectExecutions(t *testing.T) {
	seed := testseed.Of(t)
	for i := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, i))
		s := sim{
			r: r, processes: 1 + r.IntN(8), overlap: r.Int64N(3) * 200,
			aborts: r.Float64() * 0.2, unknowns: r.Float64() * 0.2,
			reading: snapshotReads{share: max(r.Float64()-0.5, 0), stale: r.Int64N(3) * 100},
			gen: Generator{
				Seed: seed + i, Keys: 1 + r.IntN(20), OpsPerTxn: 1 + r.IntN(10), ReadFraction: r.Float64() * 0.6,
				ScanFraction: r.Float64() * 0.3, DeleteFraction: r.Float64() * 0.1, RotateAfter: 1 + r.IntN(20),
			},
		}
		mustBeLegal(t, mustMerge(t, s.run(1000)))
	}
}

// The checker must detect a database that reads snapshots and does not
// validate, even if real time does not count.
func TestUnvalidatedSnapshots(t *testing.T) {
	seed := testseed.Of(t)
	found := map[Kind]int{}
	for i := range uint64(20) {
		s := sim{
			r: rand.New(rand.NewPCG(seed, i)), processes: 4, overlap: 100, snapshotOf: 3,
			gen: Generator{Seed: seed + i, Keys: 5, OpsPerTxn: 4, ReadFraction: 0.4, ScanFraction: 0.2, RotateAfter: 8},
		}
		r, err := Check(mustMerge(t, s.run(200)), Options{Serializable: true, MaxAnomalies: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK() {
			t.Error("unvalidated snapshots pass as serializable")
		}
		for _, a := range r.Anomalies {
			for _, k := range a.Kinds {
				found[k]++
			}
			checkCycle(t, &a)
		}
	}
	for _, k := range []Kind{G0, G1a, G1b, G1c, Internal, Duplicate, Unwritten, IncompatibleOrder} {
		if found[k] > 0 {
			t.Errorf("%v reported, which snapshots exclude", k)
		}
	}
	if found[LostUpdate] == 0 || found[GSingle] == 0 {
		t.Errorf("found only %v", found)
	}
}

// The checker must detect snapshots that miss what completed before the time
// that they may be of, and snapshots of two times.
func TestWrongSnapshots(t *testing.T) {
	seed := testseed.Of(t)
	for _, c := range []struct {
		name    string
		overlap int64
		reading snapshotReads
	}{
		{"strict, of the past", 0, snapshotReads{late: 60}},
		{"stale, too old", 0, snapshotReads{stale: 40, late: 60}},
		{"strict, torn", 100, snapshotReads{torn: true}},
		{"stale, torn", 0, snapshotReads{stale: 100, torn: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := range uint64(10) {
				c.reading.share = 0.4
				s := sim{
					r: rand.New(rand.NewPCG(seed, i)), processes: 4, overlap: c.overlap, reading: c.reading,
					gen: Generator{Seed: seed + i, Keys: 4, OpsPerTxn: 5, ReadFraction: 0.3, ScanFraction: 0.2, RotateAfter: 8},
				}
				r, err := Check(mustMerge(t, s.run(400)), Options{})
				if err != nil {
					t.Fatal(err)
				}
				if r.OK() {
					t.Error("not found")
				}
				for j := range r.Anomalies {
					checkCycle(t, &r.Anomalies[j])
				}
			}
		})
	}
}

// checkCycle checks that a reported cycle is one.
func checkCycle(t *testing.T, a *Anomaly) {
	t.Helper()
	if len(a.Kinds) == 0 {
		t.Errorf("an anomaly without a name: %v", a)
	}
	for i, e := range a.Edges {
		next := (i + 1) % len(a.Edges)
		if e.From != a.Txns[i].ID || e.To != a.Txns[next].ID || e.From == e.To || e.Why == "" {
			t.Errorf("edge %d of no cycle: %v", i, a)
		}
		if e.Kind == RealTimeOrder && a.Txns[i].Complete >= a.Txns[next].Invoke-a.Txns[next].Stale {
			t.Errorf("edge %d contradicts the times: %v", i, a)
		}
	}
}
