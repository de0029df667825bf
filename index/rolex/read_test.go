package rolex

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned/read"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// reader is a client of the learned index, which knows nothing of writers.
type reader struct {
	b    *bed
	c    *read.Client
	conn rdma.Conn
	get  index.GetOp
	scan index.ScanOp
}

func (b *bed) reader() *reader {
	b.Helper()
	conn, err := b.n.Dial(b.ctx, "server")
	b.check(err)
	b.Cleanup(func() { _ = conn.Close() })
	c := read.New(b.s.Root(), b.models, read.Options{InOrder: conn.InOrder(), RowWords: b.o.RowWords, Leaves: b.key})
	r := &reader{b: b, c: c, conn: conn, get: c.NewGet(), scan: c.NewScan()}
	r.refresh()
	return r
}

// refresh fetches what the reader lacks of the models.
func (r *reader) refresh() {
	r.b.Helper()
	for range 4 {
		r.b.check(r.c.Maintain(r.b.ctx, r.conn))
	}
}

// train trains all models.
func (b *bed) train() {
	b.Helper()
	for i, idle := 0, 0; idle < 20; i++ {
		b.clock.Advance(10 * time.Millisecond)
		if idle++; b.s.Maintain(b.clock.Now(), nil) {
			idle = 0
		}
		if i > 1<<16 {
			b.Fatal("Maintain never ends")
		}
	}
}

// drive runs an operation and returns its rounds and READs.
func (r *reader) drive(op index.Op) (rounds, reads int) {
	var done, next rdma.Batch
	for !op.Next(&done, &next) {
		if next.Len() == 0 {
			r.b.Error("an operation waits for nothing")
			return rounds, reads
		}
		rounds++
		reads += next.Len()
		_ = rdma.Do(r.b.ctx, r.conn, &next) // the operation sees the statuses
		done, next = next, done
		next.Reset()
	}
	return rounds, reads
}

func (r *reader) lookup(key uint64) (res *index.GetResult, rounds, reads int) {
	r.get.Start(index.Num(key))
	rounds, reads = r.drive(r.get)
	return r.get.Result(), rounds, reads
}

func (r *reader) rows(lo, hi uint64, limit int) (res *index.ScanResult, rounds int) {
	r.scan.Start(index.Num(lo), index.Num(hi), limit)
	rounds, _ = r.drive(r.scan)
	return r.scan.Result(), rounds
}

// A lookup of a trained index costs one round and one READ, the proof of an answer is the
// header of its leaf, and scans return what is there.
func TestReadersFindRows(t *testing.T) {
	for _, fabric := range []inproc.Options{{}, {Faults: inproc.Faults{Scramble: 1}}} {
		b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, fabric)
		const rows = 2000
		for k := range uint64(rows) {
			b.check(b.s.Load(index.Num(10*k), row(k), 0))
		}
		b.train()
		r := b.reader()
		for k := range uint64(rows) {
			for off := range uint64(2) {
				key := 10*k + off
				res, rounds, reads := r.lookup(key)
				want := index.Found
				if off > 0 {
					want = index.NotFound
				}
				if res.Status != want || want == index.Found && (res.Row[0] != k || res.Row[1] != ^k) {
					t.Fatalf("key %d: %v, row %d", key, res.Status, res.Row)
				}
				if rounds != 1 || reads != 1 {
					t.Errorf("key %d: %d rounds, %d READs", key, rounds, reads)
				}
				h := Header(b.region().MustSpan(res.Hint, 8).Load(0))
				if len(res.Proofs) != 1 || res.Proofs[0] != (index.Proof{Addr: res.Hint, Word: uint64(h)}) {
					t.Errorf("key %d in leaf %#x, %v: proofs %x", key, res.Hint, h, res.Proofs)
				}
			}
		}
		rg := rng.New(testseed.Of(t))
		for range 300 {
			lo, n := rg.Uint64n(10*rows), rg.Intn(60)
			hi := lo + rg.Uint64n(1000)
			res, rounds := r.rows(lo, hi, n)
			var want []uint64
			for k := (lo + 9) / 10; 10*k <= hi && k < rows && (n == 0 || len(want) < n); k++ {
				want = append(want, k)
			}
			got := make([]uint64, 0, len(want))
			for i := range res.Entries {
				e := &res.Entries[i]
				got = append(got, e.Row[0])
				if proof := (index.Proof{Addr: e.Addr, Word: uint64(e.Header)}); !slices.Contains(res.Gaps, proof) {
					t.Errorf("scan of %d to %d: row %d has proof %x, not among %x", lo, hi, e.Row[0], proof, res.Gaps)
				}
			}
			if res.Status != index.Found || !slices.Equal(got, want) || rounds > 3 {
				t.Fatalf("scan of %d to %d, limit %d: %v, %d rounds: %d, want %d", lo, hi, n, res.Status, rounds, got, want)
			}
		}
		// Readers of the past are refused.
		r.get.StartAt(index.Num(0), 1)
		r.drive(r.get)
		r.scan.StartAt(index.Num(0), index.Num(100), 0, 1)
		r.drive(r.scan)
		if g, s := r.get.Result().Status, r.scan.Result().Status; g != index.Gone || s != index.Gone {
			t.Errorf("the past: %v and %v, want gone", g, s)
		}
	}
}

