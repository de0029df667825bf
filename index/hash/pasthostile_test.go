package hash

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// lookupAt is lookupKey for an answer about a tick.
func lookupAt(tb testing.TB, c *Client, conn rdma.Conn, key index.Key, at clock.Tick) *index.GetResult {
	tb.Helper()
	op := c.NewGet()
	op.StartAt(key, at)
	var b [2]rdma.Batch
	for rounds := 0; ; rounds++ {
		next := &b[rounds&1]
		next.Reset()
		if op.Next(&b[rounds&1^1], next) {
			return op.Result()
		}
		if rounds > roundsMax || next.Len() == 0 || next.Len() > slots {
			tb.Fatalf("%d rounds, %d requests", rounds, next.Len())
		}
		for i := range next.WRs {
			if len(next.WRs[i].Buf)*8 > rdma.MaxReadBytes || next.WRs[i].Addr%8 != 0 {
				tb.Fatalf("READ of %d words at %#x", len(next.WRs[i].Buf), next.WRs[i].Addr)
			}
		}
		if err := conn.Post(next); err != nil {
			tb.Fatal(err)
		}
		_ = conn.Wait(context.Background(), next)
	}
}

// forgedPast serves random blocks in which words that make sense are frequent:
// above all links to older versions, and rows that may be such.
type forgedPast struct {
	r       *rand.Rand
	strings bool
	key     index.Key
	loop    bool // every version leads to one and the same place
}

func (f *forgedPast) serve(wr *rdma.WR) {
	r := f.r
	wr.Status = rdma.StatusOK
	if r.IntN(300) == 0 {
		wr.Status = rdma.StatusAccess
	}
	hash, tag := hashKey(f.key.Num), strTag(4096)
	if f.strings {
		hash = hashString(f.key.Str)
	}
	for i := range wr.Buf {
		wr.Buf[i] = r.Uint64()
	}
	// From tick 0 to 20, so that both sides of the tick asked for are frequent.
	wr.Buf[0] = uint64(block.NewCSN(clock.Tick(r.IntN(20)), uint64(r.IntN(3)))) | uint64(r.IntN(8)/7)<<62
	older := uint64(block.NewOlder(uint64(r.IntN(1<<20))&^63, block.Class(r.IntN(3))))
	if f.loop {
		older = uint64(block.NewOlder(1<<16, 1))
	}
	if r.IntN(2) == 0 { // of the largest rows here, and of some that there are not
		older = uint64(block.Older(older).Patching(r.IntN(6)))
	}
	switch {
	case r.IntN(16) == 0:
		older = r.Uint64()
	case r.IntN(8) == 0:
		older = 0
	}
	head := wr.Addr < 1<<13 && len(wr.Buf) == bucketWords
	switch {
	case head:
		wr.Buf[0] = 1 << 40
		for i := slotWord; i < linkWord; i++ {
			wr.Buf[i] = makeSlot(hash, makeRef(uint64(1<<14+r.IntN(1<<10)*64), block.Class(r.IntN(2))))
		}
		wr.Buf[linkWord] = makeLink(kindHead, uint8(r.IntN(3)), uint64(1<<14+r.IntN(1<<10)*64)*uint64(r.IntN(2)))
	case len(wr.Buf) < bucketWords:
		wr.Buf[0] = 1 << 40
	case f.strings:
		wr.Buf[lengthWord] = lengths{key: len(f.key.Str), row: r.IntN(len(wr.Buf)), tag: tag}.word()
		if r.IntN(2) == 0 {
			wr.Buf[lengthWord] = lengths{key: len(f.key.Str), row: 4, tag: tag}.word()
		}
		wr.Buf[strOlderWord] = older
		if len(wr.Buf) >= strWord+keyWords(len(f.key.Str)) {
			appendKey(wr.Buf[:strWord], f.key.Str)
		}
	default:
		wr.Buf[olderWord], wr.Buf[keyWord] = older, f.key.Num
	}
	if !head && r.IntN(8) != 0 {
		wr.Buf[0] |= uint64(block.LockBit)
	}
	wr.Tail = wr.Buf[0]
	if r.IntN(20) == 0 {
		wr.Tail++
	}
}

