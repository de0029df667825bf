package tree

import (
	"fmt"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
)

// watchSteps looks, at every step of a change, for all keys from all leaves
// there ever were, by READs as a client does and through the server's lookup.
func (w *world) watchSteps(bad *error) {
	w.t.atStep = func(step string) {
		for key, v := range w.rows {
			for _, addr := range w.leafAddrs() {
				if !w.reach(addr, key) {
					*bad = fmt.Errorf("step %q: leaf %#x says that key %v is absent", step, addr, key)
				}
			}
			row, proofs, err := w.read(key)
			if err != nil || row != nil && *row != v {
				*bad = fmt.Errorf("step %q: key %v is %v, want %v: %v %v", step, key, row, v, err, proofs)
			}
		}
	}
}

// read looks once for a key on the server; nil if the mutator is in the way.
func (w *world) read(key index.Key) (*version, []index.Proof, error) {
	var res index.GetResult
	switch w.t.keys.look(key, &res) {
	case present:
		v, err := versionOf(res.Row, res.Header)
		return &v, res.Proofs, err
	case absent:
		return nil, res.Proofs, fmt.Errorf("said to be absent")
	}
	return nil, nil, nil
}

// TestStepsOfSplits: at no step of a split is a row missing.
func TestStepsOfSplits(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := simple(t, kind)
			var bad error
			w.watchSteps(&bad)
			for i := range uint64(60) {
				w.put(w.key(i*37%61), 1)
			}
			if splits := w.t.splits.Load(); bad != nil || splits == 0 {
				t.Errorf("%d splits: %v", splits, bad)
			}
		})
	}
}

