// Package wire encodes the engine's RPCs: the requests of clients to data
// servers, and of data servers to each other. Integers are little-endian and of
// fixed width; every count is checked against a bound before memory is
// allocated for it. Decoded byte slices are views of the message.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"drtmx/index"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/rdma"
)

// Version is checked at Hello; both sides must use the same version of the
// protocol, and of the memory that clients READ.
const Version = 28

// Op is the first byte of a request.
type Op uint8

// Requests.
const (
	OpHello    Op = 1 + iota // identity, cluster and partitions of the server
	OpRead                   // server-side lookups and scans
	OpCommit                 // commit a client's transaction
	OpCall                   // run a procedure
	OpPrepare                // participant: validate, lock, vote
	OpDecide                 // participant: apply or release
	OpOutcome                // outcome of a transaction
	OpLoad                   // bulk load
	OpSeal                   // end of loading
	OpStats                  // server statistics
	OpResolve                // messages of the commit protocol that settle transactions: questions and watermarks
	OpHandOver               // last agent: commit the share and so decide
	OpValidate               // participant: check whether the proofs of its share hold now
	OpGoodbye                // a session has ended: its last answer need not be kept
	OpAdopt                  // move a partition's clock up to the time of a snapshot
	OpReserve                // a transaction that loses again and again asks for a turn
	OpAlter                  // change the catalogue; for the first data server
	OpCatalog                // a version of the catalogue: make its indexes, or use it
	OpEmpty                  // replace all data servers of the cluster by new ones, which are empty
	OpBackup                 // a step of a backup: see BackupBegin
	OpCopy                   // a step of the copy of a data server's log: see CopyBegin
	OpLease                  // how long the server certainly keeps its place: see Lease
	OpWriter                 // a client writes an index one-sided: see WriterRequest
	OpShip                   // changes of twins of another partition: see Shipping
	OpPlaces                 // where rows are of which another partition has a twin: see PlacesRequest
)

var opNames = map[Op]string{
	OpHello: "hello", OpRead: "read", OpCommit: "commit", OpCall: "call", OpPrepare: "prepare", OpDecide: "decide",
	OpOutcome: "outcome", OpLoad: "load", OpSeal: "seal", OpStats: "stats", OpResolve: "resolve",
	OpHandOver: "hand-over", OpValidate: "validate", OpGoodbye: "goodbye", OpAdopt: "adopt", OpReserve: "reserve",
	OpAlter: "alter", OpCatalog: "catalog", OpEmpty: "empty", OpBackup: "backup", OpCopy: "copy", OpLease: "lease", OpWriter: "writer",
	OpShip: "ship", OpPlaces: "places",
}

