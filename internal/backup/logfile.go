package backup

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wal"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The log of a server in a backup is a head and frames: see docs/layouts.md. The
// checksums of the frames start from the checksum of the head.
const (
	logMagic   = "drtmxbkl"
	headBytes  = 64
	frameBytes = 32
	crcBytes   = 4
	idBytes    = 16
	// recordHead is what a record has before its payload in a frame.
	recordHead = 8 + 4
	// frameMax bounds the payload of a frame: records are gathered up to batchBytes.
	batchBytes = 256 << 10
	frameMax   = batchBytes + wal.MaxRecordBytes + recordHead
)

// Kinds of frames.
const (
	frameRecords = 1 // records of the server's log, between two positions
	frameClosed  = 2 // a tick that all servers have closed, and this one at the position
)

var le = binary.LittleEndian

// logWriter writes the log of a server. After an error it is of no use.
type logWriter struct {
	f     vfs.File
	seed  uint32
	bytes int64   // of the file
	to    wal.LSN // position up to which the file has all records
	buf   []byte  // of the frame that is being filled
	from  wal.LSN // of it
}

func createLog(fs vfs.FS, path string, id [idBytes]byte, server placement.Server, from wal.LSN) (*logWriter, error) {
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	head := le.AppendUint32([]byte(logMagic), Version)
	head = le.AppendUint32(head, crc32.Checksum(head, castagnoli))
	head = append(head, id[:]...)
	head = le.AppendUint64(le.AppendUint64(head, uint64(server)), uint64(from))
	head = append(head, make([]byte, headBytes-crcBytes-len(head))...)
	w := &logWriter{f: f, seed: crc32.Checksum(head, castagnoli), bytes: headBytes, to: from, from: from}
	w.reset()
	if _, err := f.Write(le.AppendUint32(head, w.seed)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

func (w *logWriter) reset() { w.buf = append(w.buf[:0], make([]byte, frameBytes)...) }

// add adds a record.
func (w *logWriter) add(start, end wal.LSN, payload []byte) error {
	w.buf = le.AppendUint32(le.AppendUint64(w.buf, uint64(start)), uint32(len(payload)))
	w.buf = append(w.buf, payload...)
	w.to = end
	if len(w.buf) < batchBytes {
		return nil
	}
	return w.flush(frameRecords)
}

// closed notes that a tick is closed, and that the log is there up to a position.
func (w *logWriter) closed(tick clock.Tick, to wal.LSN) error {
	w.to = max(w.to, to)
	if w.to > w.from {
		if err := w.flush(frameRecords); err != nil {
			return err
		}
	}
	w.buf = le.AppendUint64(w.buf, uint64(tick))
	return w.flush(frameClosed)
}

func (w *logWriter) flush(kind uint32) error {
	b := w.buf
	le.PutUint32(b[4:], uint32(len(b)-frameBytes))
	le.PutUint32(b[8:], kind)
	le.PutUint64(b[16:], uint64(w.from))
	le.PutUint64(b[24:], uint64(w.to))
	le.PutUint32(b, crc32.Update(w.seed, castagnoli, b[crcBytes:]))
	n, err := w.f.Write(b)
	w.bytes += int64(n)
	w.from = w.to
	w.reset()
	return err
}

// logFrame is a frame as it is read.
type logFrame struct {
	kind     uint32
	from, to wal.LSN
	offset   int64 // in the file
	payload  []byte
}

// tick returns the tick of a frameClosed.
func (f *logFrame) tick() clock.Tick { return clock.Tick(le.Uint64(f.payload)) }

// records calls fn for the records of a frameRecords. It returns false if they are
// malformed.
func (f *logFrame) records(fn func(start wal.LSN, payload []byte) error) (ok bool, err error) {
	for b := f.payload; len(b) > 0; {
		if len(b) < recordHead || uint64(len(b)-recordHead) < uint64(le.Uint32(b[8:])) {
			return false, nil
		}
		start, n := wal.LSN(le.Uint64(b)), recordHead+int(le.Uint32(b[8:]))
		if start < f.from || start >= f.to {
			return false, nil
		}
		if err := fn(start, b[recordHead:n]); err != nil {
			return true, err
		}
		b = b[n:]
	}
	return true, nil
}

// readLog calls fn for the frames of a server's log, and checks that nothing is
// missing.
func (m *Manifest) readLog(fs vfs.FS, dir string, server placement.Server, fn func(*logFrame) error) (err error) {
	files := &m.Files[server]
	path := fs.PathJoin(dir, files.Log)
	file, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return fmt.Errorf("backup: the log of data server %d: %w", server, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := &logReader{path: path, r: bufio.NewReaderSize(io.NewSectionReader(file, 0, files.LogBytes), 1<<20), left: files.LogBytes}
	if err := r.head(m.ID, server, wal.LSN(files.LogFrom)); err != nil {
		return err
	}
	at, last := wal.LSN(files.LogFrom), clock.Tick(0)
	for r.left > 0 {
		f, err := r.frame(at)
		if err != nil {
			return err
		}
		if f.kind == frameClosed {
			last = f.tick()
		}
		if err := fn(f); err != nil {
			return err
		}
		at = f.to
	}
	if at != wal.LSN(files.LogTo) || last < m.Last {
		return &CorruptError{path, files.LogBytes, fmt.Sprintf("the log ends at position %d and tick %d, want %d and at least %d", at, last, files.LogTo, m.Last)}
	}
	return nil
}

// logReader reads the file of a log, one frame after the other.
type logReader struct {
	path   string
	r      *bufio.Reader
	seed   uint32
	offset int64 // of what comes next
	left   int64
	buf    []byte
}

func (r *logReader) corrupt(at int64, format string, args ...any) error {
	return &CorruptError{File: r.path, Offset: at, Reason: fmt.Sprintf(format, args...)}
}

// take reads n bytes more into the buffer.
func (r *logReader) take(n int) error {
	at := len(r.buf)
	if int64(n) > r.left {
		return r.corrupt(r.offset, "%d bytes are left, %d are needed", r.left, n)
	}
	r.buf = append(r.buf, make([]byte, n)...)
	m, err := io.ReadFull(r.r, r.buf[at:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.corrupt(r.offset+int64(m), "the file ends here")
	}
	r.offset += int64(m)
	r.left -= int64(m)
	return err
}

func (r *logReader) head(id string, server placement.Server, from wal.LSN) error {
	if err := r.take(headBytes); err != nil {
		return err
	}
	b := r.buf
	if string(b[:8]) != logMagic || le.Uint32(b[12:]) != crc32.Checksum(b[:12], castagnoli) {
		return r.corrupt(0, "no head of a log")
	}
	if v := le.Uint32(b[8:]); v != Version {
		return fmt.Errorf("%w: %s has format %d, this program reads %d", ErrVersion, r.path, v, Version)
	}
	r.seed = crc32.Checksum(b[:headBytes-crcBytes], castagnoli)
	if le.Uint32(b[headBytes-crcBytes:]) != r.seed {
		return r.corrupt(0, "the checksum of the head does not match")
	}
	if hex.EncodeToString(b[16:16+idBytes]) != id || le.Uint64(b[32:]) != uint64(server) || le.Uint64(b[40:]) != uint64(from) {
		return r.corrupt(0, "it is of another backup, or of another data server")
	}
	return nil
}

// frame reads the frame of a position.
func (r *logReader) frame(at wal.LSN) (*logFrame, error) {
	f := &logFrame{offset: r.offset}
	r.buf = r.buf[:0]
	if err := r.take(frameBytes); err != nil {
		return nil, err
	}
	n := le.Uint32(r.buf[4:])
	if n > frameMax || int64(n) > r.left {
		return nil, r.corrupt(f.offset, "a frame of %d bytes, with %d bytes left", n, r.left)
	}
	if err := r.take(int(n)); err != nil {
		return nil, err
	}
	b := r.buf
	if le.Uint32(b) != crc32.Update(r.seed, castagnoli, b[crcBytes:]) {
		return nil, r.corrupt(f.offset, "the checksum of a frame of %d bytes does not match", len(b))
	}
	f.kind, f.from, f.to, f.payload = le.Uint32(b[8:]), wal.LSN(le.Uint64(b[16:])), wal.LSN(le.Uint64(b[24:])), b[frameBytes:]
	if f.from != at || f.to < f.from || f.kind != frameRecords && (f.kind != frameClosed || len(f.payload) != 8 || f.to != f.from) {
		return nil, r.corrupt(f.offset, "a frame of kind %d from position %d to %d, want one from %d", f.kind, f.from, f.to, at)
	}
	return f, nil
}
