package backup

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/datadir"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/server"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashPoints are disks as crashes leave them: with a part of what was not synced
// before each operation that changes something.
type crashPoints struct {
	mu    sync.Mutex
	mem   *vfstest.Mem
	r     *rand.Rand
	one   int // of how many points is kept, at random
	disks []crashedDisk
	done  bool // what comes is after the success was told
	ops   int
}

type crashedDisk struct {
	fs   *vfstest.Mem
	done bool
	op   vfstest.Op
	name string
}

func (c *crashPoints) fs() *vfstest.FS {
	fs := vfstest.New(c.mem)
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op.Changes() {
			c.point(op, name)
		}
		return nil
	}
	return fs
}

func (c *crashPoints) point(op vfstest.Op, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ops++; c.r.IntN(c.one) == 0 {
		c.keep(op, name, []int{0, 100, c.r.IntN(101)}[c.r.IntN(3)])
	}
	if op == vfstest.SyncDir { // any of the names may be durable and any other not
		for range 8 {
			c.keep(op, name, 50)
		}
	}
}

func (c *crashPoints) keep(op vfstest.Op, name string, percent int) {
	disk := c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.r})
	c.disks = append(c.disks, crashedDisk{disk, c.done, op, name})
}

func (c *crashPoints) succeed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
}

// keptPoints is one, or with DRTMX_CRASHES=0 each point is kept.
func keptPoints(one int) int {
	if os.Getenv("DRTMX_CRASHES") == "0" {
		return 1
	}
	return one
}

// smallBackup makes a backup on a disk, of data that writers change meanwhile.
func smallBackup(t *testing.T, c *crashPoints, seed uint64) {
	t.Helper()
	w := openWorld(t, t.TempDir(), 2, 3, nil)
	defer w.cl.Close()
	w.load()
	w.write(seed)
	time.Sleep(50 * time.Millisecond)
	o := w.options("backup")
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	moves := 0
	o.FS, o.Follow, o.For, o.Moved = c.fs(), true, testseed.Patience(), func(*Manifest) {
		c.succeed()
		if moves++; moves == 5 {
			enough()
		}
	}
	_, err := Run(ctx, o)
	w.end()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrashOfABackup: after a crash at any operation of a backup it is known to be
// incomplete, or it is complete. Once it was said to be complete, it is.
func TestCrashOfABackup(t *testing.T) {
	seed := testseed.Of(t)
	c := &crashPoints{mem: vfstest.NewCrashableMem(), r: rand.New(rand.NewPCG(seed, 1)), one: keptPoints(2)}
	smallBackup(t, c, seed)
	complete := 0
	for i, d := range c.disks {
		switch _, err := Verify(d.fs, "backup", nil); {
		case err == nil:
			complete++
		case d.done || !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrNoBackup):
			t.Errorf("DRTMX_SEED=%d: disk %d, before %s of %s, said to be complete: %v: %v", seed, i, d.op, d.name, d.done, err)
		}
	}
	t.Logf("%d operations, %d disks, %d of them with a complete backup", c.ops, len(c.disks), complete)
	if complete == 0 || complete == len(c.disks) {
		t.Error("nothing was tried")
	}
}

// TestCrashOfARestore: after a crash at any operation of a restore there is no data
// directory, or a complete one. What is left beside cannot be opened, and the next
// restore removes it; but a complete one that has not got its name yet it leaves, and
// says so.
func TestCrashOfARestore(t *testing.T) {
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 2))
	made := &crashPoints{mem: vfstest.NewCrashableMem(), r: r, one: 1 << 30}
	smallBackup(t, made, seed)
	c := &crashPoints{mem: made.mem.CrashClone(vfs.CrashCloneCfg{}), r: r, one: keptPoints(12)}
	o := RestoreOptions{FS: c.fs(), From: "backup", Dir: "restored", Servers: 2, Partitions: 2, segmentBytes: 64 << 10}
	if _, err := Restore(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := openRestored(t, c.mem.CrashClone(vfs.CrashCloneCfg{}))
	complete, left, unnamed := 0, 0, 0
	for i, d := range c.disks {
		o.FS = d.fs
		beside := "restored" + datadir.Restoring
		whole, remains := holds(d.fs, "restored"), holds(d.fs, beside)
		if remains {
			left++
			_, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 2, Partitions: 2, Durability: server.Disk, Dir: beside, FS: d.fs})
			if !errors.Is(err, datadir.ErrUnfinished) || !strings.Contains(err.Error(), "repeat the restore into restored, or remove the directory") {
				t.Fatalf("DRTMX_SEED=%d: disk %d, before %s of %s: what the restore has left is opened: %v", seed, i, d.op, d.name, err)
			}
		}
		_, err := Restore(t.Context(), o)
		switch {
		case whole:
			complete++
			if !errors.Is(err, ErrInUse) {
				t.Errorf("a restore over data: %v", err)
			}
		case errors.Is(err, ErrInUse) && strings.Contains(err.Error(), "it is complete, or not of a restore"):
			unnamed++
			if err := d.fs.Rename(beside, "restored"); err != nil {
				t.Fatal(err)
			}
		case err != nil:
			t.Fatalf("DRTMX_SEED=%d: disk %d, before %s of %s: the next restore: %v", seed, i, d.op, d.name, err)
		case holds(d.fs, beside):
			t.Errorf("DRTMX_SEED=%d: disk %d, before %s of %s: the next restore leaves %s", seed, i, d.op, d.name, beside)
		}
		if got := openRestored(t, d.fs); got != want {
			t.Fatalf("DRTMX_SEED=%d: disk %d, before %s of %s: restored %v transfers, want %v", seed, i, d.op, d.name, got, want)
		}
	}
	t.Logf("%d operations, %d disks: %d complete, %d with something beside, %d of them complete without the name", c.ops, len(c.disks), complete, left, unnamed)
	if left == 0 {
		t.Error("nothing was tried")
	}
}

// holds reports whether a directory is there, with something in it if it is a data
// directory.
func holds(fs vfs.FS, dir string) bool {
	names, err := fs.List(dir)
	return err == nil && (len(names) > 0 || strings.HasSuffix(dir, datadir.Restoring))
}

// openRestored opens what was restored, and returns how many transfers of each
// writer it has.
func openRestored(t *testing.T, fs vfs.FS) [writers]int64 {
	t.Helper()
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 2, Partitions: 2, Durability: server.Disk, Dir: "restored", FS: fs, SegmentBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, s := range cl.Servers {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	return checkState(t, cl.DB)
}