// TestStepsOfUnlinks: at no step of the unlinking of an empty leaf is a row
// missing, and what proved absences in it proves nothing after.
func TestStepsOfUnlinks(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := simple(t, kind)
			for i := range uint64(20) {
				w.put(w.key(i), 1)
			}
			for i := uint64(8); i < 12; i++ {
				w.del(w.key(i))
			}
			for i := range uint64(20) {
				if err := w.look(w.key(i)); err != nil {
					t.Fatal(err)
				}
			}
			var bad error
			w.watchSteps(&bad)
			w.t.Tidy(10)
			w.t.atStep = nil
			if merges, unlinks := w.t.merges.Load(), w.t.unlinks.Load(); bad != nil || merges != 0 || unlinks != 1 {
				t.Fatalf("%d merges, %d unlinks: %v", merges, unlinks, bad)
			}
			for i := range uint64(20) {
				w.put(w.key(i), 1)
				if err := w.judge(); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.t.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestStepsOfMerges: at no step of a merge is a row missing, and no old address
// of a row proves anything after.
func TestStepsOfMerges(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := newWorld(t, kind, 8, true, 1)
			w.quarantine = 1 << 40
			w.t.freed.quarantine = 1 << 40
			for i := range uint64(160) {
				w.put(w.key(i*37%160), 1)
			}
			var bad error
			for i := range uint64(160) {
				if i%7 != 0 && i/8%3 != 1 || i/40 == 2 {
					w.del(w.key(i))
				}
			}
			for i := range uint64(160) {
				if err := w.look(w.key(i)); err != nil {
					t.Fatal(err)
				}
				if err := w.scan(w.key(i), w.key(i+9), 0); err != nil {
					t.Fatal(err)
				}
			}
			w.watchSteps(&bad)
			for w.t.Tidy(1) || w.t.untidy.len() > 0 {
				if err := w.t.Check(); err != nil {
					t.Fatal(err)
				}
			}
			w.t.atStep = nil
			if merges := w.t.merges.Load(); bad != nil || merges == 0 {
				t.Fatalf("%d merges: %v", merges, bad)
			}
			if err := w.judge(); err != nil {
				t.Fatalf("after the merges: %v", err)
			}
			// What was proved in the old leaves must not survive changes in the new ones.
			for i := range uint64(160) {
				w.put(w.key(i), 1)
				if err := w.judge(); err != nil {
					t.Fatalf("after a change of key %d: %v", i, err)
				}
			}
			if err := w.t.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestStaleCopies: rows that a split moved prove nothing where they were.
func TestStaleCopies(t *testing.T) {
	for _, kind := range allKinds {
		w := simple(t, kind)
		keys := []uint64{10, 40, 30, 20}
		for _, k := range keys {
			w.put(w.key(k), 1)
		}
		for _, k := range keys {
			if err := w.look(w.key(k)); err != nil {
				t.Fatal(err)
			}
		}
		w.put(w.key(35), 1) // splits
		for _, k := range keys {
			w.put(w.key(k), 1)
			if err := w.judge(); err != nil {
				t.Errorf("%s: %v", kindName(kind), err)
			}
		}
	}
}

// TestGapsOfReusedSlots: an insert into a slot that a delete has left changes
// what proves the absence of its key.
func TestGapsOfReusedSlots(t *testing.T) {
	for _, kind := range allKinds {
		w := simple(t, kind)
		for _, k := range []uint64{10, 40, 20, 30} {
			w.put(w.key(k), 1)
		}
		w.del(w.key(40))
		if err := w.look(w.key(25)); err != nil {
			t.Fatal(err)
		}
		if err := w.scan(w.key(21), w.key(29), 0); err != nil {
			t.Fatal(err)
		}
		w.put(w.key(25), 1) // takes the slot of 40
		if err := w.judge(); err != nil {
			t.Errorf("%s: %v", kindName(kind), err)
		}
	}
}

// TestGapsDoNotWrap: no number of changes brings back an old gap word.
func TestGapsDoNotWrap(t *testing.T) {
	for _, kind := range allKinds {
		w := simple(t, kind)
		w.put(w.key(10), 1)
		if err := w.look(w.key(25)); err != nil {
			t.Fatal(err)
		}
		w.put(w.key(25), 1)
		for range 1024 {
			w.put(w.key(30), 1)
			if err := w.judge(); err != nil {
				t.Fatalf("%s: %v", kindName(kind), err)
			}
			w.del(w.key(30))
		}
	}
}

// TestRowsMove: a row that grows and shrinks is seen as it was or as it is, at
// every step, and its old block proves nothing.
func TestRowsMove(t *testing.T) {
	w := newWorld(t, leaf.Strings, 4, true, 300)
	key := index.Str("key")
	var bad error
	next := 0
	w.t.atStep = func(step string) {
		switch v, _, err := w.read(key); {
		case err != nil:
			bad = fmt.Errorf("step %q: %w", step, err)
		case v != nil && v.words != next:
			bad = fmt.Errorf("step %q: a row of %d words, which there never was", step, v.words)
		}
	}
	used := map[int]uint64{}
	for round := range 3 {
		for _, words := range []int{2, 200, 100, 300, 20, 1} {
			if err := w.look(key); err != nil {
				t.Fatal(err)
			}
			next = words
			w.put(key, words)
			if bad != nil {
				t.Fatal(bad)
			}
			if err := w.judge(); err != nil {
				t.Fatal(err)
			}
			have := uint64(w.t.keys.of(w.t.first).addr) // the only leaf
			p := leaf.Pointer(w.t.span(have).Load(w.t.lay.HeadsAt))
			if need := leaf.StrBlockWords(key.Str, words); p.Words() < need || p.Words() > 2*need+8 {
				t.Errorf("a row of %d words is in a block of %d", words, p.Words())
			}
			if bytes := w.t.rows.bytes(); round > 0 && bytes > used[words] {
				t.Errorf("round %d: %d bytes of blocks for a row of %d words, %d before", round, bytes, words, used[words])
			}
			used[words] = max(used[words], w.t.rows.bytes())
			if round == 0 {
				used[words] = 1 << 20
			}
		}
	}
	if moves(w.t) < 10 {
		t.Errorf("%d moves", moves(w.t))
	}
}

// TestTiedDigests: keys with one digest are told apart.
func TestTiedDigests(t *testing.T) {
	w := simple(t, leaf.Strings)
	for _, k := range []string{"alike for long 1", "alike for long 3"} {
		w.put(index.Str(k), 1)
	}
	for _, k := range []string{"alike for long 1", "alike for long 2", "alike for long 3"} {
		if err := w.look(index.Str(k)); err != nil {
			t.Error(err)
		}
	}
}

// TestTiedNodes: inner nodes whose low fences tie in their digests lead to the
// right leaves, with few fences out of the common prefix.
func TestTiedNodes(t *testing.T) {
	w := newWorld(t, leaf.Strings, 4, false, 1)
	for i := range uint64(4000) {
		n := i * 1237 % 4000
		w.put(index.Str(fmt.Sprintf("a common beginning of %06d", n)), 0)
		if n%1000 == 0 {
			w.put(index.Str(fmt.Sprintf("%c", 'A'+n/100)), 0)
		}
		w.watch = nil
	}
	if err := w.t.Check(); err != nil {
		t.Fatal(err)
	}
	for i := range 4000 {
		if err := w.lookOnly(index.Str(fmt.Sprintf("a common beginning of %06d", i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3900 {
		w.del(index.Str(fmt.Sprintf("a common beginning of %06d", i)))
	}
	for w.t.Tidy(10) || w.t.untidy.len() > 0 {
	}
	if err := w.t.Check(); err != nil {
		t.Fatal(err)
	}
	if n := w.t.Leaves(); n > 60 {
		t.Errorf("%d leaves for 104 rows, 4 to a leaf", n)
	}
}

func (w *world) lookOnly(key index.Key) error {
	var res index.GetResult
	w.t.Lookup(key, &res)
	if v, err := versionOf(res.Row, res.Header); res.Status != index.Found || err != nil || v != w.rows[key] {
		return fmt.Errorf("key %v: %v %v %v, want %v", key, res.Status, v, err, w.rows[key])
	}
	return nil
}

// TestSharedLocksFollowMerges: a transaction that has prepared relies on absences
// and rows. Merges of the leaves keep others from them all the same.
func TestSharedLocksFollowMerges(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := newWorld(t, kind, 8, true, 1)
			for i := range uint64(80) {
				w.put(w.key(i*2), 1)
			}
			for i := uint64(8); i < 80; i++ {
				if i%8 != 0 {
					w.del(w.key(i * 2))
				}
			}
			share := func(n uint64) {
				var res index.GetResult
				w.t.Lookup(w.key(n), &res)
				for _, p := range res.Proofs {
					w.shared.Share(p.Addr, 9)
				}
			}
			keys := []uint64{48, 64, 67, 96, 99, 120} // multiples of 16 are there
			for _, n := range keys {
				share(n)
			}
			for w.t.Tidy(1) || w.t.untidy.len() > 0 {
			}
			if merges := w.t.merges.Load(); merges == 0 {
				t.Fatal("no merges")
			}
			for _, n := range keys {
				if _, err := w.t.LockWrite(1, w.key(n), 0); err == nil {
					t.Errorf("lock of key %d was not refused", n)
				}
			}
			if err := w.t.Check(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func moves(t *Tree) uint64 {
	var s index.ServerStats
	t.Stats(&s)
	return s.Moves
}
