package wire

import (
	"slices"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/twophase"
)

// MaxMessages bounds the messages of the commit protocol in one request or answer.
const MaxMessages = 1 << 12

// Flags of a message of the commit protocol.
const (
	flagCommit  = 1
	flagParties = 2
	flagGone    = 4
	flagNames   = 8
	flagSame    = 16 // with flagParties: they and the agent are those of the message before
)

const (
	partyBytes      = 10
	messageBytesMin = 2*partyBytes + partyBytes + 8 + 4 + 16
)

func appendParty(b []byte, p twophase.Party) []byte {
	return le.AppendUint64(appendPartition(b, p.Partition), p.Incarnation)
}

func (d *Decoder) party() twophase.Party {
	return twophase.Party{Partition: d.Partition(), Incarnation: d.U64()}
}

func appendParties(b []byte, ps []twophase.Party) []byte {
	b = le.AppendUint16(b, uint16(len(ps)))
	for _, p := range ps {
		b = appendParty(b, p)
	}
	return b
}

func (d *Decoder) parties() (ps []twophase.Party) {
	n := int(d.U16())
	if n > MaxParts || n*partyBytes > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	ps = make([]twophase.Party, 0, n)
	for range n {
		ps = append(ps, d.party())
	}
	return ps
}

// numbers decodes the numbers of transactions that are named as open.
func (d *Decoder) numbers() (all []uint64) {
	n := int(d.U16())
	if n > twophase.MaxOpen || n*8 > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	for i := range n {
		all = append(all, d.U64())
		d.bad = d.bad || i > 0 && all[i] <= all[i-1]
	}
	return all
}

// AppendMessages appends messages of the commit protocol. The parties of a transaction
// are there once, not in the message to each of them: with hundreds, the messages
// would not fit a request.
func AppendMessages(b []byte, ms []twophase.Message) []byte {
	b = le.AppendUint32(b, uint32(len(ms)))
	for i := range ms {
		b = appendMessage(b, &ms[i], i > 0 && sameParties(&ms[i], &ms[i-1]))
	}
	return b
}

func sameParties(m, before *twophase.Message) bool {
	return len(m.Parties) > 0 && m.Agent == before.Agent && slices.Equal(m.Parties, before.Parties)
}

func appendMessage(b []byte, m *twophase.Message, same bool) []byte {
	b = appendParty(appendParty(append(b, byte(m.Kind)), m.From), m.To)
	b = le.AppendUint64(appendParty(b, m.ID.Coordinator), m.ID.Seq)
	flags := byte(0)
	if m.Commit {
		flags |= flagCommit
	}
	if len(m.Parties) > 0 {
		flags |= flagParties
	}
	if same {
		flags |= flagSame
	}
	if len(m.Gone) > 0 {
		flags |= flagGone
	}
	if m.Named > 0 {
		flags |= flagNames
	}
	b = append(b, flags, byte(m.Ballot), byte(m.Known))
	b = le.AppendUint64(le.AppendUint64(b, m.Watermark), m.Heard)
	if flags&(flagParties|flagSame) == flagParties {
		b = appendParty(appendParties(b, m.Parties), m.Agent)
	}
	if flags&flagGone != 0 {
		b = appendParties(b, m.Gone)
	}
	if flags&flagNames != 0 {
		b = le.AppendUint16(le.AppendUint64(b, m.Named), uint16(len(m.Open)))
		for _, seq := range m.Open {
			b = le.AppendUint64(b, seq)
		}
	}
	if hasTick(m.Kind) {
		b = le.AppendUint64(b, uint64(m.Tick))
	}
	if m.Kind == twophase.Answer {
		b = le.AppendUint16(b, uint16(m.Closed))
	}
	return b
}

// hasTick reports whether messages of a kind carry a tick.
func hasTick(k twophase.Kind) bool {
	switch k {
	case twophase.Prepare, twophase.Vote, twophase.HandOver, twophase.Decide, twophase.Answer:
		return true
	}
	return false
}

// Messages decodes the output of AppendMessages. It reuses the memory of dst. Messages
// with the same parties share the memory of these.
func (d *Decoder) Messages(dst []twophase.Message) []twophase.Message {
	dst = dst[:0]
	for range d.Count(MaxMessages, messageBytesMin) {
		m := twophase.Message{Kind: twophase.Kind(d.U8()), From: d.party(), To: d.party()}
		m.ID.Coordinator = d.party()
		m.ID.Seq = d.U64()
		flags := d.U8()
		m.Ballot, m.Known = twophase.Ballot(d.U8()), twophase.Knowledge(d.U8())
		m.Watermark, m.Heard = d.U64(), d.U64()
		m.Commit = flags&flagCommit != 0
		switch last := len(dst) - 1; {
		case flags&flagSame != 0:
			if flags&flagParties == 0 || last < 0 || len(dst[last].Parties) == 0 {
				d.bad = true
				break
			}
			m.Parties, m.Agent = dst[last].Parties, dst[last].Agent
		case flags&flagParties != 0:
			m.Parties, m.Agent = d.parties(), d.party()
		}
		if flags&flagGone != 0 {
			m.Gone = d.parties()
		}
		if flags&flagNames != 0 {
			m.Named, m.Open = d.U64(), d.numbers()
		}
		if hasTick(m.Kind) {
			m.Tick = clock.Tick(d.U64())
		}
		if m.Kind == twophase.Answer {
			m.Closed = int(d.U16())
		}
		if d.bad = d.bad || flags > flagCommit|flagParties|flagGone|flagNames|flagSame || m.Kind < twophase.Prepare || m.Kind > twophase.Noted ||
			m.Ballot > twophase.Yes || m.Known > twophase.Aborted || m.Tick > block.MaxTick; d.bad {
			return dst[:0]
		}
		dst = append(dst, m)
	}
	return dst
}
