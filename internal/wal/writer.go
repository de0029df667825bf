package wal

import (
	"errors"
	"io"
	"time"
)

// group is what one turn of the writer makes durable.
type group struct {
	buf        []byte // after headerBytes of slack
	start, end LSN
	records    int
}

// write is the writer's goroutine. It ends when the log is closed and
// everything is durable, or with the first error.
func (l *Log) write() {
	defer close(l.writerDone)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	buf := make([]byte, headerBytes, 64<<10)
	for {
		g, ok := l.take(buf, timer)
		if !ok {
			return
		}
		l.since.Store(time.Now().UnixNano())
		if err := l.writeGroup(&g); err != nil {
			l.fail(err)
			return
		}
		l.since.Store(0)
		if !l.release(&g) {
			return
		}
		buf = g.buf[:headerBytes]
		if cap(buf) > keptBufferBytesMax {
			buf = make([]byte, headerBytes, 64<<10)
		}
	}
}

// release records that a group is durable. It reports whether the log goes on.
func (l *Log) release(g *group) bool {
	l.durable.Store(uint64(g.end))
	l.mu.Lock()
	if l.mu.failed != nil {
		l.mu.Unlock()
		return false
	}
	l.mu.stats.countGroup(g.records)
	l.notify()
	l.mu.Unlock()
	if l.opt.Released != nil {
		l.opt.Released(g.end)
	}
	return true
}

// take waits for the next group and gives the log another buffer. A log at rest
// gets its mark, which says that all before it is durable.
func (l *Log) take(next []byte, timer *time.Timer) (group, bool) {
	for {
		l.mu.Lock()
		if len(l.mu.buf) == headerBytes && l.mu.closed {
			l.addMark()
		}
		if l.mu.failed != nil || l.mu.closed && len(l.mu.buf) == headerBytes {
			l.mu.Unlock()
			return group{}, false
		}
		if len(l.mu.buf) > headerBytes {
			g := group{buf: l.mu.buf, end: l.mu.end, records: l.mu.records}
			g.start = g.end - LSN(len(g.buf)-headerBytes)
			l.mu.buf, l.mu.records = next, 0
			l.mu.Unlock()
			return g, true
		}
		rest := !l.mu.marked && l.opt.MarkDelay > 0 && l.Durable() == l.mu.end
		l.mu.Unlock()
		if !rest {
			<-l.wake
			continue
		}
		timer.Reset(l.opt.MarkDelay)
		select {
		case <-l.wake:
		case <-timer.C:
			l.mu.Lock()
			if len(l.mu.buf) == headerBytes && l.Durable() == l.mu.end {
				l.addMark()
			}
			l.mu.Unlock()
		}
	}
}

// addMark adds a mark after the last group, if there is none yet and there is
// room for one. l.mu is held.
func (l *Log) addMark() {
	if !l.mu.marked && !l.opt.Copy && l.mu.failed == nil && l.mu.end+frameBytes+l.mu.aside <= l.mu.limit {
		l.add(nil, markBit)
	}
	l.mu.marked = true
}

// errRoom cannot happen: Append accepts nothing beyond the prepared segments.
var errRoom = errors.New("no segment was prepared for an accepted record")

// writeGroup writes a group and syncs it. What belongs to one segment is durable before
// the next segment is begun.
func (l *Log) writeGroup(g *group) error {
	seal(g.buf[headerBytes:], l.seed, l.Durable())
	for pos := g.start; pos < g.end; {
		if pos == l.cur.end() {
			if err := l.advance(); err != nil {
				return err
			}
		}
		s := l.cur
		to := min(s.end(), g.end)
		part := g.buf[:headerBytes+int(to-g.start)][pos-g.start:] // after headerBytes of slack, or of the part before
		var err error
		if s.begun {
			err = writeAt(s.file, part[headerBytes:], s.offset(pos))
		} else {
			err = l.begin(s, g, part, pos)
		}
		if err != nil {
			return err
		}
		if err := l.syncData(s); err != nil {
			return err
		}
		pos = to
	}
	return nil
}

// begin writes the first bytes of a segment, with its header before them. The
// header takes the place of the bytes before the part for this moment.
func (l *Log) begin(s *segment, g *group, part []byte, pos LSN) error {
	l.mu.Lock()
	s.from, s.first = crossing(g, pos)
	s.begun = true
	l.mu.Unlock()
	saved := [headerBytes]byte(part)
	s.putHeader(part, l.opt.Identity)
	err := writeAt(s.file, part, 0)
	copy(part, saved[:])
	return err
}

// syncData makes durable what was written to a segment.
func (l *Log) syncData(s *segment) error {
	began := time.Now()
	err := s.file.SyncData()
	l.mu.Lock()
	l.mu.stats.Syncs++
	l.mu.stats.SyncTime += time.Since(began)
	l.mu.Unlock()
	return err
}

// advance makes the next prepared segment the current one. The last one is durable.
func (l *Log) advance() error {
	l.mu.Lock()
	if len(l.mu.prepared) == 0 {
		l.mu.Unlock()
		return errRoom
	}
	last := l.cur
	l.cur = l.mu.prepared[0]
	l.mu.prepared = l.mu.prepared[1:]
	l.mu.segments = append(l.mu.segments, l.cur)
	file := last.file
	last.file = nil
	l.mu.Unlock()
	return file.Close()
}

// crossing returns where the frame begins that crosses a position inside a
// group, and where the first one begins that does not begin before it.
func crossing(g *group, pos LSN) (from, first LSN) {
	for at := g.start; at < pos; {
		end := at + sizeOf(g.buf[headerBytes+int(at-g.start):])
		if end > pos {
			return at, end
		}
		at = end
	}
	return pos, pos
}

// writeAt writes all of b, or returns an error.
func writeAt(f io.WriterAt, b []byte, off int64) error {
	n, err := f.WriteAt(b, off)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}
