package hash

import (
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
)

// TestAbsenceByContentsSuffersABA: two keys share bucket and fingerprint. One
// is deleted and the other inserted: the row block is used again and every
// slot of the bucket is what it was, so a proof of absence made of contents
// still holds although the key is there. The gap word does not.
func TestAbsenceByContentsSuffersABA(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	old, key := Unhash(0xabcd<<48|1<<24|3), Unhash(0xabcd<<48|2<<24|3)
	put := func(k uint64, csn uint64) *index.Held {
		held, err := x.s.LockWrite(1, index.Num(k), 0)
		if err != nil {
			t.Fatal(err)
		}
		x.s.Publish(held, []uint64{k}, block.Present(block.NewCSN(1, csn)))
		return held
	}
	put(old, 1)
	res, _ := x.get(t, key)
	if res.Status != index.NotFound {
		t.Fatalf("%v", res.Status)
	}
	proof := res.Proofs[0]
	bucket := x.arena.Span(proof.Addr, bucketWords)
	var before, after [bucketWords]uint64
	bucket.CopyOut(before[:])
	held, err := x.s.LockWrite(1, index.Num(old), 0)
	if err != nil {
		t.Fatal(err)
	}
	x.s.PublishDelete(held, block.Absent(block.NewCSN(1, 2)))
	put(key, 3)
	bucket.CopyOut(after[:])
	if [slots + 1]uint64(before[slotWord:]) != [slots + 1]uint64(after[slotWord:]) {
		t.Fatalf("the contents differ: %x, %x: this test needs them to repeat", before, after)
	}
	if res, _ := x.get(t, key); res.Status != index.Found {
		t.Fatalf("%v", res.Status)
	}
	if bucket.Load(block.HeaderWord) == proof.Word {
		t.Error("the gap word holds although the key was inserted")
	}
}

// TestRowBlockUsedAgain: the proof of a row fails when its block becomes the
// row of another key, or of the same key again, and the location cache is not
// misled by it.
func TestRowBlockUsedAgain(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{LocationCacheEntries: 64}, false)
	csn := uint64(0)
	cycle := func(k uint64) (addr uint64) {
		csn++
		held, err := x.s.LockWrite(1, index.Num(k), 0)
		if err != nil {
			t.Fatal(err)
		}
		x.s.Publish(held, []uint64{csn}, block.Present(block.NewCSN(1, csn)))
		return held.Addr
	}
	remove := func(k uint64) {
		held, err := x.s.LockWrite(1, index.Num(k), 0)
		if err != nil {
			t.Fatal(err)
		}
		x.s.PublishDelete(held, block.Absent(block.NewCSN(1, 1<<20)))
	}
	seen := map[index.Proof]bool{}
	for i := range uint64(100) {
		key := i % 3 // every key gets every block in turn
		addr := cycle(key)
		res, _ := x.get(t, key)
		if res.Status != index.Found || res.Row[0] != csn || res.Hint != addr {
			t.Fatalf("key %d: %v %v", key, res.Status, res.Row)
		}
		if seen[res.Proofs[0]] {
			t.Fatalf("proof %+v repeats", res.Proofs[0])
		}
		seen[res.Proofs[0]] = true
		remove(key)
		if h := block.Header(x.arena.Span(addr, 1).Load(0)); !h.Locked() {
			t.Fatalf("a freed block has header %v", h)
		}
		if res, _ := x.get(t, key); res.Status != index.NotFound {
			t.Fatalf("key %d: %v after delete", key, res.Status)
		}
	}
	if got := x.s.rows.Stats().Used; got != 0 {
		t.Errorf("%d row blocks in use", got)
	}
}

// TestGarbageHints: a hint is worth nothing by itself.
func TestGarbageHints(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	load(t, x.s, 0, 100)
	other := x.s.Get(index.Num(7), nil).Hint
	for _, hint := range []uint64{0, 1, 8, 4096, other, ^uint64(0), 1 << 63, x.arena.Used(), x.arena.Region().Size() - 8} {
		held, err := x.s.LockWrite(1, index.Num(5), hint)
		if err != nil || held.Key != index.Num(5) || !held.Existed {
			t.Fatalf("hint %#x: %+v, %v", hint, held, err)
		}
		x.s.Release(held)
	}
	if err := x.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestForeignHeldIsRefused: a lock cannot be ended twice.
func TestForeignHeldIsRefused(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	held, err := x.s.LockWrite(1, index.Num(5), 0)
	if err != nil {
		t.Fatal(err)
	}
	x.s.Release(held)
	defer func() {
		if recover() == nil {
			t.Error("a lock was ended twice")
		}
	}()
	x.s.Release(held)
}
