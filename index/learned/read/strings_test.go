package read

import (
	"context"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// putStr writes a row of so many words under a string key.
func (g *rig) putStr(key string, words int) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, index.Str(key), 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	if err := g.s.Reserve(h, words); err != nil {
		g.tb.Fatal(err)
	}
	row := make([]uint64, words)
	for i := range row {
		row[i] = g.csn + 1
	}
	g.s.Publish(h, row, block.Present(g.nextCSN()))
}

// loadStr loads n keys of a space, rows of so many words.
func (g *rig) loadStr(of func(i int) index.Key, n, words int) {
	g.tb.Helper()
	row := make([]uint64, words)
	for i := range n {
		if err := g.s.Load(of(i), row, block.Present(g.nextCSN())); err != nil {
			g.tb.Fatal(err)
		}
	}
}

// do runs an operation alone, and returns its rounds and READs.
func (g *rig) do(op index.Op) (rounds, reads int) {
	var b [2]rdma.Batch
	for done, next := &b[0], &b[1]; ; done, next = next, done {
		next.Reset()
		if op.Next(done, next) {
			return rounds, reads
		}
		rounds, reads = rounds+1, reads+next.Len()
		if err := rdma.Do(context.Background(), g.conn, next); err != nil {
			g.tb.Fatal(err)
		}
	}
}

// newStringRig is an index of n string keys and a client with fresh models.
func newStringRig(t *testing.T, of func(int) index.Key, n int) *rig {
	g := newRig(t, learned.Options{Strings: true, RowWords: 13, LeavesPerSubModel: 32}, Options{}, inproc.Options{}, false)
	g.loadStr(of, n, 13)
	g.train()
	g.refresh()
	return g
}

// TestRoundsOfStrings: with fresh models a GET of a present key is two rounds
// and two READs, of an absent key one round, or two if the leaf's fences are
// apart; for every set of keys but for those whose fences tie.
func TestRoundsOfStrings(t *testing.T) {
	for _, space := range indextest.KeySpaces() {
		t.Run(space.Name, func(t *testing.T) {
			const n = 3000
			of := space.Of(n)
			g := newStringRig(t, of, n)
			get := g.c.NewGet()
			var found, absent [16]int
			for i := range n {
				get.Start(of(i))
				rounds, _ := g.do(get)
				if r := get.Result(); r.Status != index.Found {
					t.Fatalf("key %v: %v", of(i), r.Status)
				}
				found[min(rounds, 15)]++
				near := index.Str(of(i).Str + "\x00!")
				if len(near.Str) > index.MaxKeyBytes {
					continue
				}
				get.Start(near)
				rounds, _ = g.do(get)
				if r := get.Result(); r.Status != index.NotFound {
					t.Fatalf("key %v: %v", near, r.Status)
				}
				absent[min(rounds, 15)]++
			}
			t.Logf("rounds of a key found %v, absent %v, %+v", found, absent, g.c.Stats())
			if st := g.c.Stats(); st.Fallbacks > 0 {
				t.Errorf("%d fallbacks", st.Fallbacks)
			}
			if good := found[2]; good < n*8/10 {
				t.Errorf("only %d of %d keys are found in two rounds", good, n)
			}
		})
	}
}

// TestScansOfStrings: a scan of present rows is two rounds, and finds all.
func TestScansOfStrings(t *testing.T) {
	for _, space := range indextest.KeySpaces() {
		t.Run(space.Name, func(t *testing.T) {
			const n = 3000
			of := space.Of(n)
			g := newStringRig(t, of, n)
			scan := g.c.NewScan()
			all, many := 0, 0
			for i := 0; i < n-100; i += 37 {
				scan.Start(of(i), of(n-1), 100)
				rounds, reads := g.do(scan)
				r := scan.Result()
				if r.Status != index.Found || len(r.Entries) != 100 || !r.More && i+100 < n {
					t.Fatalf("scan from %v: %v, %d rows, more %v", of(i), r.Status, len(r.Entries), r.More)
				}
				for k, e := range r.Entries {
					if e.Key != of(i+k) {
						t.Fatalf("row %d is of key %v, want %v", k, e.Key, of(i+k))
					}
				}
				all, many = all+rounds, many+reads
			}
			t.Logf("%.2f rounds, %.1f READs a scan", float64(all)/float64((n-100+36)/37), float64(many)/float64((n-100+36)/37))
		})
	}
}

