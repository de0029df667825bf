package wal

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// small returns options of a log with small segments.
func small(fs vfs.FS) Options {
	return Options{FS: fs, Dir: "d", SegmentBytes: 1024, RecordBytes: 4096, Identity: [16]byte{9, 8, 7}, MarkDelay: -1}
}

// open opens a log, or fails the test.
func open(t *testing.T, opt Options) *Log {
	t.Helper()
	l, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeLog(t *testing.T, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A log agrees with a list of records, whatever happens to it in which order:
// records of all sizes, waits, cuts, new lives with other sizes of segments.
func TestAgainstModel(t *testing.T) {
	seed := testseed.Of(t)
	for run := range 20 {
		rnd := rand.New(rand.NewPCG(seed, uint64(run)))
		mem := vfstest.NewMem()
		var g ledger
		c := &crasher{t: t, seed: seed}
		for life := range 4 {
			opt := options(rnd, mem)
			var last LSN
			opt.Released = func(pos LSN) {
				if pos <= last {
					t.Errorf("durable up to %d after %d", pos, last)
				}
				last = pos
			}
			l := open(t, opt)
			got, err := g.check(l, l.End())
			if err != nil {
				t.Fatalf("seed %d, run %d, life %d: %v", seed, run, life, err)
			}
			g.recs = got.recs
			l.Start()
			if err := c.run(l, &g, rnd, 100); err != nil {
				t.Fatalf("seed %d, run %d, life %d: %v", seed, run, life, err)
			}
			closeLog(t, l)
			if s := l.Stats(); s.Lag != 0 || l.Durable() != l.End() || last > l.End() {
				t.Errorf("closed, and durable up to %d of %d", l.Durable(), l.End())
			}
		}
	}
}

// The sizes at the bounds, up to the largest record across many segments.
func TestSizes(t *testing.T) {
	mem := vfstest.NewMem()
	opt := Options{FS: mem, Dir: "d", SegmentBytes: 1 << 20, RecordBytes: MaxRecordBytes}
	l := open(t, opt)
	if _, err := l.Append(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("append before Start: %v", err)
	}
	l.Start()
	var g ledger
	for _, n := range []int{0, 1, 7, 8, 9, 1<<20 - headerBytes - 2*frameBytes, 4 << 20, MaxRecordBytes, 3} {
		p := bytes.Repeat([]byte{byte(n)}, n)
		r, err := appendRecord(l, &g, p)
		if err != nil || l.Wait(t.Context(), r.End) != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	if _, err := l.Append(make([]byte, MaxRecordBytes+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
	closeLog(t, l)
	if _, err := l.Append(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("append after Close: %v", err)
	}
	if err := l.Wait(t.Context(), l.End()+1); !errors.Is(err, ErrClosed) {
		t.Errorf("wait after Close: %v", err)
	}
	opt.ReadOnly = true
	l = open(t, opt)
	if _, err := g.check(l, l.End()); err != nil {
		t.Error(err)
	}
	l.Start()
	if _, err := l.Append(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a log that is open to be read: %v", err)
	}
	closeLog(t, l)
}

// Segments are reused after a cut: a log in use takes no new files. What is
// acknowledged in a reused segment is there after a crash.
// The zeros of a new segment are synced in pieces, so that a sync of the log
// does not wait for all of them.
func TestNewSegmentIsSyncedInPieces(t *testing.T) {
	fs := vfstest.New(vfstest.NewMem())
	var mu sync.Mutex
	syncs := map[string]int{}
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == vfstest.Sync {
			syncs[name]++
		}
		return nil
	}
	l := open(t, Options{FS: fs, Dir: "log", SegmentBytes: 8 * zeroBytes, RecordBytes: zeroBytes})
	l.Start()
	if _, err := l.Append([]byte("a record")); err != nil { // now there is less than a segment ahead
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testseed.Patience()); l.Stats().Prepared == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	closeLog(t, l)
	mu.Lock()
	defer mu.Unlock()
	if name := l.path(segmentName(1)); syncs[name] != 8 { // 7 pieces, and the file
		t.Errorf("%d syncs of the new segment, want 8: %v", syncs[name], syncs)
	}
}

func TestSegmentsAreReused(t *testing.T) {
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	created := 0
	var mu sync.Mutex
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == vfstest.Create {
			created++
		}
		return nil
	}
	opt := small(fs)
	opt.RecordBytes = 512
	l := open(t, opt)
	l.Start()
	var g ledger
	for i := range 400 {
		r, err := appendRecord(l, &g, make([]byte, 400))
		if err != nil || l.Wait(t.Context(), r.End) != nil {
			t.Fatal(err)
		}
		crashed := small(mem.CrashClone(vfs.CrashCloneCfg{}))
		crashed.ReadOnly = true
		c := open(t, crashed)
		if _, err := g.check(c, r.End); err != nil {
			t.Fatal(err)
		}
		closeLog(t, c)
		if i%10 == 9 {
			g.need = r.End
			if err := l.Cut(r.End); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Cut(l.End() + 1); err == nil {
		t.Error("what is not durable was cut")
	}
	closeLog(t, l)
	if s := l.Stats(); created > 20 || s.Segments > 3 {
		t.Errorf("%d files were created for 170 segments: %+v", created, s)
	}
	opt.ReadOnly = true
	l = open(t, opt)
	err := l.Replay(0, func(*Record) error { return nil })
	if c := new(CorruptError); !errors.As(err, &c) || !strings.Contains(c.Reason, "missing") {
		t.Errorf("replay of what was cut: %v", err)
	}
	closeLog(t, l)
}

// Everything that arrives during a sync goes into the next group.
func TestGroups(t *testing.T) {
	fs := vfstest.New(vfstest.NewMem())
	gate := make(chan struct{})
	var once sync.Once
	entered := make(chan struct{})
	opt := small(fs)
	opt.SegmentBytes = 1 << 16
	l := open(t, opt)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Sync && strings.HasSuffix(name, segmentName(0)) {
			once.Do(func() { close(entered); <-gate })
		}
		return nil
	}
	l.Start()
	if _, err := l.Append([]byte("first")); err != nil {
		t.Fatal(err)
	}
	<-entered
	var waiting sync.WaitGroup
	for range 100 {
		end, err := l.Append([]byte("during the sync"))
		if err != nil {
			t.Fatal(err)
		}
		waiting.Go(func() {
			if err := l.Wait(context.Background(), end); err != nil {
				t.Error(err)
			}
		})
	}
	if s := l.Stats(); s.Lag == 0 || l.Durable() != 0 {
		t.Errorf("durable up to %d before the sync", l.Durable())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Wait(ctx, l.End()); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	close(gate)
	waiting.Wait()
	if s := l.Stats(); s.Groups != 2 || s.Records != 101 || s.GroupRecords[0] != 1 || s.GroupRecords[6] != 1 || s.Syncs != 2 {
		t.Errorf("%+v, want two groups of 1 and 100 records", s)
	}
	closeLog(t, l)
}

// content returns the files of a log.
func content(t *testing.T, mem *vfstest.Mem, dir string) map[string][]byte {
	t.Helper()
	names, err := mem.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		b, err := mem.UnsafeGetFileDataBuffer(path.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all[name] = b
	}
	return all
}

// filled makes a log of several segments whose records cross from one to the
// next.
func filled(t *testing.T, mem *vfstest.Mem) *ledger {
	t.Helper()
	l := open(t, small(mem))
	l.Start()
	var g ledger
	for i := range 12 {
		r, err := appendRecord(l, &g, bytes.Repeat([]byte{byte(i + 1)}, 40+i*37))
		if err != nil || l.Wait(t.Context(), r.End) != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	return &g
}

// A byte that is changed anywhere stops recovery with the file and an offset at
// or before it, or is not needed: then all records are there. No file changes.
func TestEveryByte(t *testing.T) {
	mem := vfstest.NewMem()
	g := filled(t, mem)
	last := g.recs[len(g.recs)-1]
	var stopped, unneeded int
	for name, b := range content(t, mem, "d") {
		for at := range b {
			for _, flip := range []byte{1, 0x80} {
				b[at] ^= flip
				opt := small(onlyReads(t, mem))
				l, err := Open(opt)
				if errors.Is(err, errChanged) {
					opt.ReadOnly = true
					l, err = Open(opt)
				}
				if err == nil {
					_, err = g.check(l, last.End)
				}
				c := new(CorruptError)
				switch {
				case err == nil:
					unneeded++
				case !errors.As(err, &c):
					t.Errorf("%s, byte %d: %v", name, at, err)
				case c.File > "d/"+name || c.File == "d/"+name && c.Offset > int64(at):
					t.Errorf("%s, byte %d: reported as %v", name, at, err)
				default:
					stopped++
				}
				if l != nil {
					_ = l.Close() // nothing was written
				}
				b[at] ^= flip
			}
		}
	}
	used := int(last.End) + 7*headerBytes
	if stopped < 2*used*9/10 || unneeded == 0 {
		t.Errorf("%d changes stopped recovery, %d were not needed; %d bytes are used", stopped, unneeded, used)
	}
	t.Logf("%d changes stopped recovery, %d were not needed", stopped, unneeded)
}

var errChanged = errors.New("all is checked, and files would change now")

// onlyReads returns a file system on which the first change fails.
func onlyReads(t *testing.T, mem vfs.FS) vfs.FS {
	t.Helper()
	fs := vfstest.New(mem)
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		if op.Changes() {
			return errChanged
		}
		return nil
	}
	return fs
}

// A file of another format, and one of another log, stop recovery, and nothing
// is touched.
func TestForeignFiles(t *testing.T) {
	mem := vfstest.NewMem()
	filled(t, mem)
	b := content(t, mem, "d")[segmentName(2)]
	saved := bytes.Clone(b)
	little.PutUint32(b[8:], Version+1)
	little.PutUint32(b[12:], headerChecksum(b))
	_, err := Open(small(onlyReads(t, mem)))
	if v := new(VersionError); !errors.As(err, &v) || v.Got != Version+1 || v.File != "d/"+segmentName(2) || strings.Contains(err.Error(), "\n") {
		t.Errorf("another version: %v", err)
	}
	copy(b, saved)
	opt := small(onlyReads(t, mem))
	opt.Identity[0]++
	_, err = Open(opt)
	if c := new(CorruptError); !errors.As(err, &c) || !strings.Contains(err.Error(), "belongs to log") {
		t.Errorf("another log: %v", err)
	}
	if err := mem.Rename("d/"+segmentName(3), "d/"+segmentName(2)); err != nil {
		t.Fatal(err)
	}
	_, err = Open(small(onlyReads(t, mem)))
	if c := new(CorruptError); !errors.As(err, &c) || c.File != "d/"+segmentName(2) {
		t.Errorf("a file of another number: %v", err)
	}
}

// A file that is missing is noticed: the last one by those that were prepared
// after it, any other by the position from which the log is needed.
func TestMissingFile(t *testing.T) {
	for _, index := range []uint64{0, 2, 3} {
		mem := vfstest.NewMem()
		filled(t, mem)
		if err := mem.Remove("d/" + segmentName(index)); err != nil {
			t.Fatal(err)
		}
		opt := small(mem)
		opt.ReadOnly = true
		l, err := Open(opt)
		if err == nil {
			err = l.Replay(0, func(*Record) error { return nil })
			closeLog(t, l)
		}
		if c := new(CorruptError); !errors.As(err, &c) || c.File != "d/"+segmentName(index) {
			t.Errorf("file %d is missing: %v", index, err)
		}
	}
}

// A file that is too short is damaged.
func TestTruncatedFile(t *testing.T) {
	mem := vfstest.NewCrashableMem()
	filled(t, mem)
	for _, index := range []uint64{0, 3} {
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		name := "d/" + segmentName(index)
		b, err := clone.UnsafeGetFileDataBuffer(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := clone.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b[:500], 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = Open(small(onlyReads(t, clone)))
		if c := new(CorruptError); !errors.As(err, &c) || c.File != name || c.Offset != 500 {
			t.Errorf("a file of 500 bytes: %v", err)
		}
	}
}

// Options are checked.
func TestOptions(t *testing.T) {
	for _, change := range []func(*Options){
		func(o *Options) { o.FS = nil },
		func(o *Options) { o.Dir = "" },
		func(o *Options) { o.SegmentBytes = 100 },
		func(o *Options) { o.SegmentBytes = 1025 },
		func(o *Options) { o.RecordBytes = MaxRecordBytes + 1 },
	} {
		opt := small(vfstest.NewMem())
		change(&opt)
		if l, err := Open(opt); err == nil {
			closeLog(t, l)
			t.Errorf("%+v is accepted", opt)
		}
	}
	opt := small(vfstest.NewMem())
	opt.ReadOnly = true
	if _, err := Open(opt); err == nil {
		t.Error("a log that does not exist was opened to be read")
	}
}

// Append allocates nothing in steady state.
func TestAppendAllocatesNothing(t *testing.T) {
	opt := Options{FS: vfstest.NewMem(), Dir: "d", SegmentBytes: 8 << 20, RecordBytes: 1024}
	l := open(t, opt)
	l.Start()
	p := make([]byte, 200)
	one := func() {
		end, err := l.Append(p)
		if err == nil {
			err = l.Wait(context.Background(), end)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := l.Append(p); err != nil {
			t.Fatal(err)
		}
		for l.Durable() < l.End() {
			time.Sleep(time.Microsecond)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a record, want 0", n)
	}
	closeLog(t, l)
}

func FuzzFrame(f *testing.F) {
	b := appendFrame(nil, 48, []byte("payload"), 0)
	seal(b, 7, 40)
	f.Add(b, uint32(7), uint64(48))
	f.Add(b[:30], uint32(7), uint64(48))
	f.Add([]byte{}, uint32(0), uint64(0))
	s := segment{index: 3, size: 4096, start: 800, from: 700, first: 900}
	h := make([]byte, headerBytes)
	s.putHeader(h, [16]byte{1})
	f.Add(h, uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, seed uint32, pos uint64) {
		if fr, ok := decodeFrame(b, seed, LSN(pos)); ok {
			mark := uint32(0)
			if fr.mark {
				mark = markBit
			}
			again := appendFrame(nil, fr.start, fr.payload, mark)
			seal(again, seed, fr.durable)
			if fr.end != LSN(pos)+LSN(len(b)) || !bytes.Equal(again[:frameBytes+len(fr.payload)], b[:frameBytes+len(fr.payload)]) && bytes.Equal(again[4:8], b[4:8]) {
				t.Errorf("%x is decoded as %+v", b, fr)
			}
		}
		if h, ok := decodeHeader(b); ok && h.version == Version {
			again := make([]byte, headerBytes)
			h.segment.putHeader(again, h.identity)
			if !bytes.Equal(again, b[:headerBytes]) {
				t.Errorf("%x is decoded as %+v", b, h)
			}
		}
	})
}

// A directory with arbitrary content gives a log or an error.
func FuzzOpen(f *testing.F) {
	f.Add([]byte("x"), []byte("y"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		mem := vfstest.NewMem()
		if err := mem.MkdirAll("d", 0o755); err != nil {
			t.Fatal(err)
		}
		for i, data := range [][]byte{a, b} {
			file, err := mem.Create("d/"+segmentName(uint64(i)), vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := file.WriteAt(data, 0); err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
		l, err := Open(small(mem))
		if err != nil {
			return
		}
		if err := l.Replay(l.First(), func(*Record) error { return nil }); err == nil {
			l.Start()
			if _, err := l.Append([]byte("more")); err != nil && !errors.Is(err, ErrBehind) {
				t.Error(err)
			}
		}
		closeLog(t, l)
	})
}

// AppendWait waits for room while the disk is slow, and returns when there is
// none to be had.
func TestAppendWait(t *testing.T) {
	fs := vfstest.New(vfstest.NewMem())
	var fault error
	gate := make(chan struct{})
	opt := small(fs)
	opt.RecordBytes = 512
	l := open(t, opt)
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		if op == vfstest.Create {
			<-gate
			return fault
		}
		return nil
	}
	l.Start()
	p := make([]byte, 200)
	fill := func() {
		t.Helper()
		for range 1000 {
			if _, err := l.Append(p); err != nil {
				if !errors.Is(err, ErrBehind) {
					t.Error(err)
				}
				return
			}
		}
		t.Error("the reserved room does not end")
	}
	fill()
	waited := make(chan error)
	wait := func() {
		_, err := l.AppendWait(p)
		waited <- err
	}
	go wait()
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(100 * time.Microsecond) {
		l.mu.Lock()
		waits := l.mu.room != nil
		l.mu.Unlock()
		if waits {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits for room")
		}
	}
	select {
	case err := <-waited:
		t.Errorf("returned while no room was prepared: %v", err)
	default:
	}
	gate <- struct{}{}
	if err := <-waited; err != nil {
		t.Error(err)
	}
	fill()
	go wait()
	fault = syscall.ENOSPC
	close(gate)
	if err := <-waited; !errors.Is(err, ErrNoSpace) {
		t.Errorf("without space: %v", err)
	}
	closeLog(t, l)
}

// TestSetAside: what is set aside is there on a full disk, whatever else is
// appended, and nobody else gets it.
func TestSetAside(t *testing.T) {
	fs := vfstest.New(vfstest.NewMem())
	l := open(t, small(fs))
	defer closeLog(t, l)
	l.Start()
	fs.SetSpace(0)
	room, err := l.SetAside(100, 60)
	if err != nil || room != frameSize(100)+frameSize(60) {
		t.Fatalf("%d bytes set aside: %v", room, err)
	}
	for err == nil {
		_, err = l.AppendWait(make([]byte, 8))
	}
	if _, none := l.SetAside(1); !errors.Is(err, ErrNoSpace) || !errors.Is(none, ErrNoSpace) {
		t.Fatalf("without space: %v, %v", err, none)
	}
	if st := l.Stats(); st.Room >= uint64(frameSize(8)) || st.Aside != uint64(room) {
		t.Errorf("room for %d bytes is left, %d are set aside", st.Room, st.Aside)
	}
	if _, err := l.AppendAside(make([]byte, 100), frameSize(100)); err != nil {
		t.Errorf("a record for which room was set aside: %v", err)
	}
	l.GiveUp(frameSize(60))
	if _, err := l.AppendWait(make([]byte, 60)); err != nil {
		t.Errorf("room that was given up: %v", err)
	}
	if _, err := l.SetAside(1 << 20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than is reserved at a time: %v", err)
	}
	if st := l.Stats(); st.Aside != 0 {
		t.Errorf("%d bytes stay set aside", st.Aside)
	}
}

// TestGivenUpWithoutSpace: room that is given up while there is no space ends the
// attempts to reserve more. They begin again when it is needed.
func TestGivenUpWithoutSpace(t *testing.T) {
	fs := vfstest.New(vfstest.NewMem())
	l := open(t, small(fs))
	defer closeLog(t, l)
	l.Start()
	reserved := func(none bool) {
		t.Helper()
		for end := time.Now().Add(testseed.Patience()); l.Stats().NoSpace != none; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the log has found no space: %v", !none)
			}
		}
	}
	if _, err := l.AppendWait(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testseed.Patience()); l.Stats().Room < uint64(l.ahead()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no room is reserved")
		}
	}
	fs.SetSpace(0)
	room, err := l.SetAside(600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.AppendWait(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	reserved(true)
	l.GiveUp(room)
	for l.Stats().Room >= uint64(l.ahead())+uint64(frameSize(8)) { // as the attempts see it, with nothing set aside
		if _, err := l.AppendWait(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if l.Stats().Room >= uint64(l.ahead()) {
		reserved(false)
	}
	fs.AddSpace(1 << 30)
	for range 500 {
		for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
			_, err := l.AppendWait(make([]byte, 8))
			if err == nil {
				break
			}
			if !errors.Is(err, ErrNoSpace) || time.Now().After(end) {
				t.Fatalf("there is space: %v", err)
			}
		}
	}
}
