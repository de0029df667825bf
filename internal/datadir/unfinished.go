package datadir

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Restoring ends the name of a cluster's data directory while a restore fills it. The
// directory is renamed when it is complete.
const Restoring = ".restoring"

// restoringFile is in such a directory until it is complete, so that it is recognised
// under any name.
const restoringFile = "RESTORING"

// ErrUnfinished reports a data directory that a restore has not completed.
var ErrUnfinished = errors.New("datadir: the data directory is of a restore that has not ended")

// Finished returns ErrUnfinished if the data directory of a cluster is that of a
// restore that has not ended, by its name or by what is in it, and ErrNotDir if it is no
// directory. It changes nothing.
func Finished(fs vfs.FS, dir string) error {
	clean := filepath.Clean(dir)
	if err := CheckDir(fs, clean); err != nil {
		return err
	}
	if to, ok := strings.CutSuffix(clean, Restoring); ok {
		return fmt.Errorf("%w: %s: repeat the restore into %s, or remove the directory", ErrUnfinished, dir, to)
	}
	marked, err := isMarked(fs, clean)
	if err == nil && marked {
		err = fmt.Errorf("%w: %s has the file %s: repeat the restore, and remove this directory", ErrUnfinished, dir, restoringFile)
	}
	return err
}

func isMarked(fs vfs.FS, dir string) (bool, error) {
	_, err := fs.Stat(fs.PathJoin(dir, restoringFile))
	if err != nil && !oserror.IsNotExist(err) {
		return false, err
	}
	return err == nil, nil
}

// MarkRestoring marks a directory, which the caller has locked, as that of a restore,
// durably. It removes the remains of an earlier restore there. It refuses a directory
// that has something else, or a restore that is complete and was not renamed.
func MarkRestoring(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	marked, err := isMarked(fs, dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if n == LockFile || n == restoringFile {
			continue
		}
		if !marked {
			return fmt.Errorf("%w: %s has %q and no %s: it is complete, or not of a restore; rename it or remove it", ErrForeign, dir, n, restoringFile)
		}
		if err := fs.RemoveAll(fs.PathJoin(dir, n)); err != nil {
			return err
		}
	}
	if !marked {
		f, err := fs.Create(fs.PathJoin(dir, restoringFile), vfs.WriteCategoryUnspecified)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		if err != nil {
			return err
		}
	}
	return SyncDir(fs, dir)
}

// MarkRestored removes the mark, durably: the directory is complete.
func MarkRestored(fs vfs.FS, dir string) error {
	if err := fs.Remove(fs.PathJoin(dir, restoringFile)); err != nil {
		return err
	}
	return SyncDir(fs, dir)
}

// RemoveRestoring removes a directory that a restore has not completed. It removes the
// mark last, so that what a crash leaves is recognised.
func RemoveRestoring(fs vfs.FS, dir string) error {
	if err := MarkRestoring(fs, dir); err != nil {
		return err
	}
	return fs.RemoveAll(dir)
}

// Unlock removes the lock file of a directory that is to have none, and releases
// the lock that Lock has returned. A crash may leave the file, which does no harm.
func Unlock(fs vfs.FS, dir string, lock io.Closer) error {
	err := fs.Remove(fs.PathJoin(dir, LockFile))
	if oserror.IsNotExist(err) {
		err = nil
	}
	return errors.Join(err, lock.Close())
}
