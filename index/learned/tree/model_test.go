package tree

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// machine runs random operations.
type machine struct {
	*world
	rt     *rapid.T
	keys   *rapid.Generator[index.Key]
	words  *rapid.Generator[int]
	held   map[index.Key]*index.Held
	pinned map[index.Key]version // keys shared by owner 9, and what they are
}

// TestAgainstModel runs random mutators against a map, for every kind of index,
// and after each checks that every answer whose proofs hold is still right, that
// locks stay where they are, and that what is shared stays as it was.
func TestAgainstModel(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			testseed.Check(t, func(rt *rapid.T) { newMachine(rt, kind).run() })
		})
	}
}

func newMachine(rt *rapid.T, kind leaf.Kind) *machine {
	m := &machine{rt: rt, held: map[index.Key]*index.Held{}, pinned: map[index.Key]version{}}
	maxWords := 300
	m.words = rapid.OneOf(rapid.IntRange(0, 12), rapid.IntRange(0, 300))
	if kind == leaf.Strings {
		n := rapid.SampledFrom([]int{8, 60, 400}).Draw(rt, "keys")
		of := rapid.SampledFrom(indextest.KeySpaces()).Draw(rt, "space").Of(n)
		m.keys = rapid.Custom(func(rt *rapid.T) index.Key { return of(rapid.IntRange(0, n-1).Draw(rt, "key")) })
	} else {
		maxWords = 2
		m.words = rapid.Just(2)
		nums := rapid.OneOf(rapid.Uint64Range(0, 60), rapid.Uint64Range(^uint64(0)-20, ^uint64(0)), rapid.Uint64Range(1<<40, 1<<40+300))
		m.keys = rapid.Map(nums, index.Num)
	}
	m.world = newWorld(rt, kind, rapid.IntRange(4, 9).Draw(rt, "slots"), rapid.Bool().Draw(rt, "sums"), maxWords)
	m.world.t.loadSlots = rapid.IntRange(2, m.world.t.lay.Slots).Draw(rt, "load slots")
	return m
}

func (m *machine) run() {
	m.rt.Repeat(map[string]func(*rapid.T){
		"put":     func(*rapid.T) { m.lock(); m.end(0) },
		"many":    func(*rapid.T) { m.many() },
		"purge":   func(*rapid.T) { m.purge(1) },
		"thin":    func(*rapid.T) { m.purge(3) },
		"delete":  func(*rapid.T) { m.lock(); m.end(1) },
		"lock":    func(*rapid.T) { m.lock() },
		"reserve": func(*rapid.T) { m.reserve() },
		"publish": func(*rapid.T) { m.end(0) },
		"release": func(*rapid.T) { m.end(2) },
		"look":    func(*rapid.T) { m.must(m.look(m.key())) },
		"scan": func(rt *rapid.T) {
			m.must(m.scan(m.key(), m.key(), rapid.IntRange(0, 9).Draw(rt, "limit")))
		},
		"share":   func(*rapid.T) { m.share() },
		"unshare": func(*rapid.T) { m.shared.Drop(9); clear(m.pinned) },
		"tidy":    func(*rapid.T) { m.clock.Advance(3); m.t.Tidy(3) },
		"":        func(*rapid.T) { m.check() },
	})
}

func (m *machine) must(err error) {
	if err != nil {
		m.rt.Fatal(err)
	}
}

func (m *machine) key() index.Key { return m.keys.Draw(m.rt, "key") }

// lock locks a key for an owner of its own. The memory of the key does not
// outlive the call.
func (m *machine) lock() {
	k := m.key()
	hint := rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(m.t.first), rapid.Uint64Range(0, 1<<16), rapid.Uint64()).Draw(m.rt, "hint")
	lent := k
	b := []byte(k.Str)
	if len(b) > 0 {
		lent = index.Str(mem.String(b))
	}
	h, err := m.t.LockWrite(index.Owner((leaf.Hash(k.Str)^k.Num)%1000+10), lent, hint)
	clear(b)
	_, existed := m.rows[k]
	_, pinned := m.pinned[k]
	switch {
	case errors.Is(err, index.ErrLocked):
		// A pinned absence locks the whole leaf, so others may be refused.
		if m.held[k] != nil || len(m.pinned) == 0 {
			m.rt.Fatalf("key %v: %v", k, err)
		}
		return
	case err != nil:
		m.rt.Fatal(err)
	case pinned:
		m.rt.Fatalf("key %v is shared and was locked", k)
	case m.held[k] != nil && m.held[k] != h:
		m.rt.Fatalf("key %v: another lock", k)
	case h.Existed != existed || h.Key != k:
		m.rt.Fatalf("key %v: lock %+v", k, h)
	}
	m.held[k] = h
}

func sortedKeys[V any](of map[index.Key]V) []index.Key {
	var keys []index.Key
	for k := range of {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, index.Key.Compare)
	return keys
}

func (m *machine) any() *index.Held {
	keys := sortedKeys(m.held)
	if len(keys) == 0 {
		return nil
	}
	return m.held[keys[rapid.IntRange(0, len(keys)-1).Draw(m.rt, "held")]]
}

