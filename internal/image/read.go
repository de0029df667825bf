package image

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// File is a complete checkpoint. Its methods may be called at the same time.
type File struct {
	Info
	// Indexes are those that have rows, in the order of the file.
	Indexes []Index
	// Rows is the number of all rows.
	Rows uint64

	path   string
	f      vfs.File
	seed   uint32
	blocks []frame
}

// Index is what a checkpoint has of one index of one partition.
type Index struct {
	Partition placement.Partition
	Index     int
	Strings   bool
	Rows      uint64
}

// Open opens a checkpoint and checks that it is complete. It does not read the
// rows: damage to them shows when they are read, or with Verify.
func Open(fs vfs.FS, path string) (*File, error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{path: path, f: file}
	if err := f.open(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }

func (f *File) corrupt(at int64, format string, args ...any) error {
	return &CorruptError{File: f.path, Offset: at, Reason: fmt.Sprintf(format, args...)}
}

func (f *File) open() error {
	st, err := f.f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	if size < headBytes+frameBytes+trailerBytes {
		return f.corrupt(size, "a file of %d bytes cannot be a checkpoint", size)
	}
	if err := f.readHead(); err != nil {
		return err
	}
	t := make([]byte, trailerBytes)
	if err := f.readAt(t, size-trailerBytes); err != nil {
		return err
	}
	n := trailerBytes - crcBytes
	footer := int64(le.Uint64(t[8:]))
	if string(t[:8]) != trailerMagic || le.Uint32(t[n:]) != crc32.Checksum(t[:n], castagnoli) ||
		le.Uint32(t[24:]) != f.seed || footer < headBytes || footer > size-trailerBytes-frameBytes {
		return f.corrupt(size-trailerBytes, "the end of the checkpoint is missing")
	}
	f.Rows = le.Uint64(t[16:])
	b, err := f.block(frame{kind: kindFooter, offset: footer, bytes: uint32(size - trailerBytes - frameBytes - footer)}, new([]byte))
	if err != nil {
		return err
	}
	return f.readTable(b, footer)
}

func (f *File) readHead() error {
	head := make([]byte, headBytes)
	if err := f.readAt(head, 0); err != nil {
		return err
	}
	if string(head[:8]) != headMagic || le.Uint32(head[12:]) != crc32.Checksum(head[:12], castagnoli) {
		return f.corrupt(0, "no head of a checkpoint")
	}
	if v := le.Uint32(head[8:]); v != Version {
		return &VersionError{File: f.path, Have: Version, Got: v}
	}
	f.seed = crc32.Checksum(head[:headBytes-crcBytes], castagnoli)
	if le.Uint32(head[headBytes-crcBytes:]) != f.seed {
		return f.corrupt(0, "the checksum of the head does not match")
	}
	copy(f.Identity[:], head[16:])
	f.Log, f.Tick = le.Uint64(head[32:]), clock.Tick(le.Uint64(head[40:]))
	return nil
}

// readTable checks that the blocks follow each other up to the footer, and that
// they have as many rows as the checkpoint.
func (f *File) readTable(b []byte, footer int64) error {
	const each = frameBytes - crcBytes
	at, rows := int64(headBytes), uint64(0)
	for ; len(b) >= each; b = b[each:] {
		fr := decodeFrame(b)
		if fr.offset != at || fr.kind < kindRows || fr.kind > kindBlob {
			return f.corrupt(footer, "block %d of kind %d at %d, want %d", len(f.blocks), fr.kind, fr.offset, at)
		}
		at += frameBytes + int64(fr.bytes)
		f.blocks = append(f.blocks, fr)
		if fr.kind != kindBlob {
			rows += uint64(fr.rows)
			f.count(&fr)
		}
	}
	if at != footer || len(b) != 0 || rows != f.Rows {
		return f.corrupt(footer, "%d blocks with %d rows up to %d; want %d rows up to %d", len(f.blocks), rows, at, f.Rows, footer)
	}
	return nil
}

func (f *File) count(fr *frame) {
	is := Index{Partition: placement.Partition(fr.partition), Index: int(fr.index), Strings: fr.kind == kindStrs}
	if n := len(f.Indexes) - 1; n >= 0 && f.Indexes[n].Partition == is.Partition && f.Indexes[n].Index == is.Index {
		f.Indexes[n].Rows += uint64(fr.rows)
		return
	}
	is.Rows = uint64(fr.rows)
	f.Indexes = append(f.Indexes, is)
}

func (f *File) readAt(b []byte, at int64) error {
	n, err := f.f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return f.corrupt(at, "the file ends after %d of %d bytes", n, len(b))
	}
	return err
}

