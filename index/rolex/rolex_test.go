package rolex

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a data server with one index, and a network.
type bed struct {
	testing.TB
	ctx context.Context
	n   *inproc.Network
	ep  rdma.Endpoint
	s   *Server
	o   Options
	key rdma.RKey // of the leaves

	models  rdma.RKey
	clock   clocktest.Clock
	scanned index.ScanResult // memory
}

func newBed(t testing.TB, o Options, fabric inproc.Options) *bed {
	b := &bed{TB: t, n: inproc.New(fabric), o: o}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	b.ctx = ctx
	b.o.Checksums = b.n.Unordered()
	var err error
	b.ep, err = b.n.Listen("server", rdma.ListenOptions{})
	b.check(err)
	t.Cleanup(func() { b.check(b.ep.Close()) })
	region := func() (*mem.Region, rdma.RKey) {
		m, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 18, MaxBytes: 1 << 26})
		b.check(err)
		k, err := b.ep.Register(m, rdma.AccessRead)
		b.check(err)
		return m, k
	}
	var m, models *mem.Region
	m, b.key = region()
	models, b.models = region()
	b.s, err = NewServer(ServerOptions{
		Options: b.o, Leaves: m, Arena: block.NewArena(models, block.ArenaOptions{Checksums: b.o.Checksums, Tick: 1}),
		Revoke: b.ep.Revoke, Clock: b.clock.Now, LeavesPerSubModel: 16,
	})
	b.check(err)
	b.check(b.ep.Serve(func(q *rdma.Request) { _ = q.Reply(fmt.Append(nil, uint64(q.Peer))) }))
	return b
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// writer connects a writer. wrap, if set, alters its connection.
func (b *bed) writer(wrap func(rdma.Conn) rdma.Conn) (*Writer, error) {
	c, err := b.n.Dial(b.ctx, "server")
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = c.Close() })
	answer, err := rdma.Call(b.ctx, c, nil, nil)
	if err != nil {
		return nil, err
	}
	var peer rdma.PeerID
	if _, err := fmt.Sscan(string(answer), &peer); err != nil {
		return nil, err
	}
	o, err := b.s.Open(peer, b.key)
	if err != nil {
		return nil, err
	}
	if err := b.ep.Grant(peer, b.key, rdma.AccessWrite|rdma.AccessAtomic); err != nil {
		_, serr := b.settle(o.Owner)
		b.s.Forget(o.Owner)
		return nil, errors.Join(err, serr)
	}
	if wrap != nil {
		c = wrap(c)
	}
	w, err := NewWriter(c, b.o, o)
	if err != nil {
		return nil, err
	}
	return w, b.supply(w, 1)
}

// supply gives a writer leaves for splits if it has fewer than so many.
func (b *bed) supply(w *Writer, least int) error {
	if len(w.spares) >= least {
		return nil
	}
	spares, err := b.s.Extend(w.o.Owner, b.peer(w.o.Owner))
	w.Supply(spares)
	return err
}

// peer returns the peer of a writer, 0 if the server has settled and forgotten it.
func (b *bed) peer(o Owner) rdma.PeerID {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if w := b.s.writers[o]; w != nil {
		return w.peer
	}
	return 0
}

func (b *bed) settle(o Owner) (committed uint64, err error) { return b.s.Settle(o, b.peer(o)) }

// commit performs a transaction whose proofs are of leaves.
func (w *Writer) commit(ctx context.Context, writes []Write, leaves []index.Proof) error {
	t := Txn{Writes: writes}
	for _, p := range leaves {
		t.Proofs = append(t.Proofs, Proof{w.o.Key, p.Addr, p.Word})
	}
	return w.Commit(ctx, &t)
}

func (b *bed) mustWriter(wrap func(rdma.Conn) rdma.Conn) *Writer {
	b.Helper()
	w, err := b.writer(wrap)
	b.check(err)
	return w
}

