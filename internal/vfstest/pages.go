package vfstest

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A kernel may take pages for clean when their write to the disk has failed: they are
// read as they were written until the memory is needed, no later sync writes them, and a
// crash shows what the disk had before. Only another write of such a page makes it dirty
// again.

// pageBytes is how much of a file becomes dirty, and is written to the disk, at once.
const pageBytes = 4096

// page is a page of a file of which the disk may have another content.
type page struct {
	disk  []byte // what the disk has instead
	clean bool   // the sync of it has failed, and no later one writes it
	again bool   // it was clean in that sense, and was written again
}

// pages are those of all files, by name and number.
type pages map[string]map[int64]*page

// dirty notes that a file is about to be written. The caller holds fs.mu.
func (fs *FS) dirty(name string, off, n int64) error {
	of := fs.cache[name]
	if of == nil {
		of = map[int64]*page{}
		fs.cache[name] = of
	}
	for i := off / pageBytes; i*pageBytes < off+n; i++ {
		if p := of[i]; p != nil {
			p.again = p.again || p.clean
			p.clean = false
			continue
		}
		f, err := fs.FS.Open(name)
		if err != nil {
			return err
		}
		b := make([]byte, pageBytes) // behind the end of the file are zeros
		if _, err := f.ReadAt(b, i*pageBytes); err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
		of[i] = &page{disk: b}
	}
	return nil
}

// written is dirty for a file system that forgets.
func (fs *FS) written(name string, off, n int64) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !fs.Forgets {
		return nil
	}
	if fs.cache == nil {
		fs.cache = pages{}
	}
	return fs.dirty(name, off, n)
}

// synced notes that a sync of a file has ended, and how.
func (fs *FS) synced(name string, err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for i, p := range fs.cache[name] {
		switch {
		case err != nil:
			p.clean = true
		case !p.clean:
			delete(fs.cache[name], i)
		}
	}
}

// renamed notes that a file has another name, or none if to is empty.
func (fs *FS) renamed(from, to string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	of := fs.cache[from]
	delete(fs.cache, from)
	delete(fs.cache, to)
	if of != nil && to != "" {
		fs.cache[to] = of
	}
}

// CrashClone returns what a crash leaves at this moment. The file system that fs wraps
// must be a Mem.
func (fs *FS) CrashClone(c vfs.CrashCloneCfg) (*Mem, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	mem := fs.FS.(*Mem).CrashClone(c)
	for name, of := range fs.cache {
		f, err := mem.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			continue // its name was not durable
		}
		info, err := f.Stat()
		for i, p := range of {
			if err != nil {
				break
			}
			// The wrapped file system takes what was synced again for durable.
			if n := min(info.Size()-i*pageBytes, pageBytes); n > 0 && (p.clean || p.again && c.UnsyncedDataPercent < 100) {
				_, err = f.WriteAt(append([]byte(nil), p.disk[:n]...), i*pageBytes)
			}
		}
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return mem, nil
}
