package model

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/keysets"
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
	blocks := plainBlocks(t)
	for _, spread := range []uint32{1, 1 << 20} { // narrow and wide
		l := splitLeaves(spread)
		blocks = append(blocks, trainOne(t, Options{}, l).AppendTo(nil))
	}
	return append(blocks, trainOne(t, Options{}, clusters(4)).AppendTo(nil))
}

func plainBlocks(t interface{ Fatal(...any) }) [][]uint64 {
	var blocks [][]uint64
	r := rand.New(rand.NewPCG(11, 1))
	for _, d := range keysets.All {
		l := fillLeaves(r, d.Draw(r, 1500))
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
	bare.DropTT()
	keys := []uint64{0, math.MaxUint64, s.Start(), s.anchor, s.anchor - 1, s.anchor + 1}
	for i := range uint(64) {
		keys = append(keys, s.anchor+1<<i, s.Start()+1<<i)
	}
	keys = append(keys, words...)
	inRange := func(p Prediction) {
		if p.Lo < 0 || p.Leaf < p.Lo || p.Hi < p.Leaf || p.Hi >= s.Leaves() {
			t.Fatalf("prediction %+v of %d leaves", p, s.Leaves())
		}
	}
	wide := unpackedCopy(s)
	for _, k := range keys {
		inRange(s.Predict(k))
		inRange(wide.Predict(k))
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
		if wide.ALN(i) != s.ALN(i) {
			t.Fatalf("leaf %d: ALN %d unpacked, %d packed", i, wide.ALN(i), s.ALN(i))
		}
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
		} else if !errors.Is(err, index.ErrCorrupt) {
			t.Fatal(err)
		}
		if headErr == nil {
			probeSubModel(t, &h, words)
		} else if err == nil || !errors.Is(headErr, index.ErrCorrupt) {
			t.Fatal(err, headErr)
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
			case !errors.Is(err, index.ErrCorrupt):
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
	if err := s.Decode(words); !errors.Is(err, index.ErrCorrupt) || cap(s.body) > 0 {
		t.Fatalf("%v, allocated %d words", err, cap(s.body))
	}
}

// TestDecodeRejects damages one field of a valid block at a time.
func TestDecodeRejects(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	l := fillLeaves(r, keysets.Uniform(r, 2000))
	l.alns[5], l.alns[9] = 1<<30, 1<<31
	good := trainOne(t, Options{ErrorLeaves: 1, LeavesPerSegment: 4, WrongShare: 1e-9}, l).AppendTo(nil)
	var s SubModel
	if err := s.Decode(good); err != nil || s.Segments() < 2 || s.exceptions() != 2 {
		t.Fatalf("%v, %d segments, %d exceptions", err, s.Segments(), s.exceptions())
	}
	put := func(i, shift, width int, v uint64) func([]uint64) {
		return func(b []uint64) {
			b[i] = b[i]&^((1<<width-1)<<shift) | v<<shift
		}
	}
	exc := s.HeadWords() - 2
	for name, damage := range map[string]func([]uint64){
		"format":               put(0, 56, 8, 1),
		"family":               put(0, 48, 8, 3),
		"no leaves":            put(0, 32, 16, 0),
		"too many leaves":      put(0, 32, 16, MaxLeaves+1),
		"fewer leaves":         put(0, 32, 16, 3),
		"more leaves":          put(0, 32, 16, 200),
		"no segments":          put(0, 16, 16, 0),
		"as many as leaves":    put(0, 16, 16, uint64(s.Leaves())),
		"RMI of many segments": put(0, 48, 8, uint64(RMI)),
		"exceptions":           put(0, 0, 16, MaxLeaves),
		"exceptions, no bits":  put(4, 0, 8, 0),
		"residuals":            put(3, 32, 32, 1<<31-1),
		"reserved":             put(4, 24, 8, 1),
		"correction bits":      put(4, 16, 8, correctionBitsMax+1),
		"correction shift":     put(4, 8, 8, shiftMax+1),
		"bits without shift":   put(4, 8, 8, 0),
		"ALN bits":             put(4, 0, 8, 33),
		"start":                put(1, 0, 63, 1<<63-1),
		"segment keys":         func(b []uint64) { b[headerWords+1] = b[headerWords] },
		"exceptions fall":      func(b []uint64) { b[exc], b[exc+1] = b[exc+1], b[exc] },
		"exception beyond":     put(exc+1, 32, 32, uint64(s.Leaves())),
		"segment lines fall":   put(headerWords+s.Segments()+1, 0, baseBits, 1<<(baseBits-1)),
	} {
		b := slices.Clone(good)
		damage(b)
		if err := s.Decode(b); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	shape := func(leaves, segments, exceptions uint64) uint64 {
		return formatSub<<56 | uint64(PLR)<<48 | leaves<<32 | segments<<16 | exceptions
	}
	for name, b := range map[string][]uint64{
		"one leaf, a segment":     {shape(1, 1, 0), 0, 0, 0, 0, 5, 0},
		"an exception of no bits": {shape(2, 1, 1), 0, 0, 0, 0, 5, 0, 1<<32 | 9},
	} {
		if err := s.Decode(b); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := range len(good) {
		if err := s.Decode(good[:n]); !errors.Is(err, index.ErrCorrupt) {
			t.Fatalf("%d of %d words: %v", n, len(good), err)
		}
	}
	if !slices.Equal(s.AppendTo(nil), good) {
		t.Error("a failed Decode changed the sub-model")
	}
}

// TestFetchedWordsChecked: what a READ brought is of the size asked for, or
// refused.
func TestFetchedWordsChecked(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	s := trainOne(t, Options{}, fillLeaves(r, keysets.Uniform(r, 2000)))
	p := s.Predict(s.anchor + 1<<60)
	for _, bad := range []Prediction{{Lo: -1, Hi: 2}, {Lo: 3, Hi: 2}, {Lo: 0, Hi: s.Leaves()}} {
		for n := range 8 {
			if _, err := s.Resolve(1<<60, bad, make([]uint64, n)); !errors.Is(err, index.ErrCorrupt) {
				t.Errorf("window %d to %d of %d words: %v", bad.Lo, bad.Hi, n, err)
			}
		}
	}
	if _, err := s.Resolve(1<<60, p, make([]uint64, 99)); !errors.Is(err, index.ErrCorrupt) {
		t.Error(err)
	}
}
