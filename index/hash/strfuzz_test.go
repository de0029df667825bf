package hash

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// FuzzStringClient serves the input as the words of whatever the client half
// of an index with string keys reads.
func FuzzStringClient(f *testing.F) {
	f.Add([]byte{}, "key", true)
	f.Add(binary.LittleEndian.AppendUint64(nil, lengths{key: 3, row: 2, tag: strTag(4096)}.word()), "\x00\x00\x00", true)
	f.Fuzz(func(t *testing.T, data []byte, key string, inOrder bool) {
		at, reads := 0, 0
		word := func() uint64 {
			var w [8]byte
			at += copy(w[:], data[at:])
			if at == len(data) {
				at = 0
			}
			return binary.LittleEndian.Uint64(w[:])
		}
		hash := hashStr([]byte(key))
		conn := &hostile{serve: func(wr *rdma.WR) {
			wr.Status = rdma.StatusOK
			for i := range wr.Buf {
				wr.Buf[i] = word()
			}
			wr.Buf[0] &^= uint64(block.LockBit)
			wr.Tail = wr.Buf[0]
			reads++
			switch {
			case reads == 1: // let the root through: what it leads to is the point
				wr.Buf[rootMagicWord] = rootMagic
				wr.Buf[rootRowWord] = kindStrings<<56 | wr.Buf[rootRowWord]%MaxStringRowWords
				wr.Buf[rootChunksWord] = wr.Buf[rootChunksWord]%8<<16 | 0x0401
				wr.Buf[rootDirWord] &^= 63 | 0xffff<<48
			case len(wr.Buf) == bucketWords: // and let slots match
				for i := slotWord; i < linkWord; i++ {
					if wr.Buf[i]%2 == 1 {
						wr.Buf[i] = makeSlot(hash, wr.Buf[i]&addrMask)
					}
				}
			}
			if len(wr.Buf) > lengthWord && wr.Buf[lengthWord]%2 == 1 {
				wr.Buf[lengthWord] = wr.Buf[lengthWord]&^0xffff_ffff | uint64(strTag(4096))
			}
			if !inOrder && len(wr.Buf) > 1 {
				wr.Buf[block.ChecksumWord] = block.Checksum(wr.Addr, wr.Buf)
			}
		}}
		c := NewClient(4096, 1, ClientOptions{InOrder: inOrder, LocationCacheEntries: 16})
		if err := c.Maintain(context.Background(), conn); err != nil && !errors.Is(err, index.ErrCorrupt) {
			t.Fatal(err)
		}
		for range 4 {
			res := lookupKey(t, c, conn, index.Str(key))
			switch {
			case res.Status == index.Pending:
				t.Fatal("no answer")
			case res.Status == index.Found && len(res.Row) > MaxStringRowWords+block.MaxClass.Words():
				t.Fatalf("a row of %d words", len(res.Row))
			}
		}
	})
}

// TestRandomStringMemory is FuzzStringClient's property over many random
// servings, in which words that make sense are frequent.
func TestRandomStringMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[index.Status]int{}
	for range 6000 {
		key := strings.Repeat("key", r.IntN(20))
		hash, tag := hashStr([]byte(key)), strTag(4096)
		locked := r.IntN(4) == 0
		version := r.Uint64N(1 << 20)
		conn := &hostile{serve: func(wr *rdma.WR) {
			wr.Status = rdma.StatusOK
			if r.IntN(200) == 0 {
				wr.Status = rdma.StatusAccess
			}
			for i := range wr.Buf {
				if wr.Buf[i] = r.Uint64N(1 << 20); r.IntN(3) == 0 {
					wr.Buf[i] = makeSlot(hash, makeRef(r.Uint64()&addrMask&^(1<<16-1), block.Class(r.IntN(12))))
				}
			}
			wr.Buf[0] = version
			switch {
			case len(wr.Buf) == bucketWords && wr.Addr < 1<<13:
				wr.Buf[linkWord] = makeLink(kindHead+uint8(r.IntN(8)/7), uint8(r.IntN(5)), r.Uint64()&addrMask&^63*uint64(r.IntN(2)))
			case len(wr.Buf) > strWord && r.IntN(3) != 0:
				wr.Buf[lengthWord] = lengths{key: len(key), row: r.IntN(len(wr.Buf) + 2), tag: tag}.word()
				if len(wr.Buf) >= strWord+keyWords(len(key)) && r.IntN(2) == 0 {
					appendKey(wr.Buf[:strWord], key)
				}
			}
			if locked && r.IntN(2) == 0 {
				wr.Buf[0] |= uint64(block.LockBit)
			}
			wr.Tail = wr.Buf[0]
			if r.IntN(20) == 0 {
				wr.Tail++
			}
		}}
		c := NewClient(4096, 1, ClientOptions{InOrder: true, LocationCacheEntries: 16})
		v := newView(rootInfo{strings: true, rowWords: 200, geo: geometry{2, 4}}, 4096)
		v.chunks = []uint64{1 << 12}
		c.view.Store(v)
		c.sawBuckets(1 + r.Uint64N(6))
		for range 2 {
			res := lookupKey(t, c, conn, index.Str(key))
			seen[res.Status]++
			if res.Status == index.Found && len(res.Row) > v.rowBlock {
				t.Fatalf("a row of %d words", len(res.Row))
			}
		}
	}
	t.Logf("%v", seen)
	for _, s := range []index.Status{index.Found, index.NotFound, index.Locked, index.Fallback, index.Failed} {
		if seen[s] == 0 {
			t.Errorf("no lookup ended as %v", s)
		}
	}
}

// TestFlippedStringWordsAreNeverBelieved: with checksums, one word changed in
// what is served may cost the answer but never makes a wrong one.
func TestFlippedStringWordsAreNeverBelieved(t *testing.T) {
	x := strBench(t, 40, ClientOptions{}, true)
	key := func(i int) string { return strings.Repeat("p", 30) + string(rune('0'+i)) }
	for i := range 2000 {
		row := make([]uint64, 1+i%40)
		for j := range row {
			row[j] = uint64(i)
		}
		if err := x.s.Load(index.Str(key(i)), row, block.Present(block.NewCSN(1, uint64(i+1)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	flipped, answers := 0, 0
	conn := &hostile{serve: func(wr *rdma.WR) {
		x.region.Read(wr.Addr, wr.Buf)
		wr.Status = rdma.StatusOK
		if len(wr.Buf) > 1 && r.IntN(3) == 0 { // not the word that confirms absence: it can only cost a round
			flipped++
			wr.Buf[r.IntN(len(wr.Buf))] ^= 1 << r.IntN(63)
		}
	}}
	for i := range 4000 {
		switch res := lookupKey(t, x.c, conn, index.Str(key(i))); res.Status {
		case index.Found:
			answers++
			if i >= 2000 || len(res.Row) != 1+i%40 || res.Row[0] != uint64(i) || res.Row[i%40] != uint64(i) {
				t.Fatalf("key %d: found %v", i, res.Row)
			}
		case index.NotFound:
			answers++
			if i < 2000 {
				t.Fatalf("key %d: reported absent", i)
			}
		}
	}
	if flipped < 1000 || answers < 3000 {
		t.Fatalf("only %d words flipped, %d answers", flipped, answers)
	}
}
