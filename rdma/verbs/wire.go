package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// wireMagic opens the private data of every connection request and answer.
const wireMagic = uint64('d') | 'r'<<8 | 't'<<16 | 'm'<<24 | 'x'<<32 | 'v'<<40 | 'r'<<48 | 'b'<<56

// errWire reports bytes from the peer that break the protocol.
var errWire = errors.New("verbs: the peer breaks the protocol")

// Fragments: a message travels as SENDs of at most fragmentBytes into receive
// buffers of that size.
const (
	fragmentBytes = 4096
	headerBytes   = 16
	payloadBytes  = fragmentBytes - headerBytes

	// credits is how many fragments of messages a side may have sent that the
	// other has not taken. Fragments that only return credits need none:
	// extraReceives is room for them.
	credits       = 16
	extraReceives = 8
	receiveSlots  = credits + extraReceives
	sendSlots     = 8
)

// hello is the private data of a connection request. A data server sends two: the
// first is refused with a challenge, the second has its stamp and the proof.
type hello struct {
	version uint32
	client  [16]byte // names the client process; its connections share a protection domain
	role    rdma.Role
	stamp   uint64 // of the challenge
	proof   [provide.ProofBytesMin]byte
}

// helloBytes is as much private data as a request has room for.
const helloBytes = 56

func (h *hello) encode() (b [helloBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], wireMagic)
	binary.LittleEndian.PutUint32(b[8:], h.version)
	copy(b[12:], h.client[:])
	binary.LittleEndian.PutUint32(b[28:], uint32(h.role))
	binary.LittleEndian.PutUint64(b[32:], h.stamp)
	copy(b[40:], h.proof[:])
	return b
}

// decodeHello decodes private data, which the fabric pads.
func decodeHello(b []byte) (h hello, err error) {
	if len(b) < helloBytes || binary.LittleEndian.Uint64(b) != wireMagic {
		return h, fmt.Errorf("%w: not the drtmx handshake", errWire)
	}
	h.version = binary.LittleEndian.Uint32(b[8:])
	copy(h.client[:], b[12:])
	role := binary.LittleEndian.Uint32(b[28:])
	if role > uint32(rdma.RoleServer) {
		return h, fmt.Errorf("%w: role %d", errWire, role)
	}
	h.role, h.stamp = rdma.Role(role), binary.LittleEndian.Uint64(b[32:])
	copy(h.proof[:], b[40:])
	return h, nil
}

// answer is the private data of an acceptance or a refusal.
type answer struct {
	version uint32
	reason  reason
	stamp   uint64               // of a challenge, with reasonProve
	nonce   [challengeNonce]byte // likewise
}

const answerBytes = 40

func (a *answer) encode() (b [answerBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], wireMagic)
	binary.LittleEndian.PutUint32(b[8:], a.version)
	binary.LittleEndian.PutUint32(b[12:], uint32(a.reason))
	binary.LittleEndian.PutUint64(b[16:], a.stamp)
	copy(b[24:], a.nonce[:])
	return b
}

func decodeAnswer(b []byte) (a answer, err error) {
	if len(b) < answerBytes || binary.LittleEndian.Uint64(b) != wireMagic {
		return a, fmt.Errorf("%w: not the drtmx handshake", errWire)
	}
	a.version = binary.LittleEndian.Uint32(b[8:])
	a.reason = reason(binary.LittleEndian.Uint32(b[12:]))
	if a.reason >= reasonMax {
		return a, fmt.Errorf("%w: reason %d", errWire, a.reason)
	}
	a.stamp = binary.LittleEndian.Uint64(b[16:])
	copy(a.nonce[:], b[24:])
	return a, nil
}

// reason is why a request was refused.
type reason uint32

const (
	reasonNone     reason = iota
	reasonVersion         // the server speaks another version
	reasonFull            // the endpoint has no room for another connection
	reasonNoRegion        // no region has the rkey
	reasonMemory          // the region could not be registered
	reasonProve           // a challenge: prove that you are a data server
	reasonRole            // the proof is wrong
	reasonMax
)

func (r reason) err() error {
	switch r {
	case reasonNone:
		return nil
	case reasonVersion:
		return fmt.Errorf("verbs: the server speaks another version of the handshake: %w", rdma.ErrUnsupported)
	case reasonFull:
		return fmt.Errorf("verbs: the server has no room for another connection: %w: %w", rdma.ErrBusy, rdma.ErrTooLarge)
	case reasonNoRegion:
		return fmt.Errorf("verbs: no such region: %w", rdma.ErrAccess)
	case reasonMemory:
		return fmt.Errorf("verbs: the server cannot register the region with its device: %w", rdma.ErrAccess)
	case reasonProve:
		return fmt.Errorf("%w: asked for a proof out of turn", errWire)
	case reasonRole:
		return fmt.Errorf("verbs: the data servers of a cluster need the same secret: %w", rdma.ErrRole)
	}
	return errWire
}

