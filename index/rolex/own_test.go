package rolex

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// The data server and writers count the same rows up, one transaction at a time. No count is
// lost.
func TestServerCommitsBesideWriters(t *testing.T) {
	seed := testseed.Of(t)
	b := newBed(t, small, inproc.Options{Seed: seed, Faults: inproc.Faults{Defer: 0.3, Pause: 0.2, Scramble: 0.2}})
	const writers, commits, keys = 2, 200, 24
	root := rng.New(seed)
	var mu sync.Mutex
	want := map[uint64]uint64{}
	count := func(counted []uint64) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range counted {
			want[k]++
		}
	}
	var wg sync.WaitGroup
	var met [2]atomic.Int64 // how often a writer, and the server, found a leaf held or changed
	retry := func(i int, err error) bool {
		if !errors.Is(err, index.ErrLocked) && !errors.Is(err, ErrChanged) {
			t.Error(err)
			return false
		}
		met[i].Add(1)
		return true
	}
	more := func(n int) bool {
		return (n < commits || met[0].Load() == 0 || met[1].Load() == 0) && !t.Failed() && b.ctx.Err() == nil
	}
	for i := range writers {
		w, r := b.mustWriter(nil), root.Split("writer").SplitN(uint64(i))
		wg.Go(func() {
			for n := 0; more(n); {
				counted, err := b.count(w, r, keys)
				if err == nil {
					n++
					count(counted)
				} else if !retry(0, err) {
					return
				}
			}
		})
	}
	r := root.Split("server")
	wg.Go(func() {
		for n := 0; more(n); {
			var writes []Write
			var proofs []index.Proof
			var counted []uint64
			var err error
			for k := 1000 * r.Uint64n(keys); len(writes) < 1+r.Intn(3) && err == nil; k += 1000 {
				res := b.s.Get(index.Num(k), nil)
				if res.Status == index.Locked {
					err = index.ErrLocked
					continue
				}
				v := uint64(1)
				if res.Status == index.Found {
					v = res.Row[0] + 1
				}
				writes, proofs, counted = append(writes, Write{Key: k, Row: row(v), Hint: res.Hint}), append(proofs, res.Proofs...), append(counted, k)
			}
			runtime.Gosched() // for writers that change what it has read
			if err == nil {
				err = b.commit(writes, proofs)
			}
			if err == nil {
				n++
				count(counted)
			} else if !retry(1, err) {
				return
			}
		}
	})
	wg.Wait()
	b.same("the end", 0, b.rows(), want)
	t.Logf("writers found leaves held or changed %d times, the server %d times", met[0].Load(), met[1].Load())
}

// A leaf has what a transaction of the data server has written, and its checksum, when it is not
// held any more.
func TestLeafIsWholeWhenReleased(t *testing.T) {
	b := newBed(t, small, inproc.Options{Faults: inproc.Faults{Scramble: 1}})
	if !b.s.l.checksums {
		t.Fatal("the leaves have no checksums")
	}
	want, released := map[uint64]uint64{}, 0
	b.s.o.Swap = func(addr, from, to uint64) bool {
		p := b.s.span(addr)
		if Header(from).Held() && !Header(to).Held() {
			released++
			m := image{b.s.l, make([]uint64, b.s.l.LeafWords)}
			p.CopyOut(m.w)
			m.w[0] = to
			if err := m.check(addr); err != nil {
				t.Error(err)
			}
			for k, v := range want {
				if i := m.find(k); m.covers(k) && (i < 0 || m.row(i)[0] != v) {
					t.Errorf("leaf %#x is released without row %d of key %d", addr, v, k)
				}
			}
		}
		return p.CompareAndSwap(0, from, to)
	}
	for n := range uint64(300) {
		k := n * 7919 % 100
		want[k] = n
		b.check(b.commit([]Write{{Key: k, Row: row(n)}}, nil))
	}
	if released < 300 {
		t.Errorf("%d leaves were released", released)
	}
	b.same("the end", 0, b.rows(), want)
}

