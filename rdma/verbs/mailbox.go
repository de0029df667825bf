//go:build verbs

package verbs

// #include "native.h"
import "C"

import "errors"

// mailbox sends and receives fragments over a queue pair, under flow control.
// The lock of its connection guards it.
type mailbox struct {
	q    *C.struct_vb_qp
	id   uint64  // of the connection, in place
	mem  *pinned // receive slots, then send slots
	cmd  [1]C.struct_vb_wr
	buf  [fragmentBytes]byte // a fragment being made or taken apart
	ping bool                // one is under way
	lost int                 // times it was found under way still, with no completion of any kind meanwhile

	sent, freed uint32 // fragments, ever
	credits     int    // fragments the peer has room for

	taken    uint32 // receives consumed, ever
	unposted uint32 // of them, those not posted again
	data     int    // of the unposted, those that cost the peer a credit
	toReturn int    // credits to return
	peerLeft int    // credits the peer has, as far as this side knows
}

// Receives are posted again so many at a time, and credits are returned by a
// fragment of their own when the peer has few left.
const (
	repostEvery = 4
	fewCredits  = credits / 4
)

const mailboxBytes = (receiveSlots + sendSlots) * fragmentBytes

// The memory is mapped in one segment.
const _ = uint(-(mailboxBytes & (mailboxBytes - 1)))

// open registers the slots and posts the receives, before the queue pair is
// connected.
func (m *mailbox) open(pd *C.struct_ibv_pd, q *C.struct_vb_qp, conn uint32) error {
	m.q, m.id = q, uint64(conn)<<idConnShift
	m.credits, m.peerLeft = credits, credits
	var err error
	if m.mem, err = pin(pd, "verbs-mailbox", mailboxBytes); err != nil {
		return err
	}
	return m.receive(0, receiveSlots)
}

func (m *mailbox) close() { m.mem.close() }

func (m *mailbox) receive(first, n uint32) error {
	return errno("post receives", C.vb_qp_receive(m.q, C.uint64_t(m.id|idReceive), C.uint64_t(m.mem.addr), fragmentBytes,
		receiveSlots, C.uint32_t(m.mem.lkey()), C.uint32_t(first%receiveSlots), C.uint32_t(n)))
}

func (m *mailbox) hasSlot() bool { return m.sent-m.freed < sendSlots }

// ready reports whether a fragment of a message can be sent now.
func (m *mailbox) ready() bool { return m.hasSlot() && m.credits > 0 }

// send sends one fragment; m must be ready, or have a slot for fragCredit.
func (m *mailbox) send(kind fragKind, total int, seq uint32, payload []byte) error {
	h := header{kind, uint16(m.toReturn), uint32(total), seq}
	h.encode(m.buf[:])
	n := headerBytes + copy(m.buf[headerBytes:], payload)
	slot := receiveSlots + m.sent%sendSlots
	m.mem.span.Slice(int(slot*fragmentBytes/8), fragmentBytes/8).CopyBytesIn(m.buf[:n])
	m.sent++
	if kind != fragCredit {
		m.credits--
	}
	m.peerLeft += m.toReturn
	m.toReturn = 0
	m.cmd[0] = C.struct_vb_wr{
		id: C.uint64_t(m.id | idSend | uint64(m.sent&idLowMask)), op: C.VB_SEND,
		local: C.uint64_t(m.mem.addr + uint64(slot)*fragmentBytes), lkey: C.uint32_t(m.mem.lkey()), bytes: C.uint32_t(n), inlined: 1,
	}
	// One completion frees the slots of all sends before it.
	if m.sent%(sendSlots/2) == 0 {
		m.cmd[0].signaled = 1
	}
	return errno("post send", C.vb_qp_post(m.q, &m.cmd[0], 1))
}

// sendMessage sends as many fragments of a message from byte `at` as it can
// now, and returns where it stopped. Even an empty message has a fragment, so
// that -1 stands for one that was not begun.
func (m *mailbox) sendMessage(kind fragKind, seq uint32, msg []byte, at int) (int, error) {
	for at < len(msg) && m.ready() {
		if at >= 0 {
			kind = fragMore
		}
		from := max(at, 0)
		to := min(from+payloadBytes, len(msg))
		if err := m.send(kind, len(msg), seq, msg[from:to]); err != nil {
			return at, err
		}
		at = to
	}
	return at, nil
}

// pingsLost is how many silent intervals show that the peer is gone.
const pingsLost = 5

var errSilent = errors.New("the peer's device is silent")

// sendPing sends an empty WRITE. Only the peer's device answers it, which shows
// that the peer is alive. sendPing fails if an earlier ping has waited for too
// long. A device itself gives up without an acknowledgement, but Soft-RoCE has
// been seen to wait for ever. A slow receiver cannot delay the answer, because
// flow control guarantees a buffer for every request.
func (m *mailbox) sendPing() error {
	if m.ping {
		if m.lost++; m.lost >= pingsLost {
			return errSilent
		}
		return nil
	}
	m.ping, m.lost = true, 0
	m.cmd[0] = C.struct_vb_wr{id: C.uint64_t(m.id | idPing), op: C.VB_WRITE, signaled: 1}
	return errno("post ping", C.vb_qp_post(m.q, &m.cmd[0], 1))
}

// freeTo frees the slots of the send with these low bits and of all before it.
func (m *mailbox) freeTo(low uint64) {
	d := (uint32(low) - m.freed) & idLowMask
	if d <= m.sent-m.freed {
		m.freed += d
	}
}

// take decodes the fragment in a receive slot. The payload is valid until
// the next call of any method.
func (m *mailbox) take(slot, n uint32) (header, []byte, error) {
	m.taken++
	m.unposted++
	if slot >= receiveSlots || n > fragmentBytes {
		return header{}, nil, errWire
	}
	b := m.buf[:n]
	m.mem.span.Slice(int(slot*fragmentBytes/8), fragmentBytes/8).CopyBytesOut(b)
	h, payload, err := decodeHeader(b)
	if err != nil {
		return h, nil, err
	}
	if h.kind != fragCredit {
		m.data++
		m.peerLeft--
	}
	if m.credits += int(h.credits); m.credits > credits || m.peerLeft < 0 {
		return h, nil, errWire
	}
	return h, payload, nil
}

// settle posts receives again and returns credits by themselves if the peer
// has few left. It is called when the fragments at hand have been taken.
func (m *mailbox) settle() error {
	if m.unposted >= repostEvery {
		// Receives are consumed in the order they were posted in.
		if err := m.receive(m.taken-m.unposted, m.unposted); err != nil {
			return err
		}
		m.toReturn += m.data
		m.unposted, m.data = 0, 0
	}
	if m.toReturn > 0 && m.peerLeft <= fewCredits && m.hasSlot() {
		return m.send(fragCredit, 0, 0, nil)
	}
	return nil
}
