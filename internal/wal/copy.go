package wal

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of AppendFrames.
var (
	// ErrPosition says that frames do not begin at the end of the log.
	ErrPosition = errors.New("wal: the frames do not follow on the end of the log")
	// ErrFrames says that bytes are no valid frames of this log.
	ErrFrames = errors.New("wal: no valid frames of this log")
)

// Frames appends to buf the durable bytes of the log from a position on, at most most
// of them, and returns buf. They are for AppendFrames of a copy, and may end inside a
// frame. Frames may be called while the log is written. The caller must keep the log
// from there on from being cut.
func (l *Log) Frames(from LSN, most int, buf []byte) ([]byte, error) {
	to := min(l.Durable(), from+LSN(most))
	if from >= to {
		return buf, nil
	}
	l.mu.Lock()
	segments := slices.Clone(l.mu.segments)
	l.mu.Unlock()
	if from < segments[0].start {
		return buf, fmt.Errorf("wal: frames from %d: the log begins at %d", from, segments[0].start)
	}
	r := l.newReader(segments)
	r.at = from - LSN(len(buf)) // where buf would begin
	r.buf = buf
	err := r.fill(len(buf) + int(to-from))
	return r.buf, errors.Join(err, r.close())
}

// AppendFrames appends frames of the log that this one is a copy of. They begin at a
// position, which must be the end of this log, and are checked. It returns the end of
// the log, which is before the end of the bytes if they end inside a frame. It waits
// for room as AppendWait does, and not for a sync. All frames for which there is room
// are written and synced together.
func (l *Log) AppendFrames(at LSN, frames []byte) (end LSN, err error) {
	n, whole := 0, error(nil) // bytes of the frames that are whole, and what is wrong with the next one
	for whole == nil && len(frames)-n >= frameBytes && sizeOf(frames[n:]) <= LSN(len(frames)-n) {
		f, ok := decodeFrame(frames[n:][:sizeOf(frames[n:])], l.seed, at+LSN(n))
		switch {
		case !ok:
			whole = fmt.Errorf("%w (at %d)", ErrFrames, at+LSN(n))
		case len(f.payload) > l.opt.RecordBytes:
			whole = fmt.Errorf("%w (%d bytes, limit %d)", ErrTooLarge, len(f.payload), l.opt.RecordBytes)
		default:
			n = int(f.end - at)
		}
	}
	for frames = frames[:n]; len(frames) > 0; {
		size, err := l.appendWhole(at, frames)
		at, frames = at+LSN(size), frames[size:]
		switch {
		case errors.Is(err, ErrBehind):
			l.awaitRoom(sizeOf(frames))
		case err != nil:
			return at, err
		}
	}
	return at, whole
}

// appendWhole appends as many of the frames as there is room for. It returns the size
// of those, and why it has not appended more. The writer gets them at once: if it began
// with the first of them, the rest would wait for another sync.
func (l *Log) appendWhole(at LSN, frames []byte) (size int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.end != at {
		return 0, fmt.Errorf("%w (%d, they begin at %d)", ErrPosition, l.mu.end, at)
	}
	for size < len(frames) {
		b := frames[size:]
		b = b[:sizeOf(b)]
		if err := l.takes(LSN(len(b)), 0); err != nil {
			return size, err
		}
		payload := b[frameBytes : frameBytes+little.Uint32(b)&^markBit]
		if little.Uint32(b)&markBit != 0 {
			l.add(payload, markBit)
		} else {
			l.addRecord(payload)
		}
		size += len(b)
	}
	return size, nil
}
