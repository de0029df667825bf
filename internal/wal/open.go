package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
)

// Open opens the log of a directory, or creates it. It finds the end of the log and
// cuts a torn tail. It changes nothing before it has checked the files: after a
// CorruptError or a VersionError nothing was changed. Replay then gives the records,
// and Start starts the writer.
func Open(opt Options) (*Log, error) {
	if err := opt.complete(); err != nil {
		return nil, err
	}
	l := &Log{
		opt: opt, seed: crc32.Checksum(opt.Identity[:], castagnoli),
		wake: make(chan struct{}, 1), kick: make(chan struct{}, 1), stop: make(chan struct{}),
		writerDone: make(chan struct{}), preparerDone: make(chan struct{}),
	}
	l.mu.buf = make([]byte, headerBytes, 64<<10)
	l.mu.marked = true
	if err := l.open(); err != nil {
		l.mu.closed = true
		for _, s := range append(l.mu.prepared, l.mu.segments...) {
			if s.file != nil {
				err = errors.Join(err, s.file.Close())
			}
		}
		return nil, err
	}
	return l, nil
}

// complete sets the defaults.
func (o *Options) complete() error {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.RecordBytes == 0 {
		o.RecordBytes = int(min(4*o.SegmentBytes, MaxRecordBytes))
	}
	if o.MarkDelay == 0 {
		o.MarkDelay = markDelayDefault
	}
	switch {
	case o.FS == nil || o.Dir == "":
		return errors.New("wal: no file system or no directory")
	case o.SegmentBytes < MinSegmentBytes || o.SegmentBytes%8 != 0:
		return fmt.Errorf("wal: segments of %d bytes, want a multiple of 8 from %d on", o.SegmentBytes, MinSegmentBytes)
	case o.RecordBytes < 0 || o.RecordBytes > MaxRecordBytes:
		return fmt.Errorf("wal: records of %d bytes, want at most %d", o.RecordBytes, MaxRecordBytes)
	}
	return nil
}

func (l *Log) open() error {
	files, err := l.list()
	if err != nil {
		return err
	}
	found, err := l.headers(files)
	if err != nil {
		return err
	}
	chain, ahead, short, err := l.chain(found)
	if err != nil {
		return err
	}
	if chain == nil {
		if l.opt.Exists {
			return fmt.Errorf("%w (%s)", ErrMissing, l.opt.Dir)
		}
		return l.createLog()
	}
	t, err := l.findEnd(chain, ahead)
	if err != nil {
		return err
	}
	// All is checked. From here on files change.
	return l.adopt(chain, ahead, short, t)
}

