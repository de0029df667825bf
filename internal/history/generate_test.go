package history

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"drtmx/internal/testseed"
)

func TestGeneratorRepeats(t *testing.T) {
	plan := func(process uint32) []PlanOp {
		g := Generator{Seed: 3, Process: process, ReadFraction: 0.3, ScanFraction: 0.2}
		var ops []PlanOp
		for i := range 100 {
			ops = g.Next(ops)
			g.Observe(Key(i%16), i%20)
		}
		return ops
	}
	if !reflect.DeepEqual(plan(1), plan(1)) {
		t.Error("the same generator planned differently")
	}
	if reflect.DeepEqual(plan(1), plan(2)) {
		t.Error("two processes plan the same")
	}
}

func TestGeneratorMix(t *testing.T) {
	g := Generator{Seed: testseed.Of(t), Process: 5, Keys: 10, OpsPerTxn: 7, ReadFraction: 0.3, ScanFraction: 0.2, DeleteFraction: 0.1, ScanKeys: 4}
	counts, total := map[OpKind]int{}, 0
	values := map[Value]bool{}
	sizes := map[int]bool{}
	var plan []PlanOp
	for range 20_000 {
		plan = g.Next(plan[:0])
		sizes[len(plan)] = true
		for _, o := range plan {
			counts[o.Kind]++
			total++
			switch {
			case o.Kind == OpAppend && values[o.Value]:
				t.Fatalf("value %d planned twice", o.Value)
			case o.Kind == OpScan && (o.Hi < o.Key || o.Hi > o.Key+3):
				t.Fatalf("scan of %d to %d", o.Key, o.Hi)
			case o.Key >= 10:
				t.Fatalf("key %d without an observation", o.Key)
			}
			values[o.Value] = o.Kind == OpAppend
		}
		for _, o := range g.NextSnapshot(plan[:0]) {
			if o.Kind != OpRead && o.Kind != OpScan || o.Value != 0 {
				t.Fatalf("%+v is planned for a snapshot", o)
			}
		}
	}
	if len(sizes) != 7 || sizes[0] || sizes[8] {
		t.Errorf("transaction sizes %v, want 1 to 7", sizes)
	}
	for kind, share := range map[OpKind]float64{OpRead: 0.3, OpScan: 0.2, OpDelete: 0.1, OpAppend: 0.4} {
		if got := float64(counts[kind]) / float64(total); math.Abs(got-share) > 0.02 {
			t.Errorf("share of operation %d is %.3f, want %.1f", kind, got, share)
		}
	}
}

// Any transaction of a write skew meets one of the other kind.
func TestGeneratorOfSkews(t *testing.T) {
	g := Generator{Seed: testseed.Of(t), Keys: 24, ScanKeys: 4}
	var scans, reads [][]PlanOp
	for range 200 {
		switch plan := g.NextSkew(nil); {
		case len(plan) == 3 && plan[0].Kind == OpScan && plan[1].Kind == OpAppend && plan[2].Kind == OpAppend:
			scans = append(scans, plan)
		case len(plan) == 2 && plan[0].Kind == OpRead && plan[1].Kind == OpAppend:
			reads = append(reads, plan)
		default:
			t.Fatalf("%+v is half of no write skew", plan)
		}
	}
	skew := func(scan, read []PlanOp) bool {
		return scan[0].Key <= read[1].Key && read[1].Key <= scan[0].Hi && scan[1].Key != read[1].Key && scan[2].Key == read[0].Key
	}
	for _, s := range scans {
		if !slices.ContainsFunc(reads, func(r []PlanOp) bool { return skew(s, r) }) {
			t.Errorf("no transaction forms a write skew with %+v", s)
		}
	}
	for _, r := range reads {
		if !slices.ContainsFunc(scans, func(s []PlanOp) bool { return skew(s, r) }) {
			t.Errorf("no transaction forms a write skew with %+v", r)
		}
	}
}

// A process leaves a full key, and catches up with others that are ahead.
func TestGeneratorRotates(t *testing.T) {
	g := Generator{Keys: 1, RotateAfter: 3}
	key := func() Key { return g.Next(nil)[0].Key }
	for i, step := range []struct {
		key    Key
		length int
		want   Key
	}{
		{0, 0, 0}, {0, 2, 0}, {0, 3, 1}, {0, 9, 1}, {5, 0, 1}, {5, 1, 5}, {4, 3, 5}, {5, 4, 6},
	} {
		g.Observe(step.key, step.length)
		if got := key(); got != step.want {
			t.Errorf("step %d: key %d, want %d", i, got, step.want)
		}
	}
}

func TestGeneratorDoesNotAllocate(t *testing.T) {
	g := Generator{ReadFraction: 0.3, ScanFraction: 0.2}
	plan := g.Next(make([]PlanOp, 0, 16))
	if n := testing.AllocsPerRun(100, func() { plan = g.Next(plan[:0]) }); n != 0 {
		t.Errorf("%v allocations per plan", n)
	}
}
