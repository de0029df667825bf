package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/redo"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// openFirst opens a small cluster on a directory, which it makes if there is none.
func openFirst(t testing.TB, fs vfs.FS, cat *tables.Catalog) (*Cluster, error) {
	return Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Partitions: 1, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 4 << 10, CheckpointRate: 1 << 40, MemoryBytes: 16 << 20,
	})
}

// putMark writes a row.
func putMark(t testing.TB, cl *Cluster, cat *tables.Catalog, id uint64) error {
	entry := cat.MustTable("entry")
	return cl.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Put(entry, tables.Num(id), entry.NewRow()) })
}

// TestLostParts: a directory that was served is not served without its log, without the
// file that says so, or with an older one, and as often as that is tried. Nothing in it is
// changed.
func TestLostParts(t *testing.T) {
	cat := bank(t)
	for _, checkpoint := range []int{-1, 2, 3} { // in which life
		fs := vfs.NewMem()
		epochs := map[int][]byte{}
		for life := range 4 {
			cl, err := openFirst(t, fs, cat)
			if err == nil {
				err = putMark(t, cl, cat, uint64(life))
			}
			if err == nil && life == checkpoint {
				err = cl.Servers[0].durable.checkpoints.run(t.Context())
			}
			if err = errors.Join(err, cl.Close()); err != nil {
				t.Fatal(err)
			}
			files := map[string][]byte{}
			filesOf(t, fs, "data", files)
			epochs[life] = files["data/server-0/EPOCH"]
		}
		whole := map[string][]byte{}
		filesOf(t, fs, "data", whole)
		without := func(part string) map[string][]byte {
			left := maps.Clone(whole)
			maps.DeleteFunc(left, func(path string, _ []byte) bool { return strings.Contains(path, "server-0/"+part) })
			if len(left) == len(whole) {
				t.Fatalf("there is no %s", part)
			}
			return left
		}
		neither := without(LogDir)
		maps.DeleteFunc(neither, func(path string, _ []byte) bool { return strings.Contains(path, CheckpointDir) })
		older := maps.Clone(whole)
		older["data/server-0/EPOCH"] = epochs[1]
		for what, files := range map[string]map[string][]byte{
			"without the log":                      without(LogDir),
			"without the log and the checkpoint":   neither,
			"without EPOCH":                        without("EPOCH"),
			"with the EPOCH of two starts earlier": older,
		} {
			fs := withFiles(t, files)
			for range 3 {
				_, err := openFirst(t, fs, cat)
				if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "restore a backup, or remove the directory") || strings.Contains(err.Error(), "\n") {
					t.Fatalf("checkpoint %d, %s: %v", checkpoint, what, err)
				}
			}
			now := map[string][]byte{}
			filesOf(t, fs, "data", now)
			for path := range now {
				if strings.Contains(path, LogDir) { // the log is prepared anew, without a record
					delete(now, path)
				}
			}
			for path, b := range files {
				if !strings.Contains(path, LogDir) && !bytes.Equal(b, now[path]) {
					t.Errorf("checkpoint %d, %s: %s was changed", checkpoint, what, path)
				}
				delete(now, path)
			}
			if len(now) > 0 {
				t.Errorf("checkpoint %d, %s: there is now %q", checkpoint, what, slices.Collect(maps.Keys(now)))
			}
		}
		cl, err := openFirst(t, withFiles(t, whole), cat)
		if err == nil {
			err = cl.Close()
		}
		if err != nil {
			t.Errorf("with everything: %v", err)
		}
	}
}

// TestFirstStart: a first start crashes or is killed at any operation, and the next one,
// too. The third start is as good as a first one: nothing is taken for lost.
func TestFirstStart(t *testing.T) {
	cat, seed := bank(t), testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	// start starts on a disk, and returns what crashes leave before each operation. It is
	// killed at one of them, and returns how many there were.
	start := func(disk *vfstest.Mem, kill int) (after []*vfstest.Mem, n int) {
		fs := vfstest.New(disk)
		var mu sync.Mutex
		fs.Before = func(_ int, op vfstest.Op, _ string) error {
			if !leaves(op) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if n >= kill {
				return syscall.EIO
			}
			n++
			after = append(after, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[r.IntN(3)], RNG: r}))
			return nil
		}
		if cl, err := openFirst(t, fs, cat); err == nil {
			_ = cl.Close()
		}
		mu.Lock()
		defer mu.Unlock()
		return after, n
	}
	works := func(disk *vfstest.Mem) error {
		cl, err := openFirst(t, disk, cat)
		if err == nil {
			err = errors.Join(putMark(t, cl, cat, 1), cl.Close())
		}
		return err
	}
	all, n := start(vfstest.NewCrashableMem(), 1<<30)
	for kill := range n {
		killed := vfstest.NewCrashableMem()
		start(killed, kill)
		after, _ := start(killed, 1<<30)
		all = append(all, after[r.IntN(len(after))], after[min(r.IntN(8), len(after)-1)], killed)
	}
	for i, disk := range all {
		if err := works(disk); err != nil {
			t.Fatalf("DRTMX_SEED=%d: disk %d of %d: %v", seed, i, len(all), err)
		}
	}
	t.Logf("%d operations, %d disks", n, len(all))
}

