// Package redo encodes the records of a data server's log: what a server must know to
// restore its state.
//
// A record concerns one or several partitions, and is appended under their executors
// before the change is visible. So records are in the order of all changes that depend
// on each other.
package redo

import (
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// Kind of a record. The numbers are part of the format.
type Kind uint8

// Kinds of records.
const (
	// Commit is a transaction that one server has committed in one step: the
	// writes of each of its partitions under a CSN, the session that it answers
	// and the result. Of a last agent it has the transaction's ID and parties.
	Commit Kind = 1 + iota
	// Prepared is a share that is locked until the decision, and what the commit
	// protocol must know of it.
	Prepared
	// Decided is a decision, and its CSN if it is a commit of this server's share.
	// It has the writes of a share that was not Prepared.
	Decided
	// Departed is a party of the commit protocol that is gone.
	Departed
	// Load has rows that were loaded in bulk.
	Load
	// Sealed is the end of loading.
	Sealed
	// Catalog has the version of the catalogue that is used from here on.
	Catalog
	// Started is the beginning of an epoch, a tick that a client has moved a clock up
	// to in it, or the last tick of a server that stops.
	Started
	// Closed is a tick that all partitions of the server have closed: no record
	// after it commits anything at the tick or before.
	Closed
)

func (k Kind) String() string {
	names := [...]string{"none", "commit", "prepared", "decided", "departed", "load", "sealed", "catalogue", "started", "closed"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// Part is the part of a record for one partition.
type Part struct {
	Partition placement.Partition
	CSN       block.CSN // of a commit
	Reads     bool      // of a share that is prepared: it has read more than the rows that it writes
	Writes    []wire.Write
	// Held are the locks of the writes, or nil. Append takes from them which rows were
	// absent. Decode gives the writes of such rows the operation Insert, and all other
	// writes that are not deletions Put.
	Held []*index.Held
}

// Record is one record. Its kind determines which fields are used; the others
// are zero. Decoded slices are views of the record's bytes.
type Record struct {
	Kind    Kind
	Session wire.ID // Commit, Prepared, Decided: the transaction of a session; 0: of none
	Result  []byte  // Commit, Prepared, Decided: the answer to the session, without its code
	Parts   []Part  // Commit, Prepared, Decided: at most one, but of a Commit

	Step      twophase.Record     // Commit of a last agent, Prepared, Decided, Departed: what the commit protocol needs
	Partition placement.Partition // of Step: whose it is; Load
	Tick      clock.Tick          // Started: the server's clock; Closed
	CSN       block.CSN           // Load

	Index   uint16 // Load
	Version uint32 // Load: of the catalogue
	Rows    []byte // Load, as in the message
	Catalog []byte // Catalog
	Epoch   uint32 // Started
}

// ErrRecord reports a record that cannot be decoded.
var ErrRecord = errors.New("redo: malformed record")

var le = binary.LittleEndian

func appendUint(b []byte, n uint64) []byte { return binary.AppendUvarint(b, n) }

func appendBytes(b, v []byte) []byte { return append(appendUint(b, uint64(len(v))), v...) }

// Append appends the encoding of a record.
func (r *Record) Append(b []byte) []byte {
	b = append(b, byte(r.Kind))
	switch r.Kind {
	case Commit:
		b = r.appendParts(r.appendSession(b))
		if r.Step.Kind == 0 {
			return append(b, 0)
		}
		return r.appendStep(append(b, 1))
	case Prepared, Decided, Departed:
		return r.appendStep(r.appendParts(r.appendSession(b)))
	case Load:
		b = appendUint(appendUint(appendUint(b, uint64(r.Partition)), uint64(r.Index)), uint64(r.Version))
		return append(le.AppendUint64(b, uint64(r.CSN)), r.Rows...)
	case Catalog:
		return append(b, r.Catalog...)
	case Started:
		return appendUint(appendUint(b, uint64(r.Epoch)), uint64(r.Tick))
	case Closed:
		return appendUint(b, uint64(r.Tick))
	}
	return b
}

// AppendSized appends the encoding of a record after its size, for Each.
func (r *Record) AppendSized(b []byte) []byte {
	at := len(b)
	b = r.Append(append(b, 0, 0, 0, 0))
	le.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// Each decodes records that AppendSized has appended, one after the other, and calls fn
// with each. The record is a view of b, valid during the call.
func Each(b []byte, fn func(*Record) error) error {
	var r Record
	for len(b) > 0 {
		if len(b) < 4 || uint64(len(b)-4) < uint64(le.Uint32(b)) {
			return fmt.Errorf("%w: a size before %d bytes", ErrRecord, len(b))
		}
		n := 4 + int(le.Uint32(b))
		if err := r.Decode(b[4:n]); err != nil {
			return err
		}
		if err := fn(&r); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func (r *Record) appendSession(b []byte) []byte {
	if r.Session == (wire.ID{}) {
		return append(b, 0)
	}
	b = appendUint(append(b, 1), r.Session.Seq)
	return appendBytes(le.AppendUint64(b, r.Session.Client), r.Result)
}

func (r *Record) appendStep(b []byte) []byte {
	s := &r.Step
	flags := byte(s.Ballot) << 1
	if s.Commit {
		flags |= 1
	}
	b = append(appendUint(b, uint64(r.Partition)), byte(s.Kind), flags)
	b = appendUint(appendParty(b, s.ID.Coordinator), s.ID.Seq)
	b = appendUint(appendUint(appendParty(appendParty(b, s.Agent), s.Party), uint64(s.Tick)), s.Mark)
	b = appendUint(b, uint64(len(s.Parties)))
	for _, p := range s.Parties {
		b = appendParty(b, p)
	}
	b = appendUint(b, uint64(len(s.Marks)))
	for _, m := range s.Marks {
		b = appendUint(b, m)
	}
	return b
}

func appendParty(b []byte, p twophase.Party) []byte {
	if p.Incarnation == 0 { // none
		return append(b, 0)
	}
	return le.AppendUint64(appendUint(b, uint64(p.Partition)+1), p.Incarnation)
}

// Flags of a part, and of a write.
const (
	partHasCSN   = 1
	partHasReads = 2

	writeDeletes = 1
	writeStrings = 2
	writeInserts = 4 // the row was absent
)

func (r *Record) appendParts(b []byte) []byte {
	b = appendUint(b, uint64(len(r.Parts)))
	for i := range r.Parts {
		p := &r.Parts[i]
		flags := byte(0)
		if p.CSN != 0 {
			flags |= partHasCSN
		}
		if p.Reads {
			flags |= partHasReads
		}
		b = append(appendUint(b, uint64(p.Partition)), flags)
		if p.CSN != 0 {
			b = le.AppendUint64(b, uint64(p.CSN))
		}
		b = appendUint(b, uint64(len(p.Writes)))
		for j := range p.Writes {
			absent := p.Writes[j].Op == wire.Insert || len(p.Held) == len(p.Writes) && !p.Held[j].Existed
			b = appendWrite(b, &p.Writes[j], absent)
		}
	}
	return b
}

func appendWrite(b []byte, w *wire.Write, absent bool) []byte {
	flags := byte(0)
	switch {
	case w.Op == wire.Delete:
		flags |= writeDeletes
	case absent:
		flags |= writeInserts
	}
	if w.Strings {
		flags |= writeStrings
	}
	b = appendUint(append(b, flags), uint64(w.Index))
	if w.Strings {
		b = append(appendUint(b, uint64(len(w.Key.Str))), w.Key.Str...)
	} else {
		b = le.AppendUint64(b, w.Key.Num)
	}
	if w.Op == wire.Delete {
		return b
	}
	return appendBytes(b, w.Row)
}

// decoder decodes a record. After the first fault it returns zeros. What is decoded in a
// loop ends there: a number of elements may be as large as the record has bytes, and an
// element takes many times the memory of a byte.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) fail() { d.bad, d.b = true, nil }

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// uint decodes a number up to a bound.
func (d *decoder) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > most {
		d.fail()
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) partition() placement.Partition { return placement.Partition(d.uint(wire.MaxParts)) }

func (d *decoder) u8() byte {
	if v := d.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return le.Uint64(v)
	}
	return 0
}

// flags decodes a byte in which only the given bits may be set.
func (d *decoder) flags(known byte) byte {
	v := d.u8()
	if v&^known != 0 {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) bytes() []byte { return d.take(d.uint(uint64(len(d.b)))) }

func (d *decoder) party() (p twophase.Party) {
	if n := d.uint(wire.MaxParts + 1); n > 0 {
		p.Partition, p.Incarnation = placement.Partition(n-1), d.u64()
		d.bad = d.bad || p.Incarnation == 0
	}
	return p
}

const (
	maxUint  = ^uint64(0)
	partMin  = 3 // bytes
	writeMin = 3
)

// Decode decodes a record. It reuses the memory of r.
func (r *Record) Decode(b []byte) error {
	parts := r.Parts[:0]
	*r = Record{}
	d := decoder{b: b}
	switch r.Kind = Kind(d.u8()); r.Kind {
	case Commit:
		d.session(r)
		d.parts(r, parts)
		if d.flags(1) != 0 {
			d.step(r)
		}
	case Prepared, Decided, Departed:
		d.session(r)
		d.parts(r, parts)
		d.step(r)
	case Load:
		r.Partition, r.Index = d.partition(), uint16(d.uint(1<<16-1))
		r.Version, r.CSN = uint32(d.uint(1<<32-1)), block.CSN(d.u64())
		r.Rows, d.b = d.b, nil
	case Catalog:
		r.Catalog, d.b = d.b, nil
	case Started:
		r.Epoch, r.Tick = uint32(d.uint(1<<32-1)), clock.Tick(d.uint(uint64(block.MaxTick)))
	case Closed:
		r.Tick = clock.Tick(d.uint(uint64(block.MaxTick)))
	case Sealed:
	default:
		return fmt.Errorf("%w: %v", ErrRecord, r.Kind)
	}
	if d.bad || len(d.b) > 0 {
		return fmt.Errorf("%w: %v of %d bytes", ErrRecord, r.Kind, len(b))
	}
	return nil
}

func (d *decoder) session(r *Record) {
	if d.flags(1) != 0 {
		r.Session.Seq, r.Session.Client = d.uint(maxUint), d.u64()
		r.Result = d.bytes()
	}
}

func (d *decoder) step(r *Record) {
	s := &r.Step
	r.Partition, s.Kind = d.partition(), twophase.RecordKind(d.u8())
	flags := d.flags(7)
	s.Commit, s.Ballot = flags&1 != 0, twophase.Ballot(flags>>1)
	s.ID.Coordinator, s.ID.Seq = d.party(), d.uint(maxUint)
	s.Agent, s.Party = d.party(), d.party()
	s.Tick, s.Mark = clock.Tick(d.uint(uint64(block.MaxTick))), d.uint(maxUint)
	for n := d.uint(uint64(len(d.b))); n > 0 && !d.bad; n-- {
		s.Parties = append(s.Parties, d.party())
	}
	for n := d.uint(uint64(len(s.Parties))); n > 0 && !d.bad; n-- {
		s.Marks = append(s.Marks, d.uint(maxUint))
	}
	d.bad = d.bad || s.Kind < twophase.Prepared || s.Kind > twophase.Departed || s.Ballot > twophase.Yes
}

func (d *decoder) parts(r *Record, mem []Part) {
	n := int(d.uint(uint64(len(d.b) / partMin)))
	for i := 0; i < n && !d.bad; i++ {
		if i < cap(mem) {
			mem = mem[:i+1]
		} else {
			mem = append(mem, Part{})
		}
		p := &mem[i]
		writes := p.Writes[:0]
		*p = Part{Partition: d.partition()}
		flags := d.flags(partHasCSN | partHasReads)
		if p.Reads = flags&partHasReads != 0; flags&partHasCSN != 0 {
			p.CSN = block.CSN(d.u64())
		}
		for n := d.uint(uint64(len(d.b) / writeMin)); n > 0 && !d.bad; n-- {
			writes = append(writes, d.write())
		}
		p.Writes = writes
	}
	r.Parts = mem
}

func (d *decoder) write() (w wire.Write) {
	flags := d.flags(writeDeletes | writeStrings | writeInserts)
	w.Op, w.Index = wire.Put, uint16(d.uint(1<<16-1))
	if w.Strings = flags&writeStrings != 0; w.Strings {
		w.Key = index.Str(string(d.take(d.uint(index.MaxKeyBytes))))
	} else {
		w.Key = index.Num(d.u64())
	}
	switch {
	case flags&writeDeletes != 0:
		w.Op, d.bad = wire.Delete, d.bad || flags&writeInserts != 0
		return w
	case flags&writeInserts != 0:
		w.Op = wire.Insert
	}
	w.Row = d.bytes()
	return w
}