func (o Op) String() string {
	if name, ok := opNames[o]; ok {
		return name
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// What an OpOutcome has in its last byte. An unknown transaction is refused from now on.
const (
	OutcomeWait   = 0 // a transaction that runs is waited for
	OutcomeSettle = 1 // it is not: InDoubt
)

// AppendOutcome appends an OpOutcome request: a question about a transaction, when
// that was sent, and one of the constants above.
func AppendOutcome(b []byte, id ID, sent Sent, how byte) []byte {
	return append(AppendSent(AppendID(append(b, byte(OpOutcome)), id), sent), how)
}

// AppendBuild appends an OpCatalog request about an index that is being built.
func AppendBuild(b []byte, step byte, index int) []byte {
	return le.AppendUint16(append(b, byte(OpCatalog), step), uint16(index))
}

// Code is the first byte of a response.
type Code uint8

// Response codes.
const (
	OK       Code = iota
	Conflict      // followed by the cause
	Exists
	NotFound
	RolledBack // a procedure's body failed: a Failure follows
	NoProcedure
	OutOfMemory
	Unknown // outcome: unknown transaction, refused from now on
	Aborted // outcome: did not commit
	Unavailable
	InDoubt // the outcome is not known yet
	Bad     // the request cannot be served: text follows
	// Forbidden: the peer may not make the request because of its role, its
	// tables or the owner of the session: text follows.
	Forbidden
	TooLarge   // the request or its answer exceeds a named bound: text follows
	ResultLost // outcome: committed, but the procedure's result is no longer kept
	NoSpace    // the server's disk has no room for the log: text follows
	FewCopies  // fewer copies of the server's data are in sync than writes require: text follows
	Late       // the time of a procedure was over before its commit began, and nothing was committed: text follows
	// Forgotten: whether the transaction committed is no longer known. It is refused
	// from now on.
	Forgotten
	Sealed // a load came after the end of loading: text follows
)

// Bounds of one message.
const (
	MaxParts  = 1 << 12
	MaxProofs = 1 << 16
	MaxWrites = 1 << 14
	MaxReads  = 1 << 10
	// MaxCommitBytes bounds a commit. It leaves room in a message for the
	// messages of the commit protocol that servers add.
	MaxCommitBytes = rdma.MaxMessageBytes - 32<<10
	// MaxResultBytes bounds a procedure's result, between a code and a tick.
	MaxResultBytes = rdma.MaxMessageBytes - 1 - 8
)

// ErrMessage reports a message that cannot be decoded.
var ErrMessage = errors.New("wire: malformed message")

// ID identifies a transaction that writes.
type ID struct{ Client, Seq uint64 }

// Sent says when a client sent a request that its server may execute at most once:
// at a time of that server's running clock, or later. The clock is that of one life
// of the server.
type Sent struct {
	Incarnation uint64
	Epoch       uint32
	At          time.Duration
}

// Decoder decodes a message. After the first fault every method returns zero,
// and Err reports the fault.
type Decoder struct {
	b   []byte
	bad bool
}

// NewDecoder returns a decoder of b.
func NewDecoder(b []byte) Decoder { return Decoder{b: b} }

func (d *Decoder) take(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad, d.b = true, nil
		return nil
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

// U8 takes one byte.
func (d *Decoder) U8() uint8 {
	if p := d.take(1); p != nil {
		return p[0]
	}
	return 0
}

// U16 takes two bytes.
func (d *Decoder) U16() uint16 {
	if p := d.take(2); p != nil {
		return binary.LittleEndian.Uint16(p)
	}
	return 0
}

// U32 takes four bytes.
func (d *Decoder) U32() uint32 {
	if p := d.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

// U64 takes eight bytes.
func (d *Decoder) U64() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// Partition takes the number of a partition.
func (d *Decoder) Partition() placement.Partition { return placement.Partition(d.U16()) }

// Bytes takes a length and that many bytes.
func (d *Decoder) Bytes() []byte { return d.take(int(d.U32())) }

// numberKey stands for the length of a key that is a number.
const numberKey = 1<<16 - 1

// AppendKey appends a key: its length in two bytes and the bytes, or a mark and
// the number.
func AppendKey(b []byte, k index.Key, strings bool) []byte {
	if !strings {
		return le.AppendUint64(le.AppendUint16(b, numberKey), k.Num)
	}
	return append(le.AppendUint16(b, uint16(len(k.Str))), k.Str...)
}

// Key takes a key; a string is a view of the message.
func (d *Decoder) Key() (k index.Key, strings bool) {
	n := d.U16()
	if n == numberKey {
		return index.Num(d.U64()), false
	}
	if n > index.MaxKeyBytes {
		d.bad, d.b = true, nil
		return index.Key{}, true
	}
	return index.Str(mem.String(d.take(int(n)))), true
}

// Take takes n bytes.
func (d *Decoder) Take(n int) []byte { return d.take(n) }

// Left returns the number of bytes not taken yet.
func (d *Decoder) Left() int { return len(d.b) }

// Rest takes all remaining bytes.
func (d *Decoder) Rest() []byte { return d.take(len(d.b)) }

// Count takes a count. It is a fault if the count is above bound, or if the
// rest of the message is too short for that many elements of each bytes.
func (d *Decoder) Count(bound, each int) int {
	n := int(d.U32())
	if n > bound || n*each > len(d.b) {
		d.bad, d.b = true, nil
		return 0
	}
	return n
}

// ID takes a transaction ID.
func (d *Decoder) ID() ID { return ID{d.U64(), d.U64()} }

// Sent decodes what AppendSent has encoded.
func (d *Decoder) Sent() (s Sent) {
	s.Incarnation, s.Epoch, s.At = d.U64(), d.U32(), time.Duration(d.U64())
	d.bad = d.bad || s.At < 0
	return s
}

// Err returns ErrMessage after a fault.
func (d *Decoder) Err() error {
	if d.bad {
		return ErrMessage
	}
	return nil
}

// End returns Err, and makes remaining bytes a fault.
func (d *Decoder) End() error {
	if len(d.b) > 0 {
		return fmt.Errorf("%w: %d bytes too many", ErrMessage, len(d.b))
	}
	return d.Err()
}

var le = binary.LittleEndian

// AppendBytes appends a length and the bytes.
func AppendBytes(b, p []byte) []byte {
	return append(le.AppendUint32(b, uint32(len(p))), p...)
}

func appendPartition(b []byte, p placement.Partition) []byte { return le.AppendUint16(b, uint16(p)) }

// AppendID appends a transaction ID.
func AppendID(b []byte, id ID) []byte {
	return le.AppendUint64(le.AppendUint64(b, id.Client), id.Seq)
}

// AppendSent appends when a request was sent.
func AppendSent(b []byte, s Sent) []byte {
	return le.AppendUint64(le.AppendUint32(le.AppendUint64(b, s.Incarnation), s.Epoch), uint64(s.At))
}

func appendProofs(b []byte, ps []index.Proof) []byte {
	b = le.AppendUint32(b, uint32(len(ps)))
	for _, p := range ps {
		b = le.AppendUint64(le.AppendUint64(b, p.Addr), p.Word)
	}
	return b
}

func (d *Decoder) proofs(dst []index.Proof) []index.Proof {
	dst = dst[:0]
	for range d.Count(MaxProofs, 16) {
		dst = append(dst, index.Proof{Addr: d.U64(), Word: d.U64()})
	}
	return dst
}