// TestCopyWithoutIdentity: a copy that could not be completed does not enter the set: it
// cannot take the place of its home.
func TestCopyWithoutIdentity(t *testing.T) {
	mem := vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	var mu sync.Mutex
	failures := 0
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op != vfstest.Create || !strings.HasSuffix(name, "copies/server-0/IDENTITY.tmp") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if failures++; failures <= 3 {
			return syscall.ENOSPC
		}
		return nil
	}
	cat := bank(t)
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Servers: 2, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 64 << 10, Replicas: 2, MemoryBytes: 16 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	await(t, "the copy is in sync", func() bool {
		set, err := cl.Servers[0].cfg.Sets.Set(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if !set.Members.Has(1) {
			return false
		}
		if _, err := mem.Stat("data/server-1/copies/server-0/IDENTITY"); err != nil {
			t.Fatalf("the copy is a member of %+v: %v", set, err)
		}
		return true
	})
}

// TestCopyWithoutLog: a copy that has lost its log does not pass for an empty one. It
// leaves the set, and is made anew.
func TestCopyWithoutLog(t *testing.T) {
	disk, o := vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	if err := errors.Join(c.put(t.Context(), id, 1), c.Close()); err != nil {
		t.Fatal(err)
	}
	dir := CopyDir(disk, ServerDir("data", 1), 0)
	if err := disk.RemoveAll(disk.PathJoin(dir, LogDir)); err != nil {
		t.Fatal(err)
	}
	lost := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := lost.RemoveAll(lost.PathJoin(dir, LogDir)); err != nil {
		t.Fatal(err)
	}
	if id, _, err := datadir.Read(lost, dir); err != nil {
		t.Error(err)
	} else if end, err := CheckCopy(lost, dir, id, CopyRead{}); !errors.Is(err, wal.ErrMissing) {
		t.Errorf("a copy without a log ends at %d, %v", end, err)
	}
	if err := lost.RemoveAll(ServerDir("data", 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := openCopied(t, lost, o); !errors.Is(err, ErrLost) {
		t.Errorf("a copy without a log has taken the place of its home: %v", err)
	}
	o.net = inproc.New(inproc.Options{})
	o.net.FailDials("server-0", "server-1", rdma.ErrRefused)
	c = mustOpenCopied(t, disk, o)
	defer c.Close()
	home := c.Servers[0].durable.dir
	raw, err := json.Marshal(home.Identity)
	if err != nil {
		t.Fatal(err)
	}
	state, err := c.kept(0, 1).step(t.Context(), &wire.CopyStep{Step: wire.CopyBegin, Server: 0, Epoch: home.Epoch, Session: 1, Bytes: raw})
	if err != nil || state.There {
		t.Errorf("a copy without a log passes for an empty one: %+v, %v", state, err)
	}
	o.net.FailDials("server-0", "server-1", nil)
	await(t, "the copy is made anew", func() bool {
		k := c.kept(0, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log != nil && k.log.End() > 0
	})
	c.inSync(t)
	if err := c.put(t.Context(), id, 2); err != nil {
		t.Fatal(err)
	}
	sameRecords(t, c.kept(0, 1).log, c.Servers[0].durable.log)
}

// TestCopyThatCannotYield: a copy whose log has failed does not take the place of its
// home at once, and its home may go on with it.
func TestCopyThatCannotYield(t *testing.T) {
	fs := vfstest.New(vfs.NewMem())
	var fail atomic.Bool
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if fail.Load() && op == vfstest.Sync && strings.Contains(name, "copies/server-0/"+LogDir) {
			return syscall.EIO
		}
		return nil
	}
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: bank(t), Servers: 2, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 64 << 10, Replicas: 2, MemoryBytes: 16 << 20, CopyPatience: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	c := &copied{Cluster: cl}
	c.inSync(t)
	fail.Store(true)
	k := c.kept(0, 1)
	r := redo.Record{Kind: redo.Started, Epoch: 1}
	if _, err := cl.Servers[0].durable.log.Append(r.Append(nil)); err != nil {
		t.Fatal(err)
	}
	await(t, "the log of the copy has failed", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log != nil && k.log.Err() != nil
	})
	if _, _, err := cl.Servers[1].YieldCopy(0); !errors.Is(err, wal.ErrFailed) {
		t.Fatalf("a copy whose log has failed yields: %v", err)
	}
	fail.Store(false)
	at, err := cl.Servers[0].durable.log.Append(r.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the copy goes on", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log != nil && k.log.Durable() >= at
	})
}

