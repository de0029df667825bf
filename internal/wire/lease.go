package wire

import (
	"math"
	"time"
)

// Lease is the answer to an OpLease, which has no arguments: for how long nobody
// else has the data server's place.
type Lease struct {
	Incarnation uint64 // of the server's state
	Epoch       uint32 // of its memory
	// Left is the time for which the server has its place, from a moment after it
	// got the question. It is NoLease if nothing can take the place, and 0 if
	// another process may have it.
	Left time.Duration
	// Now is what the server's clock showed then: see Part.Read.
	Now time.Duration
}

// NoLease is the Lease.Left of a server that needs no lease.
const NoLease = time.Duration(math.MaxInt64)

// AppendLease appends the answer, with its code.
func AppendLease(b []byte, l Lease) []byte {
	b = le.AppendUint64(append(b, byte(OK)), l.Incarnation)
	b = le.AppendUint64(le.AppendUint32(b, l.Epoch), uint64(max(l.Left, 0)))
	return le.AppendUint64(b, uint64(l.Now))
}

// DecodeLease decodes what follows the code of the answer.
func DecodeLease(b []byte) (Lease, error) {
	d := NewDecoder(b)
	l := Lease{Incarnation: d.U64(), Epoch: d.U32()}
	left, now := d.U64(), d.U64()
	if left > uint64(NoLease) || now > uint64(NoLease) {
		return Lease{}, ErrMessage
	}
	l.Left, l.Now = time.Duration(left), time.Duration(now)
	return l, d.End()
}
