package tree

import (
	"fmt"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
)

var allKinds = []leaf.Kind{leaf.Inline, leaf.Apart, leaf.Strings}

func kindName(k leaf.Kind) string { return [...]string{"apart", "inline", "strings"}[k] }

// fataler is a test, or a run of a property.
type fataler interface{ Fatal(args ...any) }

func newTree(t fataler, kind leaf.Kind, rowWords, slots int, checksums bool, o Options) *Tree {
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 18, MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if o.Layout, err = leaf.NewLayout(7, kind, rowWords, slots); err != nil {
		t.Fatal(err)
	}
	tr, err := New(block.NewArena(r, block.ArenaOptions{Checksums: checksums, Tick: 1, Clock: o.Clock}), o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// version is a row as the model knows it.
type version struct {
	csn   uint64
	words int
}

// world is a tree, what it should hold, and the answers given so far with
// their proofs.
type world struct {
	t          *Tree
	rows       map[index.Key]version
	csn        uint64
	watch      []answer
	clock      *clocktest.Clock
	quarantine time.Duration
	shared     *indextest.SharedLocks
}

// answer is what a lookup or scan said, and for how long it says so.
type answer struct {
	lo, hi index.Key
	rows   map[index.Key]version
	proofs []index.Proof
	born   time.Duration
}

// newWorld has rows of one size of a word, and a quarantine of 10 ns.
func newWorld(t fataler, kind leaf.Kind, slots int, checksums bool, maxWords int) *world {
	w := &world{
		rows: map[index.Key]version{}, clock: new(clocktest.Clock), quarantine: 10,
		shared: indextest.NewSharedLocks(),
	}
	w.t = newTree(t, kind, maxWords, slots, checksums, Options{Locks: w.shared, Quarantine: w.quarantine, Clock: w.clock.Now, Mirror: true})
	return w
}

// simple is a world of rows of one word in leaves of four slots.
func simple(t fataler, kind leaf.Kind) *world { return newWorld(t, kind, 4, true, 1) }

// key is number n as a key of the world's tree.
func (w *world) key(n uint64) index.Key {
	if w.t.lay.Kind == leaf.Strings {
		return index.Str(fmt.Sprintf("key %020d", n))
	}
	return index.Num(n)
}

func (w *world) row(words int) []uint64 {
	row := make([]uint64, words)
	for i := range row {
		row[i] = w.csn
	}
	return row
}

// put writes a row, under a CSN of its own.
func (w *world) put(key index.Key, words int) {
	w.csn++
	w.putSame(key, words)
}

// putSame writes a row under the CSN of the latest change.
func (w *world) putSame(key index.Key, words int) {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	w.publish(h, words)
}

func (w *world) publish(h *index.Held, words int) {
	if err := w.t.Reserve(h, words); err != nil {
		panic(err)
	}
	key := h.Key
	w.t.Publish(h, w.row(words), block.Present(block.NewCSN(1, w.csn)))
	w.rows[key] = version{w.csn, words}
}

func (w *world) del(key index.Key) {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	w.csn++
	w.t.PublishDelete(h, block.Absent(block.NewCSN(1, w.csn)))
	delete(w.rows, key)
}

func versionOf(row []uint64, h block.Header) (version, error) {
	for _, v := range row {
		if v != h.CSN().Seq() {
			return version{}, fmt.Errorf("row of %d words, version %d has a word of version %d", len(row), h.CSN().Seq(), v)
		}
	}
	return version{h.CSN().Seq(), len(row)}, nil
}

// look gets key and keeps the answer.
func (w *world) look(key index.Key) error {
	var res index.GetResult
	if w.t.Lookup(key, &res); res.Status == index.Locked {
		return nil
	}
	a := answer{lo: key, hi: key, rows: map[index.Key]version{}, proofs: res.Proofs, born: w.clock.Now()}
	if res.Status == index.Found {
		v, err := versionOf(res.Row, res.Header)
		if err != nil {
			return err
		}
		a.rows[key] = v
	}
	w.watch = append(w.watch, a)
	return w.right(a)
}

// right compares an answer with the rows.
func (w *world) right(a answer) error {
	n := 0
	for k, v := range w.rows {
		if k.Compare(a.lo) >= 0 && k.Compare(a.hi) <= 0 {
			if n++; a.rows[k] != v {
				return fmt.Errorf("in [%v, %v] key %v is %v, and said to be %v", a.lo, a.hi, k, v, a.rows[k])
			}
		}
	}
	if n != len(a.rows) {
		return fmt.Errorf("%d rows said to be in [%v, %v], there are %d", len(a.rows), a.lo, a.hi, n)
	}
	return nil
}

// scan scans a range, compares, and keeps the answer with either kind of proof.
func (w *world) scan(lo, hi index.Key, limit int) error {
	var res index.ScanResult
	if w.t.Scan(lo, hi, limit, &res, nil); res.Status == index.Locked {
		return nil
	}
	rows := map[index.Key]version{}
	exact := slices.Clone(res.Gaps)
	var last index.Key
	for i, e := range res.Entries {
		v, err := versionOf(e.Row, e.Header)
		if err != nil {
			return err
		}
		if i > 0 && e.Key.Compare(last) <= 0 {
			return fmt.Errorf("key %v after %v", e.Key, last)
		}
		last = e.Key
		rows[last] = v
		exact = append(exact, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
	}
	switch {
	case limit <= 0 && res.More || res.More && len(res.Entries) != limit:
		return fmt.Errorf("%d rows and more, limit %d", len(res.Entries), limit)
	case res.More:
		hi = last
	}
	a := answer{lo, hi, rows, exact, w.clock.Now()}
	w.watch = append(w.watch, a, answer{lo, hi, rows, res.Quick, a.born})
	return w.right(a)
}

func (w *world) holds(a *answer) bool {
	for _, p := range a.proofs {
		if w.t.a.Span(p.Addr, 1).Load(0) != p.Word {
			return false
		}
	}
	return w.clock.Now()-a.born <= w.quarantine
}

// judge returns an error if an answer whose proofs hold is not what the rows are.
func (w *world) judge() error {
	kept := w.watch[:0]
	for _, a := range w.watch {
		if !w.holds(&a) {
			// What fails now may come to hold again, until it is too old.
			if w.clock.Now()-a.born <= w.quarantine {
				kept = append(kept, a)
			}
			continue
		}
		if err := w.right(a); err != nil {
			return fmt.Errorf("proofs of [%v, %v] hold, but %w", a.lo, a.hi, err)
		}
		kept = append(kept, a)
	}
	w.watch = kept
	return nil
}

// reach looks for key as a client does, from a leaf it may have an old address
// of: it READs, accepts, and trusts the fences. It reports false only if a leaf
// that covers the key does not have it.
func (w *world) reach(addr uint64, key index.Key) bool {
	lay := w.t.Layout()
	buf := make([]uint64, lay.LeafWords)
	for range 64 {
		w.t.span(addr).CopyOut(buf)
		if block.Accept(buf, buf[0], addr, true) != block.OK {
			return true
		}
		v, ok := lay.View(buf)
		if !ok {
			return true // it knows that it is lost
		}
		below, above := key.Num < v.Low(), v.Above(key.Num)
		if lay.Kind == leaf.Strings {
			f, _ := v.Fences()
			below, above = f.Below(key.Str), f.Above(key.Str)
		}
		switch {
		case below:
			return true
		case !above:
			return w.has(&v, key)
		}
		addr = v.Right()
	}
	return true
}

// has reports whether both a lookup and a scan find the key in a leaf that covers it.
func (w *world) has(v *leaf.Leaf, key index.Key) bool {
	order, ok := v.Order()
	ordered := func(i int) bool { return ok && slices.Contains(order, byte(i)) }
	if w.t.lay.Kind != leaf.Strings {
		i := v.Find(key.Num)
		return i >= 0 && ordered(i)
	}
	for i, d := range v.Keys() {
		if p := v.Pointer(i); p != 0 && d == leaf.DigestAt(key.Str, v.Prefix()) && isRow(w.t.a.Span(p.Addr(), p.Words()), key.Str) {
			return ordered(i)
		}
	}
	return false
}

// leafAddrs returns the addresses of all leaves, alive and dead.
func (w *world) leafAddrs() []uint64 {
	all := slices.Clone(w.t.freed.leaf[w.t.freed.head:])
	for i, bits := range w.t.isLeaf {
		for j := range 64 {
			if bits>>j&1 != 0 {
				all = append(all, w.t.lay.LeafAddr(uint32(i*64+j)))
			}
		}
	}
	return all
}
