package shm

import (
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Bounds of this provider. Exceeding one is rdma.ErrTooLarge.
const (
	// MaxPollers bounds Options.Pollers.
	MaxPollers = 16
	// MaxConnsPerLink bounds the connections of one client process to one endpoint.
	MaxConnsPerLink = doorbellWords * 64
	// MaxLinks bounds the client processes of one endpoint, and separately the
	// data servers that dial it.
	MaxLinks = 4096

	regionsMax = 4096
)

// Layout of the link segment, in bytes. A slot has four areas: request, response, verbs and
// results. The first two begin with header words: of the message in them, and of the verbs
// or results in the area of their own, so that a side that looks for one finds both in one
// line.
const (
	pageBytes     = 4096
	doorbellWords = 64
	requestBells  = 0
	responseBells = 2048
	slotsOffset   = pageBytes
	// An area is its headers and the largest message, in whole pages.
	areaBytes    = rdma.MaxMessageBytes + pageBytes
	verbsBytes   = rdma.MaxReadBytes + pageBytes
	resultsBytes = rdma.MaxBatch * resultWords * mem.WordBytes
	slotBytes    = 2*areaBytes + verbsBytes + resultsBytes
	linkBytes    = slotsOffset + MaxConnsPerLink*slotBytes

	headerWords = 2
)

const (
	_ uint = responseBells - requestBells - doorbellWords*mem.WordBytes
	_ uint = pageBytes - responseBells - doorbellWords*mem.WordBytes
	_ uint = areaBytes - headerWords*mem.WordBytes - rdma.MaxMessageBytes
	_ uint = verbsBytes - (verbWords*mem.WordBytes + rdma.MaxReadBytes)
	_ uint = -(slotBytes % pageBytes)
)

// bellOf returns the place of a slot among the doorbells. Each poller has its
// own run of words, so that no two pollers share a word, and low slots share one.
func bellOf(slot, pollers int) (poller, word int, mask uint64) {
	poller, i := slot%pollers, slot/pollers
	return poller, poller*(doorbellWords/pollers) + i/64, 1 << (i % 64)
}

// slotOf is the inverse of bellOf.
func slotOf(poller, word, bit, pollers int) int {
	return ((word-poller*(doorbellWords/pollers))*64+bit)*pollers + poller
}

// slotsFor returns the number of slots of a link with so many pollers.
func slotsFor(pollers int) int { return doorbellWords / pollers * 64 * pollers }

// area is one direction of a slot: headers and a body.
type area struct {
	span mem.Span
	slot int
}

func slotAreas(c *mem.Control, slot int) (request, response area) {
	off := uint64(slotsOffset + slot*slotBytes)
	return area{c.Span(off, areaBytes), slot}, area{c.Span(off+areaBytes, areaBytes), slot}
}

// slotVerbs returns the areas of a slot's verbs and of their results.
func slotVerbs(c *mem.Control, slot int) (verbs, results mem.Span) {
	off := uint64(slotsOffset + slot*slotBytes + 2*areaBytes)
	return c.Span(off, verbsBytes), c.Span(off+verbsBytes, resultsBytes)
}

// header returns the sequence number and the claimed length of the last message.
// The length is not checked.
func (a area) header() (seq uint32, n uint64) {
	h := a.span.Load(0)
	messageReceived(a.slot)
	return uint32(h), h >> 32
}

func (a area) body() mem.Span { return a.span.Slice(headerWords, a.span.Words()-headerWords) }

// verbs returns the sequence number and the claimed words of the last verbs, or of the last
// results. Their number is not checked.
func (a area) verbs() (seq uint32, words int) {
	h := a.span.Load(1)
	messageReceived(a.slot)
	return uint32(h), int(h >> 32)
}

// publishVerbs makes so many words of verbs or results visible.
func (a area) publishVerbs(seq uint32, words int) {
	messageSent(a.slot)
	a.span.Store(1, uint64(words)<<32|uint64(seq))
}

// publish copies a message of at most rdma.MaxMessageBytes and makes it
// visible.
func (a area) publish(seq uint32, msg []byte) {
	a.body().CopyBytesIn(msg)
	messageSent(a.slot)
	a.span.Store(0, uint64(len(msg))<<32|uint64(seq))
}

// clear makes the area empty, as if nothing had been published.
func (a area) clear() {
	a.span.Store(0, 0)
	a.span.Store(1, 0)
}
