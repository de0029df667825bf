package wal

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// readBytes is how much a reader reads at once.
const readBytes = 1 << 20

// reader reads the bytes of consecutive segments by their positions.
type reader struct {
	l        *Log
	segments []*segment
	cur      *segment // whose file is open
	file     vfs.File
	buf      []byte // bytes from position at
	at       LSN
}

func (l *Log) newReader(segments []*segment) *reader { return &reader{l: l, segments: segments} }

func (r *reader) close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file, r.cur = nil, nil
	return err
}

// end returns the position after the last segment.
func (r *reader) end() LSN { return r.segments[len(r.segments)-1].end() }

// bytes returns the n bytes from a position, valid until the next call, or
// io.EOF if the segments end before.
func (r *reader) bytes(pos LSN, n int) ([]byte, error) {
	to := pos + LSN(n)
	if pos < r.segments[0].start || to < pos || to > r.end() {
		return nil, io.EOF
	}
	if pos < r.at || pos > r.at+LSN(len(r.buf)) {
		r.buf, r.at = r.buf[:0], pos
	}
	if to > r.at+LSN(len(r.buf)) {
		r.buf = r.buf[:copy(r.buf, r.buf[pos-r.at:])]
		r.at = pos
		if err := r.fill(max(n, readBytes)); err != nil {
			return nil, err
		}
	}
	return r.buf[pos-r.at:][:n], nil
}

// fill reads until the buffer has n bytes or the segments end.
func (r *reader) fill(n int) error {
	n = min(n, int(r.end()-r.at))
	r.buf = slices.Grow(r.buf, max(0, n-len(r.buf)))
	for len(r.buf) < n {
		pos := r.at + LSN(len(r.buf))
		i, ok := slices.BinarySearchFunc(r.segments, pos, func(s *segment, pos LSN) int {
			switch {
			case s.end() <= pos:
				return -1
			case s.start > pos:
				return 1
			}
			return 0
		})
		if !ok {
			return nil
		}
		s := r.segments[i]
		if r.cur != s {
			if err := r.close(); err != nil {
				return err
			}
			f, err := r.l.opt.FS.Open(r.l.path(s.name()), vfs.SequentialReadsOption)
			if err != nil {
				return err
			}
			r.cur, r.file = s, f
		}
		part := r.buf[len(r.buf):min(n, len(r.buf)+int(s.end()-pos))]
		if m, err := r.file.ReadAt(part, s.offset(pos)); m < len(part) {
			if errors.Is(err, io.EOF) {
				return r.l.corrupt(s.name(), s.offset(pos)+int64(m), "the file ends here")
			}
			return fmt.Errorf("wal: read %s: %w", s.name(), err)
		}
		r.buf = r.buf[:len(r.buf)+len(part)]
	}
	return nil
}

// frame returns the frame at a position, or false if there is no valid one. The
// frame is valid until the next call.
func (r *reader) frame(pos LSN) (frame, bool, error) {
	b, err := r.bytes(pos, frameBytes)
	if errors.Is(err, io.EOF) {
		return frame{}, false, nil
	}
	if err != nil || LSN(little.Uint64(b[8:])) != pos || sizeOf(b) > frameSize(MaxRecordBytes) {
		return frame{}, false, err
	}
	if b, err = r.bytes(pos, int(sizeOf(b))); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return frame{}, false, err
	}
	f, ok := decodeFrame(b, r.l.seed, pos)
	return f, ok, nil
}

// candidates calls fn for all positions from one on that hold their own number
// where a frame would have it, until fn returns an error.
func (r *reader) candidates(pos LSN, fn func(LSN) error) error {
	var found []LSN
	for pos+frameBytes <= r.end() {
		n := min(readBytes, int(r.end()-pos))
		b, err := r.bytes(pos, n)
		if err != nil {
			return err
		}
		found = found[:0]
		at := 0
		for ; at+frameBytes <= n; at += 8 {
			if LSN(little.Uint64(b[at+8:])) == pos+LSN(at) {
				found = append(found, pos+LSN(at))
			}
		}
		pos += LSN(at)
		for _, f := range found {
			if err := fn(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Replay calls fn for each record from a position on, in order. The position
// must be the beginning of a record or the end of the log: the one from which
// the caller needs the log, not First, since it would not notice missing files.
// Replay must be called before Start. A CorruptError names the file and the
// offset of damage.
func (l *Log) Replay(from LSN, fn func(*Record) error) (err error) {
	first := l.First()
	l.mu.Lock()
	segments, end := l.mu.segments, l.mu.end
	l.mu.Unlock()
	switch {
	case len(segments) == 0 && from > 0:
		return fmt.Errorf("wal: replay from %d: there is no log in %s", from, l.opt.Dir)
	case from < first:
		return l.corrupt(segmentName(segments[0].index-1), 0, fmt.Sprintf("the file is missing: the log begins at %d, and is needed from %d on", first, from))
	case from > end:
		last := segments[len(segments)-1]
		return l.corrupt(last.name(), last.offset(end), fmt.Sprintf("the log ends at %d, and is needed from %d on", end, from))
	case from == end:
		return nil
	}
	_, err = l.scan(segments, from, end, func(r *Record) (bool, error) { return true, fn(r) })
	return err
}

// Read calls fn for the durable records from a position on, in order, until fn returns
// false. It returns the position after the last record that fn has taken, or the
// position before which there is none to take. Unlike Replay it may be called while the
// log is written. The caller must keep the log from there on from being cut.
func (l *Log) Read(from LSN, fn func(*Record) (more bool)) (next LSN, err error) {
	end := l.Durable()
	l.mu.Lock()
	segments := slices.Clone(l.mu.segments)
	l.mu.Unlock()
	switch {
	case from >= end:
		return from, nil
	case from < segments[0].start:
		return from, fmt.Errorf("wal: read from %d: the log begins at %d", from, segments[0].start)
	}
	return l.scan(segments, from, end, func(r *Record) (bool, error) { return fn(r), nil })
}

// scan calls fn for the records between two positions until fn returns false or
// an error. It returns the position after the last one that fn has taken.
func (l *Log) scan(segments []*segment, from, end LSN, fn func(*Record) (bool, error)) (next LSN, err error) {
	r := l.newReader(segments)
	defer func() { err = errors.Join(err, r.close()) }()
	for from < end {
		f, ok, err := r.frame(from)
		if err != nil {
			return from, err
		}
		if !ok || f.end > end {
			return from, l.damaged(segments, from, "no valid frame, and later ones are durable")
		}
		if !f.mark {
			if more, err := fn(&Record{Start: f.start, End: f.end, Payload: f.payload}); err != nil || !more {
				return from, err
			}
		}
		from = f.end
	}
	return from, nil
}

// damaged returns the error of damage at a position.
func (l *Log) damaged(segments []*segment, pos LSN, reason string) error {
	for _, s := range segments {
		if pos >= s.start && pos < s.end() {
			return l.corrupt(s.name(), s.offset(pos), reason)
		}
	}
	last := segments[len(segments)-1]
	return l.corrupt(last.name(), last.size, reason)
}

func (l *Log) corrupt(name string, offset int64, reason string) error {
	return &CorruptError{File: l.path(name), Offset: offset, Reason: reason}
}
