// Package wal is the log of a data server: a sequence of records, each at a
// position that never changes. Append takes a record at once and never waits
// for the disk. One goroutine writes what has arrived and syncs it; what arrives
// meanwhile goes into the next write. A record is durable once Durable has
// reached its end.
//
// The log is a sequence of bytes that is cut into segments, one file each. The
// segments that come next are prepared ahead: created, filled with zeros or
// taken from those that Cut gave up, and entered durably in the directory. What
// Append accepts fits into them, so a full disk refuses records and never loses
// one that was accepted.
//
// A frame may cross from one segment to the next. A segment is complete and synced
// before the next one is begun. Every frame has the position up to which the log was
// durable when the frame was written. If a frame is invalid, a later valid frame
// therefore tells damage, which is an error, from a torn tail, which is cut. A log at
// rest writes a mark after its last group, for the same purpose.
//
// A write or a sync that fails ends the log: nothing is retried, because no one
// knows what a file system keeps of data whose sync has failed.
package wal

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LSN is a position in a log, in bytes since the log began. The headers of
// segments do not count.
type LSN uint64

// Errors of a log.
var (
	// ErrNoSpace says that the reserved room is used up and the disk has no more. The log
	// takes records again when there is space.
	ErrNoSpace = errors.New("wal: no space left for the log")
	// ErrBehind says that records arrive faster than the disk takes them, and
	// that the reserved room is used up. Space is not the problem: a caller may
	// try again when Durable has moved.
	ErrBehind = errors.New("wal: the disk is behind the log")
	// ErrFailed says that a write or a sync has failed. The log takes nothing
	// more, and what was not durable stays unknown until the log is opened again.
	ErrFailed = errors.New("wal: the log has failed")
	// ErrClosed says that the log is closed, or was opened to be read only.
	ErrClosed = errors.New("wal: the log is closed")
	// ErrMissing says that a log that was created before is not there.
	ErrMissing = errors.New("wal: the log is missing")
	// ErrTooLarge says that a record exceeds Options.RecordBytes.
	ErrTooLarge = errors.New("wal: record too large")
)

// Bounds and defaults.
const (
	MaxRecordBytes      = 16 << 20 // the largest payload of a record
	DefaultSegmentBytes = 16 << 20
	MinSegmentBytes     = 512

	markDelayDefault = 50 * time.Millisecond
	// keptBufferBytesMax bounds the buffers that are kept for the next group.
	keptBufferBytesMax = 8 << 20
)

// CorruptError says that the log is damaged at a position that was durable. No
// file was changed.
type CorruptError struct {
	File   string
	Offset int64 // in the file
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("wal: %s is damaged at offset %d: %s", e.File, e.Offset, e.Reason)
}

// VersionError says that a file of the log has another format. No file was
// changed.
type VersionError struct {
	File      string
	Have, Got uint32 // of the program, of the file
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("wal: %s has format version %d, this program reads version %d", e.File, e.Got, e.Have)
}

// Options of a log. FS and Dir are required.
type Options struct {
	FS  vfs.FS
	Dir string // created if it does not exist; nothing else may use it
	// SegmentBytes is the size of new files, a multiple of 8; 0 means
	// DefaultSegmentBytes. Existing files keep their sizes.
	SegmentBytes int64
	// RecordBytes bounds the payload of a record; 0 means four segments, at most
	// MaxRecordBytes. The log reserves at least this much ahead.
	RecordBytes int
	// Identity is that of the owner of the log. It is in every file. A log of
	// another identity is refused.
	Identity [16]byte
	// MarkDelay is the time after which a log at rest writes its mark; 0 means 50 ms, a
	// negative value that only Close writes one.
	MarkDelay time.Duration
	// Start is the position at which a log that does not exist yet begins. Copy says that
	// the log is a copy of another one, whose frames, marks included, it gets only from
	// AppendFrames. Both have one Identity.
	Start LSN
	Copy  bool
	// Exists says that the log was created before. Open fails with ErrMissing if it is
	// not there, and changes nothing.
	Exists bool
	// ReadOnly opens a log to be replayed. Nothing is changed, and Start must not
	// be called.
	ReadOnly bool
	// Released is called by the writer when more is durable, with ascending positions:
	// what waits for them may go. It must not call Close. It may be nil.
	Released func(LSN)
	// Failed is called once if the log fails. It must not call Close. It may be
	// nil.
	Failed func(error)
}

// Record is one record. It is valid during the call that receives it.
type Record struct {
	Start, End LSN
	Payload    []byte
}

// Stats counts what a log has done since Open.
type Stats struct {
	Bytes    uint64 // appended, frames included
	Records  uint64
	Groups   uint64 // written and synced, marks excluded
	Syncs    uint64 // of records
	SyncTime time.Duration
	// GroupRecords counts groups by their records: element i those of 2^i to
	// 2^(i+1)-1 records, the last element all larger ones.
	GroupRecords [16]uint64
	Lag          uint64 // bytes appended and not durable yet
	Segments     int    // that hold the log
	Prepared     int    // that come next
	Spare        int    // that were given up and wait for their reuse
	Room         uint64 // left for records in the segments that are there, and not set aside
	Aside        uint64 // set aside for records to come
	NoSpace      bool   // the last attempt to reserve room found no space
	AtRest       bool   // everything is durable, and so is the mark after it
}