func (b *bed) rows() map[uint64]uint64 {
	b.Helper()
	linked, live := 0, 0
	b.check(b.s.walk(func(uint64, image) error { linked++; return nil }))
	for addr := b.s.l.leavesAt; addr < b.s.end; addr += b.s.l.LeafBytes() {
		if p, ok := b.s.leafAt(addr); ok && !Header(p.Load(block.HeaderWord)).Dead() {
			live++
		}
	}
	if linked != live {
		b.Fatalf("leaves are lost: %d are live, %d are linked", live, linked)
	}
	return b.linked()
}

// linked returns the rows; a hostile writer may lose the leaves that it was given for splits.
func (b *bed) linked() map[uint64]uint64 {
	b.Helper()
	rows, err := b.s.Rows()
	b.check(err)
	all := map[uint64]uint64{}
	for _, r := range rows {
		all[r.Key] = r.Row[0]
	}
	return all
}

// row is the row of a value.
func row(v uint64) []uint64 { return []uint64{v, ^v} }

var small = Options{RowWords: 2, SlotsPerLeaf: 4, Writers: 16}

// Writes behave as those of a map, and each costs the rounds and verbs that it must.
func TestAgainstModel(t *testing.T) {
	for _, fabric := range []inproc.Options{{}, {Faults: inproc.Faults{Scramble: 1}}} {
		b := newBed(t, small, fabric)
		r := rng.New(testseed.Of(t))
		model := map[uint64]uint64{}
		for range 20 {
			k := r.Uint64n(100)
			b.check(b.s.Load(index.Num(k), row(k), 0))
			model[k] = k
		}
		w := b.mustWriter(nil)
		for i := range uint64(2000) {
			var writes []Write
			for range 1 + r.Intn(3) {
				x := Write{Key: r.Uint64n(200)}
				if i%400 < 300 == r.Bool(0.8) {
					x.Row = row(i)
				}
				if slices.ContainsFunc(writes, func(y Write) bool { return y.Key == x.Key }) {
					continue
				}
				writes = append(writes, x)
			}
			b.check(b.supply(w, 8))
			if err := w.commit(b.ctx, writes, nil); err != nil {
				t.Fatalf("commit %d: %v", i, err)
			}
			for _, x := range writes {
				if delete(model, x.Key); x.Row != nil {
					model[x.Key] = x.Row[0]
				}
			}
			if i%50 == 0 {
				b.same("commit", i, b.rows(), model)
			}
		}
		b.same("the end", 0, b.rows(), model)
	}
}

func (b *bed) same(what string, i uint64, got, want map[uint64]uint64) {
	b.Helper()
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			b.Fatalf("%s %d: key %d has %d, %v; want %d", what, i, k, g, ok, v)
		}
	}
	if len(got) != len(want) {
		b.Fatalf("%s %d: %d rows, want %d", what, i, len(got), len(want))
	}
}

// The rounds and verbs of each operation, whose leaf is known.
func TestExactCosts(t *testing.T) {
	b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, inproc.Options{})
	for k := range uint64(8) {
		b.check(b.s.Load(index.Num(2*k), row(k), 0))
	}
	w := b.mustWriter(nil)
	cost := func(what string, want rdma.Counters, writes ...Write) {
		t.Helper()
		before := w.conn.Counters()
		b.check(w.commit(b.ctx, writes, nil))
		got := w.conn.Counters().Sub(before)
		got.ReadBytes, got.WriteBytes = 0, 0
		if got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	// One READ of the leaf, and one of the fence word with the locks. Of the WRITEs one is the
	// intent.
	cost("an update", rdma.Counters{Rounds: 3, Reads: 2, Atomics: 2, Writes: 2}, Write{Key: 4, Row: row(9)})
	cost("a delete", rdma.Counters{Rounds: 3, Reads: 2, Atomics: 2, Writes: 4}, Write{Key: 4})
	cost("an insert", rdma.Counters{Rounds: 3, Reads: 2, Atomics: 2, Writes: 5}, Write{Key: 5, Row: row(9)})
	before := w.conn.Counters()
	b.check(w.commit(b.ctx, []Write{{Key: 7, Row: row(9)}}, nil))
	if got := w.conn.Counters().Sub(before); got.Rounds != 3 || got.Reads != 2 || got.Atomics != 3 || got.RPCs != 0 {
		t.Errorf("a split: %+v", got)
	}
}

