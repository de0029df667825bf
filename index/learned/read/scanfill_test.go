package read

import (
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/internal/keysets"
	"drtmx/rdma/inproc"
)

// TestScansLearnHowFullLeavesAre checks the READs and rounds of scans with a limit: of
// leaves that are full they READ hardly more than they need, and if leaves are half
// empty, or differ, hardly any scan needs a further round.
func TestScansLearnHowFullLeavesAre(t *testing.T) {
	const slots, n = 20, 40_000
	r := rand.New(rand.NewPCG(benchSeed, 7))
	inOrder := keysets.Uniform(r, n)
	shuffled := append([]uint64(nil), inOrder...)
	r.Shuffle(n, func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for _, c := range []struct {
		name   string
		keys   []uint64
		keep   int // of so many rows one is not deleted
		limit  int
		excess float64 // leaves READ beyond those consumed, of one scan
		rounds float64 // of one scan
	}{
		{"full", inOrder, 1, 100, 1.1, 1.02},
		{"full, many rows", inOrder, 1, 400, 1.1, 1.02},
		{"differ", shuffled, 1, 100, 1.5, 1.05},
		{"half empty", inOrder, 2, 100, 0.5, 1.05},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: slots}, Options{}, inproc.Options{}, false)
			for _, k := range c.keys {
				if err := g.s.Load(index.Num(k), g.row(k, k), block.Present(g.nextCSN())); err != nil {
					t.Fatal(err)
				}
			}
			for i, k := range inOrder {
				if i%c.keep != 0 {
					g.del(k)
				}
			}
			g.train()
			g.refresh()
			d, scan := driver{conn: g.conn}, g.c.NewScan()
			const warm, scans = 50, 1000
			var leaves, consumed, rounds int
			for i := range warm + scans {
				before := g.conn.Counters().Rounds
				from := r.IntN(n / 2)
				scan.Start(index.Num(inOrder[from]), index.Num(^uint64(0)), c.limit)
				d.run(scan)
				o := scan.(*scanOp)
				if res := o.Result(); res.Status != index.Found || len(res.Entries) != c.limit {
					t.Fatalf("scan from key %d: %v, %d rows; want %d", from, res.Status, len(res.Entries), c.limit)
				}
				if i < warm {
					continue
				}
				leaves += len(o.leaves)
				consumed += o.consumed
				rounds += int(g.conn.Counters().Rounds - before)
			}
			excess, perScan := float64(leaves-consumed)/scans, float64(rounds)/scans
			t.Logf("%.2f leaves consumed, %.2f more READ, %.3f rounds", float64(consumed)/scans, excess, perScan)
			if excess > c.excess || perScan > c.rounds {
				t.Errorf("%.2f leaves READ in vain and %.3f rounds of one scan, want at most %.2f and %.2f",
					excess, perScan, c.excess, c.rounds)
			}
		})
	}
}

// TestScansWithoutLimitTeachNoEmptyLeaves checks that the first leaf that a scan ever
// consumes, if it has no limit, does not make the next one expect nearly empty leaves.
func TestScansWithoutLimitTeachNoEmptyLeaves(t *testing.T) {
	const slots, n = 20, 2000
	g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: slots}, Options{}, inproc.Options{}, false)
	for k := range uint64(n) {
		if err := g.s.Load(index.Num(k), g.row(k, k), block.Present(g.nextCSN())); err != nil {
			t.Fatal(err)
		}
	}
	g.train()
	g.refresh()
	d, scan := driver{conn: g.conn}, g.c.NewScan()
	scan.Start(index.Num(5), index.Num(6), 0)
	d.run(scan)
	const limit = 10
	scan.Start(index.Num(0), index.Num(^uint64(0)), limit)
	d.run(scan)
	o := scan.(*scanOp)
	if len(o.res.Entries) != limit || len(o.leaves) > 2 {
		t.Errorf("%d rows from %d leaves; want %d rows from 2 leaves at most", len(o.res.Entries), len(o.leaves), limit)
	}
}
