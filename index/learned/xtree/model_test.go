package xtree

import (
	"errors"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"

	"pgregory.net/rapid"
)

// sharedTable is a naive index.SharedLocks with one owner, number 9, who holds
// what a key's answer was proved by.
type sharedTable struct {
	words map[uint64]bool
}

func (s *sharedTable) Empty() bool { return len(s.words) == 0 }
func (s *sharedTable) SharedByOther(a uint64, o index.Owner) bool {
	return o != 9 && s.words[a]
}

func (s *sharedTable) Move(from, to uint64) {
	if s.words[from] {
		delete(s.words, from)
		s.words[to] = true
	}
}

func (s *sharedTable) Copy(from, to uint64) {
	if s.words[from] {
		s.words[to] = true
	}
}

// TestAgainstModel runs random mutators against a map, and after each checks
// that every answer whose proofs hold is still right, that locks stay where
// they are, and that what is shared stays as it was.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shared := &sharedTable{words: map[uint64]bool{}}
		w := &world{rows: map[uint64]uint64{}}
		inline := rapid.Bool().Draw(rt, "inline")
		w.t = newTree(rt, 1, rapid.IntRange(4, 9).Draw(rt, "slots"), inline, rapid.Bool().Draw(rt, "sums"))
		w.t.locks = shared
		w.quarantine(10)
		m := &machine{w: w, rt: rt, shared: shared, held: map[uint64]*index.Held{}, pinned: map[uint64]uint64{}}
		m.keys = rapid.OneOf(rapid.Uint64Range(0, 60), rapid.Uint64Range(^uint64(0)-20, ^uint64(0)), rapid.Uint64Range(1<<40, 1<<40+300))
		rt.Repeat(map[string]func(*rapid.T){
			"put":     func(*rapid.T) { m.lock(); m.end(0) },
			"run":     func(*rapid.T) { m.run() },
			"delete":  func(*rapid.T) { m.lock(); m.end(1) },
			"purge":   func(*rapid.T) { m.purge() },
			"lock":    func(*rapid.T) { m.lock() },
			"publish": func(*rapid.T) { m.end(0) },
			"release": func(*rapid.T) { m.end(2) },
			"look":    func(*rapid.T) { w.look(m.key()) },
			"scan":    func(*rapid.T) { m.scan() },
			"share":   func(*rapid.T) { m.share() },
			"unshare": func(*rapid.T) { clear(shared.words); clear(m.pinned) },
			"tidy":    func(*rapid.T) { w.clock.Advance(7); w.t.Tidy(3) },
			"":        func(*rapid.T) { m.check() },
		})
	})
}

type machine struct {
	w      *world
	rt     *rapid.T
	keys   *rapid.Generator[uint64]
	held   map[uint64]*index.Held
	order  []uint64
	shared *sharedTable
	pinned map[uint64]uint64 // keys shared: version, 0 if absent
	now    time.Duration
}

func (m *machine) key() uint64 { return m.keys.Draw(m.rt, "key") }

// lock locks a key for an owner of its own.
func (m *machine) lock() {
	k := m.key()
	hint := rapid.OneOf(rapid.Just(uint64(0)), rapid.Just(m.w.t.first), rapid.Uint64Range(0, 1<<16), rapid.Uint64()).Draw(m.rt, "hint")
	h, err := m.w.t.LockWrite(index.Owner(k%1000+10), k, hint)
	_, pinned := m.pinned[k]
	switch {
	case errors.Is(err, index.ErrLocked):
		// A pinned absence locks the whole leaf, so others may be refused.
		if m.held[k] != nil || len(m.pinned) == 0 {
			m.rt.Fatalf("key %d: %v", k, err)
		}
		return
	case err != nil:
		m.rt.Fatal(err)
	case pinned:
		m.rt.Fatalf("key %d is shared and was locked", k)
	case m.held[k] != nil && m.held[k] != h:
		m.rt.Fatalf("key %d: another lock", k)
	case h.Existed != (m.w.rows[k] != 0):
		m.rt.Fatalf("key %d: existed %v", k, h.Existed)
	}
	if m.held[k] == nil {
		m.held[k] = h
		m.order = append(m.order, k)
	}
}