// list returns the indexes of the files of the log, ascending. It creates the
// directory.
func (l *Log) list() ([]uint64, error) {
	names, err := l.opt.FS.List(l.opt.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.opt.Exists:
		return nil, fmt.Errorf("%w (%s)", ErrMissing, l.opt.Dir)
	case errors.Is(err, fs.ErrNotExist) && !l.opt.ReadOnly:
		return nil, l.opt.FS.MkdirAll(l.opt.Dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, name := range names {
		if index, ok := segmentIndex(name); ok {
			all = append(all, index)
		}
	}
	slices.Sort(all)
	return all, nil
}

// headers reads the headers of all files. A file that has no header of its own
// was prepared and is not begun, or its header is damaged.
func (l *Log) headers(files []uint64) ([]*segment, error) {
	var all []*segment
	for _, index := range files {
		name := segmentName(index)
		b, size, err := l.readHeader(name)
		if err != nil {
			return nil, err
		}
		s := &segment{index: index, size: size}
		all = append(all, s)
		h, ok := decodeHeader(b)
		switch {
		case h.version != Version && h.version != 0:
			return nil, &VersionError{File: l.path(name), Have: Version, Got: h.version}
		case !ok:
			continue
		case h.identity != l.opt.Identity:
			return nil, l.corrupt(name, 16, fmt.Sprintf("it belongs to log %x, this is log %x", h.identity, l.opt.Identity))
		case h.segment.index > index:
			return nil, l.corrupt(name, 32, "it holds segment "+h.segment.name())
		case h.segment.index < index:
			continue // prepared from an older segment
		case h.segment.size > size:
			return nil, l.corrupt(name, size, fmt.Sprintf("the file ends here, the segment has %d bytes", h.segment.size))
		}
		*s = h.segment
	}
	return all, nil
}

// readHeader returns the first bytes of a file, and its size.
func (l *Log) readHeader(name string) (b []byte, size int64, err error) {
	f, err := l.opt.FS.Open(l.path(name))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	b = make([]byte, headerBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	return b[:n], info.Size(), nil
}

// chain finds the segments that hold the log, and those that come next; short are files
// of which the preparer has not made segments. There are none if the log does not exist
// yet.
func (l *Log) chain(found []*segment) (chain, ahead, short []*segment, err error) {
	last := len(found) - 1
	for last >= 0 && !found[last].begun {
		last--
	}
	if last < 0 {
		return nil, nil, nil, l.checkFresh(found)
	}
	first := last
	for first > 0 && found[first-1].index == found[first].index-1 {
		s := found[first-1]
		if !s.begun {
			return nil, nil, nil, l.corrupt(s.name(), 0, "the header is not valid, and later segments are durable")
		}
		if s.end() != found[first].start {
			return nil, nil, nil, l.corrupt(found[first].name(), 40, fmt.Sprintf("it begins at %d, the segment before it ends at %d", found[first].start, s.end()))
		}
		first--
	}
	for _, s := range found[:first] {
		l.mu.remains = append(l.mu.remains, s.name())
	}
	for i, s := range found[last+1:] { // files are prepared in order
		if want := found[last].index + uint64(i) + 1; s.index != want {
			return nil, nil, nil, l.corrupt(segmentName(want), 0, "the file is missing, and "+s.name()+" is there")
		}
	}
	end := last + 1
	for ; end < len(found) && found[end].size >= MinSegmentBytes; end++ {
		s, before := found[end], found[end-1]
		s.size &^= 7
		s.start = before.end()
		s.from, s.first = s.start, s.start
	}
	return found[first : last+1], found[last+1 : end], found[end:], nil
}

// checkFresh checks that no log was here. What the creation of a log leaves when
// it is interrupted is its first file, without records.
func (l *Log) checkFresh(found []*segment) error {
	if len(found) == 0 {
		return nil
	}
	s := found[0]
	bad := l.corrupt(s.name(), 0, "the header is not valid")
	if s.index != 0 || len(found) > 1 {
		return bad
	}
	s.size &^= 7
	if s.size < MinSegmentBytes {
		return nil
	}
	r := l.newReader([]*segment{s})
	err := r.candidates(0, func(pos LSN) error {
		if _, ok, err := r.frame(pos); err != nil || !ok {
			return err
		}
		return bad
	})
	return errors.Join(err, r.close())
}

// tail is the end of the log, and what lies behind it.
type tail struct {
	end    LSN
	synced LSN // up to here the frames say that the log was durable; 0: they do not
	behind LSN // the last valid frame behind the end, which was not synced; 0: there is none
}

// findEnd finds the end of the log. It is the first position without a valid
// frame, and must not be before one that was durable.
func (l *Log) findEnd(chain, ahead []*segment) (t tail, err error) {
	last := chain[len(chain)-1]
	t.end = last.first
	if last.from >= chain[0].start {
		t.end = last.from
	}
	r := l.newReader(chain)
	defer func() { err = errors.Join(err, r.close()) }()
	for {
		f, ok, err := r.frame(t.end)
		if err != nil {
			return t, err
		}
		if !ok {
			break
		}
		t.end, t.synced = f.end, max(t.synced, f.durable)
	}
	if t.end > last.end() {
		return t, l.corrupt(last.name(), 64, "the first record begins after the segment")
	}
	beyond := l.newReader(append(slices.Clone(chain), ahead...))
	defer func() { err = errors.Join(err, beyond.close()) }()
	err = beyond.candidates(t.end, func(pos LSN) error {
		f, ok, err := beyond.frame(pos)
		if err != nil || !ok {
			return err
		}
		if f.durable > t.end {
			return l.tornAfterSync(beyond, t.end, f)
		}
		t.behind = pos
		return nil
	})
	return t, err
}

// tornAfterSync returns the error for a frame that is not valid although a later
// frame shows that it was durable.
func (l *Log) tornAfterSync(r *reader, end LSN, later frame) error {
	reason := fmt.Sprintf("no valid frame at position %d, and the frame at %d shows that the log was durable up to %d", end, later.start, later.durable)
	for _, s := range r.segments {
		if s.end() > end && s.start < later.durable && !s.begun {
			return l.corrupt(s.name(), 0, "the header is not valid, and "+reason)
		}
	}
	return l.damaged(r.segments, end, reason)
}

// syncParents makes the directory itself durable. This process, or one that was killed,
// may have created it together with those above it.
func (l *Log) syncParents() error {
	for dir := l.opt.Dir; ; {
		parent := l.opt.FS.PathDir(dir)
		if parent == dir {
			return nil
		}
		// What may not be read was not created here.
		if err := l.syncDir(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		dir = parent
	}
}

// createLog creates the first segment of a log.
func (l *Log) createLog() error {
	if l.opt.ReadOnly {
		return nil
	}
	from := l.opt.Start
	s := &segment{size: l.opt.SegmentBytes, start: from, from: from, first: from, begun: true}
	err := l.syncParents()
	if err == nil {
		err = l.create(s)
	}
	if err == nil {
		l.mu.segments, l.mu.limit, l.cur = []*segment{s}, s.end(), s
		l.mu.end = from
		l.durable.Store(uint64(from))
		b := make([]byte, headerBytes)
		s.putHeader(b, l.opt.Identity)
		if err = writeAt(s.file, b, 0); err == nil {
			err = s.file.Sync()
		}
	}
	if noSpace(err) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// adopt makes a log of the segments that were checked: it opens the files, and makes
// durable what the log was found to hold.
func (l *Log) adopt(chain, ahead, short []*segment, t tail) error {
	n := len(chain)
	for n > 1 && chain[n-1].start > t.end {
		n--
	}
	l.mu.segments, l.mu.end, l.mu.limit = chain[:n:n], t.end, chain[n-1].end()
	l.durable.Store(uint64(t.end))
	if l.opt.ReadOnly {
		return nil
	}
	l.cur = chain[n-1]
	ahead = append(slices.Clone(chain[n:]), ahead...)
	all := append([]*segment{l.cur}, ahead...)
	for _, s := range all {
		var err error
		if s.file, err = l.openFile(s.name()); err != nil {
			l.mu.segments = all // to be closed
			return err
		}
	}
	l.mu.prepared = ahead
	if err := l.dropAhead(l.fitting(t), short); err != nil {
		return err
	}
	if err := l.renew(t); err != nil {
		return err
	}
	if err := l.reserve(frameSize(l.opt.RecordBytes) + frameBytes); !noSpace(err) {
		return err
	}
	return nil
}

// fitting returns how many of the prepared segments can be used: those of the size that
// new ones have, and none if one of them has been written, or may have been.
func (l *Log) fitting(t tail) int {
	begun := func(s *segment) bool { return s.begun }
	if t.behind >= l.cur.end() || slices.ContainsFunc(l.mu.prepared, begun) {
		return 0
	}
	n := slices.IndexFunc(l.mu.prepared, func(s *segment) bool { return s.size != l.opt.SegmentBytes })
	if n < 0 {
		return len(l.mu.prepared)
	}
	return n
}

// dropAhead removes all prepared segments but the first keep, and what is short behind
// them. Frames in them are not overwritten: if the sync of that failed, the frames might
// be on the disk and no longer be read, and the next Open would not know of them.
func (l *Log) dropAhead(keep int, short []*segment) error {
	drop := slices.Clone(l.mu.prepared[keep:])
	if len(drop) == 0 {
		return nil
	}
	for _, s := range slices.Backward(append(drop, short...)) { // no gap may arise, after a crash either
		var err error
		if s.file != nil {
			l.mu.prepared = l.mu.prepared[:len(l.mu.prepared)-1]
			err = s.file.Close()
			s.file = nil
		}
		if err := errors.Join(err, l.remove([]string{s.name()})); err != nil {
			return err
		}
	}
	return nil
}

// renewBytes is how much renew writes at once.
const renewBytes = 1 << 20

// renew makes durable what the log was found to hold, and clears the rest of its last
// segment. Otherwise records that were never durable would come back behind new ones.
//
// A process before this one may have written and not synced, and a sync of it may have
// failed. After that the kernel may keep pages that it takes for clean: they are read as
// they were written, the disk has something else, and no sync changes that. So renew
// writes all that is not known to be synced, even where nothing changes. That includes
// what is behind the end, which may look cleared because an earlier renew has failed.
func (l *Log) renew(t tail) error {
	s := l.cur
	from, end := int64(0), s.offset(t.end) // with the header
	if t.synced > s.start {
		from = s.offset(t.synced)
	}
	b := make([]byte, min(s.size-from, renewBytes))
	for at := from; at < s.size; at += int64(len(b)) {
		b = b[:min(int64(len(b)), s.size-at)]
		have := min(max(end-at, 0), int64(len(b)))
		if n, err := s.file.ReadAt(b[:have], at); int64(n) < have {
			return fmt.Errorf("wal: read %s: %w", s.name(), err)
		}
		clear(b[have:])
		if err := writeAt(s.file, b, at); err != nil {
			return err
		}
	}
	for _, s := range append(slices.Clone(l.mu.prepared), s) {
		if err := s.file.Sync(); err != nil {
			return err
		}
	}
	l.mu.limit = s.end()
	if n := len(l.mu.prepared); n > 0 {
		l.mu.limit = l.mu.prepared[n-1].end()
	}
	return l.syncDir(l.opt.Dir)
}
