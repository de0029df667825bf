package changes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
)

func feedCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	c, err := tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "id", Type: tables.Int64}},
		Secondary: []tables.Secondary{{
			Name: "by_id", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "id", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// script writes the logs of some servers, as servers would: a partition for each.
type script struct {
	r    *rand.Rand
	tab  *tables.Table
	now  clock.Tick
	seq  uint64
	logs [][]logged
	open []*openShares
	want []wanted
	// locks are the keys that shares have locked, and last the transaction that wrote a
	// key last.
	locks map[uint64]bool
	time  int
}

type logged struct {
	start, end wal.LSN
	payload    []byte
}

// openShares is a transaction of several servers that is not decided at all of them.
type openShares struct {
	id      int64
	of      twophase.ID
	vote    clock.Tick // the highest so far
	votes   map[int]clock.Tick
	keys    []uint64 // by server
	rows    []uint64 // of the keys: those of rows
	servers []int
	decided clock.Tick // 0: not yet
	commit  bool
}

// wanted is a transaction that has committed.
type wanted struct {
	id      int64
	tick    clock.Tick
	keys    []uint64
	decided int // by the script's own time
}

func (s *script) log(server int, r redo.Record) {
	l := s.logs[server]
	at := wal.LSN(0)
	if len(l) > 0 {
		at = l[len(l)-1].end + wal.LSN(8*s.r.IntN(3))
	}
	b := r.Append(nil)
	s.logs[server] = append(l, logged{at, at + wal.LSN(len(b)), b})
}

func (s *script) csn(tick clock.Tick) block.CSN {
	s.seq++
	return block.NewCSN(tick, s.seq)
}

func (s *script) write(key uint64, id int64) []wire.Write {
	row := s.tab.NewRow()
	row.SetInt(s.tab.Field("id"), id)
	return []wire.Write{{Op: wire.Put, Key: index.Num(key), Row: row}}
}

// key draws a key that is not locked: keys of server n are n modulo 16.
func (s *script) key(server int) (key uint64, ok bool) {
	key = uint64(server) + 16*s.r.Uint64N(4)
	return key, !s.locks[key]
}

func (s *script) alone(id int64) {
	server := s.r.IntN(len(s.logs))
	key, ok := s.key(server)
	if !ok {
		return
	}
	s.log(server, redo.Record{Kind: redo.Commit, Parts: []redo.Part{{Partition: placement.Partition(server), CSN: s.csn(s.now), Writes: s.write(key, id)}}})
	s.want = append(s.want, wanted{id, s.now, []uint64{key}, s.time})
}

func (s *script) prepare(id int64) {
	x := &openShares{id: id, of: twophase.ID{Coordinator: twophase.Party{Incarnation: 1}, Seq: uint64(id)}, votes: map[int]clock.Tick{}, commit: s.r.IntN(5) > 0}
	for _, server := range s.r.Perm(len(s.logs))[:1+s.r.IntN(len(s.logs))] {
		key, ok := s.key(server)
		if !ok {
			continue
		}
		s.locks[key] = true
		x.servers, x.keys = append(x.servers, server), append(x.keys, key)
		x.votes[server], x.vote = s.now, s.now
		writes := s.write(key, id)
		if s.r.IntN(4) == 0 { // an entry of a secondary index alone
			writes = []wire.Write{{Op: wire.Put, Index: 1, Strings: true, Key: index.Str("entry"), Row: make([]byte, 8)}}
		} else {
			x.rows = append(x.rows, key)
		}
		s.log(server, redo.Record{
			Kind: redo.Prepared, Partition: placement.Partition(server), Step: twophase.Record{Kind: twophase.Prepared, ID: x.of, Tick: s.now},
			Parts: []redo.Part{{Partition: placement.Partition(server), Writes: writes}},
		})
	}
	if len(x.servers) > 0 {
		s.open = append(s.open, x)
	}
}

// decide decides a transaction, or tells one of its servers.
func (s *script) decide() {
	if len(s.open) == 0 {
		return
	}
	i := s.r.IntN(len(s.open))
	x := s.open[i]
	if x.decided == 0 {
		x.decided = s.now
		if x.commit && len(x.rows) > 0 {
			s.want = append(s.want, wanted{x.id, x.decided, slices.Clone(x.rows), s.time})
		}
	}
	server, key := x.servers[0], x.keys[0]
	x.servers, x.keys = x.servers[1:], x.keys[1:]
	delete(x.votes, server)
	delete(s.locks, key)
	r := redo.Record{Kind: redo.Decided, Partition: placement.Partition(server), Step: twophase.Record{Kind: twophase.Decided, ID: x.of, Commit: x.commit, Tick: x.decided}}
	if x.commit {
		r.Parts = []redo.Part{{Partition: placement.Partition(server), CSN: s.csn(x.decided)}}
	}
	s.log(server, r)
	if len(x.servers) == 0 {
		s.open = slices.Delete(s.open, i, i+1)
	}
}

// closed is the tick that a server has closed.
func (s *script) closed(server int) clock.Tick {
	tick := s.now - 1
	for _, x := range s.open {
		if v, ok := x.votes[server]; ok {
			tick = min(tick, v-1)
		}
	}
	return tick
}

func newScript(r *rand.Rand, c *tables.Catalog, steps int) *script {
	s := &script{r: r, tab: c.MustTable("t"), now: 5, locks: map[uint64]bool{}, logs: make([][]logged, 1+r.IntN(3))}
	for id := int64(1); id <= int64(steps); id++ {
		s.time++
		switch n := r.IntN(10); {
		case n < 3:
			s.alone(id)
		case n < 5:
			s.prepare(id)
		case n < 8:
			s.decide()
		case n < 9:
			s.now += clock.Tick(r.IntN(2))
		default:
			server := r.IntN(len(s.logs))
			s.log(server, redo.Record{Kind: redo.Closed, Tick: s.closed(server)})
		}
	}
	return s
}

// got is what a feed delivered of a transaction.
type got struct {
	id   int64
	tick clock.Tick
	keys []uint64
	last bool
	at   Cursor
}

func (s *script) take(f *feed, c *Change, to *[]got) error {
	g := got{tick: c.Tick, last: c.Last, at: c.Cursor()}
	for _, w := range c.Writes {
		id := w.Row.Int(w.Table.Field("id"))
		if g.id != 0 && g.id != id {
			return fmt.Errorf("a change has rows of %d and %d", g.id, id)
		}
		g.id, g.keys = id, append(g.keys, w.Key.Num())
	}
	*to = append(*to, g)
	return nil
}

// run feeds the logs to a feed, piece by piece, with a memory. ends and closed are up to
// where the logs go.
func (s *script) run(f *feed, ends []int, closed clock.Tick, to *[]got) (passes int, err error) {
	for f.from < closed || f.after != all {
		if passes++; passes > 100_000 {
			return passes, errors.New("the feed does not get on")
		}
		for server := range s.logs {
			st := &f.streams[server]
			for _, r := range s.logs[server][:ends[server]] {
				if r.start < st.next {
					continue
				}
				if st.marked >= f.most {
					break
				}
				if err := f.take(placement.Server(server), r.start, r.end, r.payload); err != nil {
					return passes, err
				}
			}
		}
		var terr error
		f.deliver(min(closed, f.most), func(c *Change) bool { terr = s.take(f, c, to); return terr == nil })
		if terr != nil {
			return passes, terr
		}
		f.rewind()
	}
	return passes, nil
}

// whole is where the logs end, and what all servers have closed.
func (s *script) whole() (ends []int, closed clock.Tick) {
	closed = s.now
	for server := range s.logs {
		ends, closed = append(ends, len(s.logs[server])), min(closed, s.closed(server))
	}
	return ends, closed
}

// TestFeed: of random logs a feed makes what has committed up to the closed tick: each
// transaction once and whole, none that was aborted or is not decided, of two that write
// one key the earlier first. With less memory it takes more passes, and delivers the
// same. It goes on after each change as if it had not ended.
func TestFeed(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	c := feedCatalog(t)
	most := 0
	for range 60 {
		s := newScript(r, c, 20+r.IntN(300))
		ends, closed := s.whole()
		if closed < 1 {
			continue
		}
		var all, small []got
		if _, err := s.run(newFeed(c, len(s.logs), 0), ends, closed, &all); err != nil {
			t.Fatal(err)
		}
		s.check(t, all, closed)
		passes, err := s.run(newFeed(c, len(s.logs), 1+r.IntN(3000)), ends, closed, &small)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, passes)
		if a, b := fmt.Sprint(keysOf(all)), fmt.Sprint(keysOf(small)); a != b {
			t.Fatalf("a feed with less memory delivers\n%s\nwant\n%s", b, a)
		}
		for _, list := range [][]got{all, small} {
			if len(list) == 0 {
				continue
			}
			i := r.IntN(len(list))
			at, err := ParseCursor(list[i].at.String())
			if err != nil {
				t.Fatal(err)
			}
			f := newFeed(c, len(s.logs), r.IntN(3000))
			f.from, f.after = at.tick, at.n
			for server := range f.streams {
				f.streams[server].next = wal.LSN(at.at[server])
			}
			var rest []got
			if _, err := s.run(f, ends, closed, &rest); err != nil {
				t.Fatalf("after change %d of %d: %v", i+1, len(list), err)
			}
			if a, b := fmt.Sprint(keysOf(list[i+1:])), fmt.Sprint(keysOf(rest)); a != b {
				t.Fatalf("after change %d of %d (%+v) come\n%s\nwant\n%s", i+1, len(list), at, b, a)
			}
		}
	}
	if most < 3 {
		t.Errorf("no feed had too little memory")
	}
}

func keysOf(list []got) (out []got) {
	for _, g := range list {
		g.at = Cursor{}
		out = append(out, g)
	}
	return out
}

func (s *script) check(t *testing.T, list []got, closed clock.Tick) {
	t.Helper()
	want := map[int64]wanted{}
	for _, w := range s.want {
		if w.tick <= closed {
			want[w.id] = w
		}
	}
	last := map[uint64]wanted{}
	for i, g := range list {
		w, ok := want[g.id]
		g.keys = slices.Sorted(slices.Values(g.keys))
		slices.Sort(w.keys)
		switch {
		case !ok:
			t.Fatalf("transaction %d is delivered, which did not commit up to tick %d, or twice", g.id, closed)
		case g.tick != w.tick || !slices.Equal(g.keys, w.keys):
			t.Fatalf("transaction %d of tick %d has keys %v, want tick %d, %v", g.id, g.tick, g.keys, w.tick, w.keys)
		case i > 0 && (list[i-1].tick > g.tick || list[i-1].last != (list[i-1].tick < g.tick)):
			t.Fatalf("tick %d follows tick %d, whose last change it was: %v", g.tick, list[i-1].tick, list[i-1].last)
		}
		for _, key := range g.keys {
			if before, ok := last[key]; ok && before.decided > w.decided {
				t.Fatalf("tick %d: transaction %d comes after %d, and wrote key %d before it", g.tick, g.id, before.id, key)
			}
			last[key] = w
		}
		delete(want, g.id)
	}
	if len(want) > 0 {
		t.Fatalf("%d transactions up to tick %d are missing: %v", len(want), closed, want)
	}
}

// TestOrderIsThatOfDecisions: in one tick, what was applied at a server before another
// transaction was prepared there comes first; and the order in which transactions were
// found changes nothing.
func TestOrderIsThatOfDecisions(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	for range 500 {
		var found []*transaction
		for range 2 + r.IntN(30) {
			x := &transaction{}
			begin := r.IntN(1000)
			span := [2]int{begin, begin}
			if r.IntN(2) == 0 {
				span[1] = begin + 1 + r.IntN(100)
			}
			for _, server := range r.Perm(3)[:1+r.IntN(3)] {
				if span[0] == span[1] && len(x.parts) > 0 {
					break
				}
				// All is prepared before the middle of the span, and applied after it.
				mid := (span[0] + span[1]) / 2
				p := wal.LSN(1000*(span[0]+r.IntN(mid-span[0]+1)) + len(found))
				d := p
				if span[1] > span[0] {
					d = wal.LSN(1000*(mid+1+r.IntN(50)) + len(found))
				}
				x.parts = append(x.parts, applied{server: placement.Server(server), prepared: p, done: d})
			}
			found = append(found, x)
		}
		sorted := inOrder(slices.Clone(found))
		for i, x := range sorted {
			for _, y := range sorted[:i] {
				for _, a := range x.parts {
					for _, b := range y.parts {
						if a.server == b.server && a.done < b.prepared {
							t.Fatalf("%+v comes after %+v", x.parts, y.parts)
						}
					}
				}
			}
		}
		mixed := slices.Clone(found)
		r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		if !slices.Equal(sorted, inOrder(mixed)) {
			t.Fatal("the order depends on how transactions were found")
		}
	}
}

// TestLateCommit: a commit at a tick that its server had closed is an error.
func TestLateCommit(t *testing.T) {
	c := feedCatalog(t)
	s := &script{r: rand.New(rand.NewPCG(1, 1)), tab: c.MustTable("t"), now: 5, locks: map[uint64]bool{}, logs: make([][]logged, 1)}
	s.alone(1)
	f := newFeed(c, 1, 0)
	var list []got
	if _, err := s.run(f, []int{1}, 6, &list); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	f.streams[0].late = s.logs[0][0].end
	s.alone(2)
	l := s.logs[0][1]
	if err := f.take(0, l.start, l.end, l.payload); !errors.Is(err, ErrLog) || !strings.Contains(err.Error(), "was closed") {
		t.Errorf("a commit of tick 5 after tick 6 was closed: %v", err)
	}
}
