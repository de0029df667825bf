package wal

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
)

// A log that syncs later has everything that it has released after the end of its
// process, and everything durable after a crash of the machine at any operation, which is
// never taken for damage.
func TestCrashBeforeLaterSyncs(t *testing.T) {
	total, first := testseed.Number(t, "DRTMX_CRASHES", 300), testseed.Of(t)
	done := 0
	for seed := first; done < total; seed++ {
		c := &crasher{t: t, seed: seed, later: []time.Duration{50 * time.Microsecond, time.Millisecond, time.Hour}[seed%3]}
		c.live(3, 25)
		done += int(c.recoveries.Load())
	}
	t.Logf("seeds from %d: %d recoveries, nothing lost", first, done)
}

// later returns a log that syncs after so long, and the positions that it releases.
func later(t *testing.T, fs vfs.FS, after time.Duration) (*Log, chan LSN) {
	t.Helper()
	released := make(chan LSN, 100)
	opt := small(fs)
	opt.SyncLater, opt.Released = after, func(pos LSN) { released <- pos }
	l := open(t, opt)
	l.Start()
	return l, released
}

func mustAppend(t *testing.T, l *Log) LSN {
	t.Helper()
	end, err := l.Append([]byte("a record"))
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// What is written is released, and frames do not say that it is durable. A caller of Wait
// gets a sync at once, and one of WaitReleased gets none.
func TestReleasedIsWritten(t *testing.T) {
	l, released := later(t, vfs.NewMem(), time.Hour)
	end := mustAppend(t, l)
	if got := <-released; got != end || l.Released() != end || l.Durable() != 0 {
		t.Errorf("released up to %d (%d), durable up to %d, want %d and 0", got, l.Released(), l.Durable(), end)
	}
	second := mustAppend(t, l)
	<-released
	if err := l.WaitReleased(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	frames, err := l.Frames(0, 1<<20, nil)
	if err != nil || LSN(len(frames)) != second {
		t.Fatalf("%d bytes of frames, want %d: %v", len(frames), second, err)
	}
	if f, ok := decodeFrame(frames[end:], l.seed, end); !ok || f.durable != 0 {
		t.Errorf("a frame says that the log was durable up to %d, and nothing was synced", f.durable)
	}
	if n := l.Stats().Syncs; n != 0 {
		t.Errorf("%d syncs, want none yet", n)
	}
	if err := l.Wait(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	if n := l.Stats().Syncs; n != 1 || l.Durable() != second {
		t.Errorf("%d syncs, durable up to %d, want 1 and %d", n, l.Durable(), second)
	}
	closeLog(t, l)
	if l.Durable() != l.End() {
		t.Errorf("closed, and durable up to %d of %d", l.Durable(), l.End())
	}
}

// A log at rest that syncs later is synced by itself, and gets its mark after that.
func TestLaterMark(t *testing.T) {
	opt := small(vfs.NewMem())
	opt.SyncLater, opt.MarkDelay = time.Millisecond, time.Millisecond
	l := open(t, opt)
	l.Start()
	end := mustAppend(t, l)
	for deadline := time.Now().Add(time.Minute); !l.Stats().AtRest || l.End() == end; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not at rest: %+v", l.Stats())
		}
	}
	frames, err := l.Frames(end, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := decodeFrame(frames, l.seed, end); !ok || !f.mark || f.durable != end {
		t.Errorf("after the record is %+v, want a mark which says that the log is durable up to %d", f, end)
	}
	closeLog(t, l)
}

// A sync that fails later ends the log: nothing is released after it.
func TestLaterSyncFails(t *testing.T) {
	fs := vfstest.New(vfs.NewMem())
	var fails atomic.Bool
	var first atomic.Pointer[string] // the segment that is written; the others are prepared beside
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Create {
			first.CompareAndSwap(nil, &name)
		}
		if op == vfstest.Sync && name == *first.Load() && fails.Swap(false) { // a second one would succeed, and tell nothing
			return fmt.Errorf("no sync of %s", name)
		}
		return nil
	}
	l, released := later(t, fs, time.Hour)
	<-func() chan LSN { mustAppend(t, l); return released }()
	fails.Store(true)
	if err := l.Wait(t.Context(), l.End()); !errors.Is(err, ErrFailed) {
		t.Errorf("a sync that fails: %v", err)
	}
	before := l.Released()
	if _, err := l.Append(nil); !errors.Is(err, ErrFailed) {
		t.Errorf("append after a sync that has failed: %v", err)
	}
	if err := l.Close(); !errors.Is(err, ErrFailed) || l.Released() != before || l.Durable() != 0 {
		t.Errorf("released up to %d (before: %d), durable up to %d: %v", l.Released(), before, l.Durable(), err)
	}
}

// A log can begin and end to sync later while it is used.
func TestSyncLaterChanges(t *testing.T) {
	l, released := later(t, vfs.NewMem(), 0)
	end := mustAppend(t, l)
	if <-released; l.Durable() != end {
		t.Errorf("durable up to %d, want %d", l.Durable(), end)
	}
	l.SyncLater(time.Hour)
	for until := time.Now().Add(testseed.Patience()); ; { // the change may bring about a sync, and no other
		end = mustAppend(t, l)
		if <-released; l.Durable() < end {
			break
		} else if time.Now().After(until) {
			t.Fatal("every record is durable when it is released")
		}
	}
	l.SyncLater(0)
	end = mustAppend(t, l)
	if <-released; l.Durable() != end {
		t.Errorf("durable up to %d, want %d", l.Durable(), end)
	}
	closeLog(t, l)
}
