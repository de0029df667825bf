package wire

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
)

// Read is one server-side lookup (Scan false) or range scan.
type Read struct {
	Partition placement.Partition
	Index     uint16
	Scan      bool
	GaveUp    bool      // the client half tried first and gave up
	Strings   bool      // the keys are strings
	Lo, Hi    index.Key // a lookup's key is Lo
	Limit     uint32
	At        clock.Tick // what was there at the end of this tick, which is closed; 0 asks for the present
}

// Bits of the byte that describes a read.
const (
	kindScan   = 1
	kindGaveUp = 2
	kindAt     = 4
)

// AppendReads appends an OpRead request.
func AppendReads(b []byte, rs []Read) []byte {
	b = le.AppendUint32(append(b, byte(OpRead)), uint32(len(rs)))
	for _, r := range rs {
		b = le.AppendUint16(appendPartition(b, r.Partition), r.Index)
		kind := byte(0)
		if r.GaveUp {
			kind |= kindGaveUp
		}
		if r.At != 0 {
			kind |= kindAt
		}
		if r.Scan {
			b = AppendKey(AppendKey(append(b, kind|kindScan), r.Lo, r.Strings), r.Hi, r.Strings)
			b = le.AppendUint32(b, r.Limit)
		} else {
			b = AppendKey(append(b, kind), r.Lo, r.Strings)
		}
		if r.At != 0 {
			b = le.AppendUint64(b, uint64(r.At))
		}
	}
	return b
}

// AppendAdopt appends an OpAdopt request.
func AppendAdopt(b []byte, part placement.Partition, tick clock.Tick) []byte {
	return le.AppendUint64(appendPartition(append(b, byte(OpAdopt)), part), uint64(tick))
}

// DecodeReads decodes the list after the op byte.
func DecodeReads(d *Decoder, dst []Read) ([]Read, error) {
	dst = dst[:0]
	for range d.Count(MaxReads, 7) {
		r := Read{Partition: d.Partition(), Index: d.U16()}
		kind := d.U8()
		if kind > kindScan|kindGaveUp|kindAt {
			return nil, fmt.Errorf("%w: read kind", ErrMessage)
		}
		r.GaveUp = kind&kindGaveUp != 0
		if r.Scan = kind&kindScan != 0; r.Scan {
			var same bool
			r.Lo, r.Strings = d.Key()
			if r.Hi, same = d.Key(); same != r.Strings {
				return nil, fmt.Errorf("%w: the ends of a range are of two kinds", ErrMessage)
			}
			r.Limit = d.U32()
		} else {
			r.Lo, r.Strings = d.Key()
		}
		if kind&kindAt != 0 {
			if r.At = clock.Tick(d.U64()); r.At == 0 {
				return nil, fmt.Errorf("%w: read at tick 0", ErrMessage)
			}
		}
		dst = append(dst, r)
	}
	return dst, d.End()
}

// AppendGet appends the answer to a lookup.
func AppendGet(b []byte, r *index.GetResult) []byte {
	b = append(b, byte(r.Status))
	b = le.AppendUint64(le.AppendUint64(b, uint64(r.Header)), r.Hint)
	b = appendProofs(le.AppendUint64(b, uint64(r.Rests)), r.Proofs)
	if r.Status != index.Found {
		return AppendBytes(b, nil)
	}
	return AppendBytes(b, mem.Bytes(r.Row))
}

// Get decodes the answer to a lookup. It copies the row and the proofs into r
// and buf.
func (d *Decoder) Get(r *index.GetResult, buf []uint64) []uint64 {
	r.Status = d.status()
	r.Header, r.Hint, r.Rests = block.Header(d.U64()), d.U64(), block.CSN(d.U64())
	r.Proofs = d.proofs(r.Proofs)
	buf, r.Row = d.row(buf[:0])
	return buf
}

func (d *Decoder) status() index.Status {
	s := index.Status(d.U8())
	if s != index.Found && s != index.NotFound && s != index.Locked && s != index.Gone {
		d.bad, s = true, index.Failed
	}
	return s
}

// row copies a row to the end of buf.
func (d *Decoder) row(buf []uint64) (all, row []uint64) {
	p := d.Bytes()
	if len(p)%8 != 0 {
		d.bad = true
		return buf, nil
	}
	at := len(buf)
	for i := 0; i < len(p); i += 8 {
		buf = append(buf, le.Uint64(p[i:]))
	}
	return buf, buf[at:len(buf):len(buf)]
}

// EntryBytes is the size of a scan's entry without its row. An entry with a
// string key is larger by the length of the key minus eight bytes.
const EntryBytes = 30

const entryBytesMin = 22

// AppendScan appends the answer to a scan.
func AppendScan(b []byte, r *index.ScanResult, strings bool) []byte {
	more := byte(0)
	if r.More {
		more = 1
	}
	b = le.AppendUint64(append(b, byte(r.Status), more), uint64(r.Rests))
	b = appendProofs(appendProofs(b, r.Quick), r.Gaps)
	b = le.AppendUint32(b, uint32(len(r.Entries)))
	for i := range r.Entries {
		e := &r.Entries[i]
		b = le.AppendUint64(le.AppendUint64(AppendKey(b, e.Key, strings), uint64(e.Header)), e.Addr)
		b = AppendBytes(b, mem.Bytes(e.Row))
	}
	return b
}

// Scan decodes the answer to a scan. It copies rows to buf, and string keys to
// new memory.
func (d *Decoder) Scan(r *index.ScanResult, buf []uint64) []uint64 {
	r.Status, r.More = d.status(), d.U8() == 1
	r.Rests = block.CSN(d.U64())
	r.Quick, r.Gaps = d.proofs(r.Quick), d.proofs(r.Gaps)
	r.Entries = r.Entries[:0]
	n := d.Count(MaxProofs, entryBytesMin)
	// Sized first: entries point into it.
	if need := len(d.b) / 8; cap(buf) < need {
		buf = make([]uint64, 0, need)
	}
	buf = buf[:0]
	for range n {
		key, _ := d.Key()
		e := index.Entry{Key: key.Clone(), Header: block.Header(d.U64()), Addr: d.U64()}
		buf, e.Row = d.row(buf)
		r.Entries = append(r.Entries, e)
	}
	return buf
}
