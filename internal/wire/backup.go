package wire

import "drtmx/internal/placement"

// Steps of a backup, the byte after OpBackup. All but the first are followed by
// the number of the backup, and keep the server's lease on it.
const (
	// BackupBegin pins the log and begins to write the base: BackupBegun.
	BackupBegin = 1 + iota
	// BackupBase asks how the base stands: BackupBaseState.
	BackupBase
	// BackupChunk reads the file of the base from an offset (8 bytes) on: bytes,
	// none at its end.
	BackupChunk
	// BackupLog reads records from a position (8 bytes) on, the first of them
	// without so many bytes (4) of its payload: BackupRecords. What lies before the
	// position need not be kept any longer.
	BackupLog
	// BackupClose asks for the closed tick: BackupClosed.
	BackupClose
	// BackupEnd ends the backup.
	BackupEnd
	// BackupPin pins the log from a position (8 bytes) on, or from where it begins if
	// that is later, or from its end if that is sooner, and makes no base:
	// BackupPinned. It begins a feed, which has the steps BackupLog, BackupClose,
	// BackupLook and BackupEnd. BackupLog keeps the log from the pin on.
	BackupPin
	// BackupLook moves the pin of a feed on to a position (8 bytes): BackupSeen.
	BackupLook
)

// NoTick is a tick that the server does not know yet.
const NoTick = ^uint64(0)

// BackupBegun is what a server says of itself and of a backup that has begun.
type BackupBegun struct {
	ID                  uint64 // of the backup
	Identity            [16]byte
	Server              placement.Server
	Servers, Partitions int
	Incarnation         uint64
	Epoch               uint32
	Log                 uint64 // position from which the log is kept
}

// Append appends the encoding.
func (m *BackupBegun) Append(b []byte) []byte {
	b = append(le.AppendUint64(b, m.ID), m.Identity[:]...)
	b = le.AppendUint16(le.AppendUint16(le.AppendUint16(b, uint16(m.Server)), uint16(m.Servers)), uint16(m.Partitions))
	return le.AppendUint64(le.AppendUint32(le.AppendUint64(b, m.Incarnation), m.Epoch), m.Log)
}

// Decode is the inverse of Append.
func (m *BackupBegun) Decode(b []byte) error {
	d := NewDecoder(b)
	m.ID = d.U64()
	copy(m.Identity[:], d.Take(len(m.Identity)))
	m.Server, m.Servers, m.Partitions = placement.Server(d.U16()), int(d.U16()), int(d.U16())
	m.Incarnation, m.Epoch, m.Log = d.U64(), d.U32(), d.U64()
	return d.End()
}

// BackupBaseState says how the base of a backup stands.
type BackupBaseState struct {
	Rows, Total uint64 // written so far, of about so many
	Bytes       uint64 // of the file; 0: it is not complete
	Log         uint64 // position of the log from which on the base may lack records
	Tick        uint64 // the base has nothing of later ticks
}

// Append appends the encoding.
func (m *BackupBaseState) Append(b []byte) []byte {
	for _, v := range []uint64{m.Rows, m.Total, m.Bytes, m.Log, m.Tick} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// Decode is the inverse of Append.
func (m *BackupBaseState) Decode(b []byte) error {
	d := NewDecoder(b)
	m.Rows, m.Total, m.Bytes, m.Log, m.Tick = d.U64(), d.U64(), d.U64(), d.U64(), d.U64()
	return d.End()
}

// BackupRecords has records of the log, the last of them perhaps not whole. The
// request for what follows is of position Next, without Skip bytes.
type BackupRecords struct {
	Next    uint64
	Skip    uint32
	Records []BackupRecord
}

// BackupRecord is a record, or a piece of one.
type BackupRecord struct {
	Start, End uint64 // positions of the whole record
	Bytes      uint32 // of the whole payload
	Piece      []byte
}

// backupRecordBytes is what a record takes beside its piece.
const backupRecordBytes = 8 + 8 + 4 + 4

// Append appends the encoding.
func (m *BackupRecords) Append(b []byte) []byte {
	b = le.AppendUint32(le.AppendUint64(b, m.Next), m.Skip)
	b = le.AppendUint32(b, uint32(len(m.Records)))
	for i := range m.Records {
		r := &m.Records[i]
		b = le.AppendUint32(le.AppendUint64(le.AppendUint64(b, r.Start), r.End), r.Bytes)
		b = AppendBytes(b, r.Piece)
	}
	return b
}

// Decode is the inverse of Append. Pieces are views of b.
func (m *BackupRecords) Decode(b []byte) error {
	d := NewDecoder(b)
	m.Next, m.Skip, m.Records = d.U64(), d.U32(), m.Records[:0]
	for range d.Count(len(b), backupRecordBytes) {
		m.Records = append(m.Records, BackupRecord{Start: d.U64(), End: d.U64(), Bytes: d.U32(), Piece: d.Bytes()})
	}
	return d.End()
}

// BackupPinned is what a server says of itself and of a feed that has begun.
type BackupPinned struct {
	BackupBegun        // Log: the position from which the log is kept
	First       uint64 // position at which the log begins
	End         uint64 // position at which it ended
}

// Append appends the encoding.
func (m *BackupPinned) Append(b []byte) []byte {
	return m.BackupBegun.Append(le.AppendUint64(le.AppendUint64(b, m.First), m.End))
}

// Decode is the inverse of Append.
func (m *BackupPinned) Decode(b []byte) error {
	d := NewDecoder(b)
	m.First, m.End = d.U64(), d.U64()
	if err := d.Err(); err != nil {
		return err
	}
	return m.BackupBegun.Decode(d.Rest())
}

// BackupSeen is what a server sees of its log. Nothing in it is proved to be durable.
type BackupSeen struct {
	Closed  uint64 // the highest tick that the log says is closed
	Present uint64 // nothing that can be seen is of a later tick
	Log     uint64 // the end of the last record of the log
	// Oldest is a tick such that the log that the feed keeps has all that has committed
	// after it, with all shares; NoTick: not known yet.
	Oldest uint64
}

// Append appends the encoding.
func (m *BackupSeen) Append(b []byte) []byte {
	for _, v := range []uint64{m.Closed, m.Present, m.Log, m.Oldest} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// Decode is the inverse of Append.
func (m *BackupSeen) Decode(b []byte) error {
	d := NewDecoder(b)
	m.Closed, m.Present, m.Log, m.Oldest = d.U64(), d.U64(), d.U64(), d.U64()
	return d.End()
}

// BackupClosed says that the log up to a position has all that will ever commit
// at a tick or before it, durably. Nothing that can be seen is of a tick after
// Present.
//
// The log itself says so up to there, so a server that recovers it commits nothing
// at the tick or before, whatever its clock is.
type BackupClosed struct{ Tick, Present, Log uint64 }

// Append appends the encoding.
func (m *BackupClosed) Append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(le.AppendUint64(b, m.Tick), m.Present), m.Log)
}

// Decode is the inverse of Append.
func (m *BackupClosed) Decode(b []byte) error {
	d := NewDecoder(b)
	m.Tick, m.Present, m.Log = d.U64(), d.U64(), d.U64()
	return d.End()
}
