package hash

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/rdma"
	"github.com/zeebo/xxh3"
)

// TestStringHashIsFixed: other processes hash too: these values may never change.
func TestStringHashIsFixed(t *testing.T) {
	for key, want := range map[string]uint64{
		"": 0x45a7da599a3a55b0, "a": 0xb7c9762b986f84b0, "customer": 0xa80a4aa487873dea,
		strings.Repeat("\xff", 24): 0xd9078489626d621, strings.Repeat("\x00", index.MaxKeyBytes): 0xae342ee6cfc1c499,
	} {
		if got := hashStr([]byte(key)); got != want {
			t.Errorf("hash of %.20q… is %#x, want %#x", key, got, want)
		}
		if s := (&Server{strings: true}); s.hash(index.Str(key)) != hashStr([]byte(key)) {
			t.Errorf("the halves hash %.20q differently", key)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		if h := r.Uint64(); hashStr([]byte(UnhashStr(h))) != h {
			t.Fatalf("hash %#x does not come back", h)
		}
	}
}

// TestHashSpreadsWithinAPartition: tables may choose partitions by XXH3 of the
// key, so all keys of one agree in its low bits; their buckets must not.
func TestHashSpreadsWithinAPartition(t *testing.T) {
	const n = 1 << 8
	var count [n]int
	total := 0
	for i := uint64(0); total < 16*n; i++ {
		key := index.AppendNum(nil, i)
		if xxh3.Hash(key)%64 != 5 {
			continue
		}
		count[hashStr(key)%n]++
		total++
	}
	for b, c := range count {
		if c == 0 || c > 64 {
			t.Errorf("bucket %d has %d of %d keys", b, c, total)
		}
	}
}

func TestDecodeStrRow(t *testing.T) {
	row := func(l lengths, words int) []uint64 {
		buf := make([]uint64, words)
		buf[lengthWord] = l.word()
		return buf
	}
	for _, c := range []struct {
		name string
		buf  []uint64
		ok   bool
	}{
		{"nothing", nil, false},
		{"a header", make([]uint64, lengthWord), false},
		{"no key, no payload", row(lengths{tag: 7}, 4), true},
		{"another index", row(lengths{tag: 6}, 16), false},
		{"just fits", row(lengths{key: 17, row: 9, tag: 7}, 16), true},
		{"payload too long", row(lengths{key: 17, row: 10, tag: 7}, 16), false},
		{"key too long for the block", row(lengths{key: 97, tag: 7}, 16), false},
		{"longest key", row(lengths{key: index.MaxKeyBytes, tag: 7}, 136), true},
		{"key too long", row(lengths{key: index.MaxKeyBytes + 1, tag: 7}, 256), false},
		{"all ones", row(lengths{key: 1<<16 - 1, row: 1<<16 - 1, tag: 7}, 1<<10), false},
	} {
		got, ok := decodeStrRow(c.buf, 7)
		if ok != c.ok {
			t.Errorf("%s: %v", c.name, ok)
		}
		if l := lengthsOf(append(c.buf, 0, 0, 0)[lengthWord]); ok && (len(got.key) != l.key || len(got.row) != l.row) {
			t.Errorf("%s: key of %d bytes, row of %d words", c.name, len(got.key), len(got.row))
		}
	}
}

// FuzzStrRow: whatever a READ brings, the decoder stays within it.
func FuzzStrRow(f *testing.F) {
	f.Add([]byte{}, uint64(0), uint16(16))
	f.Add([]byte("abc"), lengths{key: 3, row: 4, tag: 7}.word(), uint16(8))
	f.Fuzz(func(t *testing.T, key []byte, word uint64, words uint16) {
		buf := make([]uint64, words)
		if len(buf) > lengthWord {
			buf[lengthWord] = word
		}
		if len(key) <= index.MaxKeyBytes && len(buf) >= strWord+keyWords(len(key)) {
			appendKey(buf[:strWord], string(key)) // in place
		}
		got, ok := decodeStrRow(buf, uint32(word))
		if !ok {
			return
		}
		l := lengthsOf(word)
		if len(got.key) != l.key || len(got.row) != l.row || cap(got.key) > 8*len(buf) {
			t.Fatalf("%+v: key of %d bytes, row of %d words", l, len(got.key), len(got.row))
		}
		if l.key == len(key) && string(got.key) != string(key) {
			t.Fatalf("key %q reads as %q", key, got.key)
		}
	})
}

// strBench is a table of string keys with one row each.
func strBench(tb testing.TB, rowWords int, co ClientOptions, checksums bool) *bench {
	return newBench(tb, Options{Strings: true, RowWords: rowWords}, co, checksums)
}

// putStr writes a row as a transaction would.
func (x *bench) putStr(tb testing.TB, key string, row []uint64, csn uint64) *index.Held {
	tb.Helper()
	held, err := x.s.LockWrite(1, index.Str(key), 0)
	if err == nil {
		err = x.s.Reserve(held, len(row))
	}
	if err != nil {
		tb.Fatal(err)
	}
	x.s.Publish(held, row, block.Present(block.NewCSN(1, csn)))
	return held
}

// TestRowsMove: rows grow from nothing to the largest and shrink again, block
// by block; every size is read back whole by both halves, the old block is
// locked and is used again, and a location that was remembered misleads nobody.
func TestRowsMove(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		x := strBench(t, MaxStringRowWords, ClientOptions{LocationCacheEntries: 64}, checksums)
		key := strings.Repeat("k", 13)
		var sizes []int
		for n := 0; n <= MaxStringRowWords; n += 1 + n/3 {
			sizes = append(sizes, n)
		}
		sizes = append(sizes, MaxStringRowWords)
		for i := len(sizes) - 1; i >= 0; i-- {
			sizes = append(sizes, sizes[i])
		}
		seen := map[index.Proof]bool{}
		csn, used := uint64(0), uint64(0)
		for round := range 4 {
			last := uint64(0)
			for _, n := range sizes {
				csn++
				row := make([]uint64, n)
				for i := range row {
					row[i] = csn<<32 | uint64(i)
				}
				held := x.putStr(t, key, row, csn)
				if last != 0 && held.Addr != last && !block.Header(x.arena.Span(last, 1).Load(0)).Locked() {
					t.Fatalf("%d words: the block moved from has header %v", n, block.Header(x.arena.Span(last, 1).Load(0)))
				}
				last = held.Addr
				res, _ := x.getKey(t, index.Str(key))
				for stage := range index.PrefetchStages {
					x.s.Prefetch(index.Str(key), stage)
				}
				own := x.s.Get(index.Str(key), nil)
				for _, r := range []*index.GetResult{res, &own} {
					if r.Status != index.Found || len(r.Row) != n || n > 0 && (r.Row[0] != row[0] || r.Row[n-1] != row[n-1]) || r.Hint != held.Addr {
						t.Fatalf("%d words: %v, %d words, at %#x, want %#x", n, r.Status, len(r.Row), r.Hint, held.Addr)
					}
				}
				if seen[res.Proofs[0]] {
					t.Fatalf("proof %+v repeats", res.Proofs[0])
				}
				seen[res.Proofs[0]] = true
				st := x.s.Stats()
				if st.Rows != 1 || x.s.rowStats().Used != 1 {
					t.Fatalf("%d words: %d rows in %d blocks", n, st.Rows, x.s.rowStats().Used)
				}
			}
			if round == 0 {
				used = x.arena.Used()
			}
		}
		if now := x.arena.Used(); now != used {
			t.Errorf("%d bytes used after the first round, %d after the last", used, now)
		}
		if err := x.s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRowsFillTheirBlocks: after any change of size a row fills half of its
// block, but for the rounding to classes.
func TestRowsFillTheirBlocks(t *testing.T) {
	x := strBench(t, MaxStringRowWords, ClientOptions{}, false)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 2000 {
		n := r.IntN(1 << r.IntN(bits.Len(MaxStringRowWords)))
		held := x.putStr(t, "key", make([]uint64, n), uint64(i+1))
		need := block.ClassFor(strBlockWords(3, n))
		if have := block.Class(held.Slot); have < need || have.Words() > wastePart*need.Words() {
			t.Fatalf("row of %d words in a block of %d", n, have.Words())
		}
	}
}

// TestReserve: room is given back when it is not used, and is refused for rows
// that there cannot be.
func TestReserve(t *testing.T) {
	x := strBench(t, 1000, ClientOptions{}, false)
	x.putStr(t, "there", make([]uint64, 10), 1)
	csn := uint64(1)
	for _, key := range []string{"there", "new"} {
		for _, end := range []func(h *index.Held){
			x.s.Release,
			func(h *index.Held) { x.s.PublishDelete(h, block.Absent(block.NewCSN(1, 1000))) },
		} {
			if key == "there" {
				x.s.usual = 0
				csn++
				x.putStr(t, key, make([]uint64, 10), csn)
			}
			held, err := x.s.LockWrite(1, index.Str(key), 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{0, 1000, 3, 200, 1000, 1000, 10, 100} {
				if err := x.s.Reserve(held, n); err != nil {
					t.Fatal(err)
				}
				if err := x.s.Check(); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range []int{-1, 1001, 1 << 40} {
				if err := x.s.Reserve(held, n); err == nil {
					t.Errorf("room for %d words", n)
				}
			}
			end(held)
			if got, rows := x.s.rowStats().Used, x.s.Stats().Rows; got != rows {
				t.Errorf("%d blocks in use for %d rows", got, rows)
			}
			if err := x.s.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	held, err := x.s.LockWrite(1, index.Str("new"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a row without room is published")
		}
	}()
	x.s.Publish(held, make([]uint64, 900), block.Present(5))
}

// TestKeysOfTheWrongKind are refused by both halves of both kinds of index.
func TestKeysOfTheWrongKind(t *testing.T) {
	for _, c := range []struct {
		x    *bench
		keys []index.Key
	}{
		{newBench(t, Options{RowWords: 1}, ClientOptions{}, false), []index.Key{index.Str("a")}},
		{strBench(t, 1, ClientOptions{}, false), []index.Key{index.Num(1), index.Str(strings.Repeat("a", index.MaxKeyBytes+1))}},
	} {
		for _, key := range c.keys {
			if _, err := c.x.s.LockWrite(1, key, 0); !isKeyError(err) {
				t.Errorf("LockWrite of %.20v: %v", key, err)
			}
			if err := c.x.s.Load(key, []uint64{1}, block.Present(1)); !isKeyError(err) {
				t.Errorf("Load of %.20v: %v", key, err)
			}
			if res := c.x.s.Get(key, nil); res.Status != index.Failed || !isKeyError(res.Err) {
				t.Errorf("Get of %.20v: %v, %v", key, res.Status, res.Err)
			}
			if res, _ := c.x.getKey(t, key); res.Status != index.Failed || !isKeyError(res.Err) {
				t.Errorf("lookup of %.20v: %v, %v", key, res.Status, res.Err)
			}
		}
	}
}

func isKeyError(err error) bool { return errors.Is(err, index.ErrKey) }

// TestCallersKeysAreCopied: the bytes behind a key may change once the call is over.
func TestCallersKeysAreCopied(t *testing.T) {
	x := strBench(t, 4, ClientOptions{}, false)
	mine := []byte("first key, with more than eight bytes")
	alias := func() index.Key { return index.Str(unsafe.String(&mine[0], len(mine))) }
	name, csn := string(mine), uint64(0)
	for _, existed := range []bool{false, true} {
		held, err := x.s.LockWrite(1, alias(), 0)
		if err != nil || held.Existed != existed {
			t.Fatal(held, err)
		}
		copy(mine, "other")
		if held.Key.Str != name {
			t.Fatalf("the lock is on %q", held.Key.Str)
		}
		if _, err := x.s.LockWrite(2, index.Str(name), 0); !errors.Is(err, index.ErrLocked) {
			t.Fatal(err)
		}
		if err := x.s.Reserve(held, 4); err != nil {
			t.Fatal(err)
		}
		csn++
		x.s.Publish(held, []uint64{1, 2, 3, 4}, block.Present(block.NewCSN(1, csn)))
		copy(mine, name)
		x.op.Start(alias())
		copy(mine, "other")
		x.b[0].Reset()
		if res, _ := x.finish(t); res.Status != index.Found {
			t.Fatalf("%v", res.Status)
		}
		copy(mine, name)
		if err := x.s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTiesAreReadTogether: rows whose keys share bucket and fingerprint with
// the one looked for are read in one round, and absence among them takes one
// more, to see that the chain has not changed.
func TestTiesAreReadTogether(t *testing.T) {
	x := strBench(t, 100, ClientOptions{}, true)
	tie := func(i uint64) string { return UnhashStr(0xabcd<<48 | i<<24 | 3) }
	for i := range uint64(slots) {
		x.putStr(t, tie(i), make([]uint64, 10+i), i+1)
	}
	x.putStr(t, tie(slots), make([]uint64, 10+slots), slots+1) // in the overflow bucket
	for i := range uint64(slots + 2) {
		before := x.c.Stats()
		res, rounds := x.getKey(t, index.Str(tie(i)))
		reads := x.c.Stats().Reads - before.Reads
		status, wantRounds, wantReads := index.Found, 2, uint64(1+slots)
		switch i {
		case slots: // head, its rows, overflow bucket, its row
			wantRounds, wantReads = 4, 1+slots+2
		case slots + 1: // and the head once more
			status, wantRounds, wantReads = index.NotFound, 5, 1+slots+3
		}
		if res.Status != status || rounds != wantRounds || reads != wantReads {
			t.Errorf("tie %d: %v in %d rounds of %d READs, want %d of %d", i, res.Status, rounds, reads, wantRounds, wantReads)
		}
		if res.Status == index.Found && len(res.Row) != 10+int(i) {
			t.Errorf("tie %d: %d words", i, len(res.Row))
		}
	}
}

// TestAbsenceIsConfirmed: between the READ of a bucket and that of the row its
// slot leads to, the row moves and its block becomes the row of another key.
// The key was there all the time, so the lookup may not miss it.
func TestAbsenceIsConfirmed(t *testing.T) {
	x := strBench(t, 100, ClientOptions{}, false)
	key := UnhashStr(0xabcd<<48 | 1<<24 | 3)
	x.putStr(t, key, make([]uint64, 4), 1)
	old := x.s.Get(index.Str(key), nil).Hint
	x.op.Start(index.Str(key))
	x.b[0].Reset()
	for round := 0; ; round++ {
		done, next := &x.b[round&1], &x.b[round&1^1]
		next.Reset()
		if x.op.Next(done, next) {
			break
		}
		if round == 1 { // the bucket has been read, the row not yet
			x.putStr(t, key, make([]uint64, 100), 2)
			if held := x.putStr(t, "other", make([]uint64, 4), 3); held.Addr != old {
				t.Fatalf("the block at %#x was not used again but %#x: this test needs it to be", old, held.Addr)
			}
		}
		if err := rdma.Do(context.Background(), x.conn, next); err != nil {
			t.Fatal(err)
		}
	}
	if res := x.op.Result(); res.Status != index.Found || len(res.Row) != 100 {
		t.Errorf("%v, %d words: the key is there all the time", res.Status, len(res.Row))
	}
}

// TestSharedLocksMoveAlong: a lock that a transaction shares with itself stays
// on the row that it moves, and not on the block.
func TestSharedLocksMoveAlong(t *testing.T) {
	locks := &moves{}
	x := newBench(t, Options{Strings: true, RowWords: 100, Locks: locks}, ClientOptions{}, false)
	from := x.putStr(t, "key", make([]uint64, 4), 1).Addr
	to := x.putStr(t, "key", make([]uint64, 100), 2).Addr
	if from == to || len(locks.moved) == 0 || locks.moved[len(locks.moved)-1] != [2]uint64{from, to} {
		t.Errorf("moved from %#x to %#x, locks moved: %x", from, to, locks.moved)
	}
}

// moves is a table in which there always are locks, and none in the way.
type moves struct{ moved [][2]uint64 }

func (l *moves) Empty() bool                            { return false }
func (l *moves) SharedByOther(uint64, index.Owner) bool { return false }
func (l *moves) Move(from, to uint64)                   { l.moved = append(l.moved, [2]uint64{from, to}) }
func (l *moves) Copy(uint64, uint64)                    {}

// TestStringRounds: a lookup takes two rounds, or one where the location is
// remembered, also after rows have moved, and allocates nothing.
func TestStringRounds(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		x := strBench(t, 40, ClientOptions{LocationCacheEntries: 1 << 14}, checksums)
		const n = 5000
		key := func(i int) string { return strings.Repeat("shared prefix of many keys/", 7) + strconv.Itoa(i) }
		keys := make([]string, 2*n)
		for i := range keys {
			keys[i] = key(i)
		}
		for i := range n {
			if err := x.s.Load(index.Str(keys[i]), make([]uint64, i%40), block.Present(block.NewCSN(1, uint64(i+1)))); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.c.Maintain(context.Background(), x.conn); err != nil {
			t.Fatal(err)
		}
		for pass, most := range []float64{2.1, 1.01, 2.2} {
			if pass == 2 { // every other row moves
				for i := 0; i < n; i += 2 {
					x.putStr(t, keys[i], make([]uint64, (i+20)%40), uint64(n+i+1))
				}
			}
			total := 0
			for i := range n {
				res, rounds := x.getKey(t, index.Str(keys[i]))
				want := i % 40
				if pass == 2 && i%2 == 0 {
					want = (i + 20) % 40
				}
				if res.Status != index.Found || len(res.Row) != want {
					t.Fatalf("key %d: %v, %d words, want %d", i, res.Status, len(res.Row), want)
				}
				total += rounds
			}
			if mean := float64(total) / n; mean > most {
				t.Errorf("%.3f rounds per GET in pass %d", mean, pass)
			}
			t.Logf("checksums %v pass %d: %.3f rounds per GET", checksums, pass, float64(total)/n)
		}
		i := 0
		if a := testing.AllocsPerRun(2000, func() { x.getKey(t, index.Str(keys[i%(2*n)])); i += 7 }); a != 0 {
			t.Errorf("%v allocations per GET", a)
		}
	}
}
