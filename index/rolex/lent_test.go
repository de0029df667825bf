package rolex

import (
	"errors"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// lent returns a copy of the leaf that covers a key, as a transaction may have READ it.
func (b *bed) lent(w *Writer, key uint64) (addr uint64, words []uint64) {
	b.Helper()
	addr, m, err := w.read(b.ctx, key, w.o.First)
	b.check(err)
	return addr, m.w
}

// A leaf that the transaction has READ is not READ again: a write is two rounds. The lock proves
// that it is what it was, so that it needs no READ as a proof either.
func TestLentLeavesAreNotReadAgain(t *testing.T) {
	b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, inproc.Options{})
	for k := range uint64(7) {
		b.check(b.s.Load(index.Num(2*k), row(k), 0))
	}
	w := b.mustWriter(nil)
	addr, words := b.lent(w, 4)
	word := []uint64{0}
	before := w.conn.Counters()
	b.check(w.Commit(b.ctx, &Txn{
		Writes: []Write{{Key: 4, Row: row(9), Hint: addr, Leaf: words}},
		Proofs: []Proof{{w.o.Key, addr, words[0]}, {b.models, 0, 0}},
		Words:  b.models, At: 0, Into: word, Judge: func() error { return nil },
	}))
	got := w.conn.Counters().Sub(before)
	got.ReadBytes, got.WriteBytes = 0, 0
	if want := (rdma.Counters{Rounds: 2, Reads: 3, Atomics: 2, Writes: 2}); got != want { // the other proof, the words, the fence
		t.Errorf("%+v, want %+v", got, want)
	}
	if rows := b.rows(); rows[4] != 9 {
		t.Errorf("rows %v", rows)
	}
	// What was READ before is out of date now.
	if err := w.Commit(b.ctx, &Txn{Writes: []Write{{Key: 4, Row: row(1), Hint: addr, Leaf: words}}}); !errors.Is(err, ErrChanged) {
		t.Errorf("with a leaf that has changed: %v", err)
	}
}

// The body of a transaction may write to rows that it has read. What it commits are its writes, and
// nothing else, also if the leaf is split.
func TestLentRowsMayBeOverwritten(t *testing.T) {
	for _, scramble := range []float64{0, 1} {
		b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8}, inproc.Options{Faults: inproc.Faults{Scramble: scramble}})
		model := map[uint64]uint64{}
		for k := range uint64(8) {
			b.check(b.s.Load(index.Num(2*k), row(k), 0))
			model[2*k] = k
		}
		w := b.mustWriter(nil)
		// Two updates with a row of few words between them, an update, a split, and both again.
		for i, keys := range [][]uint64{{4, 8}, {4}, {5}, {4}, {15}} {
			addr, words := b.lent(w, keys[0])
			m := image{w.l, words}
			for _, at := range m.order() {
				copy(m.row(int(at)), row(100+uint64(i))) // for one of them it is what is written
			}
			var writes []Write
			for _, key := range keys {
				writes = append(writes, Write{Key: key, Row: row(100 + uint64(i)), Hint: addr, Leaf: words})
				model[key] = 100 + uint64(i)
			}
			b.check(w.Commit(b.ctx, &Txn{Writes: writes}))
			b.same("commit", uint64(i), b.rows(), model)
		}
	}
}

// A write whose condition is not met in the leaf is refused, and changes nothing.
func TestConditionsOfWrites(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	b.check(b.s.Load(index.Num(10), row(1), 0))
	w := b.mustWriter(nil)
	for _, x := range []struct {
		w      Write
		refuse bool
	}{
		{Write{Key: 10, Row: row(2), Must: MustNotExist}, true},
		{Write{Key: 11, Row: row(2), Must: MustExist}, true},
		{Write{Key: 11, Must: MustExist}, true},
		{Write{Key: 11, Row: row(2), Must: MustNotExist}, false},
		{Write{Key: 10, Row: row(2), Must: MustExist}, false},
		{Write{Key: 10, Must: MustExist}, false},
		{Write{Key: 10}, false},
	} {
		before := b.rows()
		err := w.Commit(b.ctx, &Txn{Writes: []Write{x.w}})
		switch {
		case x.refuse != errors.Is(err, ErrRefused), !x.refuse && err != nil:
			t.Errorf("%+v: %v", x.w, err)
		case x.refuse:
			b.same("refused", x.w.Key, b.rows(), before)
		}
	}
}

