// Package vfstest wraps a file system for tests of what must survive: it counts
// operations, fails chosen ones, tears writes, limits the space, and calls a
// test before each operation that changes something, which is where a crash may
// happen.
package vfstest

import (
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Op is a kind of operation.
type Op string

// The kinds of operations. Those of reading change nothing.
const (
	Create  Op = "create"
	Open    Op = "open for writing"
	Write   Op = "write"
	Reserve Op = "preallocate"
	Sync    Op = "sync"
	SyncDir Op = "sync of a directory"
	Rename  Op = "rename"
	Link    Op = "link"
	Remove  Op = "remove"
	Mkdir   Op = "mkdir"
	Lock    Op = "lock"
	Read    Op = "read"
	OpenR   Op = "open for reading"
	List    Op = "list"
	Stat    Op = "stat"
	Close   Op = "close"
)

// Changes reports whether an operation changes what a crash may leave.
func (op Op) Changes() bool {
	switch op {
	case Read, OpenR, List, Stat, Close:
		return false
	}
	return true
}

// FS is a file system that wraps another one. Its fields are set before use.
type FS struct {
	vfs.FS

	// Before is called before each operation, with its number, from 0 on, among
	// all operations. An error is the operation's. It may be called concurrently.
	Before func(n int, op Op, name string) error
	// Short makes a failing write or read do half of its work.
	Short bool
	// Torn is called before each write of more than one sector, after only some
	// of its sectors were written. Pick tells which are.
	Torn func()
	Pick func() bool
	// Forgets makes the written pages of a file whose sync fails clean: they are read as
	// they were written, no later sync writes them, and a crash loses them.
	Forgets bool

	mu    sync.Mutex
	n     int
	space int64            // free bytes
	limit bool             // space is limited
	sizes map[string]int64 // of the files that were written, while space is limited
	cache pages            // of a file system that forgets
}

// New wraps a file system.
func New(fs vfs.FS) *FS { return &FS{FS: fs} }

// Count returns how many operations there were.
func (fs *FS) Count() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.n
}

// SetSpace limits how many bytes files may grow by from now on. Files that are
// removed give back what they took since.
func (fs *FS) SetSpace(bytes int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.space, fs.limit, fs.sizes = bytes, true, map[string]int64{}
}

// AddSpace adds free bytes.
func (fs *FS) AddSpace(bytes int64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.space += bytes
}

func (fs *FS) before(op Op, name string) error {
	fs.mu.Lock()
	n := fs.n
	fs.n++
	fs.mu.Unlock()
	if fs.Before == nil {
		return nil
	}
	return fs.Before(n, op, name)
}

// grow takes space for a file of a size, and returns how many of the bytes fit.
func (fs *FS) grow(name string, size, to int64) int64 {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !fs.limit || to <= size {
		return to
	}
	to = min(to, size+max(fs.space, 0))
	fs.space -= to - size
	fs.sizes[name] += to - size
	return to
}

// release gives back what a file took.
func (fs *FS) release(name string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.space += fs.sizes[name]
	delete(fs.sizes, name)
}

func (fs *FS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &file{File: f, fs: fs, name: name}, nil
}

// Create implements vfs.FS.
func (fs *FS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.before(Create, name); err != nil {
		return nil, err
	}
	fs.release(name)
	fs.renamed(name, "")
	f, err := fs.FS.Create(name, c)
	return fs.wrap(name, f, err)
}

// Link implements vfs.FS.
func (fs *FS) Link(oldname, newname string) error {
	if err := fs.before(Link, newname); err != nil {
		return err
	}
	return fs.FS.Link(oldname, newname)
}