// region is the memory of the leaves.
func (b *bed) region() *mem.Region { return b.s.region }

// Leaves that writers have split off are found through right links, and in one round when the
// trainer has come upon them.
func TestReadersFollowSplits(t *testing.T) {
	b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, inproc.Options{})
	const rows = 1000
	for k := range uint64(rows) {
		b.check(b.s.Load(index.Num(16*k), row(16*k), 0))
	}
	b.train()
	r := b.reader()
	w := b.mustWriter(nil)
	rg := rng.New(testseed.Of(t))
	keys := map[uint64]bool{}
	for range 3 {
		for range 600 {
			k := rg.Uint64n(16 * (rows + 100))
			hint := uint64(0)
			if res, _, _ := r.lookup(k); res.Status == index.Found || res.Status == index.NotFound {
				hint = res.Hint
			} else {
				t.Fatalf("key %d: %v", k, res.Status)
			}
			b.check(b.supply(w, 4))
			b.check(w.commit(b.ctx, []Write{{Key: k, Row: row(k), Hint: hint}}, nil))
			keys[k] = true
			if res, _, _ := r.lookup(k); res.Status != index.Found || res.Row[0] != k {
				t.Fatalf("key %d, written just now: %v", k, res.Status)
			}
		}
		b.train()
		r.refresh()
		linked := uint64(0)
		b.check(b.s.walk(func(uint64, image) error { linked++; return nil }))
		if n := b.s.leaves.Load(); n != linked {
			t.Fatalf("after training, %d leaves are known, and %d are there", n, linked)
		}
		sum := 0
		for k := range keys {
			res, rounds, _ := r.lookup(k)
			if res.Status != index.Found || res.Row[0] != k {
				t.Fatalf("key %d: %v", k, res.Status)
			}
			sum += rounds
		}
		if sum > len(keys)+len(keys)/60 { // a few keys are a leaf beside the predicted one
			t.Errorf("after training, %d lookups cost %d rounds", len(keys), sum)
		}
	}
	if n := b.s.leaves.Load(); n < rows/8+100 {
		t.Errorf("%d leaves: this test shows nothing", n)
	}
	if err := b.s.trainer.Check(); err != nil {
		t.Error(err)
	}
}