// stopper is a connection that stops after some words have been written, until it is told to
// go on: as a process that was stopped there.
type stopper struct {
	rdma.Conn
	left    int           // words until it stops; less than 0: it does not
	written int           // words
	stopped chan struct{} // closed when it has stopped
	goOn    chan struct{}
}

func (s *stopper) Post(b *rdma.Batch) error {
	b.Token = 0
	return nil
}

func (s *stopper) Wait(ctx context.Context, b *rdma.Batch) error {
	for i := range b.WRs {
		wr := &b.WRs[i]
		if wr.Op == rdma.OpRead {
			s.do(ctx, wr)
			continue
		}
		words := 1
		if wr.Op == rdma.OpWrite {
			words = len(wr.Buf)
		}
		if s.left >= 0 && s.left < words {
			part := *wr
			if part.Buf = wr.Buf[:s.left]; wr.Op == rdma.OpWrite && s.left > 0 {
				s.do(ctx, &part)
			}
			s.left = -1
			close(s.stopped)
			<-s.goOn
		}
		if s.left >= 0 {
			s.left -= words
		}
		s.written += words
		s.do(ctx, wr)
	}
	return b.Err()
}

// do performs one request, or marks it as not performed.
func (s *stopper) do(ctx context.Context, wr *rdma.WR) {
	b := rdma.Batch{WRs: []rdma.WR{*wr}}
	if err := rdma.Do(ctx, s.Conn, &b); err != nil && b.WRs[0].Status == rdma.StatusPending {
		b.WRs[0].Status = rdma.StatusPeerDown
	}
	wr.Status, wr.Tail = b.WRs[0].Status, b.WRs[0].Tail
}

// steps are transactions of every kind, over the rows that stoppedBed loads.
var steps = []struct {
	name   string
	writes []Write
}{
	{"update", []Write{{Key: 20, Row: row(1)}}},
	{"insert", []Write{{Key: 61, Row: row(1)}}},
	{"delete", []Write{{Key: 20}}},
	{"split to the left", []Write{{Key: 1, Row: row(1)}}},
	{"split to the right", []Write{{Key: 29, Row: row(1)}}},
	{"split at the end", []Write{{Key: 1000, Row: row(1)}}},
	{"two leaves", []Write{{Key: 0, Row: row(1)}, {Key: 70, Row: row(2)}}},
	{"two splits", []Write{{Key: 1, Row: row(1)}, {Key: 41, Row: row(2)}}},
	{"three things", []Write{{Key: 10}, {Key: 31, Row: row(2)}, {Key: 61, Row: row(3)}}},
}

func stoppedBed(t testing.TB, o Options) *bed {
	b := newBed(t, o, inproc.Options{})
	for k := range uint64(12) {
		b.check(b.s.Load(index.Num(10*k), row(100+k), 0))
	}
	w := b.mustWriter(nil)
	b.check(w.commit(b.ctx, []Write{{Key: 60}}, nil)) // room for an insert
	_, err := b.settle(w.o.Owner)
	b.check(err)
	b.s.Forget(w.o.Owner)
	return b
}

// A writer that is stopped between any two words, settled, and goes on afterwards: its
// transaction has happened as a whole or not at all, as the server says, and nothing happens
// later. Every key can be written then.
func TestWriterStopsAnywhere(t *testing.T) {
	for _, x := range steps {
		t.Run(x.name, func(t *testing.T) {
			for _, sums := range []bool{false, true} {
				o := small
				o.Checksums = sums
				b := stoppedBed(t, o)
				s := &stopper{Conn: nil, left: -1}
				w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
				before := b.rows()
				b.check(w.commit(b.ctx, x.writes, nil))
				after := b.rows()
				outcomes := [2]int{}
				for at := range s.written {
					if b.stopAt(x.name, at, o, x.writes, before, after) {
						outcomes[1]++
					} else {
						outcomes[0]++
					}
				}
				if outcomes[0] == 0 || outcomes[1] == 0 {
					t.Errorf("of %d stops %d committed: this test shows nothing", s.written, outcomes[1])
				}
			}
		})
	}
}

