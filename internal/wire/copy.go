package wire

import "drtmx/internal/placement"

// Steps of the copy of a data server's log, the byte after OpCopy. The home sends
// them to the server that keeps the copy. The answer to each is a CopyState.
const (
	// CopyBegin begins a session: Bytes has the identity of the home's directory.
	CopyBegin = 1 + iota
	// CopyReset removes what the copy has. It is for a copy that is no member.
	CopyReset
	// CopyBase has a piece of the checkpoint at Log, from the offset At on.
	CopyBase
	// CopyInstall says that the checkpoint at Log, of At bytes, is complete; 0 bytes
	// are none. A copy that was reset begins its log there.
	CopyInstall
	// CopyFrames has a piece of the log from At on.
	CopyFrames
)

// CopyStep is a step.
type CopyStep struct {
	Step         uint8
	Server       placement.Server // the home
	Host, To     int              // the host of the home, and that of the copy; less than 0: unknown
	Epoch, Since uint32           // of the home's set
	Session      uint64
	At, Log      uint64
	Bytes        []byte
}

// Append appends the encoding, without the bytes at its end.
func (m *CopyStep) Append(b []byte) []byte {
	b = le.AppendUint16(append(b, byte(OpCopy), m.Step), uint16(m.Server))
	b = le.AppendUint16(le.AppendUint16(b, uint16(m.Host+1)), uint16(m.To+1))
	b = le.AppendUint64(le.AppendUint32(le.AppendUint32(b, m.Epoch), m.Since), m.Session)
	return append(le.AppendUint64(le.AppendUint64(b, m.At), m.Log), m.Bytes...)
}

// Decode decodes what follows OpCopy. Bytes is a view of the message.
func (m *CopyStep) Decode(d *Decoder) error {
	m.Step, m.Server, m.Host, m.To = d.U8(), placement.Server(d.U16()), int(d.U16())-1, int(d.U16())-1
	m.Epoch, m.Since, m.Session = d.U32(), d.U32(), d.U64()
	m.At, m.Log = d.U64(), d.U64()
	m.Bytes = d.Rest()
	if d.Err() == nil && (m.Step < CopyBegin || m.Step > CopyFrames) {
		return ErrMessage
	}
	return d.Err()
}

// CopyState says what a copy has.
type CopyState struct {
	There bool   // it has an identity and a log
	Since uint32 // epoch of the home since which it is a copy
	Base  uint64 // position of its checkpoint; 0: none
	// End is where the next piece of the log must begin, Durable the position up to
	// which the copy is durable.
	End, Durable uint64
}

// Append appends the encoding.
func (m *CopyState) Append(b []byte) []byte {
	there := byte(0)
	if m.There {
		there = 1
	}
	b = le.AppendUint64(le.AppendUint32(append(b, there), m.Since), m.Base)
	return le.AppendUint64(le.AppendUint64(b, m.End), m.Durable)
}

// Decode is the inverse of Append.
func (m *CopyState) Decode(b []byte) error {
	d := NewDecoder(b)
	m.There, m.Since, m.Base = d.U8() != 0, d.U32(), d.U64()
	m.End, m.Durable = d.U64(), d.U64()
	return d.End()
}