// Writers let transactions pass that wait at the data server, and open a fenced index again. What
// the caller has against a commit is asked when the locks are taken, and ends it.
func TestWritersStandBack(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	b.check(b.s.Load(index.Num(10), row(1), 0))
	w := b.mustWriter(nil)
	write := func(judge func() error) error {
		return w.Commit(b.ctx, &Txn{
			Writes: []Write{{Key: 10, Row: row(2)}}, Words: b.models, At: 0, Into: make([]uint64, 1), Judge: judge,
		})
	}
	b.s.Busy(true)
	if err := write(nil); !errors.Is(err, ErrBusy) {
		t.Errorf("while others wait: %v", err)
	}
	b.s.Busy(false)
	b.s.Fence()
	if err := write(nil); !errors.Is(err, ErrFenced) {
		t.Errorf("when fenced: %v", err)
	}
	peer := b.peer(w.o.Owner)
	again, err := b.s.Open(peer, b.key)
	if b.check(err); again.Owner != w.o.Owner {
		t.Fatalf("the peer has become writer %d, and was %d", again.Owner, w.o.Owner)
	}
	b.check(w.Again(again))
	no := errors.New("no")
	if err := write(func() error { return no }); !errors.Is(err, no) {
		t.Errorf("when judged: %v", err)
	}
	if rows := b.rows(); rows[10] != 1 {
		t.Fatalf("rows %v", rows)
	}
	b.check(write(func() error { return nil }))
	if last := w.Last(); last != 1 {
		t.Errorf("%d transactions are counted", last)
	}
	if other := (Opened{ID: again.ID, Owner: again.Owner + 1, Key: again.Key}); !errors.Is(w.Again(other), ErrFenced) {
		t.Error("it goes on as another writer")
	}
}

// The peer of a writer is named when it is settled: its number may be another's by then. A caller
// that hears of settled writers need not forget their numbers.
func TestSettledNumbersServeAgain(t *testing.T) {
	b := newBed(t, Options{RowWords: 2, SlotsPerLeaf: 8, Writers: 1}, inproc.Options{})
	b.check(b.s.Load(index.Num(10), row(1), 0))
	var told []uint64
	b.s.o.Settled = func(o Owner, committed uint64) { told = append(told, uint64(o), committed) }
	first := b.mustWriter(nil)
	peer := b.peer(first.o.Owner)
	b.check(first.commit(b.ctx, []Write{{Key: 10, Row: row(2)}}, nil))
	if last, err := b.s.Settle(first.o.Owner, peer); err != nil || last != 1 {
		t.Fatalf("settled with transaction %d, %v", last, err)
	}
	second := b.mustWriter(nil)
	if _, err := b.s.Settle(second.o.Owner, peer); !errors.Is(err, ErrFenced) {
		t.Errorf("the first writer is settled again: %v", err)
	}
	if _, err := b.s.Extend(second.o.Owner, peer); !errors.Is(err, ErrFenced) {
		t.Errorf("the first writer gets leaves: %v", err)
	}
	b.check(second.commit(b.ctx, []Write{{Key: 10, Row: row(3)}}, nil))
	if want := []uint64{1, 1}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// A writer that stops before its first lock sees what others have changed meanwhile: what its answers
// rest on is READ after its locks, not before.
func TestProofsAreReadUnderLocks(t *testing.T) {
	b := stoppedBed(t, small)
	s := &stopper{stopped: make(chan struct{}), goOn: make(chan struct{})}
	w := b.mustWriter(func(c rdma.Conn) rdma.Conn { s.Conn = c; return s })
	other := b.mustWriter(nil)
	own, ownLeaf := b.lent(other, 0)
	addr, words := b.lent(other, 70)
	if own == addr {
		t.Fatal("the two keys are in one leaf: this test shows nothing")
	}
	rests := func(on uint64, leaf []uint64) []Proof { return []Proof{{w.o.Key, on, leaf[0]}} }
	ended := make(chan error, 1)
	go func() {
		ended <- w.Commit(b.ctx, &Txn{Writes: []Write{{Key: 0, Row: row(1), Hint: own, Leaf: ownLeaf}}, Proofs: rests(addr, words)})
	}()
	<-s.stopped
	b.check(other.Commit(b.ctx, &Txn{Writes: []Write{{Key: 70, Row: row(1), Hint: addr, Leaf: words}}, Proofs: rests(own, ownLeaf)}))
	close(s.goOn)
	if err := <-ended; !errors.Is(err, ErrChanged) {
		t.Errorf("both have written what the other has read: %v", err)
	}
}
