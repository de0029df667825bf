package tcp

import (
	"crypto/rand"
	"encoding/binary"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// MaxRegions bounds the regions of one endpoint.
const MaxRegions = 1 << 16

// capability is the secret that a verb must present. It is drawn at random for
// one region and one connection.
type capability [2]uint64

func newCapability() capability {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return capability{binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])}
}

// equal takes the same time whether and wherever the two differ.
func (c capability) equal(d capability) bool { return (c[0]^d[0])|(c[1]^d[1]) == 0 }

// grant is what one connection may do to one region.
type grant struct {
	cap    capability
	access rdma.Access // 0: nothing is granted in this slot yet
	region *mem.Region
}

// authorize returns the memory that a verb may touch, or the status of its
// refusal.
func authorize(grants []grant, x *provide.Extra, v *verb, n *provide.Audit) (mem.Span, rdma.Status) {
	need, words := provide.Need(v.op, int(v.words))
	if need == 0 {
		n.Refuse(refusedVerb)
		return mem.Span{}, rdma.StatusUnsupported
	}
	if int(v.slot) >= len(grants) || grants[v.slot].access == 0 || !grants[v.slot].cap.equal(v.cap) {
		n.Refuse(refusedCapability)
		return mem.Span{}, rdma.StatusAccess
	}
	g := &grants[v.slot]
	if (g.access|x.Of(keyOf(int(v.slot))))&need == 0 {
		n.Refuse(refusedRight)
		return mem.Span{}, rdma.StatusAccess
	}
	if words == 0 {
		n.Refuse(refusedBounds)
		return mem.Span{}, rdma.StatusAccess
	}
	s, ok := g.region.Span(v.addr, uint64(words)*mem.WordBytes)
	if !ok {
		n.Refuse(refusedBounds)
		return mem.Span{}, rdma.StatusAccess
	}
	return s, rdma.StatusOK
}

// slotOf returns the index of an rkey's grant.
func slotOf(k rdma.RKey) (int, bool) { return int(k) - 1, k >= 1 && k <= MaxRegions }

// keyOf is the inverse of slotOf.
func keyOf(slot int) rdma.RKey { return rdma.RKey(slot + 1) }
