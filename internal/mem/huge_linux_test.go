package mem

import (
	"errors"
	"sync"
	"testing"
)

// A region's words stay what they are, for its writer and for readers, while
// the kernel replaces the pages below them.
func TestPagesAreReplacedUnderUse(t *testing.T) {
	for _, k := range []Kind{Private, Shared} {
		r, err := New(Options{Name: t.Name(), Kind: k, SegmentBytes: hugeBytes, MaxBytes: 8 * hugeBytes})
		if errors.Is(err, ErrNoMemfd) {
			t.Skipf("no memfd here: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if uintptr(r.base)%hugeBytes != 0 {
			t.Errorf("kind %d: mapped at %p, not at a multiple of %d", k, r.base, hugeBytes)
		}
		reader := r
		if k == Shared {
			if reader, err = Open(r.SegmentBytes(), r.MaxBytes()); err != nil {
				t.Fatal(err)
			}
			attach(t, reader, r)
		}
		var wg sync.WaitGroup
		for n := uint64(1); n <= r.MaxBytes()/r.SegmentBytes(); n++ {
			off := r.Size() - r.SegmentBytes()
			s := r.MustSpan(off, r.SegmentBytes())
			wg.Go(func() { // writes while the next segment is asked for
				for i := range s.Words() {
					s.Store(i, off+uint64(i))
				}
			})
			if n < r.MaxBytes()/r.SegmentBytes() {
				if _, err := r.Grow(); err != nil {
					t.Fatal(err)
				}
			}
		}
		wg.Wait()
		r.collapse(0, r.Size()) // after those under way, with all pages there
		if reader != r {
			attach(t, reader, r)
		}
		for off := uint64(0); off < r.Size(); off += r.SegmentBytes() {
			s := reader.MustSpan(off, r.SegmentBytes())
			for i := range s.Words() {
				if got := s.Load(i); got != off+uint64(i) {
					t.Fatalf("kind %d: word %d of segment %#x is %#x, want %#x", k, i, off, got, off+uint64(i))
				}
			}
		}
	}
}
