package wal

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
)

// faultRun runs a workload in which one operation fails, and recovers on a file
// system that works.
type faultRun struct {
	n     int // of the operation that fails
	fault error
	short bool
	clean bool // pages whose sync has failed are clean

	mu    sync.Mutex
	op    vfstest.Op
	name  string
	later []string // syncs and writes of the same file after its sync or write failed
}

func (f *faultRun) before(n int, op vfstest.Op, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n == f.n {
		f.op, f.name = op, name
		return f.fault
	}
	if f.name == name && (op == vfstest.Create || op == vfstest.Remove) {
		f.op = op // what has this name later is another file, new or renamed
	}
	if f.name == name && (f.op == vfstest.Sync || f.op == vfstest.Write) && (op == vfstest.Sync || op == vfstest.Write) {
		f.later = append(f.later, string(op))
	}
	return nil
}

// run returns false if the workload has fewer operations.
func (f *faultRun) run(t *testing.T, seed uint64) bool {
	rnd := rand.New(rand.NewPCG(seed, 1))
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	fs.Before, fs.Short, fs.Forgets = f.before, f.short, f.clean
	var g ledger
	var failures atomic.Int32
	opt := options(rnd, fs)
	opt.Dir, opt.MarkDelay = "d", -1
	opt.Released = func(pos LSN) { g.acked.Store(uint64(pos)) }
	opt.Failed = func(error) { failures.Add(1) }
	c := &crasher{t: t, seed: seed, opt: opt}
	var err error
	for range 2 {
		failures.Store(0)
		var l *Log
		if l, err = Open(opt); err != nil {
			break
		}
		if _, err = g.check(l, LSN(g.acked.Load())); err != nil {
			_ = l.Close() // the fault was one of reading
			break
		}
		l.Start()
		err = c.run(l, &g, rnd, 40)
		closed := l.Close()
		if n := failures.Load(); (n > 0) != errors.Is(closed, ErrFailed) || n > 1 {
			t.Errorf("Failed was called %d times, Close returns: %v", n, closed)
		}
		if failures.Load() > 0 {
			if _, e := l.Append(nil); !errors.Is(e, ErrFailed) {
				t.Errorf("append to a log that has failed: %v", e)
			}
			if e := l.Wait(t.Context(), l.End()+1); !errors.Is(e, ErrFailed) {
				t.Errorf("wait on a log that has failed: %v", e)
			}
		}
		if err = errors.Join(err, closed); err != nil {
			break
		}
	}
	if len(f.later) > 0 {
		t.Errorf("after a failed %s of %s: %v", f.op, f.name, f.later)
	}
	if err != nil && !errors.Is(err, f.fault) {
		t.Errorf("%v, want %v", err, f.fault)
	}
	if f.name == "" {
		if err != nil {
			t.Errorf("no operation failed: %v", err)
		}
		return false
	}
	if f.fault == syscall.ENOSPC && f.op == vfstest.Create && err != nil && !errors.Is(err, ErrNoSpace) {
		t.Errorf("no space for a file: %v", err)
	}
	f.crash(t, c, fs, &g, LSN(g.acked.Load()), rnd)
	if f.clean {
		f.again(t, c, fs, &g, rnd)
	}
	return true
}

// crash checks what a crash leaves at this moment.
func (f *faultRun) crash(t *testing.T, c *crasher, fs *vfstest.FS, g *ledger, acked LSN, rnd *rand.Rand) {
	t.Helper()
	for _, percent := range []int{0, 50, 100} {
		clone, err := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rnd})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.recover(clone, g, acked, rnd, false); err != nil {
			t.Errorf("recovery with %d %% of what is not synced: %v", percent, err)
		}
	}
}

// again opens the log again in a process that follows on the one whose operation has
// failed. All that a log has when it is open may be acknowledged.
func (f *faultRun) again(t *testing.T, c *crasher, fs *vfstest.FS, g *ledger, rnd *rand.Rand) {
	t.Helper()
	opt := c.opt
	opt.Released, opt.Failed = nil, nil
	l := open(t, opt)
	g, err := g.check(l, LSN(g.acked.Load()))
	if err != nil {
		t.Errorf("opened again: %v", err)
	}
	f.crash(t, c, fs, g, l.Durable(), rnd)
	l.Start()
	for range 3 {
		if _, err := appendRecord(l, g, payload(rnd)); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	f.crash(t, c, fs, g, l.Durable(), rnd)
}

// Whichever operation fails, and how: the error is reported, nothing is tried
// again that must not be, and nothing acknowledged is lost.
func TestFaultAtEveryOperation(t *testing.T) {
	seed := testseed.Of(t)
	for _, kind := range []struct {
		name  string
		fault error
		short bool
		clean bool
	}{
		{"error", syscall.EIO, false, false},
		{"short", syscall.EIO, true, false},
		{"no space", syscall.ENOSPC, true, false},
		{"clean pages", syscall.EIO, false, true},
		{"short and clean pages", syscall.EIO, true, true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			for n := 0; ; n++ {
				f := &faultRun{n: n, fault: kind.fault, short: kind.short, clean: kind.clean}
				more := f.run(t, seed)
				if t.Failed() {
					t.Fatalf("seed %d, operation %d, %s of %s", seed, n, f.op, f.name)
				}
				if !more {
					t.Logf("%d operations", n)
					return
				}
			}
		})
	}
}