// commit performs writes as a transaction of the data server, as a partition does.
func (b *bed) commit(writes []Write, proofs []index.Proof) (err error) {
	const owner = 1
	held := make([]*index.Held, 0, len(writes))
	defer func() {
		for _, h := range held {
			if err != nil {
				b.s.Release(h)
			}
		}
	}()
	for _, x := range writes {
		h, err := b.s.LockWrite(owner, index.Num(x.Key), x.Hint)
		if err != nil {
			return err
		}
		held = append(held, h)
	}
	for _, p := range proofs {
		if !b.s.Holds(p, owner) {
			return ErrChanged
		}
	}
	for i, x := range writes {
		b.s.Publish(held[i], x.Row, 0)
	}
	return nil
}

// A writer that is stopped with a lock keeps the data server from writing only until its lease
// has ended.
func TestServerWritesPastStoppedWriter(t *testing.T) {
	b := stoppedBed(t, small)
	s := &stopper{left: 1, stopped: make(chan struct{}), goOn: make(chan struct{})}
	w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.commit(b.ctx, []Write{{Key: 20, Row: row(1)}}, nil) })
	<-s.stopped
	for _, wait := range []time.Duration{0, WriterLease - 1} {
		b.clock.Advance(wait)
		if err := b.commit([]Write{{Key: 20, Row: row(2)}}, nil); !errors.Is(err, index.ErrLocked) {
			t.Errorf("a commit on a leaf that is held: %v", err)
		}
	}
	b.clock.Advance(1)
	b.check(b.commit([]Write{{Key: 20, Row: row(2)}}, nil))
	close(s.goOn)
	if wg.Wait(); err == nil {
		t.Error("the settled writer has committed")
	}
	if v := b.rows()[20]; v != 2 {
		t.Errorf("key 20 has %d, want 2", v)
	}
}

// Who shares the absence of a key keeps others from inserting it, also when the leaf that proved
// it is taken out.
func TestUnlinkKeepsSharedLocks(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	for k := range uint64(20) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	shared := indextest.NewSharedLocks()
	b.s.o.Locks = shared
	const reader, other, key = 7, 8, 105
	leaf := b.s.Get(index.Num(key), nil).Hint
	for k := range uint64(20) {
		if b.s.Get(index.Num(10*k), nil).Hint == leaf {
			h, err := b.s.LockWrite(other, index.Num(10*k), 0)
			b.check(err)
			b.s.PublishDelete(h, 0)
		}
	}
	res := b.s.Get(index.Num(key), nil)
	if res.Status != index.NotFound || res.Hint != leaf {
		t.Fatalf("%v in leaf %#x, want %#x", res.Status, res.Hint, leaf)
	}
	shared.Share(res.Proofs[0].Addr, reader)
	b.train()
	if b.s.unlinks.Load() == 0 {
		t.Fatal("the leaf was not taken out")
	}
	if _, err := b.s.LockWrite(other, index.Num(key), 0); !errors.Is(err, index.ErrLocked) {
		t.Errorf("a key whose absence is shared was locked by another: %v", err)
	}
	h, err := b.s.LockWrite(reader, index.Num(key), 0)
	b.check(err)
	b.s.Release(h)
	shared.Drop(reader)
	h, err = b.s.LockWrite(other, index.Num(key), 0)
	b.check(err)
	b.s.Release(h)
}

