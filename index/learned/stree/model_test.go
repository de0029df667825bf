package stree

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/mem"

	"pgregory.net/rapid"
)

type fataler interface{ Fatal(args ...any) }

func newTree(t fataler, rowWords, slots int, checksums bool, locks index.SharedLocks) *Tree {
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 18, MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	lay, err := NewLayout(7, rowWords, slots)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(block.NewArena(r, block.ArenaOptions{Checksums: checksums, Epoch: 1}), Options{Layout: lay, Locks: locks})
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
	t     *Tree
	rows  map[string]version
	csn   uint64
	watch []answer
}

// answer is what a lookup or scan said, and for how long it says so.
type answer struct {
	lo, hi string
	rows   map[string]version
	proofs []index.Proof
}

func (w *world) row(words int) []uint64 {
	w.csn++
	row := make([]uint64, words)
	for i := range row {
		row[i] = w.csn
	}
	return row
}

// put writes a row of that many words, the first of them its version.
func (w *world) put(key string, words int) {
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
	w.t.Publish(h, w.row(words), block.Present(block.NewCSN(1, w.csn)))
	w.rows[h.Key.Str] = version{w.csn, words}
}

func (w *world) del(key string) {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	w.csn++
	w.t.PublishDelete(h, block.Absent(block.NewCSN(1, w.csn)))
	delete(w.rows, key)
}

func seen(e []uint64, h block.Header) (version, error) {
	for _, v := range e {
		if v != h.CSN().Seq() {
			return version{}, fmt.Errorf("row of %d words, version %d has a word of version %d", len(e), h.CSN().Seq(), v)
		}
	}
	return version{h.CSN().Seq(), len(e)}, nil
}

// look gets key and keeps the answer.
func (w *world) look(key string) error {
	var res index.GetResult
	if w.t.Get(key, &res); res.Status == index.Locked {
		return nil
	}
	a := answer{lo: key, hi: key, rows: map[string]version{}, proofs: res.Proofs}
	if res.Status == index.Found {
		v, err := seen(res.Row, res.Header)
		if err != nil {
			return err
		}
		a.rows[key] = v
	}
	w.watch = append(w.watch, a)
	return w.right(a)
}

// right compares an answer just given with the rows.
func (w *world) right(a answer) error {
	n := 0
	for k, v := range w.rows {
		if k >= a.lo && k <= a.hi {
			if n++; a.rows[k] != v {
				return fmt.Errorf("in [%q, %q] key %q is %v, and said to be %v", a.lo, a.hi, k, v, a.rows[k])
			}
		}
	}
	if n != len(a.rows) {
		return fmt.Errorf("%d rows said to be in [%q, %q], there are %d", len(a.rows), a.lo, a.hi, n)
	}
	return nil
}

// scan scans a range, compares, and keeps the answer with either kind of proof.
func (w *world) scan(lo, hi string, limit int) error {
	var res index.ScanResult
	if w.t.Scan(lo, hi, limit, &res, nil); res.Status == index.Locked {
		return nil
	}
	rows := map[string]version{}
	exact := slices.Clone(res.Gaps)
	last := ""
	for i, e := range res.Entries {
		v, err := seen(e.Row, e.Header)
		if err != nil {
			return err
		}
		if i > 0 && e.Key.Str <= last {
			return fmt.Errorf("key %q after %q", e.Key.Str, last)
		}
		last = e.Key.Str
		rows[last] = v
		exact = append(exact, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
	}
	switch {
	case limit <= 0 && res.More || res.More && len(res.Entries) != limit:
		return fmt.Errorf("%d rows and more, limit %d", len(res.Entries), limit)
	case res.More:
		hi = last
	}
	a := answer{lo, hi, rows, exact}
	w.watch = append(w.watch, a, answer{lo, hi, rows, res.Quick})
	return w.right(a)
}

// judge returns an error if an answer whose proofs hold is not what the rows are.
func (w *world) judge() error {
	kept := w.watch[:0]
	for _, a := range w.watch {
		holds := true
		for _, p := range a.proofs {
			holds = holds && w.t.a.Span(p.Addr, 1).Load(0) == p.Word
		}
		if !holds {
			continue
		}
		if err := w.right(a); err != nil {
			return fmt.Errorf("proofs of [%q, %q] hold, but %w", a.lo, a.hi, err)
		}
		kept = append(kept, a)
	}
	w.watch = kept
	return nil
}

// machine runs random operations.
type machine struct {
	*world
	rt     *rapid.T
	keys   *rapid.Generator[string]
	words  *rapid.Generator[int]
	held   map[string]*index.Held
	pinned map[string]bool
	shared *indextest.SharedLocks
}

// TestAgainstModel runs random mutators against a map, and after each checks
// that every answer whose proofs hold is still right, that locks stay where
// they are, and that what is shared stays as it was.
func TestAgainstModel(t *testing.T) {
	spaces := indextest.KeySpaces()
	rapid.Check(t, func(rt *rapid.T) {
		shared := indextest.NewSharedLocks()
		space := rapid.SampledFrom(spaces).Draw(rt, "space")
		n := rapid.SampledFrom([]int{8, 60, 400}).Draw(rt, "keys")
		of := space.Of(n)
		m := &machine{
			world: &world{rows: map[string]version{}}, rt: rt, shared: shared,
			held: map[string]*index.Held{}, pinned: map[string]bool{},
			keys:  rapid.Custom(func(rt *rapid.T) string { return of(rapid.IntRange(0, n-1).Draw(rt, "key")).Str }),
			words: rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, 300)),
		}
		m.t = newTree(rt, 300, rapid.IntRange(4, 9).Draw(rt, "slots"), rapid.Bool().Draw(rt, "sums"), shared)
		rt.Repeat(map[string]func(*rapid.T){
			"put":     func(*rapid.T) { m.lock(); m.end(0) },
			"many":    func(*rapid.T) { m.many() },
			"purge":   func(*rapid.T) { m.purge() },
			"delete":  func(*rapid.T) { m.lock(); m.end(1) },
			"lock":    func(*rapid.T) { m.lock() },
			"reserve": func(*rapid.T) { m.reserve() },
			"publish": func(*rapid.T) { m.end(0) },
			"release": func(*rapid.T) { m.end(2) },
			"look":    func(*rapid.T) { m.must(m.look(m.key())) },
			"scan":    func(*rapid.T) { m.must(m.scan(m.key(), m.key(), rapid.IntRange(0, 9).Draw(rt, "limit"))) },
			"share":   func(*rapid.T) { m.share() },
			"unshare": func(*rapid.T) { m.shared.Drop(9); clear(m.pinned) },
			"tidy":    func(*rapid.T) { m.t.Tidy(3) },
			"":        func(*rapid.T) { m.must(m.judge()); m.must(m.t.Check()) },
		})
	})
}

