package inner

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
)

// blockOf returns the words of a node's block, without header and checksum.
func blockOf(n *Node, id uint32) []uint64 {
	return n.AppendBody(make([]uint64, block.BodyWord), id)
}

// TestRoundTrip: a node of any number of children is decoded as it was.
func TestRoundTrip(t *testing.T) {
	for count := 1; count <= Fanout; count++ {
		n := Node{Level: count % DepthMax, Bounded: count%2 == 0, High: uint64(count) << 33}
		for i := range uint64(count) {
			n.Lows, n.Children = append(n.Lows, i<<32), append(n.Children, i*64)
		}
		b := blockOf(&n, 7)
		if len(b) != Words {
			t.Fatalf("a block of %d words, want %d", len(b), Words)
		}
		got, err := Decode(b, 7)
		if err != nil || got.Level != n.Level || got.Bounded != n.Bounded || got.High != n.High ||
			!slices.Equal(got.Lows, n.Lows) || !slices.Equal(got.Children, n.Children) {
			t.Fatalf("%+v is decoded as %+v, %v", n, got, err)
		}
		if _, err := Decode(b, 8); !errors.Is(err, index.ErrCorrupt) {
			t.Fatalf("the node of another index is decoded: %v", err)
		}
	}
}

// TestSearchIsThatOfTheList: a search finds what a walk over the fences finds.
func TestSearchIsThatOfTheList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for count := 1; count <= Fanout; count++ {
		lows := make([]uint64, count)
		for i := range lows {
			lows[i] = r.Uint64N(uint64(4 * count))
		}
		slices.Sort(lows)
		lows = slices.Compact(lows)
		n := Node{Lows: lows}
		for key := range uint64(4*count + 1) {
			want := 0
			for i, low := range lows {
				if low <= key {
					want = i
				}
			}
			if got := n.Search(key); got != want {
				t.Fatalf("%d among %v: child %d, want %d", key, lows, got, want)
			}
		}
	}
}

// FuzzDecode: any block is refused, or leads a search to one of its children.
func FuzzDecode(f *testing.F) {
	n := Node{Level: 1, Bounded: true, High: 9, Lows: []uint64{1, 5}, Children: []uint64{64, 128}}
	b := blockOf(&n, 7)
	f.Add(b[shapeWord], b[highWord], b[lowsWord], uint64(3))
	f.Add(uint64(1)<<63|65, uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, shape, high, low, key uint64) {
		b := slices.Clone(b)
		b[shapeWord], b[highWord], b[lowsWord] = shape, high, low
		n, err := Decode(b, 7)
		if err != nil {
			return
		}
		if i := n.Search(key); i < 0 || i >= len(n.Children) || len(n.Children) != len(n.Lows) || n.Level >= DepthMax {
			t.Fatalf("shape %#x: child %d of %d, level %d", shape, i, len(n.Children), n.Level)
		}
		n.Covers(key)
	})
}