// Readers beside writers, the trainer, and a fabric that READs words in any order: every row is
// of one write, and counts never go back.
func TestReadersBesideWriters(t *testing.T) {
	seed := testseed.Of(t)
	b := newBed(t, small, inproc.Options{Seed: seed, Faults: inproc.Faults{Scramble: 0.5, Pause: 0.2, Defer: 0.2, Reorder: 0.3}})
	const writers, keys = 2, 200
	for k := range uint64(keys) {
		b.check(b.s.Load(index.Num(1000*k), row(1), 0))
	}
	b.train()
	var stop atomic.Bool
	var wg sync.WaitGroup
	root := rng.New(seed)
	for i := range uint64(writers) {
		w, rg := b.mustWriter(nil), root.Split("writer").SplitN(i)
		wg.Go(func() {
			for n := uint64(0); !stop.Load() && b.ctx.Err() == nil; n++ {
				if err := b.supply(w, 4); err != nil {
					t.Error(err)
					return
				}
				_, err := b.count(w, rg, keys)
				if err == nil && n < 100 {
					err = w.commit(b.ctx, []Write{{Key: 1000*rg.Uint64n(keys) + 1 + i*100 + n, Row: row(1)}}, nil)
				}
				if err != nil && !errors.Is(err, index.ErrLocked) && !errors.Is(err, ErrChanged) && !errors.Is(err, context.Canceled) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			b.clock.Advance(time.Millisecond)
			b.s.Maintain(b.clock.Now(), nil)
			time.Sleep(50 * time.Microsecond)
		}
	})
	r := b.reader()
	seen := make([]uint64, keys)
	rg, found := root.Split("reader"), 0
	for begin := time.Now(); found < 3000 || time.Since(begin) < 300*time.Millisecond; {
		if b.ctx.Err() != nil {
			t.Fatalf("only %d rows were found", found)
		}
		k := rg.Uint64n(keys)
		check := func(key uint64, row []uint64) {
			if row[1] != ^row[0] {
				t.Fatalf("key %d has row %x", key, row)
			}
			if key%1000 != 0 {
				return
			}
			if row[0] < seen[key/1000] {
				t.Fatalf("key %d has %d, after %d", key, row[0], seen[key/1000])
			}
			seen[key/1000] = row[0]
			found++
		}
		if rg.Bool(0.7) {
			if res, _, _ := r.lookup(1000 * k); res.Status == index.Found {
				check(1000*k, res.Row)
			} else if res.Status == index.NotFound || res.Status == index.Failed {
				t.Fatalf("key %d: %v, %v", 1000*k, res.Status, res.Err)
			}
		} else if res, _ := r.rows(1000*k, 1000*k+9000, 0); res.Status == index.Found {
			for i := range res.Entries {
				check(res.Entries[i].Key.Num, res.Entries[i].Row)
			}
			if want := min(10, keys-int(k)); len(res.Entries) < want {
				t.Fatalf("scan from key %d: %d rows, at least %d are there", 1000*k, len(res.Entries), want)
			}
		}
		if r.c.Stale() {
			b.check(r.c.Maintain(b.ctx, r.conn))
		}
	}
	stop.Store(true)
	wg.Wait()
}

// Leaves do not lie in two segments of their region, whatever their size.
func TestSegmentsAreNoMultiplesOfLeaves(t *testing.T) {
	b := newBed(t, Options{RowWords: 5, SlotsPerLeaf: 9, Writers: 2}, inproc.Options{})
	if (1<<18)%b.s.l.LeafBytes() == 0 {
		t.Fatalf("leaves of %d bytes: this test shows nothing", b.s.l.LeafBytes())
	}
	const rows = 10000
	for k := range uint64(rows) {
		b.check(b.s.Load(index.Num(k), []uint64{k, 0, 0, 0, 0}, 0))
	}
	w := b.mustWriter(nil)
	_, err := b.settle(w.o.Owner)
	b.check(err)
	if got, err := b.s.Rows(); err != nil || len(got) != rows || b.region().Size() < 2<<18 {
		t.Errorf("%d rows in %d bytes: %v", len(got), b.region().Size(), err)
	}
}
