package backup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// fakeServers are data servers that only answer the steps of a backup.
type fakeServers struct {
	t      *testing.T
	before func(server placement.Server, step byte) // called before a step is answered; nil: nothing

	mu    sync.Mutex
	kept  []int // how often each was asked how its base stands
	ticks uint64
}

func newFakeServers(t *testing.T, n int) *fakeServers {
	return &fakeServers{t: t, kept: make([]int, n)}
}

func (f *fakeServers) options(fs vfs.FS, dir string) Options {
	o := Options{Dir: dir, FS: fs}
	for i := range f.kept {
		o.Addrs = append(o.Addrs, fmt.Sprint(i))
	}
	o.Dial = func(_ context.Context, addr string) (rdma.Conn, error) {
		c := &fakeConn{f: f}
		_, err := fmt.Sscan(addr, &c.server)
		return c, err
	}
	return o
}

// await waits until servers have been asked several times more. A server that is asked
// for nothing for longer than its lease gives the backup up.
func (f *fakeServers) await(what string, servers ...int) {
	for _, s := range servers {
		if f.t.Failed() {
			return
		}
		f.mu.Lock()
		from := f.kept[s]
		f.mu.Unlock()
		for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
			f.mu.Lock()
			now := f.kept[s]
			f.mu.Unlock()
			if now >= from+3 {
				break
			}
			if time.Now().After(end) {
				f.t.Errorf("%s: data server %d is asked for nothing", what, s)
				return
			}
		}
	}
}

// fakeConn is a connection to one of them.
type fakeConn struct {
	rdma.Conn
	f      *fakeServers
	server placement.Server
	req    []byte
}

func (c *fakeConn) StartCall(_ context.Context, req []byte) error {
	c.req = append(c.req[:0], req...)
	return nil
}

func (c *fakeConn) FinishCall(_ context.Context, resp []byte) ([]byte, error) {
	f, step := c.f, c.req[1]
	if f.before != nil {
		f.before(c.server, step)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	resp = append(resp[:0], byte(wire.OK))
	switch step {
	case wire.BackupBegin:
		m := wire.BackupBegun{ID: 1, Server: c.server, Servers: len(f.kept), Partitions: len(f.kept), Incarnation: 1, Epoch: 1}
		resp = m.Append(resp)
	case wire.BackupBase:
		f.kept[c.server]++
		m := wire.BackupBaseState{Rows: 1, Total: 1, Bytes: 4, Tick: 1}
		resp = m.Append(resp)
	case wire.BackupChunk:
		resp = append(resp, "base"...)
	case wire.BackupClose:
		f.ticks++
		m := wire.BackupClosed{Tick: f.ticks, Present: f.ticks, Log: 8 * f.ticks}
		resp = m.Append(resp)
	case wire.BackupLog:
		m := wire.BackupRecords{Next: 8 * f.ticks}
		resp = m.Append(resp)
	}
	return resp, nil
}

func (c *fakeConn) Close() error { return nil }

// TestKeptWhileOthersAreSlow: whatever is slow, another data server or the disk here,
// each data server that has nothing to do is asked for something, so that it keeps the
// log.
func TestKeptWhileOthersAreSlow(t *testing.T) {
	defer func(d time.Duration) { keepEvery = d }(keepEvery)
	keepEvery = 2 * time.Millisecond
	f := newFakeServers(t, 2)
	slow := map[byte]bool{}
	f.before = func(server placement.Server, step byte) {
		f.mu.Lock()
		first := server == 1 && !slow[step]
		slow[step] = slow[step] || first
		f.mu.Unlock()
		if first && step != wire.BackupEnd {
			f.await(fmt.Sprintf("while step %d of another one takes long", step), 0)
		}
	}
	fs := vfstest.New(vfs.NewMem())
	synced := map[string]bool{}
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op != vfstest.Sync {
			return nil
		}
		f.mu.Lock()
		first := !synced[name]
		synced[name] = true
		f.mu.Unlock()
		if first {
			f.await("while "+name+" is synced", 0, 1)
		}
		return nil
	}
	o := f.options(fs, "b")
	o.Follow, o.For, o.Every = true, time.Minute, 30*time.Second
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	o.Moved = func(*Manifest) {
		once.Do(func() {
			go func() {
				f.await("between two moves", 0, 1)
				cancel()
			}()
		})
	}
	if _, err := Run(ctx, o); err != nil {
		t.Fatal(err)
	}
	for _, step := range []byte{wire.BackupBegin, wire.BackupBase, wire.BackupChunk, wire.BackupClose, wire.BackupLog} {
		if !slow[step] {
			t.Errorf("step %d was not slow", step)
		}
	}
	for _, name := range []string{"b/server-0.base", "b/server-1.log", "b/MANIFEST.tmp"} {
		if !synced[name] {
			t.Errorf("the sync of %s was not slow", name)
		}
	}
}

