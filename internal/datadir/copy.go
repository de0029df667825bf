package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// copyFile is in a directory that is the copy of another one.
const copyFile = "COPY"

// Copy says how far a directory is a copy of the data directory of another server.
type Copy struct {
	// Epoch is the highest epoch of its home that the copy knows, Since the epoch in which
	// it was made. The numbers are those of package replica.
	Epoch uint32 `json:"epoch"`
	Since uint32 `json:"since"`
}

// ReadCopy returns what a directory has recorded about itself as a copy. ok is false if
// it is none.
func ReadCopy(fs vfs.FS, path string) (c Copy, ok bool, err error) {
	ok, err = ReadJSON(fs, path, copyFile, &c)
	return c, ok, err
}

// WriteCopy records, durably, that a directory is a copy, and how far. It makes the
// directory if there is none.
func WriteCopy(fs vfs.FS, path string, c Copy) error {
	if err := MakeDir(fs, path); err != nil {
		return err
	}
	return WriteJSON(fs, path, copyFile, c)
}

// CompleteCopy gives a copy its identity, with which it has everything that a data
// directory needs.
func CompleteCopy(fs vfs.FS, path string, id Identity) error {
	return WriteJSON(fs, path, identityFile, id)
}

// RemoveCopy removes the copy in a directory, or a data directory that is not open. It
// first makes it incomplete, durably.
func RemoveCopy(fs vfs.FS, path string) error {
	if err := removeIdentity(fs, path); err != nil {
		return err
	}
	return fs.RemoveAll(path)
}

// EmptyCopy is RemoveCopy, but keeps what WriteCopy has recorded.
func EmptyCopy(fs vfs.FS, path string) error {
	if err := removeIdentity(fs, path); err != nil {
		return err
	}
	names, err := fs.List(path)
	if err != nil {
		if oserror.IsNotExist(err) {
			return nil
		}
		return err
	}
	for _, name := range names {
		if name == copyFile {
			continue
		}
		if err := fs.RemoveAll(fs.PathJoin(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// removeIdentity removes the identity of a directory, durably.
func removeIdentity(fs vfs.FS, path string) error {
	err := fs.Remove(fs.PathJoin(path, identityFile))
	switch {
	case oserror.IsNotExist(err):
		return nil
	case err != nil:
		return err
	}
	return SyncDir(fs, path)
}

// probeFile is in a directory for a moment, to see whether it can be renamed.
const probeFile = "PROBE"

// Adoptable fails if Adopt would fail because of the target: a directory that is not
// empty, that a process has open, or that is on another file system than the copy. It
// removes an empty one.
func Adoptable(fs vfs.FS, from, to string) error {
	if err := removeEmpty(fs, to); err != nil {
		return err
	}
	if err := makeDir(fs, fs.PathDir(to)); err != nil {
		return err
	}
	probe := fs.PathJoin(fs.PathDir(from), probeFile)
	f, err := fs.Create(probe, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	moved := fs.PathJoin(fs.PathDir(to), probeFile)
	if err := fs.Rename(probe, moved); err != nil {
		return errors.Join(fmt.Errorf("datadir: %s cannot take the place of %s: %w", from, to, err), fs.Remove(probe))
	}
	return fs.Remove(moved)
}

// Adopt makes a copy the data directory of its server, where there is none. The next
// opening has an epoch above the given one, and the log has the given lineage: see
// SetSince.
func Adopt(fs vfs.FS, from, to string, epoch, since uint32) error {
	if _, ok, err := Read(fs, from); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("%w: %s is no complete copy", ErrCorrupt, from))
	}
	if err := removeEmpty(fs, to); err != nil {
		return err
	}
	if err := makeDir(fs, fs.PathDir(to)); err != nil {
		return err
	}
	if err := writeNumber(fs, from, epochFile, epoch); err != nil {
		return err
	}
	if err := writeNumber(fs, from, lineageFile, since); err != nil {
		return err
	}
	if err := fs.Remove(fs.PathJoin(from, copyFile)); err != nil && !oserror.IsNotExist(err) {
		return err
	}
	// A directory that has its new name and is still a copy would be refused.
	if err := SyncDir(fs, from); err != nil {
		return err
	}
	if err := fs.Rename(from, to); err != nil {
		return fmt.Errorf("datadir: %s cannot take the place of %s: %w", from, to, err)
	}
	// The old name goes only when the new one is durable. If this fails in between, a
	// crash must leave one of them.
	if err := SyncDir(fs, fs.PathDir(to)); err != nil {
		return err
	}
	return SyncDir(fs, fs.PathDir(from))
}

// removeEmpty removes an empty directory, if there is one. It fails if a process has
// the directory open, which is about to fill it.
func removeEmpty(fs vfs.FS, path string) (err error) {
	if _, err := fs.Stat(path); oserror.IsNotExist(err) {
		return nil
	}
	lock, err := Lock(fs, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(names, func(n string) bool { return n != LockFile }) {
		return fmt.Errorf("%w: %s is not empty, and is to take a copy", ErrForeign, path)
	}
	return fs.RemoveAll(path)
}

// MakeDir creates a directory and its parents, durably.
func MakeDir(fs vfs.FS, path string) error { return makeDir(fs, path) }

// ReadJSON reads a small file that WriteJSON has written. ok is false if there is
// none.
func ReadJSON(fs vfs.FS, dir, name string, to any) (ok bool, err error) {
	raw, err := read(fs, fs.PathJoin(dir, name))
	if oserror.IsNotExist(err) {
		return false, nil
	}
	if err == nil {
		if jerr := json.Unmarshal(raw, to); jerr != nil {
			err = fmt.Errorf("%w: %s: %v", ErrCorrupt, fs.PathJoin(dir, name), jerr)
		}
	}
	return err == nil, err
}

// WriteJSON replaces a small file, durably and at once.
func WriteJSON(fs vfs.FS, dir, name string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return write(fs, dir, name, raw)
}
