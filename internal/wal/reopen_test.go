package wal

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/vfstest"
)

// torn returns a log whose second record is torn and whose third one, of the same group,
// is whole.
func torn(t *testing.T, second int) (mem *vfstest.Mem, opt Options) {
	t.Helper()
	mem = vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	opt = Options{FS: fs, Dir: "d", SegmentBytes: 16384, RecordBytes: 32768, MarkDelay: -1}
	l := open(t, opt)
	entered, gate := make(chan struct{}), make(chan struct{})
	var once sync.Once
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Sync && name == "d/"+segmentName(0) {
			once.Do(func() { close(entered); <-gate })
		}
		return nil
	}
	l.Start()
	var g ledger
	for i, n := range []int{8, second, 8} {
		if _, err := appendRecord(l, &g, bytes.Repeat([]byte{byte('a' + i)}, n)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-entered
		}
	}
	close(gate)
	if err := l.Wait(t.Context(), g.recs[2].End); err != nil {
		t.Fatal(err)
	}
	at := g.recs[2].Start - 8 // in the second record
	for _, s := range l.mu.segments {
		if s.start <= at && at < s.end() {
			f, err := mem.OpenReadWrite("d/"+s.name(), vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.WriteAt([]byte{0}, s.offset(at))
			}
			if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	closeLog(t, l)
	return clone, opt
}

// TestFaultInARecovery: whichever operation fails while a log with a torn tail is opened,
// what the next Open finds outlives another crash, and nothing behind the torn record
// comes back, even if the kernel takes pages for clean whose sync has failed.
func TestFaultInARecovery(t *testing.T) {
	// The third record begins with a page, which the second one does not make dirty.
	const first = headerBytes + frameBytes + 8
	for name, second := range map[string]int{"in one segment": 4096 - first - frameBytes, "across two": 16384 - first + 4096 - headerBytes - frameBytes} {
		crashed, opt := torn(t, second)
		for n, more := 0, true; more; n++ {
			mem := crashed.CrashClone(vfs.CrashCloneCfg{})
			fs := vfstest.New(mem)
			fs.Forgets = true
			fs.Before = func(k int, op vfstest.Op, _ string) error {
				if k == n && op.Changes() {
					return syscall.EIO
				}
				return nil
			}
			opt.FS = fs
			if l, err := Open(opt); err == nil {
				more = fs.Count() > n
				closeLog(t, l)
			}
			fs.Before = nil
			l := open(t, opt)
			if l.End() != frameSize(8) {
				t.Fatalf("%s, a fault at operation %d: the log ends at %d, want %d", name, n, l.End(), frameSize(8))
			}
			l.Start()
			var g ledger
			r, err := appendRecord(l, &g, bytes.Repeat([]byte("B"), second))
			if err == nil {
				err = l.Wait(t.Context(), r.End)
			}
			if err != nil {
				t.Fatal(err)
			}
			clone, err := fs.CrashClone(vfs.CrashCloneCfg{}) // before Close writes a mark
			if err != nil {
				t.Fatal(err)
			}
			closeLog(t, l)
			opt.FS = clone
			l = open(t, opt)
			var got []byte
			if err := l.Replay(0, func(r *Record) error {
				got = append(got, r.Payload[0])
				return nil
			}); err != nil {
				t.Error(err)
			}
			if string(got) != "aB" {
				t.Fatalf("%s, a fault at operation %d: the log has %q, want %q", name, n, got, "aB")
			}
			closeLog(t, l)
		}
	}
}
