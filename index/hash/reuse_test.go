package hash

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
)

// forger is an index of rows that vary in size, a client that knows where a row
// was, and another client that writes rows of another size over that place.
type forger struct {
	*bench
	t     *testing.T
	now   *clocktest.Clock
	known map[uint64]index.Key // where the client has seen rows
	rows  int                  // that were written to get their memory
}

const forgedWords = 40

var forgedKey = index.Str("a key that is looked up")

// newForger makes rows of one size, and lets the client find one of them.
func newForger(t *testing.T, checksums bool) *forger {
	f := &forger{t: t, now: &clocktest.Clock{}, known: map[uint64]index.Key{}}
	f.bench = newBenchAt(t, Options{Strings: true, RowWords: 2000}, ClientOptions{LocationCacheEntries: 64, Clock: f.now.Now}, checksums, f.now.Now)
	for i := range 500 {
		f.put(churnKey(i), make([]uint64, forgedWords))
	}
	f.put(forgedKey, slices.Repeat([]uint64{7}, forgedWords))
	for i := range 16 { // in all spans: the first to be empty are the first to be freed
		f.find(churnKey(30 * i))
	}
	f.find(forgedKey)
	return f
}

// find lets the client find a row.
func (f *forger) find(key index.Key) {
	f.t.Helper()
	res, _ := f.getKey(f.t, key)
	if res.Status != index.Found {
		f.t.Fatal(res.Status)
	}
	f.known[res.Hint] = key
}