func (m *machine) reserve() {
	if h := m.any(); h != nil {
		m.must(m.t.Reserve(h, m.words.Draw(m.rt, "words")))
	}
}

// end ends a lock: 0 publishes, 1 deletes, 2 releases.
func (m *machine) end(how int) {
	h := m.any()
	if h == nil {
		return
	}
	k := h.Key
	delete(m.held, k)
	switch how {
	case 0:
		m.csn++
		m.publish(h, m.words.Draw(m.rt, "words"))
	case 1:
		m.csn++
		m.t.PublishDelete(h, block.Absent(block.NewCSN(1, m.csn)))
		delete(m.rows, k)
	default:
		m.t.Release(h)
	}
}

// many inserts keys under one CSN, as one commit does, so that leaves split.
func (m *machine) many() {
	m.csn++
	for range rapid.IntRange(1, 12).Draw(m.rt, "n") {
		k := m.key()
		if _, there := m.rows[k]; there || m.held[k] != nil || len(m.pinned) > 0 {
			continue
		}
		m.putSame(k, m.words.Draw(m.rt, "words"))
	}
}

// purge deletes the rows of a range but one in every few, so that leaves run
// empty or sparse.
func (m *machine) purge(keep int) {
	lo, hi := m.key(), m.key()
	for i, k := range sortedKeys(m.rows) {
		_, pinned := m.pinned[k]
		if k.Compare(lo) >= 0 && k.Compare(hi) <= 0 && m.held[k] == nil && !pinned && (keep == 1 || i%keep > 0) {
			m.del(k)
		}
	}
}

// share takes a shared lock on what proves a key's state.
func (m *machine) share() {
	k := m.key()
	var res index.GetResult
	if m.t.Lookup(k, &res); res.Status == index.Locked || m.held[k] != nil {
		return
	}
	for _, p := range res.Proofs {
		m.shared.Share(p.Addr, 9)
	}
	m.pinned[k] = m.rows[k]
}

func (m *machine) check() {
	m.must(m.t.Check())
	m.must(m.judge())
	for k, v := range m.pinned {
		var res index.GetResult
		m.t.Lookup(k, &res)
		if m.rows[k] != v {
			m.rt.Fatalf("key %v was shared at %v and is at %v", k, v, m.rows[k])
		}
		for _, p := range res.Proofs {
			if res.Status != index.Locked && !m.shared.SharedByOther(p.Addr, 1) {
				m.rt.Fatalf("key %v: what proves it is not shared any more", k)
			}
		}
	}
	for k, h := range m.held {
		if got := block.Header(m.t.a.Span(h.Addr, 1).Load(0)); !got.Locked() || h.Existed && got.Unlock() != h.Prev {
			m.rt.Fatalf("key %v: header at %#x is %v", k, h.Addr, got)
		}
	}
}

// TestFull fills a small region: the error is typed, nothing is half done, and
// deleting makes room.
func TestFull(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) { fillAndEmpty(t, kind) })
	}
}

func fillAndEmpty(t *testing.T, kind leaf.Kind) {
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 17, MaxBytes: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	lay, err := leaf.NewLayout(7, kind, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(block.NewArena(r, block.ArenaOptions{}), Options{Layout: lay, Mirror: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: tr}
	n := uint64(0)
	for ; ; n++ {
		h, err := tr.LockWrite(1, w.key(n*7919%100003), 0)
		if err == nil {
			if err = tr.Reserve(h, 1); err != nil {
				tr.Release(h)
			}
		}
		if errors.Is(err, index.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		tr.Publish(h, []uint64{n}, block.Present(block.CSN(n+1)))
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		h, err := tr.LockWrite(1, w.key(i*7919%100003), 0)
		if err != nil {
			t.Fatal(err)
		}
		tr.PublishDelete(h, 0)
	}
	for tr.Tidy(100) {
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
	for i := range n / 2 {
		if err := tr.Load(w.key(i), []uint64{i}, block.Present(block.CSN(n+i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestKeysOfTheWrongKind: a tree refuses keys that it cannot hold.
func TestKeysOfTheWrongKind(t *testing.T) {
	for _, kind := range allKinds {
		w := simple(t, kind)
		bad := index.Str("a")
		if kind == leaf.Strings {
			bad = index.Num(1)
		}
		for _, key := range []index.Key{bad, index.Str(fmt.Sprintf("%*d", index.MaxKeyBytes+1, 1))} {
			if _, err := w.t.LockWrite(1, key, 0); !errors.Is(err, index.ErrKey) {
				t.Errorf("%s: lock of %.40v: %v", kindName(kind), key, err)
			}
			if err := w.t.Load(key, []uint64{1}, 1); !errors.Is(err, index.ErrKey) {
				t.Errorf("%s: load of %.40v: %v", kindName(kind), key, err)
			}
		}
		if err := w.t.Load(w.key(1), make([]uint64, 2), 1); !errors.Is(err, index.ErrRowSize) {
			t.Errorf("%s: load of a row too large: %v", kindName(kind), err)
		}
	}
}
