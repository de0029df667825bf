package wire

import (
	"math"
	"time"

	"drtmx/index"
	"drtmx/internal/placement"
)

// RowName is a short name of a row: the number of its index in the upper 16
// bits, and a hash of its key. Two rows may have the same name, and a name
// stays the same wherever the row is stored. Names say who waits for whom;
// nothing that must be correct depends on them.
type RowName uint64

// NameRow returns the name of a row.
func NameRow(index uint16, key index.Key) RowName {
	h := key.Num
	for i := range len(key.Str) {
		h = (h ^ uint64(key.Str[i])) * 0x100000001b3
	}
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return RowName(uint64(index)<<48 | h>>16)
}

// Index returns the number of the row's index.
func (n RowName) Index() int { return int(n >> 48) }

// Turn is what a transaction that loses against others asks for: a place in the
// lines of the rows that it needs. The zero Turn asks for none.
type Turn struct {
	Wait   time.Duration // how long the request may wait for others, at most
	Losses uint8         // attempts that others have invalidated
	Whole  bool          // it needs the partition for itself
	Rows   []RowName     // that it has read, besides those that it writes
	Again  bool          // the same transaction has asked for a turn in the partition before
}

// MaxTurnRows bounds the rows of a Turn.
const MaxTurnRows = 1 << 10

// Flags of a Turn.
const (
	turnWhole = 1
	turnAgain = 2
)

func (t *Turn) append(b []byte) []byte {
	flags := byte(0)
	if t.Whole {
		flags |= turnWhole
	}
	if t.Again {
		flags |= turnAgain
	}
	b = append(appendWait(b, t.Wait), t.Losses, flags)
	b = le.AppendUint32(b, uint32(len(t.Rows)))
	for _, n := range t.Rows {
		b = le.AppendUint64(b, uint64(n))
	}
	return b
}

// decode decodes the output of append. It reuses the memory of t.
func (t *Turn) decode(d *Decoder) {
	t.Wait, t.Losses = d.wait(), d.U8()
	flags := d.U8()
	d.bad = d.bad || flags > turnWhole|turnAgain
	t.Whole, t.Again = flags&turnWhole != 0, flags&turnAgain != 0
	t.Rows = t.Rows[:0]
	for range d.Count(MaxTurnRows, 8) {
		t.Rows = append(t.Rows, RowName(d.U64()))
	}
}

// Waits travel in microseconds.
func appendWait(b []byte, d time.Duration) []byte {
	return le.AppendUint32(b, uint32(min(max(d, 0)/time.Microsecond, math.MaxUint32)))
}

func (d *Decoder) wait() time.Duration { return time.Duration(d.U32()) * time.Microsecond }

// AppendReserve appends an OpReserve request: a session asks for a turn in a
// partition, or with a turn without a wait gives up what it has there. If that
// turn says Again, the transaction will ask again, and keeps its place.
func AppendReserve(b []byte, session uint64, part placement.Partition, t *Turn) []byte {
	b = le.AppendUint64(append(b, byte(OpReserve)), session)
	return t.append(appendPartition(b, part))
}

// DecodeReserve decodes the output of AppendReserve after the op byte.
func (t *Turn) DecodeReserve(d *Decoder) (session uint64, part placement.Partition, err error) {
	session, part = d.U64(), d.Partition()
	t.decode(d)
	return session, part, d.End()
}

// Reserved, after the code and the cause of a Conflict, says that the session
// has the turn that it asked for: its rows are reserved for the next attempt.
const Reserved = 1
