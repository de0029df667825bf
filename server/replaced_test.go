package server

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/replica"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/rdma/inproc"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// balance reads a balance.
func (c *copied) balance(t testing.TB, id uint64) int64 {
	t.Helper()
	have, _ := accountsIn(t, c.Cluster, c.acct, []uint64{id})
	return have[id]
}

// TestEmptyDirectoryIsNotServed: a data server whose log has copies does not begin
// with an empty directory, however often it is started, and leaves the place of the
// lost one to a copy.
func TestEmptyDirectoryIsNotServed(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	must(t, c.put(t.Context(), id, 1))
	must(t, c.Close())
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	for try := range 4 {
		s, err := New(Config{
			Index: 0, Addrs: []string{"server-0", "server-1"}, Partitions: 4, Catalog: bank(t), Provider: inproc.New(inproc.Options{}),
			Durability: Disk, Dir: ServerDir("data", 0), FS: disk, Sets: FileSets(disk, "data"),
		})
		if !errors.Is(err, replica.ErrReplaced) {
			t.Fatalf("attempt %d: an empty directory is served in the place of the lost one: %v, %v", try, s, err)
		}
	}
	adopted, err := AdoptCopies(t.Context(), disk, "data")
	if err != nil || len(adopted) != 1 {
		t.Fatalf("a copy takes the place of the lost directory: %q, %v", adopted, err)
	}
	c = mustOpenCopied(t, disk, o)
	if b := c.balance(t, id); b != 1 {
		t.Errorf("the account has %d, want 1", b)
	}
	must(t, c.Close())
}

// TestLineageOutlivesEpochs: starts whose change of the set fails raise the epoch of a
// directory. When a copy has taken its place it is refused even so.
func TestLineageOutlivesEpochs(t *testing.T) {
	var failing atomic.Bool
	mem := vfstest.NewCrashableMem()
	disk := vfstest.New(mem)
	disk.Before = func(_ int, op vfstest.Op, name string) error {
		if failing.Load() && op == vfstest.Create && strings.Contains(name, setsFile+".tmp") {
			return syscall.ENOSPC
		}
		return nil
	}
	o := copyOptions{servers: 2, replicas: 2, fs: disk}
	c := mustOpenCopied(t, mem, o)
	c.inSync(t)
	id := c.at(t, 0)
	must(t, c.put(t.Context(), id, 1))
	must(t, c.Close())
	failing.Store(true)
	for range 6 {
		if _, err := openCopied(t, mem, o); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("opened without its set: %v", err)
		}
	}
	failing.Store(false)
	home := ServerDir("data", 0)
	must(t, disk.Rename(home, "away"))
	c = mustOpenCopied(t, mem, o) // a copy takes its place
	must(t, c.put(t.Context(), id, 2))
	must(t, c.Close())
	must(t, disk.Rename(home, "present"))
	must(t, disk.Rename("away", home))
	for try := range 4 {
		c, err := openCopied(t, mem, o)
		if err == nil {
			t.Errorf("attempt %d: a directory that was replaced is served", try)
			must(t, c.Close())
			return
		}
		if !errors.Is(err, replica.ErrReplaced) {
			t.Fatal(err)
		}
	}
	must(t, disk.RemoveAll(home))
	must(t, disk.Rename("present", home))
	c = mustOpenCopied(t, mem, o)
	if b := c.balance(t, id); b != 2 {
		t.Errorf("the account has %d, want 2", b)
	}
	must(t, c.Close())
}

// damage changes a byte of the first file of a log.
func damage(t testing.TB, fs vfs.FS, dir string, at int64) {
	t.Helper()
	names, err := fs.List(dir)
	must(t, err)
	slices.Sort(names)
	first := names[slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, ".log") })]
	f, err := fs.OpenReadWrite(fs.PathJoin(dir, first), vfs.WriteCategoryUnspecified)
	must(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	must(t, err)
	b[0] ^= 0x55
	_, err = f.WriteAt(b, at)
	must(t, errors.Join(err, f.Sync(), f.Close()))
}

// TestDamagedCopyIsNotAdopted: one of two copies in sync is damaged. The other one
// takes the place of the lost directory.
func TestDamagedCopyIsNotAdopted(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 3, replicas: 3}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	for i := range int64(100) {
		must(t, c.put(t.Context(), id, i))
	}
	c.inSync(t)
	must(t, c.Close())
	damaged := CopyDir(disk, ServerDir("data", 1), 0)
	damage(t, disk, disk.PathJoin(damaged, LogDir), 4000)
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	c, err := openCopied(t, disk, o)
	if err != nil {
		t.Fatalf("a whole copy in sync is there: %v", err)
	}
	if b := c.balance(t, id); b != 99 {
		t.Errorf("the account has %d, want 99", b)
	}
	must(t, c.Close())
}

// TestAllCopiesAreDamaged: the error names each copy that was not taken, and why.
func TestAllCopiesAreDamaged(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	for i := range int64(100) {
		must(t, c.put(t.Context(), id, i))
	}
	must(t, c.Close())
	damaged := CopyDir(disk, ServerDir("data", 1), 0)
	damage(t, disk, disk.PathJoin(damaged, LogDir), 4000)
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	before, err := FileSets(disk, "data").Set(t.Context(), 0)
	must(t, err)
	if _, err := openCopied(t, disk, o); !errors.Is(err, ErrLost) || !errors.As(err, new(*wal.CorruptError)) || !strings.Contains(err.Error(), damaged) {
		t.Errorf("opened without data: %v", err)
	}
	if set, err := FileSets(disk, "data").Set(t.Context(), 0); err != nil || set != before {
		t.Errorf("the set is %+v, %v, and was %+v", set, err, before)
	}
}

