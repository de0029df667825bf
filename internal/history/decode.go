package history

import (
	"encoding/binary"
	"fmt"
	"math"
)

// decoder adds the contents of payloads to tables. It trusts nothing in them:
// the checksum detects damage, not intent.
type decoder struct {
	*tables
	rest []byte
	bad  bool // a number was missing or too large
}

// payload decodes one block. After an error the tables keep what it added
// before; the caller drops the log.
func (d *decoder) payload(b []byte) error {
	d.rest, d.bad = b, false
	for n := d.uint(math.MaxUint64); n > 0 && !d.bad; n-- {
		d.version()
	}
	invoke := int64(0)
	for n := d.uint(math.MaxUint64); n > 0 && !d.bad; n-- {
		invoke = d.transaction(invoke)
	}
	if d.bad || len(d.rest) > 0 {
		return fmt.Errorf("%w: bad field %d bytes before the end", ErrCorrupt, len(d.rest))
	}
	return nil
}

// uint decodes a number of at most limit.
func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > limit {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.rest)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) version() {
	self := uint64(len(d.nodes))
	distance := d.uint(self - 1)
	value := d.uint(math.MaxUint64)
	switch {
	case d.bad || self > math.MaxInt32:
		d.bad = true
	case distance == 0:
		d.addKey(Key(value))
	default:
		d.addChild(uint32(self-distance), Value(value))
	}
}

func (d *decoder) transaction(invokeBefore int64) int64 {
	process, number := d.uint(math.MaxUint32), d.uint(math.MaxUint32)
	flags := d.uint(uint64(outcomeCount-1) | snapshotFlag | staleFlag)
	outcome, snapshot := Outcome(flags&(snapshotFlag-1)), flags&snapshotFlag != 0
	stale := int64(0)
	if flags&staleFlag != 0 {
		stale = int64(d.uint(math.MaxInt64))
		d.bad = d.bad || !snapshot || stale == 0
	}
	d.bad = d.bad || outcome >= outcomeCount
	invoke := invokeBefore + d.int()
	complete := invoke + int64(d.uint(math.MaxInt64))
	d.bad = d.bad || complete < invoke
	rows := uint32(0) // rows of the last scan that are still to come
	for n := d.uint(math.MaxUint32); n > 0 && !d.bad; n-- {
		rows = d.operation(rows)
	}
	if rows > 0 || len(d.ops) > math.MaxUint32 {
		d.bad = true
	}
	if !d.bad {
		d.txns = append(d.txns, txn{
			id: MakeTxnID(uint32(process), uint32(number)), invoke: invoke, complete: complete, stale: stale,
			opsEnd: uint32(len(d.ops)), outcome: outcome, snapshot: snapshot,
		})
	}
	return invoke
}

// operation decodes one operation and returns the number of rows still to come.
func (d *decoder) operation(rows uint32) uint32 {
	kind := OpKind(d.uint(uint64(opKindCount) - 1))
	if (kind == opRow) != (rows > 0) {
		d.bad = true
		return 0
	}
	o := op{kind: kind}
	switch kind {
	case OpAppend:
		o.key = uint32(d.uint(math.MaxUint32))
		o.arg = d.uint(math.MaxUint64)
		d.bad = d.bad || uint64(o.key) >= uint64(len(d.keys))
	case OpScan:
		s := scanRange{lo: Key(d.uint(math.MaxUint64)), hi: Key(d.uint(math.MaxUint64))}
		s.rows = uint32(d.uint(math.MaxUint32))
		o.arg = uint64(len(d.scans))
		d.scans = append(d.scans, s)
		rows = s.rows
	default:
		o.arg = d.uint(uint64(len(d.nodes)) - 1)
		if o.arg == 0 {
			d.bad = true
			return 0
		}
		o.key = d.nodes[o.arg].key
		if kind == opRow {
			rows--
		}
	}
	if !d.bad {
		d.ops = append(d.ops, o)
	}
	return rows
}