// TestManifestIsWhatIsThere: a backup that fails when it writes a manifest says where
// the one before ends.
func TestManifestIsWhatIsThere(t *testing.T) {
	fs, writes := vfstest.New(vfs.NewMem()), 0
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op == vfstest.Create && strings.HasSuffix(name, manifestFile+temporary) {
			if writes++; writes == 3 {
				return syscall.ENOSPC
			}
		}
		return nil
	}
	o := newFakeServers(t, 2).options(fs, "b")
	o.Follow, o.Every = true, time.Millisecond
	m, err := Run(t.Context(), o)
	if !errors.Is(err, syscall.ENOSPC) || m == nil {
		t.Fatalf("%+v, %v", m, err)
	}
	there, err := ReadManifest(fs, "b")
	if err != nil {
		t.Fatal(err)
	}
	if m.Last != there.Last || m.Files[1].LogTo != there.Files[1].LogTo {
		t.Errorf("said to end at tick %d and position %d, want %d and %d", m.Last, m.Files[1].LogTo, there.Last, there.Files[1].LogTo)
	}
}

// TestBackupSurvivesWithItsDirectories: a backup that is complete is there after a crash,
// however many directories it has made.
func TestBackupSurvivesWithItsDirectories(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	if _, err := Run(t.Context(), newFakeServers(t, 1).options(disk, "a/b/c")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadManifest(disk.CrashClone(vfs.CrashCloneCfg{}), "a/b/c"); err != nil {
		t.Errorf("after a crash: %v", err)
	}
}

// TestTwoBackupsInOneDirectory: the second one is refused, and the first one is whole.
func TestTwoBackupsInOneDirectory(t *testing.T) {
	for _, fs := range []vfs.FS{vfs.NewMem(), vfs.Default} {
		dir := t.TempDir()
		if fs != vfs.Default {
			dir = "b"
		}
		f := newFakeServers(t, 1)
		tried := false
		f.before = func(placement.Server, byte) {
			if tried {
				return
			}
			tried = true
			if _, err := Run(t.Context(), newFakeServers(t, 1).options(fs, dir)); !errors.Is(err, ErrInUse) {
				t.Errorf("a second backup into the directory: %v", err)
			}
		}
		m, err := Run(t.Context(), f.options(fs, dir))
		if err != nil {
			t.Fatal(err)
		}
		there, err := ReadManifest(fs, dir)
		if err != nil || there.ID != m.ID {
			t.Errorf("%+v, %v, want backup %s", there, err, m.ID)
		}
		names, err := fs.List(dir)
		if err != nil || len(names) != 3 {
			t.Errorf("the directory has %q, %v", names, err)
		}
	}
}

// TestFailedFirstManifest: when the directory cannot be synced the manifest may be
// durable. It goes, durably, before the files that it tells of.
func TestFailedFirstManifest(t *testing.T) {
	mem := vfs.NewMem()
	fs := vfstest.New(mem)
	named, failed, gone, removed := false, false, false, 0
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		switch {
		case op == vfstest.Rename:
			named = true
		case op == vfstest.SyncDir && named && !failed:
			failed = true
			return syscall.EIO
		case op == vfstest.SyncDir && failed:
			_, err := mem.Stat("b/" + manifestFile)
			gone = gone || oserror.IsNotExist(err)
		case op == vfstest.Remove && strings.Contains(name, filePrefix):
			if removed++; !gone {
				t.Errorf("%s is removed, and the manifest may be durable", name)
			}
		}
		return nil
	}
	m, err := Run(t.Context(), newFakeServers(t, 2).options(fs, "b"))
	if m != nil || !errors.Is(err, syscall.EIO) || removed != 4 {
		t.Fatalf("%+v, %v, %d files removed", m, err, removed)
	}
	if names, err := fs.List("b"); err != nil || len(names) > 0 {
		t.Errorf("what is left: %q, %v", names, err)
	}
}