// TestStringsDoNotAllocate: lookups and scans use their buffers again.
func TestStringsDoNotAllocate(t *testing.T) {
	if indextest.Scale > 1 {
		t.Skip("the race detector allocates")
	}
	g := newRig(t, learned.Options{Strings: true, RowWords: 13}, Options{}, inproc.Options{}, false)
	of := indextest.KeySpaces()[2].Of(3000)
	g.loadStr(of, 3000, 13)
	g.train()
	g.refresh()
	get, scan := g.c.NewGet(), g.c.NewScan()
	var b [2]rdma.Batch
	run := func(op index.Op) {
		for done, next := &b[0], &b[1]; ; done, next = next, done {
			next.Reset()
			if op.Next(done, next) {
				return
			}
			if err := rdma.Do(context.Background(), g.conn, next); err != nil {
				t.Fatal(err)
			}
		}
	}
	i := 0
	once := func() {
		i = (i + 97) % 2800
		get.Start(of(i))
		run(get)
		scan.Start(of(i), of(i+100), 50)
		run(scan)
	}
	for range 200 {
		once()
	}
	if n := testing.AllocsPerRun(200, once); n > 0 {
		t.Errorf("%.2f allocations a GET and a SCAN", n)
	}
}

// TestKinds: a key of the wrong kind, an oversize key or row is one clear error.
func TestKinds(t *testing.T) {
	g := newRig(t, learned.Options{Strings: true, RowWords: 13}, Options{}, inproc.Options{}, false)
	n := newRig(t, learned.Options{RowWords: 1}, Options{}, inproc.Options{}, false)
	for what, err := range map[string]error{
		"number":   second(g.s.LockWrite(1, index.Num(7), 0)),
		"string":   second(n.s.LockWrite(1, index.Str("x"), 0)),
		"oversize": second(g.s.LockWrite(1, index.Str(strings.Repeat("x", index.MaxKeyBytes+1)), 0)),
		"load":     g.s.Load(index.Num(7), nil, 1),
		"load str": n.s.Load(index.Str("x"), []uint64{1}, 1),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
		t.Log(err)
	}
	h, err := g.s.LockWrite(1, index.Str("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.s.Reserve(h, 14); err == nil {
		t.Error("a row of 14 words has room where 13 is the most")
	}
	g.s.Release(h)
	if _, err := learned.NewServer(g.a, learned.Options{Strings: true, Inline: learned.Yes}); err == nil {
		t.Error("string keys with rows inline")
	}
}

func second[T any](_ T, err error) error { return err }

// steps runs an operation round by round.
type steps struct {
	g          *rig
	op         index.Op
	done, next *rdma.Batch
}

func newSteps(g *rig, op index.Op) *steps {
	return &steps{g: g, op: op, done: &rdma.Batch{}, next: &rdma.Batch{}}
}

// round runs one round; it reports whether the operation has finished.
func (s *steps) round() bool {
	s.next.Reset()
	if s.op.Next(s.done, s.next) {
		return true
	}
	if err := rdma.Do(context.Background(), s.g.conn, s.next); err != nil {
		s.g.tb.Fatal(err)
	}
	s.done, s.next = s.next, s.done
	return false
}

func tagOf(key string) uint16 { return leaf.Tag(key) }

// TestPatchesOfStrings looks for every key of a tree that grew in random order,
// before and after it grows on: what lookups learn of leaves must not outlive
// the memory that they read it from, and lead others the right way.
func TestPatchesOfStrings(t *testing.T) {
	const n = 20000
	g := newRig(t, learned.Options{Strings: true, RowWords: 13}, Options{}, inproc.Options{}, false)
	key := func(i int) index.Key {
		return index.Str(string(index.AppendNum(nil, uint64(i)*0x9e3779b97f4a7c15)))
	}
	g.loadStr(key, n, 1)
	g.train()
	g.refresh()
	get := g.c.NewGet()
	all := func(n int) (rounds int) {
		for i := range n {
			get.Start(key(i))
			r, _ := g.do(get)
			if res := get.Result(); res.Status != index.Found {
				t.Fatalf("key %v of %d: %v", key(i), n, res.Status)
			}
			rounds += r
		}
		return rounds
	}
	fresh := all(n)
	for i := n; i < n+n/4; i++ {
		g.putStr(key(i).Str, i%13)
	}
	grown := all(n + n/4)
	st := g.c.Stats()
	t.Logf("%.3f rounds a key, %.3f once a quarter of the keys are new; %+v", float64(fresh)/n, float64(grown)/(n+n/4), st)
	if st.Fallbacks > 0 || fresh > 2*n+n/50 {
		t.Errorf("%d fallbacks; %d rounds for %d keys", st.Fallbacks, fresh, n)
	}
}