// Open implements vfs.FS.
func (fs *FS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := fs.before(OpenR, name); err != nil {
		return nil, err
	}
	f, err := fs.FS.Open(name, opts...)
	return fs.wrap(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (fs *FS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if err := fs.before(Open, name); err != nil {
		return nil, err
	}
	f, err := fs.FS.OpenReadWrite(name, c, opts...)
	return fs.wrap(name, f, err)
}

// OpenDir implements vfs.FS.
func (fs *FS) OpenDir(name string) (vfs.File, error) {
	if err := fs.before(OpenR, name); err != nil {
		return nil, err
	}
	f, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &file{File: f, fs: fs, name: name, dir: true}, nil
}

// Remove implements vfs.FS.
func (fs *FS) Remove(name string) error {
	if err := fs.before(Remove, name); err != nil {
		return err
	}
	err := fs.FS.Remove(name)
	if err == nil {
		fs.release(name)
		fs.renamed(name, "")
	}
	return err
}

// RemoveAll implements vfs.FS.
func (fs *FS) RemoveAll(name string) error {
	if err := fs.before(Remove, name); err != nil {
		return err
	}
	return fs.FS.RemoveAll(name)
}

// Rename implements vfs.FS.
func (fs *FS) Rename(oldname, newname string) error {
	if err := fs.before(Rename, oldname); err != nil {
		return err
	}
	err := fs.FS.Rename(oldname, newname)
	if err == nil {
		fs.release(newname)
		fs.renamed(oldname, newname)
		fs.mu.Lock()
		if n, ok := fs.sizes[oldname]; ok {
			fs.sizes[newname] = n
			delete(fs.sizes, oldname)
		}
		fs.mu.Unlock()
	}
	return err
}

// ReuseForWrite implements vfs.FS.
func (fs *FS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.before(Rename, oldname); err != nil {
		return nil, err
	}
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	if err == nil {
		fs.renamed(oldname, newname)
	}
	return fs.wrap(newname, f, err)
}

// MkdirAll implements vfs.FS.
func (fs *FS) MkdirAll(dir string, perm os.FileMode) error {
	if err := fs.before(Mkdir, dir); err != nil {
		return err
	}
	return fs.FS.MkdirAll(dir, perm)
}

// Lock implements vfs.FS.
func (fs *FS) Lock(name string) (io.Closer, error) {
	if err := fs.before(Lock, name); err != nil {
		return nil, err
	}
	return fs.FS.Lock(name)
}

// List implements vfs.FS.
func (fs *FS) List(dir string) ([]string, error) {
	if err := fs.before(List, dir); err != nil {
		return nil, err
	}
	return fs.FS.List(dir)
}

// Stat implements vfs.FS.
func (fs *FS) Stat(name string) (vfs.FileInfo, error) {
	if err := fs.before(Stat, name); err != nil {
		return nil, err
	}
	return fs.FS.Stat(name)
}

// Unwrap implements vfs.FS.
func (fs *FS) Unwrap() vfs.FS { return fs.FS }

// file wraps a file or a directory.
type file struct {
	vfs.File
	fs   *FS
	name string
	dir  bool
	pos  int64 // of Write
}

const sector = 512

// write does a write at an offset by one of the methods of the wrapped file.
func (f *file) write(p []byte, off int64, write func([]byte) (int, error)) (int, error) {
	if err := f.fs.written(f.name, off, int64(len(p))); err != nil {
		return 0, err
	}
	if err := f.fs.before(Write, f.name); err != nil {
		n := 0
		if f.fs.Short {
			n, _ = write(p[:len(p)/2])
		}
		return n, err
	}
	info, err := f.File.Stat()
	if err != nil {
		return 0, err
	}
	if fit := f.fs.grow(f.name, info.Size(), off+int64(len(p))) - off; fit < int64(len(p)) {
		n, _ := write(p[:max(fit, 0)])
		return n, syscall.ENOSPC
	}
	return write(p)
}

func (f *file) Write(p []byte) (int, error) {
	n, err := f.write(p, f.pos, f.File.Write)
	f.pos += int64(n)
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.write(p, off, func(p []byte) (int, error) {
		if f.fs.Torn != nil && len(p) > sector {
			for at := 0; at < len(p); {
				// Sectors are those of the file.
				to := min(at+sector-int((off+int64(at))%sector), len(p))
				if f.fs.Pick() {
					if n, err := f.File.WriteAt(p[at:to], off+int64(at)); err != nil {
						return n, err
					}
				}
				at = to
			}
			f.fs.Torn()
		}
		return f.File.WriteAt(p, off)
	})
}

func (f *file) Preallocate(offset, length int64) error {
	if err := f.fs.before(Reserve, f.name); err != nil {
		return err
	}
	return f.File.Preallocate(offset, length)
}

// sync does a sync by one of the methods of the wrapped file.
func (f *file) sync(sync func() error) error {
	if f.dir {
		if err := f.fs.before(SyncDir, f.name); err != nil {
			return err
		}
		return sync()
	}
	err := f.fs.before(Sync, f.name)
	if err == nil {
		err = sync()
	}
	f.fs.synced(f.name, err)
	return err
}

func (f *file) Sync() error { return f.sync(f.File.Sync) }

func (f *file) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo makes nothing durable for certain.
func (f *file) SyncTo(length int64) (bool, error) {
	if err := f.fs.before(Sync, f.name); err != nil {
		f.fs.synced(f.name, err)
		return false, err
	}
	return f.File.SyncTo(length)
}

func (f *file) Read(p []byte) (int, error) {
	if err := f.fs.before(Read, f.name); err != nil {
		return 0, err
	}
	return f.File.Read(p)
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.before(Read, f.name); err != nil {
		n := 0
		if f.fs.Short {
			n, _ = f.File.ReadAt(p[:len(p)/2], off)
		}
		return n, err
	}
	return f.File.ReadAt(p, off)
}

func (f *file) Stat() (vfs.FileInfo, error) {
	if err := f.fs.before(Stat, f.name); err != nil {
		return nil, err
	}
	return f.File.Stat()
}

// Close closes the file even if it returns an error.
func (f *file) Close() error {
	err := f.fs.before(Close, f.name)
	if e := f.File.Close(); err == nil {
		err = e
	}
	return err
}
