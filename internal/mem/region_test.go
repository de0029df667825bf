package mem

import (
	"errors"
	"testing"
)

func newRegion(t *testing.T, k Kind) *Region {
	t.Helper()
	r, err := New(Options{Name: t.Name(), Kind: k, SegmentBytes: 1 << 16, MaxBytes: 4 << 16})
	if errors.Is(err, ErrNoMemfd) {
		t.Skipf("no memfd here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRegionGrowsBySegmentsAndChecksBounds(t *testing.T) {
	for _, k := range []Kind{Heap, Private, Shared} {
		r := newRegion(t, k)
		seg := r.SegmentBytes()
		for _, c := range []struct {
			off, n uint64
			ok     bool
		}{
			{0, 8, true},
			{0, seg, true},
			{8, seg, false},
			{seg - 8, 8, true},
			{seg - 8, 16, false},
			{seg, 8, false},
			{4, 8, false},
			{8, 4, false},
			{1 << 63, 8, false},
			{^uint64(7), 8, false},
			{8, ^uint64(7), false},
			{seg, 0, true},
			{0, 0, true},
		} {
			if _, ok := r.Span(c.off, c.n); ok != c.ok {
				t.Errorf("kind %d: Span(%d,%d) = %v, want %v", k, c.off, c.n, ok, c.ok)
			}
		}
		for i := uint64(1); i < 4; i++ {
			off, err := r.Grow()
			if err != nil || off != i*seg {
				t.Fatalf("kind %d: Grow = %d, %v", k, off, err)
			}
			s := r.MustSpan(off, seg)
			s.Store(0, i)
			s.Store(s.Words()-1, i)
		}
		if _, err := r.Grow(); !errors.Is(err, ErrFull) {
			t.Errorf("kind %d: Grow past the maximum: %v", k, err)
		}
		if _, ok := r.Span(seg-8, 16); ok {
			t.Errorf("kind %d: a span may straddle segments", k)
		}
	}
}

func TestCopyKeepsEveryWord(t *testing.T) {
	for _, k := range []Kind{Heap, Private} {
		r := newRegion(t, k)
		for n := 0; n < 40; n++ {
			src, dst := make([]uint64, n), make([]uint64, n)
			for i := range src {
				src[i] = uint64(i)*0x9e3779b97f4a7c15 + uint64(n)
			}
			s := r.MustSpan(128, 64*8)
			s.CopyIn(src)
			s.CopyOut(dst)
			for i := range src {
				if src[i] != dst[i] {
					t.Fatalf("n=%d word %d: %x != %x", n, i, dst[i], src[i])
				}
			}
		}
	}
}

func BenchmarkCopyOut(b *testing.B) {
	r, err := New(Options{Kind: Private})
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]uint64, 128)
	s := r.MustSpan(4096, 1024)
	b.SetBytes(1024)
	for b.Loop() {
		s.CopyOut(dst)
	}
}