// TestUncertainSetStays: a change of a set that can be seen, and whose sync has failed,
// is not taken for made.
func TestUncertainSetStays(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	fs := vfstest.New(disk)
	fail, named := false, false
	fault := syscall.ENOSPC
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		named = named || op == vfstest.Rename
		if fail && (op == vfstest.Create && fault == syscall.ENOSPC || op == vfstest.SyncDir && named && fault == syscall.EIO) {
			return fault
		}
		return nil
	}
	sets := FileSets(fs, "data")
	one := replica.Set{Epoch: 1, Since: 1, Version: 1, Members: 3}
	two := one
	two.Version, two.Members = 2, 1
	if now, err := sets.SwapSet(t.Context(), 0, replica.Set{}, one); err != nil || now != one {
		t.Fatal(now, err)
	}
	// Without space nothing was changed, and the change can be made later.
	fail = true
	if _, err := sets.SwapSet(t.Context(), 0, one, two); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fail = false
	if now, err := sets.SwapSet(t.Context(), 0, one, two); err != nil || now != two {
		t.Fatal(now, err)
	}
	three := two
	three.Version, three.Members = 3, 3
	fail, named, fault = true, false, syscall.EIO
	if _, err := sets.SwapSet(t.Context(), 0, two, three); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	fail = false
	now, err := sets.SwapSet(t.Context(), 0, two, three)
	after, rerr := FileSets(disk.CrashClone(vfs.CrashCloneCfg{}), "data").Set(t.Context(), 0)
	if rerr != nil {
		t.Fatal(rerr)
	}
	if err == nil && now != after {
		t.Errorf("said to be %+v, and after a crash it is %+v", now, after)
	}
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("after a failed sync: %v", err)
	}
}

// TestCheckpointOfAKilledProcess: a process is killed when it has renamed a checkpoint,
// before the name is durable. The next one recovers from it, cuts the log, and the disk
// crashes.
func TestCheckpointOfAKilledProcess(t *testing.T) {
	cat, disk := bank(t), vfstest.NewCrashableMem()
	fs := vfstest.New(disk)
	var mu sync.Mutex
	armed := false
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if armed && op == vfstest.SyncDir && strings.HasSuffix(name, CheckpointDir) {
			return syscall.EIO
		}
		return nil
	}
	cl, err := openFirst(t, fs, cat)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(200) {
		if err := putMark(t, cl, cat, i); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	armed = true
	mu.Unlock()
	if err := cl.Servers[0].durable.checkpoints.run(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the directory is not synced: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	if cl, err = openFirst(t, disk, cat); err != nil {
		t.Fatal(err)
	}
	d := cl.Servers[0].durable
	if cl.Servers[0].Recovered().CheckpointRows == 0 {
		t.Fatal("there is no checkpoint")
	}
	if err := d.cut(wal.LSN(d.checkpoints.from.Load())); err != nil { // as at the end of a backup
		t.Fatal(err)
	}
	await(t, "the log is reused", func() bool { return putMark(t, cl, cat, 7) != nil || d.log.Stats().Spare == 0 })
	after := disk.CrashClone(vfs.CrashCloneCfg{})
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	if cl, err = openFirst(t, after, cat); err != nil {
		t.Fatalf("after the crash: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCheckpointOfAnotherIsNotInstalled: a copy takes no checkpoint of another log or
// position.
func TestCheckpointOfAnotherIsNotInstalled(t *testing.T) {
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2})
	defer c.Close()
	c.inSync(t)
	for i := range uint64(20) {
		if err := c.put(t.Context(), c.at(t, int(i%2)), int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	s := c.Servers[1] // which is not the home of the copy
	if err := s.durable.checkpoints.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	from := s.durable.checkpoints.from.Load()
	files := map[string][]byte{}
	filesOf(t, c.disk, ServerDir("data", 1)+"/"+CheckpointDir, files)
	for path, b := range files {
		if !strings.HasSuffix(path, fmt.Sprintf("%016x", from)) {
			continue
		}
		k := c.kept(0, 1)
		k.mu.Lock()
		m := wire.CopyStep{Server: 0, Epoch: uint32(k.rule.Epoch), Session: k.session, Log: from, Bytes: b}
		err := k.takeBase(&m)
		m.At = uint64(len(b))
		for err == nil && k.base != from {
			err = k.install(&m)
			time.Sleep(time.Millisecond)
		}
		base := k.base
		k.mu.Unlock()
		if err == nil || base == from {
			t.Errorf("the checkpoint of another server is installed: %v", err)
		}
		return
	}
	t.Errorf("no checkpoint at %d: %q", from, slices.Collect(maps.Keys(files)))
}
