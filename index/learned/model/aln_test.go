package model

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/keysets"
)

// splitLeaves are leaves of which every other one was split off, in random
// order, to extents of 8 for 64 leaves, which lie spread numbers apart.
func splitLeaves(spread uint32) leafSet {
	r := rand.New(rand.NewPCG(9, 1))
	l := fillLeaves(r, keysets.Uniform(r, 12000))
	const around = 64
	extent := uint32(1 << 10)
	for from := 0; from < len(l.alns); from += around {
		var split []int
		for i := from; i < min(from+around, len(l.alns)); i++ {
			if l.alns[i] = uint32(i / 2); i%2 == 1 {
				split = append(split, i)
			}
		}
		r.Shuffle(len(split), func(i, j int) { split[i], split[j] = split[j], split[i] })
		for k, i := range split {
			if k%8 == 0 {
				extent += spread * (1 + r.Uint32N(16))
			}
			l.alns[i] = extent*8 + uint32(k%8)
		}
	}
	return l
}

// TestExtents: a sub-model that lists extents names every leaf, encoded and
// decoded, with and without its TT, and takes less than one without the list.
func TestExtents(t *testing.T) {
	for _, spread := range []uint32{1, 1 << 20} {
		l := splitLeaves(spread)
		s := trainOne(t, Options{}, l)
		if s.extentShift() == 0 {
			t.Fatalf("spread %d: extents of 1<<%d", spread, s.extentShift())
		}
		if bits := 8 * s.TTBytes() / s.Leaves(); bits > 18 {
			t.Errorf("spread %d: TT of %d bits a leaf", spread, bits)
		}
		words := s.AppendTo(nil)
		var d, head SubModel
		if err := d.Decode(words); err != nil {
			t.Fatal(err)
		}
		if err := head.DecodeHead(words[:s.HeadWords()]); err != nil {
			t.Fatal(err)
		}
		for i, aln := range l.alns {
			if s.ALN(i) != aln || d.ALN(i) != aln {
				t.Fatalf("leaf %d: ALN %d, decoded %d, want %d", i, s.ALN(i), d.ALN(i), aln)
			}
		}
		for i, keys := range l.keys {
			for _, k := range keys {
				p := head.Predict(k)
				at, n := head.TTWindow(p.Lo, p.Hi)
				q, err := head.Resolve(k, p, words[at:at+n])
				if err != nil || q != d.Predict(k) || q.ALN != l.alns[q.Leaf] || q.Lo > i || q.Hi < i {
					t.Fatalf("key %d of leaf %d: %+v, %v", k, i, q, err)
				}
			}
		}
		// A retrained sub-model keeps nothing of the list.
		for i := range l.alns {
			l.alns[i] = uint32(i)
		}
		if s = trainOne(t, Options{}, l); s.extentShift() != 0 || s.exceptions() != 0 {
			t.Error("leaves in order listed by extents")
		}
	}
}

// TestHostileExtents: damaged lists are refused, or harmless.
func TestHostileExtents(t *testing.T) {
	good := trainOne(t, Options{}, splitLeaves(1)).AppendTo(nil)
	var s SubModel
	if err := s.Decode(good); err != nil {
		t.Fatal(err)
	}
	list := s.HeadWords() - s.exceptions()
	mode := func(m uint64) func([]uint64) {
		return func(b []uint64) { b[4] = b[4]&^(0xff<<24) | m<<24 }
	}
	shape := func(at, width uint, d uint64) func([]uint64) {
		return func(b []uint64) { b[2] = b[2]&^(low(width)<<at) | (b[2]>>at+d)&low(width)<<at }
	}
	for name, damage := range map[string]func([]uint64){
		"too small":           mode(extentShiftMin - 1),
		"too large":           mode(extentShiftMax + 1),
		"reserved":            mode(1<<4 | 3),
		"more than bits":      func(b []uint64) { b[4] = b[4]&^0xff | 2 },
		"lowest extent":       func(b []uint64) { b[list] |= 1 << 63 },
		"step":                func(b []uint64) { b[list+1] |= 64 },
		"words of the list":   shape(0, 10, 1),
		"reserved, of blocks": shape(11, 4, 1),
		"numbers too wide":    shape(15, 6, 33),
		"blocks too short":    func(b []uint64) { b[2] = b[2]&^(2047<<21) | 40<<21 },
		"blocks too long":     func(b []uint64) { b[2] |= 2047 << 21 },
	} {
		b := slices.Clone(good)
		damage(b)
		if err := s.Decode(b); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := rand.New(rand.NewPCG(9, 2))
	for range 2000 {
		b := slices.Clone(good)
		b[list] = b[list]>>32<<32 | r.Uint64()>>32 // slope and bias
		b[2] ^= r.Uint64N(2) << 10                 // wide
		for range r.IntN(8) {
			b[list+listHead+r.IntN(len(b)-list-listHead)] = r.Uint64()
		}
		if r.IntN(2) == 0 {
			mode(extentShiftMin + r.Uint64N(2))(b)
		}
		if err := s.Decode(b); err != nil {
			t.Fatal(err)
		}
		for i := range s.Leaves() {
			s.ALN(i)
		}
	}
}