func (m *machine) must(err error) {
	if err != nil {
		m.rt.Fatal(err)
	}
}

func (m *machine) key() string { return m.keys.Draw(m.rt, "key") }

func (m *machine) lock() { m.lockKey(m.key()) }

// lockKey locks a key for an owner of its own. The memory of the key does not
// outlive the call.
func (m *machine) lockKey(k string) {
	hint := rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(m.t.first), rapid.Uint64Range(0, 1<<16), rapid.Uint64()).Draw(m.rt, "hint")
	b := []byte(k)
	h, err := m.t.LockWrite(index.Owner(Hash(k)%1000+10), mem.String(b), hint)
	clear(b)
	_, existed := m.rows[k]
	switch {
	case errors.Is(err, index.ErrLocked):
		// A pinned absence locks the whole leaf, so others may be refused.
		if m.held[k] != nil || len(m.pinned) == 0 {
			m.rt.Fatalf("key %q: %v", k, err)
		}
		return
	case err != nil:
		m.rt.Fatal(err)
	case m.pinned[k]:
		m.rt.Fatalf("key %q is shared and was locked", k)
	case m.held[k] != nil && m.held[k] != h:
		m.rt.Fatalf("key %q: another lock", k)
	case h.Existed != existed || h.Key.Str != k:
		m.rt.Fatalf("key %q: lock %+v", k, h)
	}
	m.held[k] = h
}

func (m *machine) any() *index.Held {
	var keys []string
	for k := range m.held {
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	return m.held[rapid.SampledFrom(keys).Draw(m.rt, "held")]
}

func (m *machine) reserve() {
	if h := m.any(); h != nil {
		m.must(m.t.Reserve(h, m.words.Draw(m.rt, "words")))
	}
}

func (m *machine) end(how int) {
	h := m.any()
	if h == nil {
		return
	}
	k := h.Key.Str
	delete(m.held, k)
	switch how {
	case 0:
		m.publish(h, m.words.Draw(m.rt, "words"))
	case 1:
		m.csn++
		m.t.PublishDelete(h, block.Absent(block.NewCSN(1, m.csn)))
		delete(m.rows, k)
	default:
		m.t.Release(h)
	}
}

// many writes a run of keys, so that leaves split.
func (m *machine) many() {
	for range rapid.IntRange(1, 12).Draw(m.rt, "n") {
		m.lock()
		m.end(0)
	}
}

// purge deletes all rows of a range, so that leaves run empty.
func (m *machine) purge() {
	lo, hi := m.key(), m.key()
	var keys []string
	for k := range m.rows {
		if k >= lo && k <= hi && m.held[k] == nil && !m.pinned[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		m.del(k)
	}
}

// share takes a shared lock on what proves a key's state.
func (m *machine) share() {
	k := m.key()
	var res index.GetResult
	if m.t.Get(k, &res); res.Status == index.Locked || m.held[k] != nil {
		return
	}
	for _, p := range res.Proofs {
		m.shared.Share(p.Addr, 9)
	}
	m.pinned[k] = true
}

// TestDigestsOrder: digests never fall as keys rise, whatever the prefix.
func TestDigestsOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a', 'b'}), 0, 24, -1)
		p, a, b := s.Draw(rt, "prefix"), s.Draw(rt, "a"), s.Draw(rt, "b")
		if a > b {
			a, b = b, a
		}
		if DigestAfter(p, a) > DigestAfter(p, b) {
			rt.Fatalf("%q < %q, digests after %q: %#x, %#x", a, b, p, DigestAfter(p, a), DigestAfter(p, b))
		}
		if n := Common(a, b); a[:n] != b[:n] || n < min(len(a), len(b)) && a[n] == b[n] {
			rt.Fatalf("%q and %q share %d bytes", a, b, n)
		}
		if a != b {
			if f := separator(a, b); f <= a || f > b {
				rt.Fatalf("%q does not separate %q from %q", f, a, b)
			}
		}
		keys := slices.Compact(slices.Sorted(slices.Values(rapid.SliceOf(s).Draw(rt, "keys"))))
		l := NewLows(keys)
		want, found := slices.BinarySearch(keys, a)
		if !found {
			want--
		}
		if got := l.Find(a); got != want {
			rt.Fatalf("Find(%q) in %q is %d, want %d", a, keys, got, want)
		}
	})
}
