package server

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
)

// reader is a host that reads the copies that it keeps.
type reader interface {
	giver
	ReadCopy(home placement.Server) (CopyRead, error)
}

// TestReadCopy: a copy is read while it takes the log and gets
// checkpoints. All of it is always whole, and what is left to be read when it is given
// away is what came after.
func TestReadCopy(t *testing.T) {
	keepers(t, copyOptions{servers: 2, replicas: 2, checkpoint: 4 << 10}, testReadCopy)
}

func testReadCopy(t *testing.T, o copyOptions) {
	t.Helper()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), o)
	defer c.Close()
	c.inSync(t)
	id, g := c.at(t, 0), c.giver(0).(reader)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	defer writer.Wait()
	end := sync.OnceFunc(func() { close(stop) })
	defer end()
	writer.Go(func() {
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := c.put(t.Context(), id, i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var last CopyRead
	kept := c.kept(0, 1)
	for range 4 {
		was := last.Base
		for range 5 {
			read, err := g.ReadCopy(0)
			if err != nil {
				t.Fatal(err)
			}
			if read.Base < last.Base || read.Log < max(last.Log, read.Base) {
				t.Fatalf("read %+v after %+v", read, last)
			}
			last = read
		}
		await(t, "the copy gets another checkpoint when nobody reads it", func() bool {
			kept.mu.Lock()
			defer kept.mu.Unlock()
			return kept.base > was
		})
	}
	end()
	writer.Wait()
	dir, _, err := g.YieldCopy(0)
	must(t, err)
	ident, _, err := datadir.Read(c.disk, dir)
	must(t, err)
	for _, before := range []CopyRead{{}, last} {
		if end, err := CheckCopy(c.disk, dir, ident, before); err != nil || end < last.Log {
			t.Errorf("after %+v the copy is read up to %d: %v", before, end, err)
		}
	}
	if _, err := g.ReadCopy(0); !errors.Is(err, ErrCopyGiven) {
		t.Errorf("read although it is given away: %v", err)
	}
}

// flip damages a byte of a file in the directory of a copy: the one with that number of
// those that there are.
func flip(t testing.TB, fs vfs.FS, dir string, number int, at int64) {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	slices.Sort(names)
	f, err := fs.OpenReadWrite(fs.PathJoin(dir, names[number]), vfs.WriteCategoryUnspecified)
	must(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	must(t, err)
	b[0] ^= 0x55
	_, err = f.WriteAt(b, at)
	must(t, errors.Join(err, f.Close()))
}

// TestDamageIsRead: damage of a checkpoint and of the log is found when a copy is read
// beside its steps. The copy is made anew when it has left the set.
func TestDamageIsRead(t *testing.T) {
	t.Parallel()
	for where, checkpoint := range map[string]int64{CheckpointDir: 64 << 10, LogDir: 0} {
		t.Run(where, func(t *testing.T) {
			disk := vfstest.NewCrashableMem()
			c := mustOpenCopied(t, disk, copyOptions{servers: 2, replicas: 2, patience: 200 * time.Millisecond, checkpoint: checkpoint})
			defer c.Close()
			c.inSync(t)
			id, i := c.at(t, 0), int64(0)
			kept, g := c.kept(0, 1), c.giver(0).(reader)
			put := func() {
				t.Helper()
				must(t, c.put(t.Context(), id, i))
				i++
			}
			await(t, "the copy has a checkpoint, or a log of some length", func() bool {
				put()
				kept.mu.Lock()
				defer kept.mu.Unlock()
				return kept.base > 0 || checkpoint == 0 && kept.log.Durable() > 8<<10
			})
			_, err := g.ReadCopy(0)
			must(t, err)
			flip(t, disk, disk.PathJoin(CopyDir(disk, ServerDir("data", 1), 0), where), 0, 300)
			if _, err := g.ReadCopy(0); !isDamage(err) {
				t.Errorf("a damaged copy is read: %v", err)
			}
			await(t, "the damaged copy is made anew", func() bool {
				put()
				_, err := g.ReadCopy(0)
				return err == nil && c.Servers[0].Copies()[0].InSync
			})
		})
	}
}

// TestTheRestIsRead: what was read of a copy before it was given away is not read again,
// and what has come since is.
func TestTheRestIsRead(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	c := mustOpenCopied(t, disk, copyOptions{servers: 2, replicas: 2, patience: time.Hour})
	defer c.Close()
	c.inSync(t)
	id, kept, g := c.at(t, 0), c.kept(0, 1), c.giver(0).(reader)
	putUpTo := func(bytes wal.LSN) {
		for i := int64(0); kept.log.Durable() < bytes; i++ {
			must(t, c.put(t.Context(), id, i))
		}
	}
	putUpTo(100 << 10)
	read, err := g.ReadCopy(0)
	must(t, err)
	next := kept.log.Stats().Segments
	putUpTo(300 << 10)
	dir, _, err := g.YieldCopy(0)
	must(t, err)
	ident, _, err := datadir.Read(disk, dir)
	must(t, err)
	log := disk.PathJoin(dir, LogDir)
	check := func(before CopyRead, want bool) {
		t.Helper()
		if end, err := CheckCopy(disk, dir, ident, before); want && (err != nil || end < 300<<10) || !want && !isDamage(err) {
			t.Errorf("after %+v the copy is read up to %d: %v", before, end, err)
		}
	}
	check(CopyRead{}, true)
	check(read, true)
	flip(t, disk, log, 0, 4000)
	check(CopyRead{}, false)
	check(read, true)
	flip(t, disk, log, 0, 4000)
	flip(t, disk, log, next, 4000)
	check(read, false)
}
