package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/rdma"
)

// version of the handshake and the frames. Both sides must have the same.
const version = 2

// helloBytes is the size of a hello and of a welcome.
//
//	 0   magic
//	 8   version(32)   reason(32), of a welcome
//	16   a word in the sender's byte order
//	24   largest batch(32)   largest READ or WRITE in bytes(32)
//	32   largest message in bytes(32)   grants that follow(32), of a welcome
//	40   role of the client(32), of a hello
//	48   nonce, of a challenge: a welcome with reasonProve
//
// The client answers a challenge with provide.ProofBytes, and gets another welcome.
const helloBytes = 64

var magic = [8]byte{'d', 'r', 't', 'm', 'x', 't', 'c', 'p'}

// orderWord has the same value only in the same byte order.
const orderWord = 0x0102030405060708

// reason is why a server refuses a connection.
type reason uint32

const (
	reasonNone reason = iota
	reasonVersion
	reasonOrder
	reasonLimits
	reasonFull
	reasonTLS   // in plain text, to a client in plain text
	reasonPlain // likewise, to one that spoke TLS, which takes it for garbage
	reasonProve // no refusal yet: prove that you are a data server
	reasonRole  // the proof is wrong
	reasonMax
)

func (r reason) err() error {
	switch r {
	case reasonNone:
		return nil
	case reasonVersion:
		return fmt.Errorf("the server speaks another version of the protocol: %w", rdma.ErrUnsupported)
	case reasonOrder:
		return fmt.Errorf("the server's byte order is another: %w", rdma.ErrUnsupported)
	case reasonLimits:
		return fmt.Errorf("the server's limits are others: %w", rdma.ErrUnsupported)
	case reasonFull:
		return fmt.Errorf("the server has no room for another connection: %w: %w", rdma.ErrBusy, rdma.ErrTooLarge)
	case reasonProve:
		return fmt.Errorf("%w: asked for a proof out of turn", errHandshake)
	case reasonRole:
		return fmt.Errorf("the data servers of a cluster need the same secret: %w", rdma.ErrRole)
	}
	return fmt.Errorf("%w: the server wants TLS", ErrAuth)
}

// errHandshake reports a peer that is not a drtmx one.
var errHandshake = errors.New("tcp: malformed handshake")

// hello opens a connection; a welcome answers it.
type hello struct {
	version                       uint32
	reason                        reason
	order                         uint64
	maxBatch, maxRead, maxMessage uint32
	grants                        uint32
	role                          rdma.Role
	nonce                         [nonceBytes]byte
}

const nonceBytes = 16

func ourHello() hello {
	return hello{
		version: version, order: orderWord,
		maxBatch: rdma.MaxBatch, maxRead: rdma.MaxReadBytes, maxMessage: rdma.MaxMessageBytes,
	}
}

// check returns why the peer that sent h cannot be served.
func (h *hello) check() reason {
	ours := ourHello()
	switch {
	case h.version != ours.version:
		return reasonVersion
	case h.order != ours.order:
		return reasonOrder
	case h.maxBatch != ours.maxBatch || h.maxRead != ours.maxRead || h.maxMessage != ours.maxMessage:
		return reasonLimits
	}
	return reasonNone
}

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	le := binary.LittleEndian
	copy(b, magic[:])
	le.PutUint32(b[8:], h.version)
	le.PutUint32(b[12:], uint32(h.reason))
	binary.NativeEndian.PutUint64(b[16:], h.order)
	le.PutUint32(b[24:], h.maxBatch)
	le.PutUint32(b[28:], h.maxRead)
	le.PutUint32(b[32:], h.maxMessage)
	le.PutUint32(b[36:], h.grants)
	le.PutUint32(b[40:], uint32(h.role))
	copy(b[48:], h.nonce[:])
	return b
}

// decodeHello decodes a hello or a welcome.
func decodeHello(b []byte) (hello, error) {
	if len(b) != helloBytes || !bytes.Equal(b[:8], magic[:]) {
		return hello{}, errHandshake
	}
	le := binary.LittleEndian
	h := hello{
		version: le.Uint32(b[8:]), reason: reason(le.Uint32(b[12:])), order: binary.NativeEndian.Uint64(b[16:]),
		maxBatch: le.Uint32(b[24:]), maxRead: le.Uint32(b[28:]), maxMessage: le.Uint32(b[32:]), grants: le.Uint32(b[36:]),
	}
	role := le.Uint32(b[40:])
	if h.reason >= reasonMax || h.grants > MaxRegions || role > uint32(rdma.RoleServer) {
		return hello{}, fmt.Errorf("%w: reason %d, %d grants, role %d", errHandshake, h.reason, h.grants, role)
	}
	h.role = rdma.Role(role)
	copy(h.nonce[:], b[48:])
	return h, nil
}