// Leaves that have become empty are taken out, readers find their way, and the memory serves
// again.
func TestEmptyLeavesAreUnlinked(t *testing.T) {
	b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, inproc.Options{})
	const rows = 2000
	for k := range uint64(rows) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	b.train()
	r, w := b.reader(), b.mustWriter(nil)
	full, size := b.s.leaves.Load(), b.region().Size()
	for round := range uint64(4) {
		kept := func(k uint64) bool { return k%100 == round }
		for k := range uint64(rows) {
			if !kept(k) {
				res, _, _ := r.lookup(10 * k)
				b.check(w.commit(b.ctx, []Write{{Key: 10 * k, Hint: res.Hint}}, nil))
			}
		}
		b.train()
		if n := b.s.leaves.Load(); n > rows/100*2+1 {
			t.Fatalf("round %d: %d of %d leaves are left for %d rows", round, n, full, rows/100)
		}
		for k := range uint64(rows) { // with models of the leaves that were there before
			if res, _, _ := r.lookup(10 * k); res.Status == index.Fallback {
				r.refresh()
			} else if (res.Status == index.Found) != kept(k) || res.Status != index.Found && res.Status != index.NotFound {
				t.Fatalf("round %d, key %d: %v", round, 10*k, res.Status)
			}
		}
		r.refresh()
		want := map[uint64]uint64{}
		for k := range uint64(rows) {
			if kept(k) {
				want[10*k] = k
			}
		}
		b.same("round", round, b.rows(), want)
		for k := range uint64(rows) {
			b.check(b.supply(w, 2))
			res, _, _ := r.lookup(10 * k)
			b.check(w.commit(b.ctx, []Write{{Key: 10 * k, Row: row(k), Hint: res.Hint}}, nil))
		}
		b.train()
		r.refresh()
	}
	if n := b.region().Size(); n > 2*size {
		t.Errorf("the region has grown from %d to %d bytes", size, n)
	}
	if err := b.s.trainer.Check(); err != nil {
		t.Error(err)
	}
}

// patience is how long a writer tries to change a leaf.
const patience = 20 * time.Second