// Log is a log. Its methods may be called concurrently, after Start.
type Log struct {
	opt  Options
	seed uint32 // of checksums

	durable atomic.Uint64
	since   atomic.Int64  // when the writer began with what it does, Unix nanoseconds; 0: nothing
	wake    chan struct{} // of the writer, when the buffer is no longer empty
	kick    chan struct{} // of the preparer
	stop    chan struct{} // closed by Close, when the writer has ended

	writerDone, preparerDone chan struct{}

	cur *segment // the writer's

	mu struct {
		sync.Mutex
		buf      []byte // the next group, after headerBytes of slack
		records  int    // in buf
		end      LSN
		last     LSN // end of the last record; what follows are marks
		limit    LSN // end of the reserved room
		aside    LSN // of the reserved room: set aside
		closed   bool
		started  bool
		marked   bool          // the last frame is a mark
		failed   error         // wraps ErrFailed
		noSpace  error         // wraps ErrNoSpace: the last attempt to prepare
		room     chan struct{} // closed after the next attempt to prepare; nil if nobody waits
		synced   chan struct{} // closed when more is durable; nil if nobody waits
		segments []*segment    // that hold the log, oldest first; the last is cur
		prepared []*segment
		spare    []*segment // given up, oldest first
		remains  []string   // older files that are not part of the log
		stats    Stats
	}
}

// First returns the position of the oldest record that is there.
func (l *Log) First() LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.segments) == 0 {
		return 0
	}
	return l.mu.segments[0].first
}

// Stalled returns for how long the present write, with its sync, has been under way, 0
// if there is none. After an error it goes on to grow.
func (l *Log) Stalled() time.Duration {
	since := l.since.Load()
	if since == 0 {
		return 0
	}
	return max(time.Since(time.Unix(0, since)), 0)
}

// Durable returns the position up to which the log is durable.
func (l *Log) Durable() LSN { return LSN(l.durable.Load()) }

// End returns the end of the last record.
func (l *Log) End() LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.end
}

// Last returns the end of the last record that was appended since Start, or the end of
// the log at Start if there is none. What follows are marks.
func (l *Log) Last() LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.last
}

// Start starts the writer. Append may be called from then on.
func (l *Log) Start() {
	l.mu.Lock()
	if l.opt.ReadOnly || l.mu.started || l.mu.closed {
		l.mu.Unlock()
		return
	}
	l.mu.started, l.mu.last = true, l.mu.end
	l.mu.Unlock()
	go l.write()
	go l.prepare()
	poke(l.kick)
}