func (b *bed) stopAt(name string, at int, o Options, writes []Write, before, after map[uint64]uint64) (committed bool) {
	b.Helper()
	b = stoppedBed(b.TB, o)
	s := &stopper{left: at, stopped: make(chan struct{}), goOn: make(chan struct{})}
	w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.commit(b.ctx, writes, nil) })
	<-s.stopped
	last, serr := b.settle(w.o.Owner)
	b.check(serr)
	settled := b.rows()
	want := before
	if committed = last == 1; committed {
		want = after
	}
	b.same(name+", stopped at word", uint64(at), settled, want)
	close(s.goOn)
	wg.Wait()
	if err == nil {
		b.Errorf("%s, stopped at word %d: it says that it is committed, after it was settled", name, at)
	}
	if committed && !errors.Is(err, ErrUnknown) {
		b.Errorf("%s, stopped at word %d: it is committed, and ended with %v", name, at, err)
	}
	b.same(name+", gone on from word", uint64(at), b.rows(), settled)
	b.s.Forget(w.o.Owner)
	survivor := b.mustWriter(nil)
	for k := range after {
		b.check(survivor.commit(b.ctx, []Write{{Key: k, Row: row(k + 7)}}, nil))
	}
	for k := range settled {
		b.check(survivor.commit(b.ctx, []Write{{Key: k, Row: row(k + 8)}}, nil))
	}
	if rows := b.rows(); rows[20] != 28 && settled[20] != 0 {
		b.Errorf("%s, stopped at word %d: key 20 has %d", name, at, rows[20])
	}
	return committed
}

// A writer stops in an intent that overwrites the one of its last transaction: that one stays
// committed, the new one has not happened, and no intent is complete.
func TestWriterStopsInItsSecondIntent(t *testing.T) {
	b := stoppedBed(t, small)
	s := &stopper{left: -1, stopped: make(chan struct{}), goOn: make(chan struct{})}
	w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
	b.check(w.commit(b.ctx, []Write{{Key: 20, Row: row(7)}}, nil))
	s.left = 1 + 6 // the lock, and the first words of the intent
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.commit(b.ctx, []Write{{Key: 20, Row: row(8)}}, nil) }) // it ends with the connection
	<-s.stopped
	if committed, err := b.settle(w.o.Owner); err != nil || committed != 0 {
		t.Errorf("transaction %d has a complete intent, %v; want none", committed, err)
	}
	close(s.goOn)
	wg.Wait()
	if v := b.rows()[20]; v != 7 {
		t.Errorf("the row is %d, want 7", v)
	}
}

// Many writers count rows up, over a fabric that loses connections, reorders, and delivers
// late. What has committed is counted once, and only that.
func TestWritersUnderFaults(t *testing.T) {
	seed := testseed.Of(t)
	for run := range uint64(6) {
		root := rng.New(seed).SplitN(run)
		f := inproc.Swarm(root.Split("faults"), 0.3)
		f.DropVerb = 0.01
		f.Late, f.Duplicate = 0.5, 0
		f.MaxDelay = 20 * time.Microsecond
		b := newBed(t, small, inproc.Options{Faults: f, Seed: root.Split("network").Uint64()})
		const writers, commits, keys = 4, 150, 24
		var mu sync.Mutex
		want, total, lost := map[uint64]uint64{}, 0, 0
		var wg sync.WaitGroup
		for i := range uint64(writers) {
			r := root.Split("writer").SplitN(i)
			wg.Go(func() {
				var w *Writer
				for n := 0; n < commits && b.ctx.Err() == nil; {
					if w == nil || len(w.spares) < 4 {
						if w != nil {
							_, _ = b.settle(w.o.Owner)
							b.s.Forget(w.o.Owner)
						}
						w, _ = b.writer(nil)
						continue
					}
					counted, err := b.count(w, r, keys)
					committed := err == nil
					switch {
					case errors.Is(err, rdma.ErrPeerDown):
						last, serr := b.settle(w.o.Owner)
						if serr != nil {
							t.Error(serr)
						}
						committed = errors.Is(err, ErrUnknown) && last == w.Last()
						b.s.Forget(w.o.Owner)
						mu.Lock()
						lost++
						mu.Unlock()
						w = nil
					case err != nil && !errors.Is(err, index.ErrLocked) && !errors.Is(err, ErrChanged):
						t.Errorf("run %d: %v", run, err)
						return
					}
					if committed {
						n++
						mu.Lock()
						for _, k := range counted {
							want[k]++
						}
						total++
						mu.Unlock()
					}
				}
				if w != nil {
					_, _ = b.settle(w.o.Owner)
				}
			})
		}
		wg.Wait()
		if b.ctx.Err() != nil {
			t.Fatalf("run %d: only %d commits", run, total)
		}
		b.same("run", run, b.rows(), want)
		t.Logf("run %d: %d commits, %d connections lost", run, total, lost)
	}
}