func (f *forger) put(key index.Key, row []uint64) *index.Held {
	f.t.Helper()
	held, err := f.s.LockWrite(1, key, 0)
	if err == nil {
		err = f.s.Reserve(held, len(row))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.s.Publish(held, row, block.Present(f.arena.NextCSN()))
	return held
}

func (f *forger) remove(key index.Key) {
	f.t.Helper()
	held, err := f.s.LockWrite(1, key, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.s.PublishDelete(held, block.Absent(f.arena.NextCSN()))
}

// removeAll deletes all rows.
func (f *forger) removeAll() {
	for i := range 500 {
		f.remove(churnKey(i))
	}
	f.remove(forgedKey)
}

// forge tries to write a row over the place of an old one, which has at that
// place a block with the old key, another payload, and a header and checksum
// that fit. It returns the keys of the rows that it has forged.
func (f *forger) forge() (forged []index.Key) {
	const words = 1500
	for range 40 {
		f.rows++
		key := index.Str(fmt.Sprintf("forged %d", f.rows))
		held := f.put(key, make([]uint64, words))
		start := held.Addr + uint64(strWord+keyWords(len(key.Str)))*mem.WordBytes
		row := make([]uint64, words)
		for old, victim := range f.known {
			size := block.ClassFor(strBlockWords(len(victim.Str), forgedWords)).Words()
			if old < start || old+uint64(size)*mem.WordBytes > start+words*mem.WordBytes {
				continue
			}
			b := row[(old-start)/mem.WordBytes:][:size]
			b[block.HeaderWord] = uint64(block.Present(f.arena.NextCSN()))
			b[lengthWord] = lengths{key: len(victim.Str), row: forgedWords, tag: f.s.tag}.word()
			copy(b[strWord:], append(appendKey(nil, victim.Str), slices.Repeat([]uint64{666}, forgedWords)...))
			if f.arena.Checksums() {
				b[block.ChecksumWord] = block.Checksum(old, b)
			}
			forged = append(forged, victim)
		}
		f.put(key, row)
	}
	return forged
}

// pass lets time pass, in which the server tidies up.
func (f *forger) pass(d time.Duration) {
	for ; d > 0; d -= time.Second {
		f.now.Advance(min(d, time.Second))
		f.arena.Tidy()
	}
}

// TestForgedRowIsNotBelieved: memory of rows is now part of the payload of a
// larger row, which a hostile client has made look like one of the old rows, to
// the last bit. A client that remembers the place never takes it for the row.
func TestForgedRowIsNotBelieved(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		if checksums && indextest.Scale > 1 {
			t.Log("SKIPPED with checksums: one goroutine takes half a minute for them under the race detector; make test runs them")
			continue
		}
		// How long before the lookup the client looked at the turn: not since the
		// row was there, in between, or just now.
		for _, maintained := range []time.Duration{-1, 20 * time.Second, 0} {
			f := newForger(t, checksums)
			f.removeAll()
			f.pass(time.Second)
			refresh := func() {
				if err := f.c.Maintain(context.Background(), f.conn); err != nil {
					t.Fatal(err)
				}
			}
			forged := f.forge()
			for n := 0; len(forged) == 0; n++ {
				if n == 60 {
					t.Fatal("the memory of the rows is not reused")
				}
				f.pass(time.Second)
				if maintained >= 0 && n == int((30*time.Second-maintained)/time.Second) {
					refresh()
				}
				forged = f.forge()
			}
			if maintained == 0 {
				refresh()
			}
			for _, key := range forged {
				if res, _ := f.getKey(t, key); res.Status != index.NotFound {
					t.Errorf("checksums %v, turn read %v before: a forged row is %v: %v", checksums, maintained, res.Status, res.Row)
				}
			}
			if err := f.s.Check(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSlowReaderMeetsNoForgedRow: an operation has found out where the row is,
// by the location cache or from the bucket, and goes on only as late as its
// attempt may be old. Until then no other row lies there.
func TestSlowReaderMeetsNoForgedRow(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for _, checksums := range []bool{false, true} {
			f := newForger(t, checksums)
			if !cached {
				f.c.cache.Load().drop(f.s.hash(forgedKey), f.c.cache.Load().get(f.s.hash(forgedKey)))
			}
			f.pass(index.MaxLocationAge) // the cache may only just be used
			f.op.Start(forgedKey)
			first, second := &f.b[0], &f.b[1]
			first.Reset()
			second.Reset()
			done := f.op.Next(first, second)
			if !cached { // the first READ is that of the bucket
				if err := f.do(second); err != nil {
					t.Fatal(err)
				}
				first.Reset()
				done = f.op.Next(second, first)
				first, second = second, first
			}
			if done {
				t.Fatal("no READ of the row")
			}
			f.removeAll()
			f.arena.Tidy()
			for age := time.Duration(0); age < index.MaxProofAge; age += time.Second {
				if len(f.forge()) > 0 {
					t.Fatalf("cached %v: the row's memory is another's %v after an operation began that reads it", cached, age)
				}
				f.pass(time.Second)
			}
			if err := f.do(second); err != nil {
				t.Fatal(err)
			}
			first.Reset()
			if f.op.Next(second, first) && f.op.Result().Status == index.Found {
				t.Errorf("cached %v: a deleted row is found: %v", cached, f.op.Result().Row)
			}
		}
	}
}

// TestLocationsAreRenewed: a client that is in use goes on using its locations,
// with one look at the turn every few seconds; one that was idle, or whose
// partition has a new turn, asks again where a row is.
func TestLocationsAreRenewed(t *testing.T) {
	f := newForger(t, false)
	rounds := func() int {
		t.Helper()
		res, n := f.getKey(t, forgedKey)
		if res.Status != index.Found {
			t.Fatal(res.Status)
		}
		return n
	}
	maintain := func() bool {
		t.Helper()
		stale := f.c.Stale()
		if stale {
			if err := f.c.Maintain(context.Background(), f.conn); err != nil {
				t.Fatal(err)
			}
		}
		return stale
	}
	refreshes := 0
	for range 60 {
		if n := rounds(); n != 1 {
			t.Fatalf("%d rounds for a row whose place is known", n)
		}
		if maintain() {
			refreshes++
		}
		f.pass(time.Second)
	}
	if most := int(time.Minute/renewAge) + 1; refreshes == 0 || refreshes > most {
		t.Errorf("%d refreshes in a minute, at most %d", refreshes, most)
	}
	f.pass(time.Minute)
	if n := rounds(); n != 2 || !maintain() {
		t.Errorf("%d rounds after a minute without use", n)
	}
	if n := rounds(); n != 1 {
		t.Errorf("%d rounds after the turn was seen unchanged", n)
	}
	for i := range 500 {
		f.remove(churnKey(i))
	}
	f.pass(10 * time.Second)
	rounds()
	maintain()
	if n := rounds(); n != 2 {
		t.Errorf("%d rounds in a new turn", n)
	}
	if n := rounds(); n != 1 {
		t.Errorf("%d rounds in a new turn, with a place known in it", n)
	}
}