// Leaves become empty and are taken out beside writers and readers. A row that nobody removes is
// found at any time, and at the end each writer has what it wrote last.
func TestUnlinkBesideWriters(t *testing.T) {
	seed := testseed.Of(t)
	b := newBed(t, small, inproc.Options{Seed: seed, Faults: inproc.Faults{Defer: 0.2, Pause: 0.2, Scramble: 0.3}})
	const writers, stable, each = 2, 40, 30
	for k := range uint64(stable) {
		b.check(b.s.Load(index.Num(1000*k), row(1), 0))
	}
	b.train()
	var stop atomic.Bool
	var wg sync.WaitGroup
	root := rng.New(seed)
	finals := make([]map[uint64]uint64, writers)
	for i := range uint64(writers) {
		w, rg := b.mustWriter(nil), root.Split("writer").SplitN(i)
		finals[i] = map[uint64]uint64{}
		wg.Go(func() {
			filled := []uint64{1 + i*500, 1 + i*500}
			for n := uint64(0); !stop.Load() && !t.Failed(); n++ {
				// It fills one of its ranges, and empties the one before the last.
				filled = append(filled, 1000*rg.Uint64n(stable)+1+i*500)
				at, from := filled[2], filled[0]
				filled = filled[1:]
				for j := range uint64(each) {
					for _, x := range []Write{{Key: from + j}, {Key: at + j, Row: row(n)}} {
						if err := b.supply(w, 2); err != nil {
							t.Error(err)
							return
						}
						err := index.ErrLocked
						for begin := time.Now(); (errors.Is(err, index.ErrLocked) || errors.Is(err, ErrChanged)) && time.Since(begin) < patience; {
							err = w.commit(b.ctx, []Write{x}, nil)
							runtime.Gosched()
						}
						if err != nil {
							t.Error(err)
							return
						}
						if delete(finals[i], x.Key); x.Row != nil {
							finals[i][x.Key] = n
						}
					}
				}
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			b.clock.Advance(time.Millisecond)
			b.s.Maintain(b.clock.Now(), nil)
		}
	})
	r, rg := b.reader(), root.Split("reader")
	for begin, found := time.Now(), 0; (found < 2000 || b.s.unlinks.Load() < 10 || time.Since(begin) < 500*time.Millisecond) && !t.Failed(); {
		if b.ctx.Err() != nil {
			t.Fatalf("%d rows were found, and %d leaves taken out", found, b.s.unlinks.Load())
		}
		k := 1000 * rg.Uint64n(stable)
		switch res, _, _ := r.lookup(k); res.Status {
		case index.Found:
			found++
		case index.NotFound, index.Failed:
			t.Errorf("key %d, which nobody removes: %v, %v", k, res.Status, res.Err)
		}
		if r.c.Stale() {
			b.check(r.c.Maintain(b.ctx, r.conn))
		}
	}
	stop.Store(true)
	wg.Wait()
	want := map[uint64]uint64{}
	for k := range uint64(stable) {
		want[1000*k] = 1
	}
	for _, f := range finals {
		for k, v := range f {
			want[k] = v
		}
	}
	b.same("the end", 0, b.rows(), want)
	t.Logf("%d leaves were taken out", b.s.unlinks.Load())
}

// Who shares a leaf keeps writers and other transactions out of it, and nobody else: others share
// it, and read it. One that is alone may write there, also if that splits the leaf: both halves are
// shared then.
func TestSharedLeavesStay(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	w := b.mustWriter(nil)
	for k := range uint64(6) {
		b.check(b.commit([]Write{{Key: 10 * k, Row: row(k)}}, nil))
	}
	proof := func(key uint64) index.Proof {
		b.Helper()
		g := b.s.Get(index.Num(key), nil)
		if len(g.Proofs) != 1 {
			t.Fatalf("key %d is %v, with %d proofs", key, g.Status, len(g.Proofs))
		}
		return g.Proofs[0]
	}
	held := func(what string, key uint64) {
		b.Helper()
		if err := w.commit(b.ctx, []Write{{Key: key, Row: row(99)}}, nil); !errors.Is(err, index.ErrLocked) {
			t.Errorf("%s: a writer's commit of key %d: %v, want %v", what, key, err, index.ErrLocked)
		}
	}
	const one, two, three = 11, 12, 13
	old := proof(10)
	if b.s.Share(index.Proof{Addr: old.Addr, Word: old.Word + 1}, one) || b.s.Share(index.Proof{Addr: old.Addr + 8, Word: old.Word}, one) {
		t.Error("what a wrong proof says is shared")
	}
	if !b.s.Share(old, one) || !b.s.Share(old, two) || !b.s.Share(old, two) {
		t.Fatal("a leaf cannot be shared twice")
	}
	held("shared by two", 10)
	if got := proof(10); got != old {
		t.Errorf("the proof of a shared leaf is %+v, want %+v", got, old)
	}
	if _, err := b.s.LockWrite(one, index.Num(10), 0); !errors.Is(err, index.ErrLocked) {
		t.Errorf("one of two that share a leaf locks it: %v", err)
	}
	b.s.Unshare(old.Addr, two)
	held("shared by one", 10)
	if !b.s.Holds(old, one) || !b.s.Holds(old, three) {
		t.Error("the proof of a leaf that is only shared does not hold")
	}

	// The one that is left writes, and splits the leaf.
	var locks []*index.Held
	for k := uint64(11); len(b.s.holds) < 2; k++ {
		h, err := b.s.LockWrite(one, index.Num(k), 0)
		b.check(err)
		locks = append(locks, h)
	}
	if b.s.Share(old, two) {
		t.Error("a leaf that is being changed is shared by another transaction")
	}
	for _, h := range locks {
		b.s.Release(h)
	}
	if b.s.Holds(old, three) || b.s.Holds(old, 0) {
		t.Error("the proof of a leaf that its only reader has split holds for others")
	}
	if !b.s.Holds(old, one) {
		t.Error("the proof of a leaf that its only reader has split does not hold for that one")
	}
	var halves, lows []uint64
	for addr, hd := range b.s.holds {
		halves, lows = append(halves, addr), append(lows, hd.m.low())
	}
	if len(halves) != 2 {
		t.Fatalf("%d halves are held", len(halves))
	}
	for _, low := range lows {
		held("a half of the split", low)
	}
	for _, addr := range halves {
		b.s.Unshare(b.s.proof(addr, 0).Addr, one)
	}
	b.check(w.commit(b.ctx, []Write{{Key: lows[0], Row: row(7)}, {Key: lows[1], Row: row(8)}}, nil))
	want := map[uint64]uint64{0: 0, 10: 1, 20: 2, 30: 3, 40: 4, 50: 5}
	want[lows[0]], want[lows[1]] = 7, 8
	b.same("the end", 0, b.rows(), want)
	if len(b.s.holds) > 0 {
		t.Errorf("%d leaves are held", len(b.s.holds))
	}
}

// A row is loaded beside a transaction of the data server that holds its leaf: either the load is
// refused, or both have effect. What a prepared transaction has read stays.
func TestLoadBesideTransactions(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	b.check(b.s.Load(index.Num(10), row(1), 0))
	h, err := b.s.LockWrite(1, index.Num(30), 0)
	b.check(err)
	if err := b.s.Load(index.Num(20), row(2), 0); errors.Is(err, index.ErrLocked) {
		b.s.Publish(h, row(3), 0)
		b.check(b.s.Load(index.Num(20), row(2), 0))
	} else {
		b.check(err)
		b.s.Publish(h, row(3), 0)
	}
	b.same("beside a lock", 0, b.rows(), map[uint64]uint64{10: 1, 20: 2, 30: 3})

	proof := b.s.Get(index.Num(10), nil).Proofs[0]
	if !b.s.Share(proof, 1) {
		t.Fatal("the leaf cannot be shared")
	}
	if err := b.s.Load(index.Num(25), row(4), 0); !errors.Is(err, index.ErrLocked) {
		t.Errorf("a row is loaded into a leaf that a prepared transaction has read: %v", err)
	}
	if !b.s.Holds(proof, 1) {
		t.Error("what a prepared transaction has read was changed")
	}
	b.s.Unshare(proof.Addr, 1)
	if !b.s.Holds(proof, 1) {
		t.Error("what a prepared transaction has read was changed when its leaf was free")
	}
	b.check(b.s.Load(index.Num(25), row(4), 0))
	b.same("beside a share", 0, b.rows(), map[uint64]uint64{10: 1, 20: 2, 25: 4, 30: 3})
}

// The data server finds rows behind any number of leaves that writers have split off and the trainer
// has not come upon.
func TestServerFollowsUnknownSplits(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	w := b.mustWriter(nil)
	const rows = 40 * 4
	addr := uint64(0)
	for k := range uint64(rows) {
		b.check(b.supply(w, 2))
		b.check(w.commit(b.ctx, []Write{{Key: k, Row: row(k), Hint: addr}}, nil))
		addr, _ = b.lent(w, k)
	}
	if n := b.s.leaves.Load(); n > 1 {
		t.Fatalf("%d leaves are known: this test shows nothing", n)
	}
	if res := b.s.Get(index.Num(rows-1), nil); res.Status != index.Found || res.Row[0] != rows-1 {
		t.Errorf("the last row is %v", res.Status)
	}
	for _, key := range []uint64{rows - 1, rows} {
		h, err := b.s.LockWrite(1, index.Num(key), 0)
		b.check(err)
		b.s.Release(h)
	}
	if b.s.Scan(index.Num(rows-9), index.Num(rows), 0, &b.scanned, nil); b.scanned.Status != index.Found || len(b.scanned.Entries) != 9 {
		t.Errorf("a scan of the last rows: %v, %d rows", b.scanned.Status, len(b.scanned.Entries))
	}
}