// Many writers insert into the same leaves, and rely on nothing that they have READ but the
// leaves that they change. No row is lost.
func TestInsertsOfManyWriters(t *testing.T) {
	seed := testseed.Of(t)
	b := newBed(t, small, inproc.Options{Faults: inproc.Faults{Defer: 0.3, Pause: 0.2, Scramble: 0.2}, Seed: seed})
	const writers, inserts = 4, 100
	var wg sync.WaitGroup
	changed := make([]int, writers)
	for i := range uint64(writers) {
		w := b.mustWriter(nil)
		wg.Go(func() {
			for n := uint64(0); n < inserts && !t.Failed(); {
				if err := b.supply(w, 1); err != nil {
					t.Error(err)
					return
				}
				switch err := w.commit(b.ctx, []Write{{Key: n*writers + i, Row: row(n)}}, nil); {
				case err == nil:
					n++
				case errors.Is(err, index.ErrLocked), errors.Is(err, ErrChanged):
					changed[i]++
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	want := map[uint64]uint64{}
	for n := range uint64(writers * inserts) {
		want[n] = n / writers
	}
	b.same("the end", 0, b.rows(), want)
	if sum := changed[0] + changed[1] + changed[2] + changed[3]; sum == 0 {
		t.Error("no writer met another: this test shows nothing")
	}
}

// count adds 1 to some rows, in one transaction, and returns their keys.
func (b *bed) count(w *Writer, r *rng.Stream, keys uint64) (counted []uint64, err error) {
	var writes []Write
	var proofs []index.Proof
	for range 1 + r.Intn(3) {
		k := 1000 * r.Uint64n(keys)
		if slices.Contains(counted, k) {
			continue
		}
		addr, m, err := w.read(b.ctx, k, w.o.First)
		if err != nil {
			return nil, err
		}
		v := uint64(1)
		if i := m.find(k); i >= 0 {
			v = m.row(i)[0] + 1
			if m.row(i)[1] != ^m.row(i)[0] {
				return nil, fmt.Errorf("key %d has row %x", k, m.row(i))
			}
		}
		proofs = append(proofs, index.Proof{Addr: addr, Word: uint64(m.header())})
		writes = append(writes, Write{Key: k, Row: row(v), Hint: addr})
		counted = append(counted, k)
	}
	return counted, w.commit(b.ctx, writes, proofs)
}

// A writer that has died idle has an intent that was applied long ago. Settling it changes
// nothing that others have made of its leaves since.
func TestSettleOfIdleWriters(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	r := rng.New(testseed.Of(t))
	model := map[uint64]uint64{}
	var writers []*Writer
	for i := range uint64(600) {
		if len(writers) < 6 {
			writers = append(writers, b.mustWriter(nil))
		}
		at := r.Intn(len(writers))
		w := writers[at]
		if r.Intn(8) == 0 || len(w.spares) < 4 {
			last, err := b.settle(w.o.Owner)
			if b.check(err); last != w.Last() {
				t.Fatalf("writer %d: the last transaction is %d, want %d", w.o.Owner, last, w.Last())
			}
			b.s.Forget(w.o.Owner)
			writers = slices.Delete(writers, at, at+1)
			b.same("settled", i, b.rows(), model)
			continue
		}
		x := Write{Key: r.Uint64n(40)}
		if r.Bool(0.7) {
			x.Row = row(i)
		}
		b.check(w.commit(b.ctx, []Write{x}, nil))
		if delete(model, x.Key); x.Row != nil {
			model[x.Key] = i
		}
	}
	b.same("the end", 0, b.rows(), model)
}

// Two writers that each READ what the other writes never both do so: what an answer rests on is
// READ when the locks are held.
func TestNoWriteSkew(t *testing.T) {
	b := newBed(t, small, inproc.Options{Faults: inproc.Faults{Defer: 0.3, Pause: 0.3}, Seed: testseed.Of(t)})
	for k := range uint64(12) {
		b.check(b.s.Load(index.Num(k), row(0), 0))
	}
	keys := [2]uint64{0, 11}
	var taken [2]int
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for me := range 2 {
		w := b.mustWriter(nil)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var found [2]uint64
				var proofs []index.Proof
				var err error
				for i, k := range keys {
					var addr uint64
					var m image
					if addr, m, err = w.read(b.ctx, k, w.o.First); err != nil {
						break
					}
					found[i] = m.row(m.find(k))[0]
					proofs = append(proofs, index.Proof{Addr: addr, Word: uint64(m.header())})
				}
				if err == nil && (found[me] == 1 || found[1-me] == 0) {
					err = w.commit(b.ctx, []Write{{Key: keys[me], Row: row(1 - found[me])}}, proofs)
				}
				if err == nil {
					taken[me] += int(found[me])
				} else if !errors.Is(err, index.ErrLocked) && !errors.Is(err, ErrChanged) {
					t.Error(err)
					return
				}
			}
		})
	}
	reader, seen := b.mustWriter(nil), 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) || seen < 100; {
		addr, first, err1 := reader.read(b.ctx, keys[0], reader.o.First)
		_, second, err2 := reader.read(b.ctx, keys[1], addr)
		_, again, err3 := reader.read(b.ctx, keys[0], addr)
		if errors.Join(err1, err2, err3) != nil || again.header() != first.header() {
			continue
		}
		seen++
		if first.row(first.find(keys[0]))[0]+second.row(second.find(keys[1]))[0] == 2 {
			t.Error("both have what only one may have")
			break
		}
	}
	close(stop)
	wg.Wait()
	if taken[0] == 0 || taken[1] == 0 {
		t.Errorf("the two took it %d and %d times: this test shows nothing", taken[0], taken[1])
	}
}

// Others that wait for a leaf report it. Its owner is settled when it has held one lock for
// WriterLease since, and not when it goes on.
func TestReports(t *testing.T) {
	b := stoppedBed(t, small)
	s := &stopper{left: 1, stopped: make(chan struct{}), goOn: make(chan struct{})} // it stops with a lock
	w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.commit(b.ctx, []Write{{Key: 20, Row: row(1)}}, nil) })
	<-s.stopped
	waiter := b.mustWriter(nil)
	var held *HeldError
	if err := waiter.commit(b.ctx, []Write{{Key: 20, Row: row(2)}}, nil); !errors.As(err, &held) || held.Header.Owner() != w.o.Owner {
		t.Fatalf("commit on a leaf that is held: %v", err)
	}
	report := func(want bool, addr uint64, h Header) {
		t.Helper()
		if settled, err := b.s.Report(addr, h); err != nil || settled != want {
			t.Fatalf("report of %#x, %v: %v, %v; want %v", addr, h, settled, err, want)
		}
	}
	report(false, held.Leaf, held.Header)
	b.clock.Advance(WriterLease - 1)
	report(false, held.Leaf, held.Header)
	report(false, held.Leaf+8, held.Header)
	report(false, held.Leaf, held.Header.hold(MaxOwner))
	report(false, ^uint64(0), held.Header)
	b.clock.Advance(1)
	report(true, held.Leaf, held.Header)
	report(false, held.Leaf, held.Header)
	b.check(waiter.commit(b.ctx, []Write{{Key: 20, Row: row(2)}}, nil))
	close(s.goOn)
	if wg.Wait(); err == nil || errors.Is(err, index.ErrLocked) {
		t.Errorf("the settled writer: %v", err)
	}
	if v := b.rows()[20]; v != 2 {
		t.Errorf("key 20 has %d, want 2", v)
	}
	// A writer that is quick enough each time is not settled, however often others wait.
	addr, m, rerr := waiter.read(b.ctx, 20, waiter.o.First)
	b.check(rerr)
	for range 3 {
		at := b.s.span(addr)
		h := m.header().hold(waiter.o.Owner)
		at.Store(block.HeaderWord, uint64(h))
		report(false, addr, h)
		b.clock.Advance(WriterLease - 1)
		report(false, addr, h)
		m.w[block.HeaderWord]++
		at.Store(block.HeaderWord, m.w[block.HeaderWord])
	}
	// The server hears of a disconnect at once.
	peer := b.s.writers[waiter.o.Owner].peer
	b.check(waiter.conn.Close())
	b.s.Gone(peer)
	if last, err := b.settle(waiter.o.Owner); err != nil || last != waiter.Last() {
		t.Errorf("the last transaction is %d, %v; want %d", last, err, waiter.Last())
	}
}

