package history

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/testseed"
)

// smallHistory makes a history of at most six transactions: a correct execution
// that is then damaged, or not.
func smallHistory(r *rand.Rand, deletes bool) []Txn {
	s := sim{
		r: r, processes: 1 + r.IntN(4), overlap: r.Int64N(4) * 12,
		aborts: 0.1, unknowns: 0.15, snapshotOf: r.IntN(4),
		reading: snapshotReads{share: float64(r.IntN(3)) * 0.2, stale: r.Int64N(3) * 20, late: r.Int64N(3) * 8, torn: r.IntN(4) == 0},
		gen: Generator{
			Seed: r.Uint64(), Keys: 1 + r.IntN(2), OpsPerTxn: 1 + r.IntN(4),
			ReadFraction: 0.3, ScanFraction: 0.2, ScanKeys: 3, RotateAfter: 3,
		},
	}
	if deletes {
		s.gen.DeleteFraction = 0.2
	}
	logs := s.run(2 + r.IntN(5))
	h, err := Merge(logs...)
	if err != nil {
		panic(err)
	}
	txns := slices.Collect(h.All())
	for n := r.IntN(4); n > 0; n-- {
		damage(r, txns)
	}
	return txns
}

// damage changes one result, or one outcome.
func damage(r *rand.Rand, txns []Txn) {
	t := &txns[r.IntN(len(txns))]
	if r.IntN(8) == 0 {
		t.Outcome = Outcome(r.IntN(int(outcomeCount)))
		return
	}
	if len(t.Ops) == 0 {
		return
	}
	o := &t.Ops[r.IntN(len(t.Ops))]
	list := &o.List
	if o.Kind == OpScan {
		if len(o.Rows) == 0 {
			return
		}
		i := r.IntN(len(o.Rows))
		if r.IntN(3) == 0 {
			o.Rows = slices.Delete(slices.Clone(o.Rows), i, i+1)
			return
		}
		o.Rows = slices.Clone(o.Rows)
		list = &o.Rows[i].List
	}
	if len(*list) == 0 {
		return
	}
	*list = damaged(r, *list)
}

func damaged(r *rand.Rand, list []Value) []Value {
	list = slices.Clone(list)
	i, j := r.IntN(len(list)), r.IntN(len(list))
	switch r.IntN(5) {
	case 0:
		return slices.Delete(list, i, i+1)
	case 1:
		list[i], list[j] = list[j], list[i]
		return list
	case 2:
		return append(list, list[i])
	default:
		return list[:len(list)-1]
	}
}

func TestAgainstOracle(t *testing.T) {
	const histories = 6000
	seed := testseed.Of(t)
	bad, missed, badWithDeletes := 0, 0, 0
	for i := range uint64(histories) {
		r := rand.New(rand.NewPCG(seed, i))
		deletes := i%3 == 0
		txns := smallHistory(r, deletes)
		if deletes && !hasDelete(txns) {
			deletes = false
		}
		for _, strict := range []bool{true, false} {
			got := mustCheck(t, txns, Options{Serializable: !strict})
			want := orderExists(txns, strict)
			for j := range got.Anomalies {
				checkCycle(t, &got.Anomalies[j])
			}
			switch {
			case got.OK() && !want && deletes:
				missed++
			case got.OK() != want:
				t.Fatalf("history %d, strict %v: an order exists: %v; %v\n%s", i, strict, want, got, dump(txns))
			}
			if strict && !want {
				bad++
			}
			if deletes && !want {
				badWithDeletes++
			}
		}
	}
	t.Logf("%d of %d histories not strictly serializable; with deletes, missed %d of %d", bad, histories, missed, badWithDeletes)
	if bad < histories/20 || bad > histories*19/20 {
		t.Errorf("only one kind of history was tried: %d of %d are bad", bad, histories)
	}
	if missed > badWithDeletes/10 {
		t.Errorf("missed %d of %d bad histories with deletes", missed, badWithDeletes)
	}
}

func dump(txns []Txn) string {
	s := ""
	for i := range txns {
		s += fmt.Sprintln(&txns[i])
	}
	return s
}

// mutation changes a list or a scan into one that a serial history excludes. It
// returns false if it does not apply.
type mutation struct {
	name  string
	apply func(r *rand.Rand, o *Op) bool
}

func onList(f func(r *rand.Rand, list []Value) []Value) func(*rand.Rand, *Op) bool {
	return func(r *rand.Rand, o *Op) bool {
		target := &o.List
		switch {
		case o.Kind == OpScan && len(o.Rows) > 0:
			target = &o.Rows[r.IntN(len(o.Rows))].List
		case o.Kind != OpRead:
			return false
		}
		list := f(r, slices.Clone(*target))
		if list == nil || slices.Equal(list, *target) {
			return false
		}
		*target = list
		return true
	}
}

var mutations = []mutation{
	{"drop newest", onList(func(_ *rand.Rand, list []Value) []Value {
		return list[:max(len(list)-1, 0)]
	})},
	{"drop oldest", onList(func(_ *rand.Rand, list []Value) []Value {
		return list[min(len(list), 1):]
	})},
	{"drop all", onList(func(_ *rand.Rand, list []Value) []Value { return list[:0] })},
	{"swap", onList(func(r *rand.Rand, list []Value) []Value {
		if len(list) < 2 {
			return nil
		}
		i := r.IntN(len(list) - 1)
		list[i], list[i+1] = list[i+1], list[i]
		return list
	})},
	{"duplicate", onList(func(r *rand.Rand, list []Value) []Value {
		if len(list) == 0 {
			return nil
		}
		return append(list, list[r.IntN(len(list))])
	})},
	{"invent", onList(func(_ *rand.Rand, list []Value) []Value { return append(list, 1<<62) })},
	{"drop row", func(r *rand.Rand, o *Op) bool {
		if o.Kind != OpScan || len(o.Rows) == 0 {
			return false
		}
		i := r.IntN(len(o.Rows))
		o.Rows = slices.Delete(o.Rows, i, i+1)
		return true
	}},
}

// Every single wrong result in a serial history must be found.
func TestMutations(t *testing.T) {
	seed := testseed.Of(t)
	for m, mut := range mutations {
		t.Run(mut.name, func(t *testing.T) {
			for i := range uint64(60) {
				r := rand.New(rand.NewPCG(seed, uint64(m)<<32|i))
				deletes := float64(i%2) * 0.05
				s := sim{
					r: r, processes: 4,
					gen: Generator{Seed: seed + i, Keys: 6, ReadFraction: 0.4, ScanFraction: 0.2, DeleteFraction: deletes, RotateAfter: 6},
				}
				txns := slices.Collect(mustMerge(t, s.run(100)).All())
				victim := mutate(r, txns, mut)
				if rep := mustCheck(t, txns, Options{}); rep.OK() {
					t.Fatalf("round %d: not found: %v", i, victim)
				}
			}
		})
	}
}

func mutate(r *rand.Rand, txns []Txn, mut mutation) *Txn {
	for {
		t := &txns[r.IntN(len(txns))]
		if mut.apply(r, &t.Ops[r.IntN(len(t.Ops))]) {
			return t
		}
	}
}
