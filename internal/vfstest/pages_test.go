package vfstest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestForgets: pages whose sync has failed are read as they were written, and a crash
// loses them, whatever is synced later, until they are written again.
func TestForgets(t *testing.T) {
	fault := errors.New("fault")
	fails := false
	fs := New(NewCrashableMem())
	fs.Forgets = true
	fs.Before = func(_ int, op Op, _ string) error {
		if op == Sync && fails {
			return fault
		}
		return nil
	}
	f, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := fs.OpenDir("/")
	if err != nil || dir.Sync() != nil {
		t.Fatal(err)
	}
	write := func(text string, page int64) {
		t.Helper()
		if _, err := f.WriteAt([]byte(text), page*pageBytes); err != nil {
			t.Fatal(err)
		}
	}
	read := func(fs vfs.FS) string {
		t.Helper()
		f, err := fs.Open("a")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b := make([]byte, 2*pageBytes)
		_, _ = f.ReadAt(b, 0)
		return string(bytes.Trim(b[:pageBytes], "\x00")) + "," + string(bytes.Trim(b[pageBytes:], "\x00"))
	}
	check := func(when, cached, disk string) {
		t.Helper()
		if got := read(fs); got != cached {
			t.Errorf("%s: the file is %q, want %q", when, got, cached)
		}
		clone, err := fs.CrashClone(vfs.CrashCloneCfg{})
		if err != nil {
			t.Fatal(err)
		}
		if got := read(clone); got != disk {
			t.Errorf("%s: a crash leaves %q, want %q", when, got, disk)
		}
	}
	write("old", 0)
	write("old", 1)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	check("synced", "old,old", "old,old")
	write("new", 0)
	check("not synced", "new,old", "old,old")
	fails = true
	if err := f.SyncData(); !errors.Is(err, fault) {
		t.Fatal(err)
	}
	fails = false
	write("new", 1)
	if err := f.SyncData(); err != nil {
		t.Fatal(err)
	}
	check("synced again", "new,new", "old,new")
	write("new", 0)
	check("written again", "new,new", "old,new")
	if err := f.SyncData(); err != nil {
		t.Fatal(err)
	}
	check("written again and synced", "new,new", "new,new")
}
