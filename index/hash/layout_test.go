package hash

import (
	"math/rand/v2"
	"testing"
)

func TestHashIsFixedAndInvertible(t *testing.T) {
	// Other processes hash too: these values may never change.
	for key, want := range map[uint64]uint64{0: 0, 1: 0x5692161d100b05e5, ^uint64(0): 0xb4d055fcf2cbbd7b} {
		if got := hashKey(key); got != want {
			t.Errorf("hash of %d is %#x, want %#x", key, got, want)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		if k := r.Uint64(); Unhash(hashKey(k)) != k {
			t.Fatalf("key %d does not come back", k)
		}
	}
}

// TestLinearHashingArithmetic checks every bucket count up to a bound against
// a model that splits sets of hashes.
func TestLinearHashingArithmetic(t *testing.T) {
	const bits = 8
	home := make([]uint64, 1<<bits) // hash → bucket
	level := []uint8{0}
	for n := uint64(1); n < 1<<(bits-1); n++ {
		for h := range home {
			hash := uint64(h)
			b := bucketOf(hash, n)
			if b != home[h] {
				t.Fatalf("%d buckets: hash %d is in %d, want %d", n, h, b, home[h])
			}
			if levelOf(b, n) != level[b] || !covers(b, level[b], hash) {
				t.Fatalf("%d buckets: bucket %d has level %d, want %d", n, b, levelOf(b, n), level[b])
			}
		}
		for b := range n {
			for l := uint8(0); l <= bits; l++ {
				if reached := levelOf(b, n) >= l; b < 1<<l && reached != (n >= bucketsAtLeast(b, l)) {
					t.Fatalf("%d buckets: bucket %d at level %d needs %d", n, b, l, bucketsAtLeast(b, l))
				}
			}
		}
		from := bucketOf(n, n)
		level[from]++
		level = append(level, level[from])
		if level[from] != levelOf(n, n+1) {
			t.Fatalf("split into bucket %d: level %d, want %d", n, levelOf(n, n+1), level[from])
		}
		for h := range home {
			if home[h] == from && covers(n, level[n], uint64(h)) {
				home[h] = n
			}
		}
	}
}

func TestGeometry(t *testing.T) {
	for _, g := range []geometry{{0, 0}, {0, 3}, {4, 4}, {2, 5}} {
		chunk, place := uint64(0), uint64(0)
		for b := range uint64(500) {
			if place == g.buckets(chunk) {
				chunk, place = chunk+1, 0
			}
			if c, p := g.locate(b); c != chunk || p != place {
				t.Fatalf("%+v: bucket %d is at %d.%d, want %d.%d", g, b, c, p, chunk, place)
			}
			if g.capacity(chunk) > b || g.capacity(chunk+1) <= b {
				t.Fatalf("%+v: capacities %d, %d around bucket %d", g, g.capacity(chunk), g.capacity(chunk+1), b)
			}
			place++
		}
	}
}

func TestLocationsAreHints(t *testing.T) {
	var l locations
	if l.put(1, 64); l.get(1) != 0 {
		t.Fatal("a cache of no entries remembers")
	}
	l.init(1)
	for i := range uint64(100) {
		h := hashKey(i)
		l.put(h, 64*(i+1))
		if got := l.get(h); got != 64*(i+1) {
			t.Fatalf("key %d: %d", i, got)
		}
		l.put(h, 64*(i+2))
		l.drop(h, 64*(i+1))
		if got := l.get(h); got != 64*(i+2) {
			t.Fatalf("key %d: %d after a move", i, got)
		}
		l.drop(h, 64*(i+2))
		if got := l.get(h); got != 0 {
			t.Fatalf("key %d: %d after drop", i, got)
		}
	}
}