// Append adds a record, which it copies, and returns the record's end: the
// record is durable once Durable has reached it. Append never waits for the
// disk. After an error nothing was added.
func (l *Log) Append(payload []byte) (LSN, error) {
	if len(payload) > l.opt.RecordBytes {
		return 0, fmt.Errorf("%w (%d bytes, limit %d)", ErrTooLarge, len(payload), l.opt.RecordBytes)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takes(frameSize(len(payload)), 0); err != nil {
		return 0, err
	}
	l.addRecord(payload)
	return l.mu.end, nil
}

// takes returns an error if there is no room for size bytes, aside of which were set
// aside for them. l.mu is held.
func (l *Log) takes(size, aside LSN) error {
	switch {
	case l.mu.failed != nil:
		return l.mu.failed
	case l.mu.closed || !l.mu.started:
		return ErrClosed
	case l.mu.end+size+l.mu.aside-aside <= l.mu.limit:
		return nil
	case l.mu.noSpace != nil:
		return l.mu.noSpace
	}
	poke(l.kick)
	return ErrBehind
}

// AppendWait is Append, but if records arrive faster than the disk takes them,
// it waits for room instead of returning ErrBehind. It does not wait for a sync
// of the record.
func (l *Log) AppendWait(payload []byte) (LSN, error) {
	for {
		end, err := l.Append(payload)
		if !errors.Is(err, ErrBehind) {
			return end, err
		}
		l.awaitRoom(frameSize(len(payload)))
	}
}

// awaitRoom waits until there may be room for so many bytes, or until there never will
// be.
func (l *Log) awaitRoom(size LSN) {
	l.mu.Lock()
	if !errors.Is(l.takes(size, 0), ErrBehind) {
		l.mu.Unlock()
		return
	}
	if l.mu.room == nil {
		l.mu.room = make(chan struct{})
	}
	room := l.mu.room
	l.mu.Unlock()
	select {
	case <-room:
	case <-l.writerDone:
	}
}

// SetAside sets room aside for records of the given sizes, which cannot be refused once
// they are needed, and returns how much room that is. It waits as AppendWait does. The
// caller must return all of it, by AppendAside or GiveUp.
func (l *Log) SetAside(payloads ...int) (room LSN, err error) {
	for _, n := range payloads {
		room += frameSize(n)
	}
	if room > l.ahead() {
		return 0, fmt.Errorf("%w (records of %d bytes, limit %d)", ErrTooLarge, room, l.ahead())
	}
	for {
		l.mu.Lock()
		if err = l.takes(room, 0); err == nil {
			l.mu.aside += room
		}
		l.mu.Unlock()
		if err == nil {
			return room, nil
		}
		if !errors.Is(err, ErrBehind) {
			return 0, err
		}
		l.awaitRoom(room)
	}
}

// AppendAside appends a record for which room was set aside, and returns all of that
// room.
func (l *Log) AppendAside(payload []byte, room LSN) (LSN, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.takes(frameSize(len(payload)), room)
	l.mu.aside -= room
	if err != nil {
		return 0, err
	}
	l.addRecord(payload)
	return l.mu.end, nil
}

// GiveUp returns room that was set aside.
func (l *Log) GiveUp(room LSN) {
	if room > 0 {
		l.mu.Lock()
		l.mu.aside -= room
		l.mu.Unlock()
	}
}

// addRecord puts a record into the buffer. l.mu is held.
func (l *Log) addRecord(payload []byte) {
	l.add(payload, 0)
	l.mu.records++
	l.mu.stats.Records++
}

// add puts a frame into the buffer. The writer completes it. l.mu is held.
func (l *Log) add(payload []byte, mark uint32) {
	if len(l.mu.buf) == headerBytes {
		poke(l.wake)
	}
	size := frameSize(len(payload))
	l.mu.buf = appendFrame(l.mu.buf, l.mu.end, payload, mark)
	l.mu.end += size
	if l.mu.marked = mark != 0; !l.mu.marked {
		l.mu.last = l.mu.end
	}
	l.mu.stats.Bytes += uint64(size)
	if l.mu.limit-l.mu.end < l.mu.aside+l.ahead() && l.mu.noSpace == nil {
		poke(l.kick)
	}
}

// ahead returns how much room is reserved after the end of the log.
func (l *Log) ahead() LSN {
	return max(LSN(l.opt.SegmentBytes-headerBytes), frameSize(l.opt.RecordBytes))
}

// poke wakes the goroutine that receives from c, now or when it next does.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wait returns once the log is durable up to a position, or with an error if that will
// not happen.
func (l *Log) Wait(ctx context.Context, pos LSN) error {
	for l.Durable() < pos {
		l.mu.Lock()
		failed, over := l.mu.failed, l.mu.closed && pos > l.mu.end
		if l.mu.synced == nil {
			l.mu.synced = make(chan struct{})
		}
		synced := l.mu.synced
		l.mu.Unlock()
		switch {
		case l.Durable() >= pos:
			return nil
		case failed != nil:
			return failed
		case over || l.opt.ReadOnly:
			return ErrClosed
		}
		select {
		case <-synced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// notify wakes goroutines that wait for a position. l.mu is held.
func (l *Log) notify() {
	if l.mu.synced != nil {
		close(l.mu.synced)
		l.mu.synced = nil
	}
}

// notifyRoom wakes goroutines that wait for room. l.mu is held.
func (l *Log) notifyRoom() {
	if l.mu.room != nil {
		close(l.mu.room)
		l.mu.room = nil
	}
}

// fail ends the log.
func (l *Log) fail(cause error) {
	l.mu.Lock()
	first := l.mu.failed == nil
	if first {
		l.mu.failed = fmt.Errorf("%w: %w", ErrFailed, cause)
		l.notify()
		l.notifyRoom()
	}
	err := l.mu.failed
	l.mu.Unlock()
	poke(l.wake)
	if first && l.opt.Failed != nil {
		l.opt.Failed(err)
	}
}

// Err returns why the log takes no record any more, however much room there is: it has
// failed, or is closed. It returns nil while the log takes records.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.failed == nil && l.mu.closed {
		return ErrClosed
	}
	return l.mu.failed
}

// Stats returns the counts of the log.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.mu.stats
	s.Lag, s.Room, s.Aside = uint64(l.mu.end)-l.durable.Load(), uint64(l.mu.limit-l.mu.end-l.mu.aside), uint64(l.mu.aside)
	s.Segments, s.Prepared, s.Spare = len(l.mu.segments), len(l.mu.prepared), len(l.mu.spare)
	s.NoSpace, s.AtRest = l.mu.noSpace != nil, l.mu.marked && s.Lag == 0
	return s
}

// countGroup counts a group that is durable. l.mu is held.
func (s *Stats) countGroup(records int) {
	if records > 0 {
		s.Groups++
		s.GroupRecords[min(bits.Len(uint(records))-1, len(s.GroupRecords)-1)]++
	}
}

// Close makes everything appended durable and closes the log. It returns the
// error with which the log failed, if it did.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.mu.closed {
		defer l.mu.Unlock()
		return l.mu.failed
	}
	l.mu.closed = true
	started := l.mu.started
	l.mu.Unlock()
	poke(l.wake)
	if started {
		<-l.writerDone
		close(l.stop)
		<-l.preparerDone
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notify()
	err := l.mu.failed
	for _, s := range append(l.mu.prepared, l.mu.segments...) {
		if s.file != nil {
			err = errors.Join(err, s.file.Close())
			s.file = nil
		}
	}
	return err
}
