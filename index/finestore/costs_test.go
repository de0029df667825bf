package finestore

import (
	"context"
	"math"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// counted runs an operation of the client and counts rounds and READs.
func (w *world) counted(op index.Op) (rounds, reads int) {
	w.t.Helper()
	w.between = nil
	done, next := &w.op.batch[0], &w.op.batch[1]
	done.Reset()
	for range 500 {
		next.Reset()
		if op.Next(done, next) {
			return rounds, reads
		}
		rounds, reads = rounds+1, reads+next.Len()
		if err := rdma.Do(context.Background(), w.conn, next); err != nil {
			w.t.Fatal(err)
		}
		done, next = next, done
	}
	w.t.Fatal("an operation does not end")
	return 0, 0
}

// TestExactCosts counts the rounds and READs of lookups and scans: by where a key is.
func TestExactCosts(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 8})
	for k := uint64(1); k <= 64; k++ { // eight arrays
		w.loadKey(1000 * k)
	}
	w.write(20500, false) // a bin
	below := w.s.bins.Slots + 1
	for i := range uint64(below) {
		w.write(30001+i, false) // a root
	}
	w.write(40000, true) // a key of an array without a row
	for range 100 {      // trained, without a merge
		w.s.due = nil
		w.s.arrays.Ascend(func(a *array) bool { a.due = true; return true })
		w.maintain(1)
	}
	w.fetch()
	for _, c := range []struct {
		name          string
		key           uint64
		status        index.Status
		rounds, reads int
	}{
		{"a key of an array", 10000, index.Found, 2, 2},
		{"a key in a bin", 20500, index.Found, 3, 3},
		{"a key below a root", 30002, index.Found, 4, 4},
		{"absent, without a bin", 10500, index.NotFound, 1, 1},
		{"absent, deleted", 40000, index.NotFound, 1, 1},
		{"absent, with a bin", 20501, index.NotFound, 2, 2},
		{"absent, with a root", 30900, index.NotFound, 3, 3},
	} {
		w.op.get.Start(index.Num(c.key))
		rounds, reads := w.counted(w.op.get)
		if st := w.op.get.Result().Status; st != c.status || rounds != c.rounds || reads != c.reads {
			t.Errorf("%s: %v in %d rounds and %d READs, want %v in %d and %d", c.name, st, rounds, reads, c.status, c.rounds, c.reads)
		}
	}
	for _, c := range []struct {
		name          string
		lo, hi        uint64
		rows          int
		rounds, reads int
	}{
		// Two arrays and perhaps one beside them, and the rows.
		{"rows of arrays", 9000, 16000, 8, 2, 2 + 8},
		{"a bin in the range", 17000, 24000, 9, 3, 1 + 1 + 9},
		{"a root in the range", 25000, 32000, 8 + below, 4, 1 + 1 + 2 + 8 + below},
		{"a bin that the range ends before", 17000, 20000, 4, 2, 1 + 4},
		{"a bin that ends at the first key of the range", 21000, 24000, 4, 2, 1 + 4},
	} {
		w.op.scan.Start(index.Num(c.lo), index.Num(c.hi), 0)
		rounds, reads := w.counted(w.op.scan)
		res := w.op.scan.Result()
		if res.Status != index.Found || len(res.Entries) != c.rows || rounds != c.rounds || reads > c.reads+1 || reads < c.reads-1 {
			t.Errorf("%s: %v, %d rows in %d rounds and %d READs, want %d in %d and %d", c.name, res.Status, len(res.Entries), rounds, reads, c.rows, c.rounds, c.reads)
		}
		if _, err := w.list(c.lo, c.hi, 0); err != nil {
			t.Error(err)
		}
	}
	// Neither half proves what is in an interval before the range: who inserts there invalidates nobody.
	var own index.ScanResult
	w.s.Scan(index.Num(21000), index.Num(24000), 0, &own, nil)
	w.op.scan.Start(index.Num(21000), index.Num(24000), 0)
	w.counted(w.op.scan)
	for half, res := range map[string]*index.ScanResult{"server": &own, "client": w.op.scan.Result()} {
		if res.Status != index.Found || len(res.Entries) != 4 || len(res.Gaps) != 1 {
			t.Errorf("%s: %v, %d rows with %d proofs of gaps, want 4 with that of their array", half, res.Status, len(res.Entries), len(res.Gaps))
		}
	}
}

// TestInsertsTouchOneBin counts the blocks that inserts write: a bin, and now and then an array. The
// models stay as they are: no array is made as long as none is merged.
func TestInsertsTouchOneBin(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{})
	const n = 4000
	w.load(100*n, 100)
	arrays := w.s.Shape().Arrays
	merged := w.s.Shape().Merges
	for range n / 4 {
		w.write(w.r.Uint64N(100*n), false)
	}
	sh := w.s.Shape()
	if sh.Arrays != arrays || sh.Merges != merged {
		t.Errorf("%d arrays, then %+v", arrays, sh)
	}
	w.maintain(2000)
	if sh := w.s.Shape(); sh.Arrays > 2*arrays {
		t.Errorf("%d arrays, then %+v", arrays, sh)
	}
	w.check()
}

