package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newControl(t *testing.T, size uint64) *Control {
	t.Helper()
	c, err := NewControl(t.Name(), size)
	if errors.Is(err, ErrNoMemfd) {
		t.Skipf("no memfd here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestControlIsSharedAndOfFixedSize(t *testing.T) {
	page := uint64(os.Getpagesize())
	a := newControl(t, 4*page)
	f := a.File()
	for _, size := range []int64{0, int64(page), int64(8 * page)} {
		if err := f.Truncate(size); err == nil {
			t.Errorf("a peer truncated the segment to %d bytes", size)
		}
	}
	if _, err := OpenControl(f, page); !errors.Is(err, ErrNotControl) {
		t.Errorf("opening with another size: %v", err)
	}
	b, err := OpenControl(f, 4*page)
	if err != nil {
		t.Fatal(err)
	}
	sa, sb := a.Span(0, 4*page), b.Span(0, 4*page)
	sa.Store(3, 7)
	if got := sb.Or(3, 8); got != 7 {
		t.Errorf("Or returned %d, want 7", got)
	}
	if got := sa.Swap(3, 0); got != 15 {
		t.Errorf("Swap returned %d, want 15", got)
	}
	msg := []byte("an odd number of bytes!")
	out := make([]byte, len(msg))
	sa.Slice(int(page/WordBytes), 3).CopyBytesIn(msg)
	sb.Slice(int(page/WordBytes), 3).CopyBytesOut(out)
	if !bytes.Equal(msg, out) {
		t.Errorf("copied %q", out)
	}
	sa.Store(3, 1)
	a.Discard(page/2, 2*page)
	a.CloseFile()
	if sb.Load(int(page/WordBytes)) != 0 || sb.Load(3) != 1 {
		t.Error("Discard must clear the whole pages of its range and nothing else")
	}
}

func TestOpenControlRefusesWhatCouldShrink(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenControl(f, 4096); !errors.Is(err, ErrNotControl) {
		t.Errorf("a plain file: %v", err)
	}
	r := newRegion(t, Shared)
	g, err := r.ReadOnlyFile()
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := OpenControl(g, r.Size()); !errors.Is(err, ErrNotControl) {
		t.Errorf("a region: %v", err)
	}
}

func TestFutexWakesAndTimesOut(t *testing.T) {
	c := newControl(t, uint64(os.Getpagesize()))
	s := c.Span(0, 64)
	s.FutexWait(0, 1, 0) // the word differs: returns at once
	s.FutexWait(0, 0, time.Millisecond)
	var wg sync.WaitGroup
	s.Store(0, 1<<40|5)
	wg.Go(func() {
		for s.Load(0) == 1<<40|5 {
			s.FutexWait(0, 1<<40|5, 0)
		}
	})
	time.Sleep(time.Millisecond)
	s.Store(0, 6)
	s.FutexWake(0, 1)
	wg.Wait()
}

func TestSpanBytesAreBounded(t *testing.T) {
	s := newControl(t, uint64(os.Getpagesize())).Span(0, 16)
	for name, f := range map[string]func(){
		"in":  func() { s.CopyBytesIn(make([]byte, 17)) },
		"out": func() { s.CopyBytesOut(make([]byte, 17)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("copy %s past the end did not panic", name)
				}
			}()
			f()
		}()
	}
}

func TestRegionGrowsAlthoughAReaderExtendedIt(t *testing.T) {
	r := newRegion(t, Shared)
	f, err := r.ReadOnlyFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
	if err != nil {
		t.Skipf("the file cannot be reopened: %v", err)
	}
	defer w.Close()
	if err := w.Truncate(int64(r.MaxBytes())); err != nil {
		t.Skipf("the file cannot be extended: %v", err)
	}
	off, err := r.Grow()
	if err != nil {
		t.Fatal(err)
	}
	if r.MustSpan(off, WordBytes).Load(0) != 0 {
		t.Error("the new segment is not zero")
	}
}

// TestReaderCannotReopenForWriting: a process that was given a region to read
// cannot make its file grow, or fill it, through that descriptor.
func TestReaderCannotReopenForWriting(t *testing.T) {
	done := make(chan struct{})
	go func() { // on a thread that is root no more, and ends with the goroutine
		defer close(done)
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				t.Error(err)
				return
			}
		}
		r, err := New(Options{Kind: Shared, SegmentBytes: 1 << 16, MaxBytes: 1 << 20})
		if err != nil {
			t.Error(err)
			return
		}
		f, err := r.ReadOnlyFile()
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<20); err == nil {
			t.Error("a reader's descriptor can be used to fill the file")
		}
		w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0)
		if errors.Is(err, os.ErrPermission) {
			return
		}
		t.Errorf("a reader reopens the file for writing: %v", err)
		if err == nil {
			err = unix.Fallocate(int(w.Fd()), 0, 0, 1<<20)
			t.Errorf("and fills 1 MiB of it: %v", err)
			w.Close()
		}
	}()
	<-done
}