// TestForgedVersions: whatever leads on as an older version, a lookup of the
// past ends within its bounds.
func TestForgedVersions(t *testing.T) {
	for _, kind := range []bool{false, true} {
		r := rand.New(rand.NewPCG(5, 6))
		seen := map[index.Status]int{}
		for n := range 20000 {
			f := &forgedPast{r: r, strings: kind, key: index.Num(r.Uint64()), loop: n%3 == 0}
			if kind {
				f.key = index.Str(strings.Repeat("key", r.IntN(5)))
			}
			c := NewClient(4096, 1, ClientOptions{InOrder: true, LocationCacheEntries: 16})
			v := newView(rootInfo{strings: kind, rowWords: 12, geo: geometry{2, 4}}, 4096)
			v.chunks = []uint64{1 << 12}
			c.view.Store(v)
			c.sawBuckets(1 + r.Uint64N(6))
			conn := &hostile{serve: f.serve}
			for range 2 {
				res := lookupAt(t, c, conn, f.key, clock.Tick(1+r.IntN(12)))
				seen[res.Status]++
				if len(res.Proofs) > 0 || res.Status == index.Found && res.Header.Locked() {
					t.Fatalf("%v with proofs %v, header %v", res.Status, res.Proofs, res.Header)
				}
			}
		}
		t.Logf("strings %v: %v", kind, seen)
		for _, s := range []index.Status{index.Found, index.NotFound, index.Gone, index.Failed, index.Fallback} {
			if seen[s] == 0 {
				t.Errorf("strings %v: no lookup ended as %v", kind, s)
			}
		}
	}
}

// TestForgedVersionsAtTheServer: the same for the server half, whose memory may
// be reused while it follows a link.
func TestForgedVersionsAtTheServer(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, kind := range []bool{false, true} {
		x := newBench(t, Options{Strings: kind, RowWords: 12}, ClientOptions{}, false)
		key := index.Num(7)
		if kind {
			key = index.Str("seven")
		}
		if err := x.s.Load(key, make([]uint64, 12), block.Present(block.NewCSN(9, 1))); err != nil {
			t.Fatal(err)
		}
		held, err := x.s.LockWrite(1, key, 0)
		if err != nil {
			t.Fatal(err)
		}
		x.s.Release(held)
		row := x.arena.Span(held.Addr, 8)
		forged, err := x.arena.NewRows(64).Alloc()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[index.Status]int{}
		for range 20000 {
			older := []uint64{r.Uint64(), forged | 1, held.Addr | 1, 1<<30 - 64 | 1, forged | 63, 0}[r.IntN(6)] | uint64(r.IntN(3))<<48
			row.Store(x.s.versions.OlderWord, older)
			w := make([]uint64, 8)
			row.CopyOut(w)
			w[0] = uint64(block.Present(block.NewCSN(clock.Tick(r.IntN(12)), 1)).Lock())
			w[x.s.versions.OlderWord] = []uint64{forged | 1, r.Uint64(), 0, held.Addr | 1}[r.IntN(4)] | uint64(r.IntN(3))<<48
			if r.IntN(4) == 0 {
				w[r.IntN(8)] = r.Uint64()
			}
			x.arena.Span(forged, 8).CopyIn(w)
			var res index.GetResult
			x.s.LookupAt(key, clock.Tick(1+r.IntN(8)), &res)
			seen[res.Status]++
		}
		t.Logf("strings %v: %v", kind, seen)
		if seen[index.Gone] == 0 || seen[index.Found] == 0 || seen[index.NotFound] == 0 {
			t.Errorf("strings %v: %v", kind, seen)
		}
	}
}
