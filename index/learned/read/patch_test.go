package read

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/testseed"
)

// plainPatch is what a patch should know: with is for one leaf after the other.
type plainPatch []patchLeaf

func (p plainPatch) with(l patchLeaf) (q plainPatch) {
	at := -1
	for _, o := range p {
		if below(o.low, l.low) {
			if !o.bounded || below(l.low, o.high) {
				o.high, o.bounded = l.low, true
			}
			q = append(q, o)
			continue
		}
		if at < 0 {
			at = len(q)
			q = append(q, l)
		}
		if l.bounded && !below(o.low, l.high) {
			q = append(q, o)
		}
	}
	if at < 0 {
		q = append(q, l)
	}
	return q
}

func (p plainPatch) leafFor(key index.Key, pred int) (addr uint64, ok bool) {
	for i := len(p) - 1; i >= 0; i-- {
		if l := p[i]; !below(key, l.low) {
			return l.addr, !l.bounded || below(key, l.high) || l.from == pred
		}
	}
	return 0, false
}

// TestPatch: whatever the keys, a patch leads where one would that keeps a single
// list and compares whole keys. There are too few leaves for it to forget any.
func TestPatch(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	keys := map[string]func() index.Key{
		"native":   func() index.Key { return index.Num(r.Uint64N(100)) },
		"prefix":   func() index.Key { return index.Str(fmt.Sprintf("user%06d", r.IntN(100))) },
		"long tie": func() index.Key { return index.Str(fmt.Sprintf("u%020d", r.IntN(100))) },
		"bytes": func() index.Key {
			b := make([]byte, r.IntN(5))
			for i := range b {
				b[i] = byte(r.IntN(3)) * 127
			}
			return index.Str(string(b))
		},
	}
	for name, key := range keys {
		p, plain := &patch{}, plainPatch(nil)
		for range 1000 {
			l := patchLeaf{low: key(), high: key(), bounded: true, addr: r.Uint64(), from: r.IntN(3)}
			if below(l.high, l.low) {
				l.low, l.high = l.high, l.low
			}
			if l.high == l.low {
				l.bounded = false
			}
			p, plain = p.with(l), plain.with(l)
			for range 20 {
				k, pred := key(), r.IntN(3)
				addr, ok := p.leafFor(p.place(k), k, pred)
				if wantAddr, want := plain.leafFor(k, pred); ok != want || ok && addr != wantAddr {
					t.Fatalf("%s: %v leads to %#x, %v; want %#x, %v of\n%+v", name, k, addr, ok, wantAddr, want, plain)
				}
				after := slices.IndexFunc(plain, func(l patchLeaf) bool { return below(k, l.low) })
				if after < 0 {
					after = len(plain)
				}
				if got := leavesAfter(p, k); !slices.Equal(got, addrsOf(pointers(plain[after:]))) {
					t.Fatalf("%s: after %v come %x, want those of\n%+v", name, k, got, plain[after:])
				}
			}
		}
	}
}

// leavesAfter returns the addresses of the leaves that a scan READs ahead from a key on.
func leavesAfter(p *patch, key index.Key) (addrs []uint64) {
	var c freshCursor
	c.of, c.at = p, p.place(key)
	for l, late := c.leaf(); l != nil; l, late = c.leaf() {
		addrs = append(addrs, l.addr)
		c.skip(late)
	}
	return addrs
}

func addrsOf(leaves []*patchLeaf) (addrs []uint64) {
	for _, l := range leaves {
		addrs = append(addrs, l.addr)
	}
	return addrs
}

func valuesOf(leaves []*patchLeaf) (values []patchLeaf) {
	for _, l := range leaves {
		values = append(values, *l)
	}
	return values
}

