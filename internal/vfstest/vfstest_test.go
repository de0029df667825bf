package vfstest

import (
	"errors"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

func TestFaults(t *testing.T) {
	fs := New(vfs.NewMem())
	fault := errors.New("fault")
	fs.Before = func(n int, op Op, name string) error {
		if n == 2 {
			return fault
		}
		return nil
	}
	f, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("1234")); err != nil {
		t.Fatal(err)
	}
	fs.Short = true
	if n, err := f.Write([]byte("5678")); n != 2 || !errors.Is(err, fault) {
		t.Errorf("the third operation wrote %d bytes: %v", n, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 6 {
		t.Errorf("the file has %d bytes, want 6: %v", info.Size(), err)
	}
	if err := f.Close(); err != nil || fs.Count() != 5 {
		t.Errorf("%d operations, want 5: %v", fs.Count(), err)
	}
}

func TestSpace(t *testing.T) {
	fs := New(vfs.NewMem())
	fs.SetSpace(10)
	write := func(name string, n int) (int, error) {
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.WriteAt(make([]byte, n), 0)
	}
	if n, err := write("a", 8); n != 8 || err != nil {
		t.Errorf("8 bytes of 10: %d, %v", n, err)
	}
	if n, err := write("b", 3); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("3 bytes of 2: %d, %v", n, err)
	}
	if err := fs.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if n, err := write("b", 10); n != 10 || err != nil {
		t.Errorf("10 bytes of 10: %d, %v", n, err)
	}
	fs.AddSpace(1)
	if n, err := write("c", 1); n != 1 || err != nil {
		t.Errorf("1 byte more: %d, %v", n, err)
	}
}

func TestTornWrite(t *testing.T) {
	mem := vfs.NewMem()
	fs := New(mem)
	i := 0
	fs.Pick = func() bool { i++; return i%2 == 0 }
	fs.Torn = func() {
		b, err := mem.UnsafeGetFileDataBuffer("a")
		if err != nil || len(b) != 2*sector || b[100] != 0 || b[sector-1] != 0 || b[sector] != 1 {
			t.Errorf("the torn file has %d bytes: %v", len(b), err)
		}
	}
	f, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 3*sector)
	for i := range p {
		p[i] = 1
	}
	if _, err := f.WriteAt(p[100:], 100); err != nil {
		t.Fatal(err)
	}
	if b, _ := mem.UnsafeGetFileDataBuffer("a"); b[100] != 1 || b[2*sector] != 1 || i != 3 {
		t.Errorf("the write of %d sectors is not complete", i)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
