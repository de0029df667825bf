package image

import (
	"encoding/binary"
	"math/bits"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Rows follow each other in a block. A key and a CSN are the difference to those
// of the row before: numbers as zigzag varints, strings as the length of what is
// equal, and the rest. Payloads are words as they are, or packed: for each word
// the number of its bytes without leading zeros, in four bits, then these bytes.

var le = binary.LittleEndian

// coder holds the row before.
type coder struct {
	num uint64
	str []byte
	csn uint64
}

// append appends a row.
func (c *coder) append(b []byte, strs bool, key index.Key, csn block.CSN, row []uint64) []byte {
	if strs {
		same := commonPrefix(c.str, key.Str)
		b = binary.AppendUvarint(b, uint64(same))
		b = binary.AppendUvarint(b, uint64(len(key.Str)-same))
		b = append(b, key.Str[same:]...)
		c.str = append(c.str[:same], key.Str[same:]...)
	} else {
		b = binary.AppendVarint(b, int64(key.Num-c.num))
		c.num = key.Num
	}
	b = binary.AppendVarint(b, int64(uint64(csn)-c.csn))
	c.csn = uint64(csn)
	packed := (len(row) + 1) / 2
	for _, w := range row {
		packed += significant(w)
	}
	if packed >= len(row)*mem.WordBytes {
		b = binary.AppendUvarint(b, uint64(len(row))<<1)
		for _, w := range row {
			b = le.AppendUint64(b, w)
		}
		return b
	}
	b = binary.AppendUvarint(b, uint64(len(row))<<1|1)
	for i := 0; i < len(row); i += 2 {
		n := significant(row[i])
		if i+1 < len(row) {
			n |= significant(row[i+1]) << 4
		}
		b = append(b, byte(n))
	}
	for _, w := range row {
		b = le.AppendUint64(b, w)[:len(b)+significant(w)]
	}
	return b
}

// significant is the number of bytes of a word without leading zeros.
func significant(w uint64) int { return (bits.Len64(w) + 7) / 8 }

// commonPrefix returns the length of the common prefix of two strings.
func commonPrefix(a []byte, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// rowReader decodes a block of rows. After a fault bad is set.
type rowReader struct {
	coder
	b    []byte
	strs bool
	bad  bool
	row  []uint64
	tail []byte // of a block, for words at its end
}

// next reads a row into e, whose key and payload are valid until the next call.
func (r *rowReader) next(e *index.Entry) bool {
	if r.strs {
		same, rest := r.uint(uint64(len(r.str))), r.uint(index.MaxKeyBytes)
		if same+rest > index.MaxKeyBytes || rest > uint64(len(r.b)) {
			r.bad = true
			return false
		}
		r.str = append(r.str[:same], r.b[:rest]...)
		r.b = r.b[rest:]
		e.Key = index.Str(mem.String(r.str))
	} else {
		r.num += uint64(r.int())
		e.Key = index.Num(r.num)
	}
	r.csn += uint64(r.int())
	e.Header = block.Present(block.CSN(r.csn))
	if size := r.uint(1 << 32); size&1 != 0 {
		r.packed(int(size >> 1))
	} else {
		r.plain(int(size >> 1))
	}
	e.Row = r.row
	return !r.bad
}

// room makes r.row as long as a row. It refuses a length beyond what is left.
func (r *rowReader) room(words, least int) bool {
	if r.bad = r.bad || least > len(r.b); r.bad {
		return false
	}
	if cap(r.row) < words {
		r.row = make([]uint64, words)
	}
	r.row = r.row[:words]
	return true
}

func (r *rowReader) plain(words int) {
	if !r.room(words, words*mem.WordBytes) {
		return
	}
	for i := range r.row {
		r.row[i] = le.Uint64(r.b[i*mem.WordBytes:])
	}
	r.b = r.b[words*mem.WordBytes:]
}

func (r *rowReader) packed(words int) {
	if !r.room(words, (words+1)/2) {
		return
	}
	sizes, b := r.b[:(words+1)/2], r.b[(words+1)/2:]
	if spare := words * sizeMax; len(b) < spare { // words are loaded whole
		r.tail = append(append(r.tail[:0], b...), make([]byte, spare)...)
		n := unpack(r.row, sizes, r.tail)
		r.bad = n > len(b)
		r.b = b[min(n, len(b)):]
		return
	}
	r.b = b[unpack(r.row, sizes, b):]
}

// sizeMax is what a size in four bits may be, and more than a word has.
const sizeMax = 15

// masks keep the bytes of a word that a size says.
var masks = [16]uint64{
	0, 1<<8 - 1, 1<<16 - 1, 1<<24 - 1, 1<<32 - 1, 1<<40 - 1, 1<<48 - 1, 1<<56 - 1, 1<<64 - 1,
}

// unpack returns the number of bytes that the words take in b, which has sizeMax
// for each.
func unpack(row []uint64, sizes, b []byte) (at int) {
	for i, s := range sizes {
		low, high := int(s&15), int(s>>4)
		row[2*i] = le.Uint64(b[at:]) & masks[low]
		at += low
		if 2*i+1 < len(row) {
			row[2*i+1] = le.Uint64(b[at:]) & masks[high]
			at += high
		}
	}
	return at
}

func (r *rowReader) uint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

// append appends the frame without its checksum.
func (f *frame) append(b []byte) []byte {
	b = le.AppendUint64(le.AppendUint32(b, f.bytes), uint64(f.offset))
	b = le.AppendUint16(le.AppendUint16(b, f.kind), f.partition)
	return le.AppendUint32(le.AppendUint32(b, uint32(f.index)), f.rows)
}

func decodeFrame(b []byte) frame {
	return frame{
		bytes: le.Uint32(b), offset: int64(le.Uint64(b[4:])), kind: le.Uint16(b[12:]),
		partition: le.Uint16(b[14:]), index: uint16(le.Uint32(b[16:])), rows: le.Uint32(b[20:]),
	}
}
