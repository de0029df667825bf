package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A preparer without space tries again after a time that doubles between these.
const (
	retryMin = 10 * time.Millisecond
	retryMax = time.Second

	// A new segment is written in pieces of zeroBytes, with pauses of zeroPause:
	// a sync of the log waits for what the disk is writing.
	zeroBytes = 256 << 10
	zeroPause = time.Millisecond
)

// prepare is the preparer's goroutine: it keeps room reserved after the end of
// the log.
func (l *Log) prepare() {
	defer close(l.preparerDone)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for wait := retryMin; ; {
		err := l.reserve(l.ahead())
		switch {
		case err == nil:
			wait = retryMin
		case !noSpace(err):
			l.fail(err)
			return
		default:
			timer.Reset(wait)
			wait = min(2*wait, retryMax)
		}
		select {
		case <-l.stop:
			return
		case <-l.kick:
		case <-timer.C:
		}
	}
}

// noSpace reports whether an error says that the disk is full.
func noSpace(err error) bool {
	return !errors.As(err, new(finalError)) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
}

// reserve prepares segments until there is as much room as asked for.
func (l *Log) reserve(room LSN) error {
	for {
		l.mu.Lock()
		enough := l.mu.limit >= l.mu.end+l.mu.aside+room || l.mu.failed != nil
		if enough {
			l.mu.noSpace = nil // room that was set aside may have been returned
		}
		l.mu.Unlock()
		if enough {
			return nil
		}
		s, err := l.nextSegment()
		l.mu.Lock()
		switch {
		case err == nil:
			l.mu.prepared = append(l.mu.prepared, s)
			l.mu.limit = s.end()
			l.mu.noSpace = nil
		case noSpace(err):
			l.mu.noSpace = fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
		l.notifyRoom()
		l.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// nextSegment prepares the segment after the last one that exists: its file is
// complete, and durably in the directory, before anything is written to it.
func (l *Log) nextSegment() (*segment, error) {
	l.mu.Lock()
	last := l.mu.segments[len(l.mu.segments)-1]
	if n := len(l.mu.prepared); n > 0 {
		last = l.mu.prepared[n-1]
	}
	s := &segment{index: last.index + 1, size: l.opt.SegmentBytes, start: last.end(), from: last.end(), first: last.end()}
	var old *segment
	if len(l.mu.spare) > 0 && l.mu.spare[0].size == s.size {
		old = l.mu.spare[0]
		l.mu.spare = l.mu.spare[1:]
	}
	l.mu.Unlock()
	if old == nil {
		return s, l.create(s)
	}
	err := l.opt.FS.Rename(l.path(old.name()), l.path(s.name()))
	if err != nil {
		l.mu.Lock()
		l.mu.spare = append([]*segment{old}, l.mu.spare...)
		l.mu.Unlock()
		return nil, err
	}
	if err := l.syncDir(l.opt.Dir); err != nil {
		return nil, finalError{err}
	}
	if s.file, err = l.openFile(s.name()); err != nil {
		return nil, finalError{err}
	}
	return s, nil
}

// finalError is an error after which nothing is tried again, whatever its cause.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// create makes the file of a segment, all zeros. Nothing is left of a file that
// does not fit on the disk.
func (l *Log) create(s *segment) error {
	f, err := l.opt.FS.Create(l.path(s.name()), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	// Zeros are written besides: then a sync of what replaces them changes
	// neither the size of the file nor its extents.
	err = f.Preallocate(0, s.size)
	b := make([]byte, min(s.size, zeroBytes))
	for left := s.size; err == nil && left > 0; left -= int64(len(b)) {
		clear(b) // Write may change it
		b = b[:min(left, int64(len(b)))]
		var n int
		if n, err = f.Write(b); err == nil && n < len(b) {
			err = io.ErrShortWrite
		}
		if err == nil && left > zeroBytes {
			_, err = f.SyncTo(s.size - left + int64(n))
			l.pause()
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		if err := l.syncDir(l.opt.Dir); err != nil {
			return errors.Join(finalError{err}, f.Close())
		}
		s.file = f
		return nil
	}
	// The file holds nothing. If it stays, the next attempt replaces it.
	return errors.Join(err, f.Close(), l.opt.FS.Remove(l.path(s.name())))
}

// pause lets the log sync between the pieces of a new segment, unless the room
// is running out or the log ends.
func (l *Log) pause() {
	l.mu.Lock()
	hurry := !l.mu.started || l.mu.closed || l.mu.limit-l.mu.end < l.ahead()/2
	l.mu.Unlock()
	if !hurry {
		time.Sleep(zeroPause)
	}
}

func (l *Log) path(name string) string { return l.opt.FS.PathJoin(l.opt.Dir, name) }

// openFile opens a file that exists, to be written.
func (l *Log) openFile(name string) (vfs.File, error) {
	return l.opt.FS.OpenReadWrite(l.path(name), vfs.WriteCategoryUnspecified)
}

// syncDir makes the entries of a directory durable.
func (l *Log) syncDir(name string) error {
	d, err := l.opt.FS.OpenDir(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// Cut gives up the segments that end at or before a position, which must be
// durable. The caller no longer needs any record that begins before it. About as
// many segments as one Cut gives up are kept, and hold the log again later.
func (l *Log) Cut(before LSN) error {
	l.mu.Lock()
	switch {
	case l.mu.failed != nil:
		defer l.mu.Unlock()
		return l.mu.failed
	case l.mu.closed || l.opt.ReadOnly:
		l.mu.Unlock()
		return ErrClosed
	case before > l.Durable():
		l.mu.Unlock()
		return fmt.Errorf("wal: cut at %d: the log is durable up to %d only", before, l.Durable())
	}
	n := 0
	for n < len(l.mu.segments)-1 && l.mu.segments[n].end() <= before {
		n++
	}
	var remove []string
	if before >= l.mu.segments[0].first {
		remove, l.mu.remains = l.mu.remains, nil
	}
	l.mu.spare = append(l.mu.spare, l.mu.segments[:n]...)
	l.mu.segments = append([]*segment(nil), l.mu.segments[n:]...)
	for n > 0 && len(l.mu.spare) > 0 && (len(l.mu.spare) > n+2 || l.mu.spare[0].size != l.opt.SegmentBytes) {
		remove = append(remove, l.mu.spare[0].name())
		l.mu.spare = l.mu.spare[1:]
	}
	l.mu.Unlock()
	poke(l.kick)
	if len(remove) == 0 {
		return nil
	}
	return l.remove(remove)
}

// remove removes files of the log, the oldest first.
func (l *Log) remove(names []string) error {
	for _, name := range names {
		if err := l.opt.FS.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := l.syncDir(l.opt.Dir); err != nil {
		l.fail(err) // a later sync of the directory would hide it
		return err
	}
	return nil
}
