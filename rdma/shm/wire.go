package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Version of the handshake and of the layout of the shared segment. Both
// sides must have the same.
const wireVersion = 4

// messageBytes is the size of every control message. The socket keeps message
// boundaries, so that a message of another size is malformed.
const messageBytes = 48

// wireMagic opens hello and welcome.
const wireMagic = uint64('d') | 'r'<<8 | 't'<<16 | 'm'<<24 | 'x'<<32 | 's'<<40 | 'h'<<48 | 'm'<<56

// errWire reports a control message that cannot be understood.
var errWire = errors.New("shm: malformed control message")

type msgKind uint32

// Control messages. C is client to server.
const (
	msgHello     msgKind = 1 + iota // C: version, role; carries the client's wake page
	msgWelcome                      // version, pollers, number of regions; carries segment, poller page, an eventfd for each poller
	msgRefuse                       // reason; the server closes
	msgRegion                       // rkey, segment and maximum bytes, first; carries descriptors of files from offset first on, none if there are no more, unless reason is set
	msgAsk                          // C: rkey, first: how many bytes of the region the client has
	msgOpen                         // C: a new connection; id comes back
	msgOpened                       // id, slot, or reason
	msgClose                        // C: slot is given up
	msgClosed                       // the connection with id, in slot, was ended: its client broke the protocol
	msgChallenge                    // a nonce: prove that you know the secret of the cluster
	msgProof                        // C: what proof makes of it
	msgMax
)

// reason says why a request on the control socket was refused.
type reason uint32

const (
	reasonNone reason = iota
	reasonVersion
	reasonFull
	reasonNoRegion
	reasonRole
	reasonMax
)

func (r reason) err() error {
	switch r {
	case reasonNone:
		return nil
	case reasonVersion:
		return fmt.Errorf("shm: the server speaks another version of the handshake: %w", rdma.ErrUnsupported)
	case reasonFull:
		return fmt.Errorf("shm: the server has no room for another connection: %w: %w", rdma.ErrBusy, rdma.ErrTooLarge)
	case reasonNoRegion:
		return fmt.Errorf("shm: no such region: %w", rdma.ErrAccess)
	case reasonRole:
		return fmt.Errorf("shm: the data servers of a cluster need the same secret: %w", rdma.ErrRole)
	}
	return errWire
}

// message is a control message; which fields count depends on kind.
type message struct {
	kind    msgKind
	reason  reason
	version uint32
	id      uint32 // open, opened, closed: the connection's on its link
	slot    uint32
	rkey    rdma.RKey
	pollers uint32
	regions uint32
	role    rdma.Role
	segment uint64          // bytes
	max     uint64          // bytes
	first   uint64          // offset in the region
	blob    [blobBytes]byte // challenge, proof
}

// blobBytes is the size of a nonce and of its proof.
const blobBytes = provide.ProofBytes

func (m *message) encode(b *[messageBytes]byte) {
	le := binary.LittleEndian
	*b = [messageBytes]byte{}
	le.PutUint32(b[0:], uint32(m.kind))
	le.PutUint32(b[4:], uint32(m.reason))
	switch m.kind {
	case msgHello, msgWelcome, msgRefuse:
		le.PutUint64(b[8:], wireMagic)
		le.PutUint32(b[16:], m.version)
		le.PutUint32(b[20:], m.pollers)
		le.PutUint32(b[24:], m.regions)
		le.PutUint32(b[28:], uint32(m.role))
	case msgChallenge, msgProof:
		copy(b[16:], m.blob[:])
	default:
		le.PutUint32(b[8:], m.id)
		le.PutUint32(b[12:], m.slot)
		le.PutUint32(b[16:], uint32(m.rkey))
		le.PutUint64(b[24:], m.segment)
		le.PutUint64(b[32:], m.max)
		le.PutUint64(b[40:], m.first)
	}
}

// decodeMessage checks everything that does not depend on the receiver's state.
// The receiver checks slots and keys.
func decodeMessage(b []byte) (message, error) {
	if len(b) != messageBytes {
		return message{}, fmt.Errorf("%w: %d bytes", errWire, len(b))
	}
	le := binary.LittleEndian
	m := message{kind: msgKind(le.Uint32(b[0:])), reason: reason(le.Uint32(b[4:]))}
	if m.kind < msgHello || m.kind >= msgMax || m.reason >= reasonMax {
		return message{}, fmt.Errorf("%w: kind %d, reason %d", errWire, m.kind, m.reason)
	}
	switch m.kind {
	case msgHello, msgWelcome, msgRefuse:
		if le.Uint64(b[8:]) != wireMagic {
			return message{}, fmt.Errorf("%w: not the drtmx handshake", errWire)
		}
		m.version, m.pollers, m.regions = le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:])
		if m.pollers > MaxPollers || m.regions > regionsMax {
			return message{}, fmt.Errorf("%w: %d pollers, %d regions", errWire, m.pollers, m.regions)
		}
		if r := le.Uint32(b[28:]); r <= uint32(rdma.RoleServer) {
			m.role = rdma.Role(r)
		} else {
			return message{}, fmt.Errorf("%w: role %d", errWire, r)
		}
	case msgChallenge, msgProof:
		copy(m.blob[:], b[16:])
	default:
		m.id, m.slot, m.rkey = le.Uint32(b[8:]), le.Uint32(b[12:]), rdma.RKey(le.Uint32(b[16:]))
		m.segment, m.max, m.first = le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint64(b[40:])
	}
	return m, nil
}