// TestPatchForgets: of too many leaves those near the newest one are kept.
func TestPatchForgets(t *testing.T) {
	p := &patch{}
	for i := range uint64(10_000) {
		l := patchLeaf{low: index.Num(10 * i), high: index.Num(10*i + 10), bounded: true, addr: i}
		p = p.with(l)
		if n := len(p.before.leaves) + len(p.lately.leaves); n > patchMax+latelyMax {
			t.Fatalf("%d leaves after %d", n, i+1)
		}
		for back := range min(i+1, patchMax/4) {
			if addr, ok := p.leafFor(p.place(index.Num(10*(i-back)+5)), index.Num(10*(i-back)+5), -1); !ok || addr != i-back {
				t.Fatalf("after leaf %d, that of leaf %d is %d, %v", i, i-back, addr, ok)
			}
		}
	}
}

// TestListOfHotSubModel: the list of a sub-model with a tail list leads where one
// would that compares whole keys, and lists that readers still hold do not change
// while it grows.
func TestListOfHotSubModel(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	keys := map[string]func(i int) index.Key{
		"native":  func(i int) index.Key { return index.Num(uint64(i)) },
		"strings": func(i int) index.Key { return index.Str(fmt.Sprintf("user%d", 900+i)) },
		"ties":    func(i int) index.Key { return index.Str(fmt.Sprintf("%03d%020d", i/8, i)) },
	}
	for name, key := range keys {
		for range 20 {
			var s leafList
			plain, top := plainPatch(nil), 0
			type held struct {
				list leafList
				copy []patchLeaf
			}
			var olds []held
			for range 50 {
				var batch []patchLeaf
				for range 1 + r.IntN(8) {
					low := top + 1 + r.IntN(3)
					if r.IntN(8) == 0 {
						low = r.IntN(top + 1) // a leaf in the middle was split
					}
					top = max(top, low)
					l := patchLeaf{low: key(low), high: key(2000), bounded: true, addr: r.Uint64(), from: r.IntN(3)}
					for _, o := range plain { // it ends where the next one begins, as after a split
						if below(l.low, o.low) && below(o.low, l.high) {
							l.high = o.low
						}
					}
					batch, plain = append(batch, l), plain.with(l)
				}
				s = s.grown(pointers(batch)...)
				olds = append(olds, held{s, valuesOf(s.leaves)})
				for range 20 {
					k := key(r.IntN(top + 3))
					var want uint64
					addr, ok := plain.leafFor(k, -1)
					if ok {
						want = addr
					}
					var got uint64
					if l := s.last(k); l != nil && l.reaches(k) {
						got = l.addr
					}
					for j, l := range s.leaves {
						if ends := s.endsBefore(j, k); ends && l.reaches(k) || !ends && name == "native" && !l.reaches(k) {
							t.Fatalf("%s: leaf %+v ends before %v: %v", name, l, k, ends)
						}
					}
					if got != want {
						t.Fatalf("%s: %v leads to %#x, want %#x", name, k, got, want)
					}
				}
			}
			for i, o := range olds {
				if !slices.Equal(valuesOf(o.list.leaves), o.copy) || len(o.list.briefs) != len(o.copy) {
					t.Fatalf("%s: list %d has changed", name, i)
				}
				for j := range o.copy {
					if e, ok := o.list.briefOf(&o.copy[j]); !ok || e != o.list.briefs[j] {
						t.Fatalf("%s: list %d, leaf %d: %+v, want %+v", name, i, j, o.list.briefs[j], e)
					}
				}
			}
		}
	}
}

// TestListOfHotSubModelForgets: it has a bound, and keeps what is near the newest leaf.
func TestListOfHotSubModelForgets(t *testing.T) {
	var s leafList
	for i := range uint64(3 * freshMax) {
		s = s.grown(&patchLeaf{low: index.Num(10 * i), high: index.Num(1 << 20), bounded: true, addr: i})
		if len(s.leaves) > freshMax {
			t.Fatalf("%d leaves after %d", len(s.leaves), i+1)
		}
		for back := range min(i+1, freshMax/4) {
			if l := s.last(index.Num(10*(i-back) + 5)); l == nil || l.addr != i-back {
				t.Fatalf("after leaf %d, that of leaf %d is %+v", i, i-back, l)
			}
		}
	}
}