// block reads and checks a block, into mem if it is large enough, and returns the
// payload.
func (f *File) block(want frame, mem *[]byte) ([]byte, error) {
	n := frameBytes + int(want.bytes)
	if cap(*mem) < n {
		*mem = make([]byte, n+n/8)
	}
	buf := (*mem)[:n]
	if err := f.readAt(buf, want.offset); err != nil {
		return nil, err
	}
	if le.Uint32(buf) != crc32.Update(f.seed, castagnoli, buf[crcBytes:]) {
		return nil, f.corrupt(want.offset, "the checksum of a block of %d bytes does not match", n)
	}
	if fr := decodeFrame(buf[crcBytes:]); want.kind == kindFooter {
		want.rows = fr.rows
		if fr != want {
			return nil, f.corrupt(want.offset, "no footer")
		}
	} else if fr != want {
		return nil, f.corrupt(want.offset, "block %v, the footer says %v", fr, want)
	}
	return buf[frameBytes:], nil
}

// Read calls fn for the rows of an index, in the order in which they were written. The
// entry is valid only during the call.
func (f *File) Read(partition placement.Partition, ix int, fn func(*index.Entry) error) error {
	var buf []byte
	var r rowReader
	for i := range f.blocks {
		fr := &f.blocks[i]
		if fr.kind == kindBlob || placement.Partition(fr.partition) != partition || int(fr.index) != ix {
			continue
		}
		b, err := f.block(*fr, &buf)
		if err != nil {
			return err
		}
		if err := f.readRows(fr, &r, b, fn); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) readRows(fr *frame, r *rowReader, b []byte, fn func(*index.Entry) error) error {
	*r = rowReader{b: b, strs: fr.kind == kindStrs, row: r.row, tail: r.tail, coder: coder{str: r.str[:0]}}
	var e index.Entry
	for range fr.rows {
		if !r.next(&e) {
			return f.corrupt(fr.offset, "a row cannot be decoded")
		}
		if err := fn(&e); err != nil {
			return err
		}
	}
	if len(r.b) > 0 {
		return f.corrupt(fr.offset, "%d bytes after the last row of a block", len(r.b))
	}
	return nil
}

// Blobs calls fn for the blobs of a kind, in the order in which they were written. fn
// may keep the bytes.
func (f *File) Blobs(kind uint16, fn func(partition placement.Partition, b []byte) error) error {
	for i := range f.blocks {
		fr := &f.blocks[i]
		if fr.kind != kindBlob || fr.index != kind {
			continue
		}
		b, err := f.block(*fr, new([]byte))
		if err != nil {
			return err
		}
		if err := fn(placement.Partition(fr.partition), b); err != nil {
			return err
		}
	}
	return nil
}

// Verify reads the whole file and checks all of it.
func (f *File) Verify() error {
	var buf []byte
	var r rowReader
	for i := range f.blocks {
		fr := &f.blocks[i]
		b, err := f.block(*fr, &buf)
		if err != nil {
			return err
		}
		if fr.kind == kindBlob {
			continue
		}
		if err := f.readRows(fr, &r, b, func(*index.Entry) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}
