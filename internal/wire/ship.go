package wire

import (
	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
)

// Shipping is an OpShip: what transactions of a partition, of one data server, change in twins that are
// in another partition. See package server, ship.go.
type Shipping struct {
	From, To placement.Partition
	// Incarnation is that of the data server of From.
	Incarnation uint64
	// First is the number of the first transaction: they have successive numbers.
	First uint64
	// Tick is the time of From.
	Tick clock.Tick
	// Entries are those of all transactions, in order.
	Entries []ShippedEntry
}

// ShippedEntry is a change of one key of a twin.
type ShippedEntry struct {
	Index   uint16
	Gone    bool // the key is deleted, else inserted
	Last    bool // it is the last one of its transaction
	Strings bool // the twin has strings for keys
	Key     index.Key
	Place   uint64 // address of the row in the partition From; 0: not told
}

// MaxShipped bounds the entries of a message. One transaction has MaxWrites at most.
const MaxShipped = MaxWrites

const (
	shippedGone = 1 << iota
	shippedLast
)

// AppendShipping appends an OpShip whose entries follow: see AppendShipped.
func AppendShipping(b []byte, s *Shipping) []byte {
	b = appendPartition(appendPartition(append(b, byte(OpShip)), s.From), s.To)
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, s.Incarnation), s.First), uint64(s.Tick))
}

// AppendShipped appends an entry.
func AppendShipped(b []byte, e *ShippedEntry) []byte {
	flags := byte(0)
	if e.Gone {
		flags |= shippedGone
	}
	if e.Last {
		flags |= shippedLast
	}
	b = append(le.AppendUint16(b, e.Index), flags)
	return le.AppendUint64(AppendKey(b, e.Key, e.Strings), e.Place)
}

// Decode decodes the output of AppendShipping and AppendShipped after the op byte. It reuses the memory
// of s.Entries. Their keys are views of the message.
func (s *Shipping) Decode(d *Decoder) error {
	s.From, s.To, s.Incarnation, s.First = d.Partition(), d.Partition(), d.U64(), d.U64()
	s.Tick, s.Entries = clock.Tick(d.U64()), s.Entries[:0]
	for d.Left() > 0 && !d.bad {
		e := ShippedEntry{Index: d.U16()}
		flags := d.U8()
		e.Gone, e.Last = flags&shippedGone != 0, flags&shippedLast != 0
		e.Key, e.Strings = d.Key()
		e.Place = d.U64()
		d.bad = d.bad || flags > shippedGone|shippedLast || len(s.Entries) == MaxShipped
		s.Entries = append(s.Entries, e)
	}
	n := len(s.Entries)
	d.bad = d.bad || n > 0 && !s.Entries[n-1].Last
	return d.End()
}

// Shipped is the answer to an OpShip, after the verdict.
type Shipped struct {
	UpTo    uint64    // number of the last transaction that is taken or refused
	Refused []Refused // ascending
	// Ticks are those at which the twin has taken the keys, ascending: the transactions are committed
	// at these.
	Ticks []TakenAt
}

// TakenAt is the tick of transactions that were taken together.
type TakenAt struct {
	UpTo uint64 // number of the last one of them
	Tick clock.Tick
}

// Refused is a transaction whose keys a twin cannot have: it must not commit.
type Refused struct {
	Number uint64
	Code   Code
	Text   string
}

// Sizes of a refusal without its text, and of a tick, in an answer.
const (
	RefusedBytes = 13
	TakenAtBytes = 16
)

// maxRefused bounds the refusals in an answer, and maxTicks the ticks.
const (
	maxRefused = MaxShipped
	maxTicks   = MaxShipped
)

// AppendAnswerToShipping appends the answer.
func AppendAnswerToShipping(b []byte, s *Shipped) []byte {
	b = le.AppendUint32(le.AppendUint64(b, s.UpTo), uint32(len(s.Ticks)))
	for _, t := range s.Ticks {
		b = le.AppendUint64(le.AppendUint64(b, t.UpTo), uint64(t.Tick))
	}
	b = le.AppendUint32(b, uint32(len(s.Refused)))
	for i := range s.Refused {
		r := &s.Refused[i]
		b = AppendBytes(append(le.AppendUint64(b, r.Number), byte(r.Code)), []byte(r.Text))
	}
	return b
}

// Decode decodes the output of AppendAnswerToShipping.
func (s *Shipped) Decode(d *Decoder) error {
	s.UpTo, s.Ticks, s.Refused = d.U64(), nil, nil
	for range d.Count(maxTicks, TakenAtBytes) {
		s.Ticks = append(s.Ticks, TakenAt{UpTo: d.U64(), Tick: clock.Tick(d.U64())})
	}
	for range d.Count(maxRefused, RefusedBytes) {
		s.Refused = append(s.Refused, Refused{Number: d.U64(), Code: Code(d.U8()), Text: string(d.Bytes())})
	}
	return d.End()
}

// TickOf returns the tick at which a transaction was taken; ok is false if the answer does not say.
func (s *Shipped) TickOf(number uint64) (tick clock.Tick, ok bool) {
	for _, t := range s.Ticks {
		if number <= t.UpTo {
			return t.Tick, true
		}
	}
	return 0, false
}

// Refusal returns the refusal of a transaction; refused is false if there is none.
func (s *Shipped) Refusal(number uint64) (code Code, text string, refused bool) {
	for i := range s.Refused {
		if r := &s.Refused[i]; r.Number == number {
			return r.Code, r.Text, true
		}
	}
	return 0, "", false
}