type fragKind uint8

// Kinds of fragments.
const (
	fragCredit   fragKind = 1 + iota // returns credits, nothing else
	fragRequest                      // the first of a request
	fragResponse                     // the first of a response
	fragMore                         // the next of a request or response
	fragQuery                        // client: a query about a region
	fragSegments                     // server: the answer
	fragMax
)

// header opens every fragment.
type header struct {
	kind    fragKind
	credits uint16 // returned
	total   uint32 // bytes of the whole message
	seq     uint32 // of the call, or of the query
}

func (h *header) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], uint32(h.kind)|uint32(h.credits)<<8)
	le.PutUint32(b[4:], h.total)
	le.PutUint32(b[8:], h.seq)
	le.PutUint32(b[12:], 0)
}

// decodeHeader checks what does not depend on the receiver's state, and
// returns the payload.
func decodeHeader(b []byte) (h header, payload []byte, err error) {
	if len(b) < headerBytes || len(b) > fragmentBytes {
		return h, nil, fmt.Errorf("%w: fragment of %d bytes", errWire, len(b))
	}
	le := binary.LittleEndian
	w := le.Uint32(b[0:])
	h = header{fragKind(w), uint16(w >> 8), le.Uint32(b[4:]), le.Uint32(b[8:])}
	if h.kind < fragCredit || h.kind >= fragMax || w>>24 != 0 || h.credits > credits {
		return h, nil, fmt.Errorf("%w: fragment header %#x", errWire, w)
	}
	payload = b[headerBytes:]
	if h.total > rdma.MaxMessageBytes || int(h.total) < len(payload) {
		return h, nil, fmt.Errorf("%w: fragment of %d bytes of a message of %d", errWire, len(payload), h.total)
	}
	return h, payload, nil
}

// segmentQuery asks: where are the segments of this region from that one on?
type segmentQuery struct {
	key   rdma.RKey
	first uint32
}

const queryBytes = 8

func (a *segmentQuery) encode() (b [queryBytes]byte) {
	binary.LittleEndian.PutUint32(b[0:], uint32(a.key))
	binary.LittleEndian.PutUint32(b[4:], a.first)
	return b
}

func decodeQuery(b []byte) (a segmentQuery, err error) {
	if len(b) != queryBytes {
		return a, fmt.Errorf("%w: query of %d bytes", errWire, len(b))
	}
	return segmentQuery{rdma.RKey(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:])}, nil
}

// segmentList describes a region: each of its segments is a memory region of the
// device, addressed by the offset in the region.
type segmentList struct {
	key     rdma.RKey
	reason  reason
	access  rdma.Access
	segment uint64   // bytes, a power of two
	max     uint64   // bytes
	first   uint32   // segment of keys[0]
	keys    []uint32 // the device's remote keys
}

const (
	segmentListBytes = 40
	// segmentKeysMax bounds how many segments one answer registers and names.
	segmentKeysMax = 256
)

const _ uint = payloadBytes - segmentListBytes - 4*segmentKeysMax

func (t *segmentList) encode(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(t.key))
	b = le.AppendUint32(b, uint32(t.reason))
	b = le.AppendUint64(b, uint64(t.access))
	b = le.AppendUint64(b, t.segment)
	b = le.AppendUint64(b, t.max)
	b = le.AppendUint32(b, t.first)
	b = le.AppendUint32(b, uint32(len(t.keys)))
	for _, k := range t.keys {
		b = le.AppendUint32(b, k)
	}
	return b
}

func decodeSegments(b []byte) (t segmentList, err error) {
	if len(b) < segmentListBytes {
		return t, fmt.Errorf("%w: description of %d bytes", errWire, len(b))
	}
	le := binary.LittleEndian
	t = segmentList{
		key: rdma.RKey(le.Uint32(b)), reason: reason(le.Uint32(b[4:])), access: rdma.Access(le.Uint64(b[8:])),
		segment: le.Uint64(b[16:]), max: le.Uint64(b[24:]), first: le.Uint32(b[32:]),
	}
	n := le.Uint32(b[36:])
	const all = rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic
	if t.reason >= reasonMax || n > segmentKeysMax || len(b) != segmentListBytes+int(n)*4 || le.Uint64(b[8:])&^uint64(all) != 0 {
		return t, fmt.Errorf("%w: description of a region", errWire)
	}
	if t.reason != reasonNone {
		return t, nil
	}
	if t.segment < mem.LineBytes || t.segment&(t.segment-1) != 0 || t.max%t.segment != 0 || t.max > 1<<47 ||
		uint64(t.first)+uint64(n) > t.max/t.segment {
		return t, fmt.Errorf("%w: region of %d bytes in segments of %d", errWire, t.max, t.segment)
	}
	t.keys = make([]uint32, n)
	for i := range t.keys {
		t.keys[i] = le.Uint32(b[segmentListBytes+4*i:])
	}
	return t, nil
}