// A transaction that is refused when it has locked leaves leaves none locked.
func TestRefusedTransactionsLockNothing(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	for k := range uint64(12) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	for k := range uint64(1600) {
		b.check(b.s.Load(index.Num(1000+k), row(k), 0))
	}
	w, other := b.mustWriter(nil), b.mustWriter(nil)
	addr, m, err := w.read(b.ctx, 50, w.o.First)
	b.check(err)
	good := index.Proof{Addr: addr, Word: uint64(m.header())}
	for _, x := range []struct {
		name   string
		proof  index.Proof
		before func()
		want   error
	}{
		{"a proof outside the region", index.Proof{Addr: 1 << 40, Word: 1}, nil, rdma.ErrAccess},
		{"a proof that does not hold", index.Proof{Addr: addr, Word: good.Word + 1}, nil, ErrChanged},
		{"an index to be opened again", good, func() { b.s.control().Store(fenceWord, 2) }, ErrFenced},
	} {
		if x.before != nil {
			x.before()
		}
		if err := w.commit(b.ctx, []Write{{Key: 0, Row: row(7)}, {Key: 110, Row: row(7)}}, []index.Proof{x.proof}); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
		b.s.control().Store(fenceWord, 1)
		if rows := b.rows(); rows[0] != 0 || rows[110] != 11 { // which finds no lock either
			t.Errorf("%s: rows %d and %d", x.name, rows[0], rows[110])
		}
		b.check(other.commit(b.ctx, []Write{{Key: 0, Row: row(0)}, {Key: 110, Row: row(11)}}, nil))
	}
	if err := w.commit(b.ctx, []Write{{Key: 0, Row: []uint64{1}}}, nil); !errors.Is(err, index.ErrRowSize) {
		t.Errorf("a row of the wrong size: %v", err)
	}
	w.spares = nil
	for k := uint64(1); k < 10; k++ {
		if err = w.commit(b.ctx, []Write{{Key: k, Row: row(k)}}, nil); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrNoLeaf) {
		t.Errorf("a split without a spare leaf: %v", err)
	}
	var writes []Write
	for k := range uint64(300) {
		writes = append(writes, Write{Key: 1000 + 4*k, Row: row(k + 1)}) // a leaf each
	}
	if err := w.commit(b.ctx, writes, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a transaction of %d rows: %v", len(writes), err)
	}
	b.check(other.commit(b.ctx, []Write{{Key: 110, Row: row(3)}}, nil))
}