// end ends a lock: 0 publishes, 1 deletes, 2 releases.
func (m *machine) end(how int) {
	if len(m.order) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.order)-1).Draw(m.rt, "held")
	k := m.order[i]
	m.order = slices.Delete(m.order, i, i+1)
	h, w := m.held[k], m.w
	delete(m.held, k)
	w.csn++
	switch how {
	case 0:
		w.t.Publish(h, []uint64{w.csn}, block.Present(block.NewCSN(1, w.csn)))
		w.rows[k] = w.csn
	case 1:
		w.t.PublishDelete(h, block.Absent(block.NewCSN(1, w.csn)))
		delete(w.rows, k)
	case 2:
		w.t.Release(h)
	}
}

// run inserts ascending keys under one CSN, as one commit does.
func (m *machine) run() {
	k, n := m.key(), rapid.IntRange(2, 12).Draw(m.rt, "run")
	m.w.csn++
	for i := range uint64(n) {
		if m.held[k+i] != nil || k+i < k || len(m.pinned) > 0 {
			continue
		}
		h, err := m.w.t.LockWrite(5, k+i, 0)
		if err != nil {
			m.rt.Fatal(err)
		}
		m.w.t.Publish(h, []uint64{m.w.csn}, block.Present(block.NewCSN(1, m.w.csn)))
		m.w.rows[k+i] = m.w.csn
	}
}

// purge deletes a range, so that leaves run empty.
func (m *machine) purge() {
	lo := m.key()
	for k := range m.w.rows {
		if k >= lo && k-lo < 30 && m.held[k] == nil && len(m.pinned) == 0 {
			m.w.del(k)
		}
	}
}

func (m *machine) scan() {
	lo, hi := m.key(), m.key()
	var res index.ScanResult
	limit := rapid.IntRange(0, 5).Draw(m.rt, "limit")
	m.w.t.Scan(lo, hi, limit, &res, nil)
	lockedIn := false
	for k := range m.held {
		lockedIn = lockedIn || k >= lo && k <= hi
	}
	if lockedIn {
		return // Locked, or stopped short of it
	}
	if res.Status != index.Found {
		m.rt.Fatalf("scan [%d, %d]: %v", lo, hi, res.Status)
	}
	var want []uint64
	for k := range m.w.rows {
		if k >= lo && k <= hi {
			want = append(want, k)
		}
	}
	slices.Sort(want)
	if limit > 0 && len(want) > limit {
		want = want[:limit]
	}
	if len(want) != len(res.Entries) {
		m.rt.Fatalf("scan [%d, %d] limit %d: %d rows, want %d", lo, hi, limit, len(res.Entries), len(want))
	}
	for i, e := range res.Entries {
		if e.Key.Num != want[i] || e.Row[0] != m.w.rows[e.Key.Num] {
			m.rt.Fatalf("scan [%d, %d]: entry %d is %d", lo, hi, i, e.Key.Num)
		}
	}
	if len(want) > 0 && limit > 0 && res.More {
		hi = want[len(want)-1]
	}
	m.w.scan(lo, hi)
}

// share has owner 9 hold what proves a key's state.
func (m *machine) share() {
	k := m.key()
	var res index.GetResult
	if m.w.t.Get(k, &res); res.Status == index.Locked {
		return
	}
	for _, p := range res.Proofs {
		m.shared.words[p.Addr] = true
	}
	m.pinned[k] = m.w.rows[k]
}

