package wire

import (
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
)

// WriteOp is the kind of a write, with its precondition on the row.
type WriteOp uint8

// Write operations.
const (
	Insert WriteOp = 1 + iota // the key must be absent
	Update                    // the row must exist
	Put                       // either
	Delete                    // the row must exist
)

// Write is one row change.
type Write struct {
	Index   uint16
	Op      WriteOp
	Strings bool // the key is a string
	Key     index.Key
	Hint    uint64
	Row     []byte
}

// Part is the part of a transaction in one partition.
type Part struct {
	Partition   placement.Partition
	Incarnation uint64 // of the partition's server, as the sender knows it; 0 if it knows none
	Memory      uint32 // the epoch of the memory that the proofs and hints are of, 0 if the sender knows none
	Catalog     uint32 // the version of the catalogue that the transaction uses
	// Read is a time of the server's own clock, in that life: the first of the proofs
	// was read then or later. A part without proofs may have 0.
	Read   time.Duration
	Rows   []index.Proof // headers of rows read
	Gaps   []index.Proof // gap words of absences and ranges read
	Writes []Write
}

// Commit is a request to commit, and in the same layout to prepare. The first
// part is that of the home partition.
type Commit struct {
	ID   ID
	Sent Sent
	// Age is the time from the first read of the proofs until the message was
	// sent: how long an attempt takes. How old the proofs are is in each part.
	Age   time.Duration
	Parts []Part

	// Seen is the highest tick that the sender has seen: the commit gets no lower one.
	Seen clock.Tick

	// Catalog is that of the parts that NextPart makes.
	Catalog uint32

	// Turn is what a client asks for if the transaction loses against others.
	Turn Turn
}

// Writes reports whether any part writes. If none does, the proofs are only
// validated.
func (c *Commit) Writes() bool {
	for i := range c.Parts {
		if len(c.Parts[i].Writes) > 0 {
			return true
		}
	}
	return false
}

// NextPart appends an empty part that reuses the memory of an earlier one.
func (c *Commit) NextPart(partition placement.Partition) *Part {
	if len(c.Parts) < cap(c.Parts) {
		c.Parts = c.Parts[:len(c.Parts)+1]
	} else {
		c.Parts = append(c.Parts, Part{})
	}
	p := &c.Parts[len(c.Parts)-1]
	p.Partition, p.Incarnation, p.Memory, p.Catalog, p.Read = partition, 0, 0, c.Catalog, 0
	p.Rows, p.Gaps, p.Writes = p.Rows[:0], p.Gaps[:0], p.Writes[:0]
	return p
}

// AppendPart appends the encoding of one part.
func AppendPart(b []byte, p *Part) []byte {
	b = le.AppendUint64(appendPartition(b, p.Partition), p.Incarnation)
	b = le.AppendUint32(le.AppendUint32(b, p.Memory), p.Catalog)
	b = le.AppendUint64(b, uint64(p.Read))
	b = appendProofs(appendProofs(b, p.Rows), p.Gaps)
	b = le.AppendUint32(b, uint32(len(p.Writes)))
	for i := range p.Writes {
		w := &p.Writes[i]
		b = append(le.AppendUint16(b, w.Index), byte(w.Op))
		b = le.AppendUint64(AppendKey(b, w.Key, w.Strings), w.Hint)
		b = AppendBytes(b, w.Row)
	}
	return b
}

// partBytesMin is the size of an empty part.
const partBytesMin = 2 + 8 + 4 + 4 + 8 + 3*4

// Proves reports whether the part has proofs.
func (p *Part) Proves() bool { return len(p.Rows)+len(p.Gaps) > 0 }

// Bytes returns the size of the part's encoding.
func (p *Part) Bytes() int {
	n := partBytesMin + 16*(len(p.Rows)+len(p.Gaps))
	for i := range p.Writes {
		w := &p.Writes[i]
		n += 3 + 2 + 8 + 4 + len(w.Row)
		if w.Strings {
			n += len(w.Key.Str)
		} else {
			n += 8
		}
	}
	return n
}

// AppendCommit appends op and the encoding of the parts that keep accepts (nil: all).
func AppendCommit(b []byte, op Op, c *Commit, keep func(partition placement.Partition) bool) []byte {
	b = AppendSent(AppendID(append(b, byte(op)), c.ID), c.Sent)
	return appendParts(c.Turn.append(b), c, keep)
}

// AppendParts appends the session, the age, the tick seen and the parts that keep accepts
// (nil: all).
func AppendParts(b []byte, c *Commit, keep func(partition placement.Partition) bool) []byte {
	return appendParts(le.AppendUint64(b, c.ID.Client), c, keep)
}

