package wal

import (
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The layout is in docs/layouts.md.
const (
	frameBytes  = 24 // before the payload
	headerBytes = 72 // of a segment

	// Version is that of the format of the files and of the records in them.
	Version = 2

	markBit = 1 << 31 // in the length: the frame is a mark
	magic   = uint64('d') | 'r'<<8 | 't'<<16 | 'm'<<24 | 'x'<<32 | 'l'<<40 | 'o'<<48 | 'g'<<56
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	little     = binary.LittleEndian
	zeros      [headerBytes]byte
)

// frameSize returns the size of a frame with a payload of n bytes.
func frameSize(n int) LSN { return LSN(frameBytes+n+7) &^ 7 }

// appendFrame appends a frame without what seal adds.
func appendFrame(b []byte, pos LSN, payload []byte, mark uint32) []byte {
	b = little.AppendUint32(b, uint32(len(payload))|mark)
	b = little.AppendUint32(b, 0)
	b = little.AppendUint64(b, uint64(pos))
	b = little.AppendUint64(b, 0)
	b = append(b, payload...)
	return append(b, zeros[:int(frameSize(len(payload)))-frameBytes-len(payload)]...)
}

// seal completes the frames of a group: the position up to which the log is
// durable, and the checksums.
func seal(group []byte, seed uint32, durable LSN) {
	for len(group) > 0 {
		n := sizeOf(group)
		little.PutUint64(group[16:], uint64(durable))
		little.PutUint32(group[4:], checksum(seed, group[:n]))
		group = group[n:]
	}
}

// sizeOf returns the size of a frame by its length field.
func sizeOf(frame []byte) LSN { return frameSize(int(little.Uint32(frame) &^ markBit)) }

// checksum is of everything except the checksum itself, which is in bytes 4 to 7.
func checksum(seed uint32, frame []byte) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, frame[:4]), castagnoli, frame[8:])
}

// frame is a decoded frame. The payload is part of what it was decoded from.
type frame struct {
	start, end LSN
	durable    LSN
	mark       bool
	payload    []byte
}

// decodeFrame decodes the frame of a position from all its bytes.
func decodeFrame(b []byte, seed uint32, pos LSN) (frame, bool) {
	if len(b) < frameBytes || LSN(len(b)) != sizeOf(b) || LSN(little.Uint64(b[8:])) != pos {
		return frame{}, false
	}
	f := frame{start: pos, end: pos + LSN(len(b)), durable: LSN(little.Uint64(b[16:])), mark: little.Uint32(b)&markBit != 0}
	if f.durable > pos || little.Uint32(b[4:]) != checksum(seed, b) {
		return frame{}, false
	}
	f.payload = b[frameBytes : frameBytes+little.Uint32(b)&^markBit]
	return f, true
}

// segment is a file of the log.
type segment struct {
	index uint64
	size  int64
	start LSN // position of the first byte after the header
	// first is the position of the first frame that begins in the segment or
	// after it. from is that of the frame which crosses into the segment, if one
	// does, otherwise it equals start.
	from, first LSN
	begun       bool // has its header

	file vfs.File // open for writing, or nil
}

func (s *segment) end() LSN { return s.start + LSN(s.size-headerBytes) }

// offset returns the offset in the file of a position.
func (s *segment) offset(pos LSN) int64 { return headerBytes + int64(pos-s.start) }

func (s *segment) name() string { return segmentName(s.index) }

const segmentSuffix = ".log"

func segmentName(index uint64) string {
	digits := strconv.FormatUint(index, 16)
	return strings.Repeat("0", 16-len(digits)) + digits + segmentSuffix
}

// segmentIndex returns the index in the name of a file. Files of other names are
// not part of a log.
func segmentIndex(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	index, err := strconv.ParseUint(digits, 16, 64)
	return index, ok && err == nil && segmentName(index) == name
}

// putHeader writes the header of a segment into b.
func (s *segment) putHeader(b []byte, identity [16]byte) {
	little.PutUint64(b, magic)
	little.PutUint32(b[8:], Version)
	copy(b[16:], identity[:])
	little.PutUint64(b[32:], s.index)
	little.PutUint64(b[40:], uint64(s.start))
	little.PutUint64(b[48:], uint64(s.size))
	little.PutUint64(b[56:], uint64(s.from))
	little.PutUint64(b[64:], uint64(s.first))
	little.PutUint32(b[12:], headerChecksum(b))
}

func headerChecksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:headerBytes])
}

// header is the content of a segment's header.
type header struct {
	version  uint32
	identity [16]byte
	segment  segment
}

// decodeHeader decodes a header. The fields after the version are only set for
// this program's version.
func decodeHeader(b []byte) (header, bool) {
	if len(b) < headerBytes || little.Uint64(b) != magic || little.Uint32(b[12:]) != headerChecksum(b) {
		return header{}, false
	}
	h := header{version: little.Uint32(b[8:])}
	if h.version != Version {
		return h, true
	}
	copy(h.identity[:], b[16:])
	h.segment = segment{
		index: little.Uint64(b[32:]), start: LSN(little.Uint64(b[40:])), size: int64(little.Uint64(b[48:])),
		from: LSN(little.Uint64(b[56:])), first: LSN(little.Uint64(b[64:])), begun: true,
	}
	s := &h.segment
	return h, s.size >= MinSegmentBytes && s.size%8 == 0 && s.end() > s.start && s.from <= s.start && s.first >= s.start
}
