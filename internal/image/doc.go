// Package image writes and reads checkpoint files. A checkpoint has the rows of all
// indexes of a data server, each with its CSN, and what else the server needs to
// continue from a position of its log: see docs/layouts.md.
//
// A file is complete or it does not count: it is written under another name,
// synced, and renamed. Every byte is covered by a checksum, and so is the list of
// all blocks at the end. A Writer is for one goroutine; a File may be read by
// several at a time.
package image

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"

	"drtmx/internal/clock"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Version is the version of the format.
const Version = 1

// CorruptError says that a file is damaged or incomplete.
type CorruptError struct {
	File   string
	Offset int64
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("image: %s is damaged at offset %d: %s", e.File, e.Offset, e.Reason)
}

// VersionError says that a file has another version of the format.
type VersionError struct {
	File      string
	Have, Got uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("image: %s has format version %d, this program reads version %d", e.File, e.Got, e.Have)
}

// Info identifies a checkpoint: whose data it has, and as of which position of the log.
type Info struct {
	Identity [16]byte   // of the data directory
	Log      uint64     // position of the log from which records are replayed
	Tick     clock.Tick // highest of the server when the checkpoint began
}

// Lengths and magic numbers: see docs/layouts.md.
const (
	headBytes    = 64
	crcBytes     = 4
	frameBytes   = crcBytes + 24
	trailerBytes = 32
	headMagic    = "drtmximg"
	trailerMagic = "drtmxend"
)

// Kinds of blocks.
const (
	kindRows   = 1 // of one index
	kindStrs   = 2 // of one index with string keys
	kindBlob   = 3
	kindFooter = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame precedes each block, and is repeated in the footer.
type frame struct {
	bytes     uint32 // of the payload
	offset    int64  // of the frame
	kind      uint16
	partition uint16
	index     uint16 // of rows; the caller's kind of a blob
	rows      uint32
}

// Names of files.
const (
	prefix    = "checkpoint-"
	temporary = ".tmp"
)

// Name returns the name of the checkpoint from which the log is replayed from a
// position on.
func Name(log uint64) string { return fmt.Sprintf("%s%016x", prefix, log) }

// MakeDir makes a directory for checkpoints, if there is none, and makes sure that
// it survives a crash.
func MakeDir(fs vfs.FS, parent, name string) (string, error) {
	dir := fs.PathJoin(parent, name)
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return dir, err
	}
	return dir, syncDir(fs, parent)
}

// List returns the positions of the checkpoints in a directory, newest first.
func List(fs vfs.FS, dir string) ([]uint64, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var logs []uint64
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if log, err := strconv.ParseUint(digits, 16, 64); ok && err == nil && Name(log) == name {
			logs = append(logs, log)
		}
	}
	slices.SortFunc(logs, func(a, b uint64) int { return strings.Compare(Name(b), Name(a)) })
	return logs, nil
}

// Clean removes the checkpoints before a position and those that were not
// finished. The caller has a complete one at the position.
func Clean(fs vfs.FS, dir string, log uint64) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name, prefix) && (strings.HasSuffix(name, temporary) || name < Name(log)) {
			if err := fs.Remove(fs.PathJoin(dir, name)); err != nil && !oserror.IsNotExist(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