// A transaction whose context ends while its requests are in flight closes its connection. The
// server settles it as any other, and nothing of it happens later.
func TestContextEndsInFlight(t *testing.T) {
	for _, x := range []struct {
		name    string
		latency inproc.Latency
		unknown bool
	}{
		{"while it locks", inproc.Latency{Atomic: 50 * time.Millisecond}, false},
		{"while it applies", inproc.Latency{Write: 50 * time.Millisecond}, true},
	} {
		b := newBed(t, small, inproc.Options{Latency: x.latency})
		b.check(b.s.Load(index.Num(20), row(0), 0))
		w := b.mustWriter(nil)
		ctx, cancel := context.WithTimeout(b.ctx, 5*time.Millisecond)
		err := w.commit(ctx, []Write{{Key: 20, Row: row(1)}}, nil)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rdma.ErrPeerDown) || errors.Is(err, ErrUnknown) != x.unknown {
			t.Errorf("%s: %v", x.name, err)
		}
		if err := w.commit(b.ctx, []Write{{Key: 20, Row: row(2)}}, nil); !errors.Is(err, rdma.ErrClosed) {
			t.Errorf("%s: a later transaction: %v, want ErrClosed", x.name, err)
		}
		last, err := b.settle(w.o.Owner)
		b.check(err)
		if v := b.rows()[20]; v != last {
			t.Errorf("%s: the row is %d, and transaction %d was the last", x.name, v, last)
		}
		time.Sleep(60 * time.Millisecond)
		if v := b.rows()[20]; v != last {
			t.Errorf("%s: the row is %d later, and transaction %d was the last", x.name, v, last)
		}
	}
}