// TestHostileMemory: whatever the words of arrays, bins and roots are, a client's operations end
// within bounds.
func TestHostileMemory(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 8, LeavesPerSubModel: 16})
	const keys = 3000
	w.load(keys, 20)
	for range 800 {
		w.change(keys)
	}
	for i := range uint64(2 * w.s.bins.Slots) {
		w.write(keys+1000+i, false)
	}
	var blocks [][2]int // address and words
	w.s.arrays.Ascend(func(a *array) bool {
		blocks = append(blocks, [2]int{int(a.addr), w.s.lay.LeafWords})
		s := w.s.span(a.addr)
		for i := range leaf.CountOf(s.Load(leaf.MetaWord)) + 1 {
			switch to := leaf.Below(s.Load(w.s.lay.BelowAt + i)); {
			case to.IsRoot():
				blocks = append(blocks, [2]int{int(to.Addr()), leaf.RootBlockWords})
				fallthrough
			case to.IsBin():
				for _, bin := range w.s.binsOf(to) {
					blocks = append(blocks, [2]int{int(bin), w.s.bins.LeafWords})
				}
			}
		}
		return true
	})
	some := func() uint64 {
		switch w.r.IntN(5) {
		case 0:
			return w.r.Uint64()
		case 1:
			return uint64(blocks[w.r.IntN(len(blocks))][0]) + w.r.Uint64N(3)
		case 2:
			return w.r.Uint64N(1 << 20)
		case 3:
			return 0
		}
		return w.r.Uint64N(2 * keys)
	}
	for range 3000 {
		b := blocks[w.r.IntN(len(blocks))]
		if w.r.IntN(4) > 0 {
			b = blocks[w.r.IntN(min(40, len(blocks)))]
		}
		s := w.e.Arena.Span(uint64(b[0]), b[1])
		at := leaf.MetaWord + w.r.IntN(b[1]-leaf.MetaWord)
		was := s.Load(at)
		bad := some()
		if at == leaf.MetaWord { // else it is not taken for one of the index
			bad = was&^0xffff | w.r.Uint64N(1<<16)
		}
		s.Store(at, bad)
		for range 3 {
			key := w.r.Uint64N(keys)
			if w.r.IntN(2) == 0 {
				key = w.r.Uint64N(200)
			}
			w.op.get.Start(index.Num(key))
			w.bounded(w.op.get)
			w.op.scan.Start(index.Num(key), index.Num(key+w.r.Uint64N(1000)), w.r.IntN(30))
			w.bounded(w.op.scan)
		}
		s.Store(at, was)
	}
}

// TestHostileSpans: a lookup that READs a span of arrays finds one that covers its key and whose keys do
// not ascend.
func TestHostileSpans(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 8, LeavesPerSubModel: 1024, Family: model.RMI})
	for i := range 600 { // a line fits these keys badly, so its bounds are wide
		w.loadKey(uint64(math.Exp(float64(i)*42/600)) + uint64(i))
	}
	w.maintain(200)
	w.fetch()
	var arrays []*array
	w.s.arrays.Ascend(func(a *array) bool {
		arrays = append(arrays, a)
		s := w.s.span(a.addr)
		first, second := s.Load(w.s.lay.KeysAt), s.Load(w.s.lay.KeysAt+1)
		s.Store(w.s.lay.KeysAt, second)
		s.Store(w.s.lay.KeysAt+1, first)
		return true
	})
	widest := 0
	for i, a := range arrays[:len(arrays)-1] { // perhaps the predicted one
		s := w.s.span(a.addr)
		high := s.Load(leaf.HighWord)
		s.Store(leaf.HighWord, a.low+1)
		for _, b := range arrays[i+1 : min(i+9, len(arrays))] {
			w.op.get.Start(index.Num(b.low + 1))
			widest = max(widest, w.bounded(w.op.get))
			if st := w.op.get.Result().Status; st != index.Fallback {
				t.Fatalf("key %d: %v, want %v: the keys of its array do not ascend", b.low+1, st, index.Fallback)
			}
			w.op.scan.Start(index.Num(b.low+1), index.Num(b.low+1000), 5)
			w.bounded(w.op.scan)
		}
		s.Store(leaf.HighWord, high)
	}
	if widest < 3 {
		t.Errorf("a round READs %d arrays at most", widest)
	}
}

// TestHostileIntervals: a scan READs nothing below an array of which a later interval has a bad word.
func TestHostileIntervals(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 8})
	for k := uint64(1); k <= 8; k++ {
		w.loadKey(1000 * k)
	}
	w.write(1500, false)
	w.write(5500, false)
	w.fetch()
	bin := w.s.find(1500, 0).bin
	w.s.span(w.s.first.addr).Store(w.s.lay.BelowAt+5, 7)
	readsBin := func() bool {
		for i := range w.op.batch {
			for _, wr := range w.op.batch[i].WRs {
				if wr.Addr == bin {
					return true
				}
			}
		}
		return false
	}
	read := false
	w.between = func() { read = read || readsBin() }
	w.op.scan.Start(index.Num(1000), index.Num(9000), 0)
	w.run(w.op.scan)
	if st := w.op.scan.Result().Status; st != index.Fallback || read || readsBin() {
		t.Errorf("%v, want %v; the first bin is READ: %v", st, index.Fallback, read || readsBin())
	}
	w.between = nil
}

// bounded runs an operation on memory that may be anything. It returns the most READs of a round.
func (w *world) bounded(op index.Op) (widest int) {
	w.t.Helper()
	done, next := &w.op.batch[0], &w.op.batch[1]
	done.Reset()
	for range 500 {
		next.Reset()
		if op.Next(done, next) {
			return widest
		}
		widest = max(widest, next.Len())
		if next.Len() == 0 || next.Len() > rdma.MaxBatch {
			w.t.Fatalf("a round of %d work requests", next.Len())
		}
		_ = rdma.Do(context.Background(), w.conn, next)
		done, next = next, done
	}
	w.t.Fatal("an operation does not end")
	return 0
}