// TestStaleKeeperIsNotTrusted: the directory of a keeper that was replaced turns up
// again. Its copies are stale, and take nobody's place.
func TestStaleKeeperIsNotTrusted(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 1) // its copy is at server 0
	must(t, c.put(t.Context(), id, 1))
	must(t, c.Close())
	must(t, disk.Rename(ServerDir("data", 0), "away"))
	c = mustOpenCopied(t, disk, o) // a copy takes its place, and has no copies itself
	await(t, "the copy of server 1 is made anew", func() bool {
		k := c.kept(1, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log != nil
	})
	c.inSync(t)
	must(t, c.put(t.Context(), id, 2))
	must(t, c.Close())
	must(t, disk.Rename(ServerDir("data", 0), "right"))
	must(t, disk.Rename("away", ServerDir("data", 0)))
	must(t, disk.Rename(ServerDir("data", 1), "lost"))
	if _, err := openCopied(t, disk, o); !errors.Is(err, replica.ErrReplaced) {
		t.Errorf("opened from a stale directory: %v", err)
	}
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	must(t, disk.Rename("right", ServerDir("data", 0)))
	c, err := openCopied(t, disk, o)
	must(t, err)
	if b := c.balance(t, id); b != 2 {
		t.Errorf("the account has %d, want 2", b)
	}
	must(t, c.Close())
}

// TestAdoptionInTheWay: an adoption that cannot be carried out changes nothing: if the
// directory that was missed is there again, it is served.
func TestAdoptionInTheWay(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	must(t, c.put(t.Context(), c.at(t, 0), 1))
	must(t, c.Close())
	must(t, disk.Rename(ServerDir("data", 0), "away")) // not mounted yet
	must(t, disk.MkdirAll(disk.PathJoin(ServerDir("data", 0), "lost+found"), 0o700))
	if _, err := openCopied(t, disk, o); !errors.Is(err, datadir.ErrForeign) {
		t.Fatalf("a copy took the place of what is in the way: %v", err)
	}
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	must(t, disk.Rename("away", ServerDir("data", 0)))
	c, err := openCopied(t, disk, o)
	if err != nil {
		t.Fatalf("the directory is back, nothing has happened meanwhile, and: %v", err)
	}
	must(t, c.Close())
}

// TestDamagedCopyIsMadeAnew: a copy whose log is damaged leaves the set, and is made
// anew.
func TestDamagedCopyIsMadeAnew(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2, patience: 200 * time.Millisecond}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	for i := range int64(100) {
		must(t, c.put(t.Context(), id, i))
	}
	must(t, c.Close())
	damage(t, disk, disk.PathJoin(CopyDir(disk, ServerDir("data", 1), 0), LogDir), 4000)
	c = mustOpenCopied(t, disk, o)
	await(t, "the damaged copy leaves the set, is made anew and enters it", func() bool {
		k := c.kept(0, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log != nil && c.Servers[0].Copies()[0].InSync
	})
	must(t, c.Close())
	o.patience = time.Hour // however long this process is held up, the copy stays in the set
	c = mustOpenCopied(t, disk, o)
	c.inSync(t)
	must(t, c.put(t.Context(), id, 100))
	must(t, c.Close())
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	c = mustOpenCopied(t, disk, o)
	if b := c.balance(t, id); b != 100 {
		t.Errorf("the account has %d, want 100", b)
	}
	must(t, c.Close())
}

// TestLostEndOfLog: a home that has lost the end of its log finds a copy in sync that
// has it. It acknowledges nothing, and the copy stays what it is.
func TestLostEndOfLog(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	o := copyOptions{servers: 2, replicas: 2, patience: time.Hour}
	c := mustOpenCopied(t, disk, o)
	c.inSync(t)
	id := c.at(t, 0)
	last := int64(0)
	for log := c.Servers[0].durable.log; log.Durable() < 200<<10; last++ {
		must(t, c.put(t.Context(), id, last+1))
	}
	must(t, c.Close())
	dir := disk.PathJoin(ServerDir("data", 0), LogDir)
	names, err := disk.List(dir)
	must(t, err)
	slices.Sort(names)
	for _, n := range names[1:] {
		must(t, disk.Remove(disk.PathJoin(dir, n)))
	}
	c = mustOpenCopied(t, disk, o)
	await(t, "the home finds that it has lost the end of its log", c.Servers[0].durable.group.deposed.Load)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.put(short, id, -1); err == nil {
		t.Error("a home that has lost the end of its log has acknowledged more")
	}
	if set, err := FileSets(disk, "data").Set(t.Context(), 0); err != nil || !set.Members.Has(1) {
		t.Errorf("the set is %+v, %v", set, err)
	}
	must(t, c.Close())
	must(t, disk.RemoveAll(ServerDir("data", 0)))
	c = mustOpenCopied(t, disk, o)
	if b := c.balance(t, id); b != last {
		t.Errorf("the account has %d, and %d was acknowledged", b, last)
	}
	must(t, c.Close())
}
