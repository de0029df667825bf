package xmodel

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func wordsOf(b []byte) []uint64 {
	w := make([]uint64, len(b)/8)
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

func bytesOf(w []uint64) []byte {
	var b []byte
	for _, x := range w {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

// seedBlocks are encoded sub-models of many shapes.
func seedBlocks(t interface{ Fatal(...any) }) [][]uint64 {
	var blocks [][]uint64
	r := rand.New(rand.NewPCG(11, 1))
	for _, d := range distributions {
		l := fillLeaves(r, d.make(r, 1500))
		for i := range l.alns {
			if i%20 == 7 {
				l.alns[i] = 70000 + uint32(i)
			}
		}
		for _, opt := range []Options{{Family: RMI}, {Family: PLR, ErrorLeaves: 1, LeavesPerSegment: 4}, {CorrectionBits: -1}, {CorrectionBits: 16}} {
			blocks = append(blocks, trainOne(t, opt, l).AppendTo(nil))
		}
	}
	one := leafSet{[]uint64{3}, []uint32{4}, [][]uint64{{5}}}
	return append(blocks, trainOne(t, Options{}, one).AppendTo(nil))
}

// probeSubModel uses every reader of a decoded sub-model; it must stay within
// its leaves whatever the words were.
func probeSubModel(t *testing.T, s *SubModel, words []uint64) {
	t.Helper()
	bare := *s
	bare.flags &^= flagTT
	keys := []uint64{0, math.MaxUint64, s.Start(), s.anchor, s.anchor - 1, s.anchor + 1}
	for i := range uint(64) {
		keys = append(keys, s.anchor+1<<i, s.Start()+1<<i)
	}
	for _, w := range words {
		keys = append(keys, w)
	}
	inRange := func(p Prediction) {
		if p.Lo < 0 || p.Leaf < p.Lo || p.Hi < p.Leaf || p.Hi >= s.Leaves() {
			t.Fatalf("prediction %+v of %d leaves", p, s.Leaves())
		}
	}
	for _, k := range keys {
		inRange(s.Predict(k))
		p := bare.Predict(k)
		inRange(p)
		off, n := s.TTWindow(p.Lo, p.Hi)
		if s.HasTT() {
			got, err := bare.Resolve(k, p, words[off:off+n])
			if err != nil {
				t.Fatal(err)
			}
			inRange(got)
		}
	}
	for _, i := range []int{-1, 0, s.Leaves(), math.MaxInt, math.MinInt} {
		s.ALN(i)
		s.TTWindow(i, i)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range seedBlocks(f) {
		f.Add(bytesOf(b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		words := wordsOf(data)
		var s, h SubModel
		err, headErr := s.Decode(words), h.DecodeHead(words)
		if err == nil {
			if !slices.Equal(s.AppendTo(nil), words) {
				t.Fatal("decoded words encode differently")
			}
			probeSubModel(t, &s, words)
		} else if !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		if headErr == nil {
			probeSubModel(t, &h, words)
		} else if err == nil || !errors.Is(headErr, ErrCorrupt) {
			t.Fatal(err, headErr)
		}
	})
}

func FuzzDecodeRouter(f *testing.F) {
	for _, starts := range [][]uint64{{0}, {5, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1 << 63}} {
		r, err := NewRouter(starts)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytesOf(r.AppendTo(nil)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		words := wordsOf(data)
		var r Router
		if err := r.Decode(words); err != nil {
			if !errors.Is(err, ErrCorrupt) || r.Len() != 1 {
				t.Fatal(err)
			}
			return
		}
		if !slices.Equal(r.AppendTo(nil), words) {
			t.Fatal("decoded words encode differently")
		}
		for _, k := range append(words, 0, math.MaxUint64) {
			i := r.Route(k)
			if i < 0 || i >= r.Len() || i > 0 && r.Start(i) > k || i+1 < r.Len() && r.Start(i+1) <= k {
				t.Fatalf("key %d routed to %d", k, i)
			}
		}
	})
}

// TestMangledBlocks flips bits of valid blocks, which gets further into the
// readers than blind fuzzing.
func TestMangledBlocks(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	var s SubModel
	decoded := 0
	for _, block := range seedBlocks(t) {
		for range 150 {
			b := slices.Clone(block)
			for range 1 + r.IntN(4) {
				b[r.IntN(min(len(b), 1+r.IntN(len(b))))] ^= 1 << r.IntN(64)
			}
			b = b[:len(b)-max(0, r.IntN(20)-18)]
			switch err := s.Decode(b); {
			case err == nil:
				decoded++
				probeSubModel(t, &s, b)
			case !errors.Is(err, ErrCorrupt):
				t.Fatal(err)
			}
		}
	}
	if decoded == 0 {
		t.Fatal("no mangled block decoded: the readers were not tried")
	}
}

// TestHostileSizes: counts in a header must not cause allocation.
func TestHostileSizes(t *testing.T) {
	words := make([]uint64, headerWords)
	words[0] = formatSub<<56 | uint64(PLR)<<48 | MaxLeaves<<32 | (MaxLeaves-1)<<16 | MaxLeaves
	words[4] = 16<<16 | 6<<8 | 32
	var s SubModel
	if err := s.Decode(words); !errors.Is(err, ErrCorrupt) || cap(s.body) > 0 {
		t.Fatalf("%v, allocated %d words", err, cap(s.body))
	}
	var r Router
	if err := r.Decode([]uint64{formatRoute<<56 | 1<<31, 0}); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}