func appendParts(b []byte, c *Commit, keep func(partition placement.Partition) bool) []byte {
	b = le.AppendUint64(le.AppendUint64(b, uint64(c.Age)), uint64(c.Seen))
	at := len(b)
	b = le.AppendUint32(b, 0)
	n := uint32(0)
	for i := range c.Parts {
		if keep == nil || keep(c.Parts[i].Partition) {
			b = AppendPart(b, &c.Parts[i])
			n++
		}
	}
	le.PutUint32(b[at:], n)
	return b
}

// Decode decodes the output of AppendCommit after the op byte. It reuses the
// memory of c; rows are views of the message. No partition has two parts: as two parties
// to one transaction it would be waited for twice, and vote once.
func (c *Commit) Decode(d *Decoder) error {
	c.ID, c.Sent = d.ID(), d.Sent()
	c.Turn.decode(d)
	return c.decodeParts(d)
}

// DecodeParts decodes the output of AppendParts, with the same rules as Decode.
func (c *Commit) DecodeParts(d *Decoder) error {
	c.ID, c.Sent = ID{Client: d.U64()}, Sent{}
	return c.decodeParts(d)
}

func (c *Commit) decodeParts(d *Decoder) error {
	if c.Age = time.Duration(d.U64()); c.Age < 0 {
		d.bad = true
	}
	c.Seen = clock.Tick(d.U64())
	n := d.Count(MaxParts, partBytesMin)
	c.Parts = c.Parts[:0]
	for i := range n {
		p := c.NextPart(d.Partition())
		d.bad = d.bad || slices.ContainsFunc(c.Parts[:i], func(o Part) bool { return o.Partition == p.Partition })
		p.Incarnation, p.Memory, p.Catalog = d.U64(), d.U32(), d.U32()
		if p.Read = time.Duration(d.U64()); p.Read < 0 {
			d.bad = true
		}
		p.Rows = d.proofs(p.Rows)
		p.Gaps = d.proofs(p.Gaps)
		for range d.Count(MaxWrites, 17) {
			w := Write{Index: d.U16(), Op: WriteOp(d.U8())}
			w.Key, w.Strings = d.Key()
			w.Hint, w.Row = d.U64(), d.Bytes()
			p.Writes = append(p.Writes, w)
		}
	}
	return d.Err()
}

// Call is a request to run a procedure.
type Call struct {
	ID   ID
	Sent Sent
	Wait time.Duration // how long the call may wait for others, at most
	// Left is the time that the caller gives the procedure, from the arrival of the
	// message on; 0: it has no deadline. How long the message was on its way nobody
	// knows, so a procedure may go on for that much longer than its caller waits.
	Left      time.Duration
	Seen      clock.Tick // the highest that the client has seen
	Partition placement.Partition
	Procedure []byte
	Args      []byte
}

// AppendCall appends an OpCall request. Both times are at most 71 minutes: longer
// ones are cut.
func AppendCall(b []byte, id ID, sent Sent, wait, left time.Duration, seen clock.Tick, part placement.Partition, proc string, args []byte) []byte {
	b = AppendSent(AppendID(append(b, byte(OpCall)), id), sent)
	b = le.AppendUint64(appendWait(appendWait(b, wait), left), uint64(seen))
	b = appendPartition(b, part)
	b = append(le.AppendUint32(b, uint32(len(proc))), proc...)
	return append(b, args...)
}

// Decode decodes the output of AppendCall after the op byte; slices are views
// of the message.
func (c *Call) Decode(d *Decoder) error {
	c.ID, c.Sent, c.Wait, c.Left, c.Seen, c.Partition = d.ID(), d.Sent(), d.wait(), d.wait(), clock.Tick(d.U64()), d.Partition()
	c.Procedure, c.Args = d.Bytes(), d.Rest()
	return d.Err()
}

// CarriesTick reports whether the answer to a commit, a call or the question for an
// outcome ends with a tick: see AppendTick. The answer has the given code.
func CarriesTick(c Code) bool { return c == OK || c == ResultLost || c == RolledBack }

// AppendTick ends an answer with a tick that is no lower than those of all commits
// that the answer tells of.
func AppendTick(b []byte, t clock.Tick) []byte { return le.AppendUint64(b, uint64(t)) }

// CutTick returns an answer without the tick that it carries, and that tick; 0 if
// it carries none.
func CutTick(b []byte) ([]byte, clock.Tick, error) {
	if len(b) == 0 || !CarriesTick(Code(b[0])) {
		return b, 0, nil
	}
	at := len(b) - 8
	if at < 1 {
		return nil, 0, ErrMessage
	}
	return b[:at], clock.Tick(le.Uint64(b[at:])), nil
}