func (m *machine) check() {
	if err := m.w.t.Check(); err != nil {
		m.rt.Fatal(err)
	}
	if err := m.w.judge(); err != nil {
		m.rt.Fatal(err)
	}
	for k, v := range m.pinned {
		if m.w.rows[k] != v {
			m.rt.Fatalf("key %d was shared at %d and is at %d", k, v, m.w.rows[k])
		}
		var res index.GetResult
		m.w.t.Get(k, &res)
		for _, p := range res.Proofs {
			if !m.shared.words[p.Addr] && res.Status != index.Locked {
				m.rt.Fatalf("key %d: what proves it is not shared any more", k)
			}
		}
	}
	for k, h := range m.held {
		if got := block.Header(m.w.t.a.Span(h.Addr, 1).Load(0)); !got.Locked() || h.Existed && got.Unlock() != h.Prev {
			m.rt.Fatalf("key %d: header at %#x is %v", k, h.Addr, got)
		}
	}
}

// TestQueueMemory runs a queue, and churn over a window, for long, and demands
// that memory stays what the rows need.
func TestQueueMemory(t *testing.T) {
	for _, inline := range []bool{true, false} {
		w := newWorld(t, inline, faults{})
		w.quarantine(time.Second)
		const depth = 200
		var after uint64
		for i := range uint64(60000) {
			// Ten queues side by side, as TPC-C's districts are.
			w.put(i%10<<32 | i/10)
			if i >= depth {
				j := i - depth
				w.del(j%10<<32 | j/10)
			}
			if i%100 == 0 {
				w.clock.Advance(100 * time.Millisecond)
				w.t.Tidy(16)
			}
			if i == 6000 {
				after = w.t.a.Used()
			}
			w.watch = nil
		}
		if err := w.t.Check(); err != nil {
			t.Fatal(err)
		}
		if used := w.t.a.Used(); used > after+64<<10 {
			t.Errorf("inline %v: %d bytes after 6,000 rows, %d after 60,000", inline, after, used)
		}
		st := index.ServerStats{}
		w.t.Stats(&st)
		if st.Leaves > 2*depth || st.InnerBytes > 16*nodeBytes {
			t.Errorf("%d leaves, %d inner bytes for %d rows", st.Leaves, st.InnerBytes, depth)
		}
	}
}

// TestMovedRowsAvoidRecentMemory plants the one way in which a header could
// repeat at an address: rows of one commit, one of them moved by a split into a
// freed leaf where the other had lived.
func TestMovedRowsAvoidRecentMemory(t *testing.T) {
	for _, lifetime := range []time.Duration{0, time.Hour} {
		w := newWorld(t, true, faults{})
		w.quarantine(lifetime)
		w.csn = 1
		load := func(k uint64) {
			if err := w.t.Load(k, []uint64{1}, block.Present(block.NewCSN(1, 1))); err != nil {
				t.Fatal(err)
			}
			w.rows[k] = 1
		}
		for k := range uint64(12) { // three full leaves, all of one commit
			load(k * 10)
		}
		for k := range uint64(4) {
			w.look(40 + k*10)
		}
		for k := range uint64(4) { // the middle leaf runs empty and is freed
			w.del(40 + k*10)
		}
		w.t.Tidy(10)
		w.put(5) // splits the first leaf: rows of that commit move
		if err := w.judge(); (err != nil) != (lifetime == 0) {
			t.Errorf("lifetime %v: %v", lifetime, err)
		}
		if err := w.t.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFull fills a small region: the error is typed, nothing is half done, and
// deleting makes room.
func TestFull(t *testing.T) {
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 15, MaxBytes: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	lay, err := NewLayout(7, 1, 8, true)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(block.NewArena(r, block.ArenaOptions{}), Options{Layout: lay})
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for ; ; n++ {
		h, err := tr.LockWrite(1, n*7919%100003, 0)
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
		h, err := tr.LockWrite(1, i*7919%100003, 0)
		if err != nil {
			t.Fatal(err)
		}
		tr.PublishDelete(h, 0)
	}
	for tr.Tidy(100) {
	}
	for i := range n / 2 {
		if err := tr.Load(i, []uint64{i}, block.Present(block.CSN(n+i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
}
