package datadir

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/vfstest"
)

var mine = Identity{Incarnation: 7, Server: 1, Servers: 3, Partitions: 6, Catalog: []byte(`{"tables":[]}`)}

const path = "data/server-1"

// mustOpen opens the directory and begins its epoch.
func mustOpen(t *testing.T, fs vfs.FS) *Dir {
	t.Helper()
	d, err := Open(fs, path, mine)
	if err == nil {
		err = d.Begin()
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOpenings: the identity stays, the epoch rises with each one that was begun, and
// nobody opens a directory that is open.
func TestOpenings(t *testing.T) {
	fs := vfs.NewMem()
	first := mustOpen(t, fs)
	if _, err := Open(fs, path, mine); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for epoch := uint32(2); epoch < 5; epoch++ {
		if d, err := Open(fs, path, mine); err != nil || d.Epoch != epoch || !d.Served {
			t.Errorf("opened, and not served: %+v, %v", d, err)
		} else if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d := mustOpen(t, fs)
		if d.Epoch != epoch || d.New || d.ID != first.ID || d.Incarnation != mine.Incarnation || string(d.Catalog) != string(mine.Catalog) {
			t.Errorf("epoch %d: %+v, first %+v", epoch, d, first)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeign: a directory of something else is refused, and is as it was.
func TestForeign(t *testing.T) {
	fs := vfs.NewMem()
	d := mustOpen(t, fs)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, other := range []Identity{{Server: 2, Servers: 3, Partitions: 6}, {Server: 1, Servers: 2, Partitions: 6}, {Server: 1, Servers: 3, Partitions: 7}} {
		if _, err := Open(fs, path, other); !errors.Is(err, ErrForeign) {
			t.Errorf("opened as %+v: %v", other, err)
		}
	}
	again := mustOpen(t, fs)
	if again.Epoch != 2 {
		t.Errorf("refused openings have counted: epoch %d", again.Epoch)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create("stuff", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fs, "", mine); !errors.Is(err, ErrForeign) {
		t.Errorf("a directory with other files: %v", err)
	}
	if names, _ := fs.List(""); len(names) != 2 {
		t.Errorf("there are %v", names)
	}
}

// rewrite replaces a file.
func rewrite(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = f.Write(slices.Clone(b))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryByte: a byte changed anywhere, or missing at the end, is noticed, and
// nothing is written then.
func TestEveryByte(t *testing.T) {
	fs := vfs.NewMem()
	d := mustOpen(t, fs)
	if err := errors.Join(d.SetSince(3), d.Close()); err != nil {
		t.Fatal(err)
	}
	const other = "data/server-2" // with what no directory of a server that may be opened has
	if err := errors.Join(fs.MkdirAll(other, 0o700), WritePlace(fs, other, Place{Cluster: 7}), WriteCopy(fs, other, Copy{Epoch: 4, Since: 2})); err != nil {
		t.Fatal(err)
	}
	opens := func() error { _, err := Open(fs, path, mine); return err }
	for name, read := range map[string]func() error{
		identityFile: opens,
		epochFile:    opens,
		lineageFile:  func() error { _, err := ReadSince(fs, path); return err },
		placeFile:    func() error { _, err := ReadPlace(fs, other); return err },
		copyFile:     func() error { _, _, err := ReadCopy(fs, other); return err },
	} {
		at := fs.PathJoin(path, name)
		if name == placeFile || name == copyFile {
			at = fs.PathJoin(other, name)
		}
		f, err := fs.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		good, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		try := func(what string, i int, b []byte) {
			t.Helper()
			rewrite(t, fs, at, append([]byte(nil), b...))
			if err := read(); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), at) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%s, byte %d %s: %v", name, i, what, err)
			}
		}
		for i := range good {
			for _, bit := range []byte{1, 0x80} {
				bad := append([]byte(nil), good...)
				bad[i] ^= bit
				try("changed", i, bad)
			}
			try("is the end", i, good[:i])
		}
		rewrite(t, fs, at, append([]byte(nil), good...))
	}
	again := mustOpen(t, fs)
	if again.Epoch != 2 {
		t.Errorf("epoch %d after refused openings, want 2", again.Epoch)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestVersion: a directory of another format is refused as such.
func TestVersion(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := write(fs, path, identityFile, []byte(`{"format":99,"what":"later versions may say anything"}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(fs, path, mine); !errors.Is(err, ErrVersion) {
		t.Errorf("format 99: %v", err)
	}
}

// TestCrashAtEveryOperation: after a crash at any operation of two openings the
// directory opens; an identity that an opening has returned is the one that is
// there, and epochs never repeat.
func TestCrashAtEveryOperation(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	crashes := 0
	for at := 0; ; at++ {
		for _, kept := range []int{0, 50, 100} {
			disk := vfstest.NewCrashableMem()
			var after *vfstest.Mem
			var id string
			epoch := uint32(0)
			fs := vfstest.New(disk)
			n := 0
			fs.Before = func(_ int, op vfstest.Op, _ string) error {
				if op.Changes() {
					if n == at {
						after = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: r})
					}
					n++
				}
				return nil
			}
			for range 2 {
				d, err := Open(fs, path, mine)
				if err == nil {
					err = d.Begin()
				}
				if err != nil {
					t.Fatal(err)
				}
				if after == nil { // it has returned before the crash
					id, epoch = d.ID, d.Epoch
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if after == nil {
				if crashes < 20 {
					t.Fatalf("%d crashes only", crashes)
				}
				return
			}
			crashes++
			d, err := Open(after, path, mine)
			if err != nil {
				t.Fatalf("after a crash at operation %d with %d %% kept: %v", at, kept, err)
			}
			if id != "" && d.ID != id || d.Epoch <= epoch {
				t.Fatalf("after a crash at operation %d with %d %% kept: %+v, was %s in epoch %d", at, kept, d, id, epoch)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnfinished: a directory that a restore fills is known by its name and by its
// mark. A restore takes over what an earlier one has left, and nothing else.
func TestUnfinished(t *testing.T) {
	fs := vfs.NewMem()
	fill := func(dir string) {
		t.Helper()
		if err := fs.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		d, err := Open(fs, fs.PathJoin(dir, "server-0"), mine)
		if err == nil {
			err = d.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	const dir = "a" + Restoring
	if err := Finished(fs, "a"); err != nil {
		t.Errorf("a directory that does not exist: %v", err)
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := MarkRestoring(fs, dir); err != nil {
		t.Fatal(err)
	}
	fill(dir)
	if err := Finished(fs, dir+"/"); !errors.Is(err, ErrUnfinished) {
		t.Errorf("by its name: %v, want %v", err, ErrUnfinished)
	}
	if err := fs.Rename(dir, "b"); err != nil {
		t.Fatal(err)
	}
	if err := Finished(fs, "b"); !errors.Is(err, ErrUnfinished) {
		t.Errorf("by its mark: %v, want %v", err, ErrUnfinished)
	}
	if err := MarkRestoring(fs, "b"); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := Read(fs, "b/server-0"); ok || err != nil {
		t.Errorf("what an earlier restore has left is still there: %v, %v", ok, err)
	}
	fill("b")
	if err := MarkRestored(fs, "b"); err != nil {
		t.Fatal(err)
	}
	if err := Finished(fs, "b"); err != nil {
		t.Errorf("complete: %v", err)
	}
	if err := MarkRestoring(fs, "b"); !errors.Is(err, ErrForeign) {
		t.Errorf("a complete directory is taken for one that a restore has left: %v", err)
	}
	if _, ok, err := Read(fs, "b/server-0"); !ok || err != nil {
		t.Errorf("the data of a complete directory: %v, %v", ok, err)
	}
	if err := Unlock(fs, "b", lock); err != nil {
		t.Error(err)
	}
}

// TestKilledAndCrashed: a process is killed at any operation of an opening, and the next
// one crashes at any of its own. The directory opens, with the identity that the second
// one has returned, if it has.
func TestKilledAndCrashed(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	killed := errors.New("killed")
	tried := 0
	for kill := 0; ; kill++ {
		more := false
		for crash := 0; ; crash++ {
			disk := vfstest.NewCrashableMem()
			fs := vfstest.New(disk)
			n := 0
			fs.Before = func(_ int, op vfstest.Op, _ string) error {
				if op.Changes() {
					if n++; n > kill {
						return killed
					}
				}
				return nil
			}
			if d, err := Open(fs, path, mine); err == nil {
				if err = d.Begin(); err != nil {
					more = true
				}
				_ = d.Close()
			} else {
				more = true
			}
			var after []*vfstest.Mem
			fs, n = vfstest.New(disk), 0
			fs.Before = func(_ int, op vfstest.Op, _ string) error {
				if op.Changes() {
					if n == crash {
						for _, kept := range []int{0, 30, 50, 70, 50, 50} {
							after = append(after, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: r}))
						}
					}
					n++
				}
				return nil
			}
			id := ""
			d := mustOpen(t, fs)
			if after == nil {
				id = d.ID
				after = append(after, disk.CrashClone(vfs.CrashCloneCfg{}))
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			for _, disk := range after {
				tried++
				d, err := Open(disk, path, mine)
				if err != nil {
					t.Fatalf("killed at operation %d, then a crash at operation %d: %v", kill, crash, err)
				}
				if id != "" && d.ID != id {
					t.Fatalf("killed at operation %d, then a crash: the identity is lost", kill)
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if n <= crash {
				break
			}
		}
		if !more {
			break
		}
	}
	t.Logf("%d disks", tried)
}

// aCopy is a copy of the directory, at its keeper.
const aCopy = "data/server-2/copies/server-1"

// TestCrashOfAnAdoption: after a crash at any operation of an adoption the copy can be
// adopted, or has been, and then it opens in an epoch above.
func TestCrashOfAnAdoption(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	disk := vfstest.NewCrashableMem()
	id := mine
	id.Format, id.ID = Format, "0123456789abcdef0123456789abcdef"
	if err := WriteCopy(disk, aCopy, Copy{Epoch: 4, Since: 2}); err != nil {
		t.Fatal(err)
	}
	if err := CompleteCopy(disk, aCopy, id); err != nil {
		t.Fatal(err)
	}
	if err := MakeDir(disk, path); err != nil { // that of a start that did not come far
		t.Fatal(err)
	}
	var after []*vfstest.Mem
	fs := vfstest.New(disk)
	fs.Before = func(_ int, op vfstest.Op, _ string) error {
		if op.Changes() {
			for _, kept := range []int{0, 30, 50, 70, 100} {
				after = append(after, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: r}))
			}
		}
		return nil
	}
	const epoch, since = 5, 4
	if err := Adopt(fs, aCopy, path, epoch, since); err != nil {
		t.Fatal(err)
	}
	after = append(after, disk.CrashClone(vfs.CrashCloneCfg{}))
	for i, disk := range after {
		if _, there, err := Read(disk, path); err != nil {
			t.Fatal(err)
		} else if !there {
			if err := Adopt(disk, aCopy, path, epoch, since); err != nil {
				t.Errorf("crash %d of %d: the next adoption: %v", i, len(after), err)
				continue
			}
		}
		d, err := Open(disk, path, mine)
		if err != nil || d.Epoch != epoch+1 || !d.Served || d.Since != since {
			t.Errorf("crash %d of %d: %+v, %v", i, len(after), d, err)
			continue
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFaultInAnAdoption: the disk fails at any operation of an adoption, and the machine
// loses what was not synced, at once or after the next start. The data is at one of the
// two places, whole.
func TestFaultInAnAdoption(t *testing.T) {
	const epoch, since = 5, 4
	r := rand.New(rand.NewPCG(9, 10))
	for at := 0; ; at++ {
		disk := vfstest.NewCrashableMem()
		id := mine
		id.Format, id.ID = Format, "0123456789abcdef0123456789abcdef"
		if err := errors.Join(WriteCopy(disk, aCopy, Copy{Epoch: 4, Since: 2}), CompleteCopy(disk, aCopy, id), MakeDir(disk, path)); err != nil {
			t.Fatal(err)
		}
		fs, failed := vfstest.New(disk), ""
		n := 0
		fs.Before = func(_ int, op vfstest.Op, name string) error {
			if !op.Changes() {
				return nil
			}
			if n++; n == at+1 {
				failed = fmt.Sprintf("%v %s", op, name)
				return errors.New("the disk fails")
			}
			return nil
		}
		if err := Adopt(fs, aCopy, path, epoch, since); (err != nil) != (failed != "") {
			t.Fatalf("operation %d, %s: %v", at, failed, err)
		}
		if failed == "" {
			if at < 15 {
				t.Errorf("an adoption has %d operations", at)
			}
			return
		}
		for _, started := range []bool{false, true} {
			if started { // the next process meets what this one left, on a sound disk
				openAdopted(t, disk, failed, epoch, since)
			}
			for _, kept := range []int{0, 30, 50, 70, 100} {
				left := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: r})
				if _, there, err := Read(left, path); started && (err != nil || !there) {
					t.Errorf("%s failed; a directory that was opened is gone after a crash: %v", failed, err)
					continue
				}
				openAdopted(t, left, failed, epoch, since)
			}
		}
	}
}

// openAdopted opens a data directory, which it first makes of the copy if it has to.
func openAdopted(t *testing.T, fs vfs.FS, failed string, epoch, since uint32) {
	t.Helper()
	if _, there, err := Read(fs, path); err != nil {
		t.Fatal(err)
	} else if !there {
		if err := Adopt(fs, aCopy, path, epoch, since); err != nil {
			t.Errorf("%s failed; the next adoption: %v", failed, err)
			return
		}
	}
	d, err := Open(fs, path, mine)
	if err != nil || d.Epoch != epoch+1 || !d.Served || d.Since != since {
		t.Errorf("%s failed; then %+v, %v", failed, d, err)
		return
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestRemovedInOrder: what is left of a directory that is removed, at any moment, is not
// taken for one.
func TestRemovedInOrder(t *testing.T) {
	disk := vfstest.NewCrashableMem()
	d, err := Open(disk, path, mine)
	if err == nil {
		err = errors.Join(d.Begin(), d.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	fs, tried := vfstest.New(disk), 0
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		if op != vfstest.Remove || name != path {
			return nil
		}
		tried++
		if _, ok, err := Read(disk.CrashClone(vfs.CrashCloneCfg{}), path); ok || err != nil {
			t.Errorf("files go while there is an identity: %t, %v", ok, err)
		}
		return nil
	}
	if err := RemoveCopy(fs, path); err != nil || tried != 1 {
		t.Errorf("%d removals: %v", tried, err)
	}
}

// TestAdoptionDisturbsNobody: a directory that a process has open is not replaced.
func TestAdoptionDisturbsNobody(t *testing.T) {
	fs := vfs.NewMem()
	id := mine
	id.Format, id.ID = Format, "0123456789abcdef0123456789abcdef"
	if err := errors.Join(WriteCopy(fs, aCopy, Copy{Epoch: 4, Since: 2}), CompleteCopy(fs, aCopy, id), MakeDir(fs, path)); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(fs, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Adopt(fs, aCopy, path, 5, 5); !errors.Is(err, ErrInUse) {
		t.Errorf("adopted in place of an open directory: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Adopt(fs, aCopy, path, 5, 5); err != nil {
		t.Error(err)
	}
}

// TestLockedByAnyName: a process does not get a directory that it has open, by whatever
// name.
func TestLockedByAnyName(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := errors.Join(os.Mkdir("a", 0o700), os.Symlink("a", "b")); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(vfs.Default, "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "./a", "b", filepath.Join(dir, "a"), filepath.Join(dir, "b")} {
		if _, err := Lock(vfs.Default, name); !errors.Is(err, ErrInUse) {
			t.Errorf("locked as a and as %s: %v", name, err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNotADirectory: what is no directory is called so.
func TestNotADirectory(t *testing.T) {
	for _, fs := range []vfs.FS{vfs.NewMem(), vfs.Default} {
		file := "file"
		if fs == vfs.Default {
			file = filepath.Join(t.TempDir(), file)
		}
		rewrite(t, fs, file, nil)
		if err := Finished(fs, file); !errors.Is(err, ErrNotDir) {
			t.Errorf("the directory of a cluster: %v", err)
		}
		if _, err := Open(fs, file, mine); !errors.Is(err, ErrNotDir) {
			t.Errorf("the directory of a server: %v", err)
		}
	}
	below := filepath.Join(t.TempDir(), "file")
	rewrite(t, vfs.Default, below, nil)
	if err := Finished(vfs.Default, filepath.Join(below, "data")); !errors.Is(err, ErrNotDir) {
		t.Errorf("below a file: %v", err)
	}
}
