package hash

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// hostile is a connection whose READs bring whatever serve writes.
type hostile struct {
	rdma.Conn
	serve func(wr *rdma.WR)
}

func (h *hostile) Post(b *rdma.Batch) error {
	for i := range b.WRs {
		h.serve(&b.WRs[i])
	}
	return nil
}

func (h *hostile) InOrder() bool { return true }

func (h *hostile) Wait(context.Context, *rdma.Batch) error { return nil }

// lookup runs a lookup over the connection; it fails the test when the bound
// on rounds does not hold.
func lookup(tb testing.TB, c *Client, conn rdma.Conn, key uint64) *index.GetResult {
	return lookupKey(tb, c, conn, index.Num(key))
}

func lookupKey(tb testing.TB, c *Client, conn rdma.Conn, key index.Key) *index.GetResult {
	op := c.NewGet()
	op.Start(key)
	var b [2]rdma.Batch
	for rounds := 0; ; rounds++ {
		next := &b[rounds&1]
		next.Reset()
		if op.Next(&b[rounds&1^1], next) {
			return op.Result()
		}
		if rounds > roundsMax || next.Len() == 0 || next.Len() > 1 && (!c.view.Load().strings || next.Len() > slots) {
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

// FuzzClient serves the input as the words of whatever the client half reads.
func FuzzClient(f *testing.F) {
	f.Add([]byte{}, uint64(1), true)
	f.Add(binary.LittleEndian.AppendUint64(nil, rootMagic), uint64(1), true)
	f.Fuzz(func(t *testing.T, data []byte, key uint64, inOrder bool) {
		at, reads := 0, 0
		word := func() uint64 {
			var w [8]byte
			at += copy(w[:], data[at:])
			if at == len(data) {
				at = 0
			}
			return binary.LittleEndian.Uint64(w[:])
		}
		conn := &hostile{serve: func(wr *rdma.WR) {
			wr.Status = rdma.StatusOK
			for i := range wr.Buf {
				wr.Buf[i] = word()
			}
			wr.Buf[0] &^= uint64(block.LockBit)
			wr.Tail = wr.Buf[0]
			if reads++; reads == 1 { // let the root through: what it leads to is the point
				wr.Buf[rootMagicWord] = rootMagic
				wr.Buf[rootRowWord] %= 64
				wr.Buf[rootChunksWord] = wr.Buf[rootChunksWord]%8<<16 | 0x0401
				wr.Buf[rootDirWord] &^= 63 | 0xffff<<48
			}
			if !inOrder && len(wr.Buf) > 1 {
				wr.Buf[block.ChecksumWord] = block.Checksum(wr.Addr, wr.Buf)
			}
		}}
		c := NewClient(4096, 1, ClientOptions{InOrder: inOrder, LocationCacheEntries: 16})
		if err := c.Maintain(context.Background(), conn); err != nil && !errors.Is(err, index.ErrCorrupt) {
			t.Fatal(err)
		}
		for i := range uint64(4) {
			if res := lookup(t, c, conn, key+i%2); res.Status == index.Pending {
				t.Fatal("no answer")
			}
		}
	})
}

// TestRandomMemory is FuzzClient's property over many random servings, in
// which words that make sense are frequent.
func TestRandomMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[index.Status]int{}
	for range 3000 {
		key := r.Uint64()
		hash := hashKey(key)
		locked := r.IntN(4) == 0
		conn := &hostile{serve: func(wr *rdma.WR) {
			wr.Status = rdma.StatusOK
			if r.IntN(200) == 0 {
				wr.Status = rdma.StatusAccess
			}
			for i := range wr.Buf {
				switch r.IntN(5) {
				case 0:
					wr.Buf[i] = r.Uint64()
				case 1:
					wr.Buf[i] = makeSlot(hash, r.Uint64()&addrMask&^255)
				case 2:
					wr.Buf[i] = makeLink(kindHead+uint8(r.IntN(2)), uint8(r.IntN(4)), r.Uint64()&addrMask&^63)
				case 3:
					wr.Buf[i] = r.Uint64N(1 << 20)
				default:
					wr.Buf[i] = key
				}
			}
			if len(wr.Buf) == bucketWords && r.IntN(8) != 0 {
				kind := uint8(kindHead)
				if wr.Addr >= 1<<13 {
					kind = kindOverflow
				}
				wr.Buf[linkWord] = makeLink(kind, uint8(r.IntN(5)), wr.Buf[linkWord]&addrMask&^63*uint64(r.IntN(2)))
			}
			if !locked {
				wr.Buf[0] &^= uint64(block.LockBit)
			} else if r.IntN(2) == 0 {
				wr.Buf[0] |= uint64(block.LockBit)
			}
			wr.Tail = wr.Buf[0]
		}}
		c := NewClient(4096, 1, ClientOptions{InOrder: true, LocationCacheEntries: 16})
		c.view.Store(&view{rowWords: 4, rowBlock: 8, geo: geometry{2, 4}, chunks: []uint64{1 << 12}})
		c.sawBuckets(1 + r.Uint64N(6))
		seen[lookup(t, c, conn, key).Status]++
		_ = c.Maintain(context.Background(), conn)
	}
	t.Logf("%v", seen)
	for _, s := range []index.Status{index.Found, index.NotFound, index.Locked, index.Fallback, index.Failed} {
		if seen[s] == 0 {
			t.Errorf("no lookup ended as %v", s)
		}
	}
}

// TestFlippedWordsAreNeverBelieved: with checksums, one word changed in what
// is served may cost the answer but never makes a wrong one.
func TestFlippedWordsAreNeverBelieved(t *testing.T) {
	x := newBench(t, Options{RowWords: 3}, ClientOptions{}, true)
	for k := range uint64(3000) {
		if err := x.s.Load(index.Num(k), []uint64{k, k, k}, block.Present(block.NewCSN(1, k+1))); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	flipped := 0
	conn := &hostile{serve: func(wr *rdma.WR) {
		x.region.Read(wr.Addr, wr.Buf)
		wr.Status = rdma.StatusOK
		if r.IntN(3) == 0 {
			flipped++
			// The lock bit alone may be believed: it makes no answer.
			wr.Buf[r.IntN(len(wr.Buf))] ^= 1 << r.IntN(63)
		}
	}}
	for k := range uint64(6000) {
		switch res := lookup(t, x.c, conn, k); res.Status {
		case index.Found:
			if k >= 3000 || res.Row[0] != k || res.Row[1] != k || res.Row[2] != k {
				t.Fatalf("key %d: found %v", k, res.Row)
			}
		case index.NotFound:
			if k < 3000 {
				t.Fatalf("key %d: reported absent", k)
			}
		}
	}
	if flipped < 1000 {
		t.Fatalf("only %d words flipped", flipped)
	}
}

// outOfOrder does not promise to read in order.
type outOfOrder struct{ rdma.Conn }

func (outOfOrder) InOrder() bool { return false }

// TestMaintainWaitsForTheRoot reads the root block while the thread that writes it does
// not run, for longer than a few hundred READs take.
func TestMaintainWaitsForTheRoot(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	root := x.s.arena.Span(x.s.root, rootWords)
	header := root.Load(block.HeaderWord)
	root.Store(block.HeaderWord, uint64(block.Header(header).Lock()))
	reads := 0
	conn := &hostile{serve: func(wr *rdma.WR) {
		if reads++; reads == 2*maintainAttempts*3/4 {
			root.Store(block.HeaderWord, header)
		}
		x.region.Read(wr.Addr, wr.Buf)
		wr.Tail, wr.Status = wr.Buf[0], rdma.StatusOK
	}}
	began := time.Now()
	c := NewClient(x.s.Root(), x.c.rkey, ClientOptions{InOrder: true})
	if err := c.Maintain(context.Background(), conn); err != nil || c.Stale() {
		t.Fatal(err)
	}
	if least := maintainPause * (maintainAttempts*3/4 - maintainSpins - 1); time.Since(began) < least {
		t.Errorf("the READs were made within %v, want at least %v between them", time.Since(began), least)
	}
	root.Store(block.HeaderWord, uint64(block.Header(header).Lock()))
	ctx, cancel := context.WithCancel(context.Background())
	reads = 0
	conn.serve = func(wr *rdma.WR) {
		reads++
		cancel() // a connection need not look at the context
		x.region.Read(wr.Addr, wr.Buf)
		wr.Tail, wr.Status = wr.Buf[0], rdma.StatusOK
	}
	if err := c.Maintain(ctx, conn); !errors.Is(err, context.Canceled) || reads > 2 {
		t.Errorf("canceled within the first READs: %v after %d", err, reads)
	}
}

// TestForeignRoot: Maintain refuses what is not its index and stays stale.
func TestForeignRoot(t *testing.T) {
	x := newBench(t, Options{RowWords: 1}, ClientOptions{}, false)
	for _, root := range []uint64{0, 64, x.s.dir, x.s.bucketAddr(3)} {
		c := NewClient(root, x.c.rkey, ClientOptions{InOrder: true})
		if err := c.Maintain(context.Background(), x.conn); !errors.Is(err, index.ErrCorrupt) || !c.Stale() {
			t.Errorf("root %#x: %v", root, err)
		}
		if res := lookup(t, c, x.conn, 1); res.Status != index.Fallback {
			t.Errorf("root %#x: %v", root, res.Status)
		}
	}
	unordered := outOfOrder{x.conn}
	if err := NewClient(x.s.Root(), x.c.rkey, ClientOptions{InOrder: true}).Maintain(context.Background(), unordered); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("in-order client over a connection out of order: %v", err)
	}
	c := NewClient(1<<40, x.c.rkey, ClientOptions{InOrder: true})
	if err := c.Maintain(context.Background(), x.conn); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("root outside the region: %v", err)
	}
}
