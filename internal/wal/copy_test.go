package wal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
)

// recordsOf are the records of a log from a position on.
func recordsOf(t *testing.T, l *Log, from LSN) (all []string) {
	t.Helper()
	if _, err := l.Read(from, func(r *Record) bool {
		all = append(all, fmt.Sprintf("%d-%d %x", r.Start, r.End, r.Payload))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCopy: a copy that gets the frames of a log in pieces of any size has its
// records at its positions, marks included, over crashes of the copy, with segments
// of another size, from any record on.
func TestCopy(t *testing.T) {
	seed := testseed.Of(t)
	for run := range 10 {
		rnd := rand.New(rand.NewPCG(seed, uint64(run)))
		opt := small(vfs.NewMem())
		disk := vfstest.NewCrashableMem()
		home := open(t, opt)
		var starts []LSN
		for life := range 3 { // each of them ends with a mark
			home.Start()
			for range 30 {
				starts = append(starts, home.End())
				if _, err := home.AppendWait(make([]byte, rnd.IntN(900))); err != nil {
					t.Fatal(err)
				}
			}
			if err := home.Wait(t.Context(), home.End()); err != nil {
				t.Fatal(err)
			}
			if life < 2 {
				closeLog(t, home)
				home = open(t, opt)
			}
		}
		from := starts[rnd.IntN(len(starts))]
		copyOpt := small(disk)
		copyOpt.Copy, copyOpt.Start, copyOpt.SegmentBytes = true, from, 2048
		l := open(t, copyOpt)
		l.Start()
		var part []byte
		for l.End() < home.Durable() {
			b, err := home.Frames(l.End()+LSN(len(part)), 1+rnd.IntN(3000), part)
			if err != nil {
				t.Fatal(err)
			}
			at := l.End()
			end, err := l.AppendFrames(at, b)
			if err != nil {
				t.Fatal(err)
			}
			part = append([]byte(nil), b[end-at:]...)
			if rnd.IntN(8) == 0 { // the copy crashes
				if err := l.Wait(t.Context(), at); err != nil {
					t.Fatal(err)
				}
				left := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(101), RNG: rnd})
				closeLog(t, l)
				disk, copyOpt.FS, part = left, left, nil
				if l = open(t, copyOpt); l.End() < at {
					t.Fatalf("run %d: the copy ends at %d after a crash, and was durable up to %d", run, l.End(), at)
				}
				l.Start()
			}
		}
		if err := l.Wait(t.Context(), l.End()); err != nil {
			t.Fatal(err)
		}
		have, want := recordsOf(t, l, from), recordsOf(t, home, from)
		if fmt.Sprint(have) != fmt.Sprint(want) || l.End() != home.End() {
			t.Fatalf("run %d: the copy has %d records up to %d, the log %d up to %d", run, len(have), l.End(), len(want), home.End())
		}
		closeLog(t, l)
		if l = open(t, copyOpt); l.End() != home.End() {
			t.Errorf("run %d: the copy ends at %d when it is closed, the log at %d", run, l.End(), home.End())
		}
		closeLog(t, l)
		closeLog(t, home)
	}
}

// TestCopyRefuses: frames of another log, of another position, and damaged ones are
// not taken.
func TestCopyRefuses(t *testing.T) {
	home := open(t, small(vfs.NewMem()))
	home.Start()
	for i := range 4 {
		if _, err := home.Append(bytes.Repeat([]byte{byte(i)}, 40)); err != nil {
			t.Fatal(err)
		}
	}
	if err := home.Wait(t.Context(), home.End()); err != nil {
		t.Fatal(err)
	}
	frames, err := home.Frames(0, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	opt := small(vfs.NewMem())
	opt.Copy = true
	l := open(t, opt)
	l.Start()
	first := sizeOf(frames)
	if end, err := l.AppendFrames(0, frames[:first]); err != nil || end != first {
		t.Fatal(end, err)
	}
	if _, err := l.AppendFrames(0, frames); !errors.Is(err, ErrPosition) {
		t.Errorf("frames that are there: %v", err)
	}
	if _, err := l.AppendFrames(first, frames[2*first:]); !errors.Is(err, ErrFrames) {
		t.Errorf("frames of another position: %v", err)
	}
	for i := range first {
		bad := bytes.Clone(frames[first:])
		bad[i] ^= 1
		if end, err := l.AppendFrames(first, bad[:first]); err == nil && end != first {
			t.Errorf("byte %d is damaged: taken up to %d", i, end)
		}
	}
	other := small(vfs.NewMem())
	other.Identity[0]++
	other.Copy = true
	foreign := open(t, other)
	foreign.Start()
	if _, err := foreign.AppendFrames(0, frames); !errors.Is(err, ErrFrames) {
		t.Errorf("frames of another log: %v", err)
	}
	if l.End() != first || foreign.End() != 0 {
		t.Errorf("what was refused is there: %d, %d", l.End(), foreign.End())
	}
	for _, l := range []*Log{home, l, foreign} {
		closeLog(t, l)
	}
}

// TestFramesAreOneGroup: frames that come together become durable together, with one
// sync.
func TestFramesAreOneGroup(t *testing.T) {
	if one := runtime.GOMAXPROCS(0); one == 1 { // the writer could not begin with the first frames
		runtime.GOMAXPROCS(2)
		defer runtime.GOMAXPROCS(one)
	}
	opt := Options{FS: vfs.NewMem(), Dir: "log", SegmentBytes: 16 << 20, RecordBytes: 64 << 10, MarkDelay: -1}
	home := open(t, opt)
	home.Start()
	copyOpt := opt
	copyOpt.FS, copyOpt.Copy = vfs.NewMem(), true
	l := open(t, copyOpt)
	l.Start()
	// So many that the writer has time to begin with the first of them, also where it
	// waits for a processor, and all within one segment.
	frames := 30_000
	if testing.Short() { // beside the race detector, which has nothing to find here
		frames = 1000
	}
	for calls := uint64(1); calls <= 9; calls++ {
		for range frames {
			if _, err := home.AppendWait(make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
		}
		if err := home.Wait(t.Context(), home.End()); err != nil {
			t.Fatal(err)
		}
		all, err := home.Frames(l.End(), 1<<30, nil)
		if err != nil {
			t.Fatal(err)
		}
		end, err := l.AppendFrames(l.End(), all)
		if err != nil || end != home.Durable() {
			t.Fatalf("the copy ends at %d, the home at %d: %v", end, home.Durable(), err)
		}
		if err := l.Wait(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.Groups != calls || s.Syncs != calls {
			t.Fatalf("after %d times %d frames: %d groups, %d syncs", calls, frames, s.Groups, s.Syncs)
		}
	}
	closeLog(t, home)
	closeLog(t, l)
}