// A full disk refuses records and loses none. When there is space again, the log
// goes on.
func TestNoSpace(t *testing.T) {
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	opt := small(fs)
	opt.RecordBytes = 256
	var g ledger
	fill := func(l *Log) {
		t.Helper()
		for range 1000 {
			if _, err := appendRecord(l, &g, make([]byte, 100)); errors.Is(err, ErrNoSpace) {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("the cause is missing: %v", err)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("the disk does not become full")
	}
	reopen := func() {
		t.Helper()
		l := open(t, opt)
		if _, err := g.check(l, l.End()); err != nil {
			t.Fatal(err)
		}
		closeLog(t, l)
	}
	fs.SetSpace(100)
	if _, err := Open(opt); !errors.Is(err, ErrNoSpace) {
		t.Errorf("open on a full disk: %v", err)
	}
	fs.AddSpace(5000)
	l := open(t, opt)
	l.Start()
	fill(l)
	n := len(g.recs)
	if err := l.Wait(t.Context(), g.recs[n-1].End); err != nil {
		t.Errorf("what was accepted is not durable: %v", err)
	}
	if !l.Stats().NoSpace || n < 20 {
		t.Errorf("%d records, and %+v", n, l.Stats())
	}
	fs.AddSpace(1024)
	deadline := time.Now().Add(testseed.Patience())
	for {
		if _, err := appendRecord(l, &g, make([]byte, 100)); err == nil {
			break
		} else if !errors.Is(err, ErrNoSpace) || time.Now().After(deadline) {
			t.Fatalf("with space again: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	fill(l)
	// A cut frees segments, and no more space is needed.
	if err := l.Wait(t.Context(), l.End()); err != nil {
		t.Fatal(err)
	}
	g.need = g.recs[len(g.recs)-1].Start
	if err := l.Cut(g.need); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := appendRecord(l, &g, make([]byte, 101)); err == nil {
			break
		} else if !errors.Is(err, ErrNoSpace) || time.Now().After(deadline) {
			t.Fatalf("after the cut: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	fill(l)
	closeLog(t, l)
	if len(g.recs) < n+10 {
		t.Errorf("%d records at first, %d at the end", n, len(g.recs))
	}
	reopen() // still on the full disk
	fs.AddSpace(1 << 20)
	reopen()
}

// A log at rest writes its mark, and then damage of its last record is noticed
// even if nothing follows. Without the mark it is a torn tail.
func TestMark(t *testing.T) {
	for _, marked := range []bool{false, true} {
		mem := vfstest.NewCrashableMem()
		opt := small(mem)
		if marked {
			opt.MarkDelay = time.Millisecond
		}
		durable := make(chan LSN, 10)
		opt.Released = func(pos LSN) { durable <- pos }
		l := open(t, opt)
		l.Start()
		end, err := l.Append([]byte("the last record"))
		if err != nil {
			t.Fatal(err)
		}
		if got := <-durable; got != end {
			t.Errorf("durable up to %d, want %d", got, end)
		}
		if marked {
			if got := <-durable; got != end+frameBytes {
				t.Errorf("the mark ends at %d, want %d", got, end+frameBytes)
			}
		}
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		closeLog(t, l)
		if n := l.Stats().Records; n != 1 {
			t.Errorf("%d records, want 1", n)
		}
		b := content(t, clone, "d")[segmentName(0)]
		b[headerBytes+frameBytes] ^= 1
		opt.FS, opt.Released = clone, nil
		l, err = Open(opt)
		if c := new(CorruptError); marked != errors.As(err, &c) {
			t.Errorf("marked %v: %v", marked, err)
		}
		if err == nil {
			if l.End() != 0 {
				t.Errorf("the log ends at %d", l.End())
			}
			closeLog(t, l)
		}
	}
}

// What was written behind a torn tail does not come back, even if what is
// written in place of the torn record ends exactly where it begins.
func TestStaleFrames(t *testing.T) {
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	opt := small(fs)
	opt.SegmentBytes = 1 << 14
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
	texts := []string{"first", "torn, in a group of two", "behind it"}
	var end LSN
	for i, s := range texts {
		var err error
		if end, err = l.Append([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			<-entered
		}
	}
	close(gate)
	if err := l.Wait(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	closeLog(t, l)
	first := frameSize(len(texts[0]))
	content(t, crashed, "d")[segmentName(0)][headerBytes+first+frameBytes] ^= 1
	opt.FS = crashed
	l = open(t, opt)
	if l.End() != first {
		t.Fatalf("the log ends at %d, want %d", l.End(), first)
	}
	l.Start()
	again := []byte(texts[1])
	again[0] = 'T'
	end, err := l.Append(again)
	if err != nil || l.Wait(t.Context(), end) != nil {
		t.Fatal(err)
	}
	opt.FS = crashed.CrashClone(vfs.CrashCloneCfg{})
	closeLog(t, l)
	l = open(t, opt)
	var got []string
	if err := l.Replay(0, func(r *Record) error {
		got = append(got, string(r.Payload))
		return nil
	}); err != nil {
		t.Error(err)
	}
	if len(got) != 2 || got[0] != texts[0] || got[1] != string(again) {
		t.Errorf("after the crash: %q", got)
	}
	closeLog(t, l)
}
