package mem

import (
	"errors"
	"testing"
)

// attach gives a reader the files that it lacks.
func attach(t *testing.T, reader, owner *Region) {
	t.Helper()
	for _, f := range owner.Files(reader.Size()) {
		if next, err := reader.Attach(f.Off, f.File); err != nil || next != reader.Size() {
			t.Fatalf("next %d of %d, %v", next, reader.Size(), err)
		}
	}
}

func TestSharedRegionOpensReadOnly(t *testing.T) {
	w := newRegion(t, Shared)
	r, err := Open(w.SegmentBytes(), w.MaxBytes())
	if err != nil {
		t.Fatal(err)
	}
	var got [1]uint64
	if r.Size() != 0 || r.Read(64, got[:]) {
		t.Fatal("read before a file was attached")
	}
	attach(t, r, w)
	w.MustSpan(64, 8).Store(0, 42)
	if !r.Read(64, got[:]) || got[0] != 42 {
		t.Fatalf("read %d", got[0])
	}
	off, err := w.Grow()
	if err != nil {
		t.Fatal(err)
	}
	w.MustSpan(off, 8).Store(0, 7)
	if r.Read(off, got[:]) {
		t.Fatal("size changed without Attach")
	}
	attach(t, r, w)
	if !r.Read(off, got[:]) || got[0] != 7 {
		t.Fatalf("after Attach read %d", got[0])
	}
	if _, err := r.Grow(); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Grow of a read-only region: %v", err)
	}
	if _, err := Open(3, 4); !errors.Is(err, ErrOptions) {
		t.Errorf("bad geometry: %v", err)
	}
	first := w.Files(0)[0]
	if next, err := r.Attach(0, first.File); err != nil || next != w.SegmentBytes() || r.Size() != 2*w.SegmentBytes() {
		t.Errorf("attached twice: next %d, size %d, %v", next, r.Size(), err)
	}
	for _, off := range []uint64{r.Size() + w.SegmentBytes(), w.MaxBytes(), ^uint64(0) &^ 7} {
		if _, err := r.Attach(off, first.File); !errors.Is(err, ErrOptions) {
			t.Errorf("attached at %d: %v", off, err)
		}
	}
	if _, err := w.Attach(2*w.SegmentBytes(), first.File); !errors.Is(err, ErrOptions) {
		t.Errorf("attached to the owner's region: %v", err)
	}
}

// A region of many segments has few files, which hold little more than it has.
func TestFilesOfALargeRegion(t *testing.T) {
	const segment, segments = 4096, 2048
	w, err := New(Options{Name: t.Name(), Kind: Shared, SegmentBytes: segment, MaxBytes: segments * segment})
	if errors.Is(err, ErrNoMemfd) {
		t.Skipf("no memfd here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(segment, segments*segment)
	if err != nil {
		t.Fatal(err)
	}
	for n := uint64(1); ; n++ {
		attach(t, r, w)
		if have := w.Size(); have != n*segment || r.Size() < have || r.Size() > have+have/fileShare {
			t.Fatalf("%d segments: %d bytes, %d in files", n, have, r.Size())
		}
		off := w.Size() - segment
		w.MustSpan(off, 8).Store(0, n)
		var got [1]uint64
		if !r.Read(off, got[:]) || got[0] != n {
			t.Fatalf("segment %d has %d", n, got[0])
		}
		if n == segments {
			break
		}
		if _, err := w.Grow(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.Files(0)); n > 8*fileShare {
		t.Errorf("%d segments are in %d files", segments, n)
	}
}
