// Package backup copies the data of a running cluster into a directory, and makes the
// data of a new cluster from it, as of any moment of the backup: as of a tick. See
// docs/durability.md.
//
// A backup has two files for each data server: a base, which is a checkpoint file of
// package image, and the server's log from before the base on. The manifest says how
// far the files go, and between which ticks the backup can be restored. It is replaced
// at once and durably. What the files have beyond it does not count, and without it a
// backup is incomplete.
package backup

import (
	"errors"
	"fmt"
)

// Version is the version of the format of manifests and logs.
const Version = 1

// Errors of this package. Damage is a CorruptError, or one of package image.
var (
	// ErrNoBackup reports a directory that is no backup. Its text has the reason.
	ErrNoBackup = errors.New("backup: not a backup")
	// ErrIncomplete reports a backup that ended before it could be restored.
	ErrIncomplete = errors.New("backup: incomplete")
	// ErrVersion reports a backup of another version of the format.
	ErrVersion = errors.New("backup: format of another version")
	// ErrRange reports a tick that the backup does not have.
	ErrRange = errors.New("backup: not in the range of the backup")
	// ErrInUse reports a directory that has something in it.
	ErrInUse = errors.New("backup: the directory is not empty")
	// ErrServer reports data servers that cannot be backed up, or no longer.
	ErrServer = errors.New("backup: data server")
)

// CorruptError says that a file of a backup is damaged or incomplete.
type CorruptError struct {
	File   string
	Offset int64
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("backup: %s is damaged at offset %d: %s", e.File, e.Offset, e.Reason)
}

// Progress is how far a backup, or an operation on one, has come, for display.
type Progress struct {
	Stage       string
	Done, Total int64 // in bytes or rows; Total 0: not known
}