// What a hostile writer leaves in its slot changes nothing that it does not hold.
func TestHostileIntents(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	for k := range uint64(12) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	before := b.rows()
	r := rng.New(testseed.Of(t))
	for i := range 2000 {
		w := b.mustWriter(nil)
		var in intentBuilder
		in.begin(1)
		for range 1 + r.Intn(3) {
			addr := b.s.l.leavesAt + r.Uint64n(8)*b.s.l.LeafBytes()
			if r.Intn(8) == 0 {
				addr = r.Uint64() >> r.Intn(64)
			}
			h := Header(r.Uint64() >> r.Intn(64))
			if _, ok := b.s.leafAt(addr); ok && r.Bool(0.7) {
				h = b.s.header(addr)
			}
			in.leaf(addr, h, h.next())
			for range r.Intn(3) {
				in.run(r.Intn(b.s.l.LeafWords+4), []uint64{r.Uint64(), r.Uint64()})
			}
		}
		b.check(in.end(w.slot))
		if r.Intn(4) == 0 {
			in.w[r.Intn(len(in.w))] ^= 1 << r.Intn(64)
		}
		var batch rdma.Batch
		batch.Write(b.key, w.slot, in.w)
		b.check(rdma.Do(b.ctx, w.conn, &batch))
		_, err := b.settle(w.o.Owner)
		b.check(err)
		b.s.Forget(w.o.Owner)
		b.check(w.conn.Close())
		if i%100 == 0 {
			b.same("hostile intent", uint64(i), b.linked(), before)
		}
	}
	b.same("the end", 0, b.linked(), before)
}

// FuzzIntent decodes what a hostile client has left in its slot.
func FuzzIntent(f *testing.F) {
	var b intentBuilder
	b.begin(3)
	b.leaf(8192, free(1).hold(2), free(2))
	b.run(3, []uint64{1, 2})
	if err := b.end(4096); err != nil {
		f.Fatal(err)
	}
	f.Add(mem.Bytes(b.w), true)
	f.Add(mem.Bytes(b.w[:4]), false)
	f.Fuzz(func(t *testing.T, in []byte, sum bool) {
		w := make([]uint64, (len(in)+7)/8)
		copy(mem.Bytes(w), in)
		if sum && len(w) >= intentHeadWords {
			again := intentBuilder{w: w, leaves: int(uint32(w[intentSizeWord]))}
			_ = again.end(4096)
		}
		_, leaves, err := decodeIntent(4096, w)
		if err != nil {
			return
		}
		words := intentHeadWords
		for i := range leaves {
			words += intentLeafWords
			leaves[i].each(func(_ int, run []uint64) { words += 1 + len(run) })
		}
		if words > len(w) {
			t.Fatalf("%d words in %d", words, len(w))
		}
	})
}
