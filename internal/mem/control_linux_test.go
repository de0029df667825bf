package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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
	if _, err := OpenControl(r.Files(0)[0].File, r.Size()); !errors.Is(err, ErrNotControl) {
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

// TestReaderCannotGrowARegion: a process that was given a file of a region to
// read cannot change its size or fill more of it than its size, whatever it
// opens or gives itself the permission to.
func TestReaderCannotGrowARegion(t *testing.T) {
	r := newRegion(t, Shared)
	for range 2 {
		if _, err := r.Grow(); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range r.Files(0) {
		size := func() int64 {
			st, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			return st.Size()
		}
		before := size()
		try := func(how string, fd int) {
			for _, n := range []int64{0, before / 2, before + 4096, int64(r.MaxBytes()) * 16} {
				if err := unix.Ftruncate(fd, n); err == nil {
					t.Errorf("%s: truncated to %d bytes", how, n)
				}
			}
			if err := unix.Fallocate(fd, 0, 0, 256<<20); err == nil {
				t.Errorf("%s: filled with 256 MiB", how)
			}
			if _, err := unix.Pwrite(fd, []byte("overwritten"), before); err == nil {
				t.Errorf("%s: written behind its end", how)
			}
			if after := size(); after != before {
				t.Fatalf("%s: has %d bytes now, had %d", how, after, before)
			}
		}
		try("as received", int(f.Fd()))
		path := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if err := os.Chmod(path, 0o600); err != nil {
			t.Logf("the owner's user may not change the permissions: %v", err)
		}
		w, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Logf("the file cannot be opened for writing: %v", err)
			continue
		}
		try("opened for writing after chmod", int(w.Fd()))
		w.Close()
		if err := os.Truncate(path, before+4096); err == nil || size() != before {
			t.Errorf("truncate of the path: %v, has %d bytes now", err, size())
		}
	}
	if _, err := r.Grow(); err != nil {
		t.Errorf("the owner itself: %v", err)
	}
}
