package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Everything after the handshake is words in the byte order of the sender;
// the handshake refuses peers of the other order. A frame is two words of
// header and a payload of whole words.
//
//	word 0   kind(8) | flags(8) | count(16) | size(32)
//	word 1   id
const headerWords = 2

const headerBytes = headerWords * mem.WordBytes

// kind is the kind of a frame. C means from client to server.
type kind uint8

const (
	kindBatch   kind = 1 + iota // C: id of the batch, count verbs, size words
	kindResults                 // id of the batch, results of its next count verbs, size words
	kindCall                    // C: id of the call, size bytes
	kindReply                   // id of the call, size bytes
	kindAsk                     // C: id is an rkey
	kindGrant                   // id is an rkey; a capability and its access, zero if there is none
	kindPing                    // C
	kindPong
)

// flagMore marks a frame that continues a batch: it is no round of its own.
const flagMore = 1

// A verb in a batch:
//
//	word 0   op(8) | 0(8) | slot(16) | words(32)
//	word 1   address
//	word 2,3 capability
//	         CAS: expected, new    FAA: addend    WRITE: the words
//
// and in the results:
//
//	word 0   status
//	         if OK — READ: the words, word 0 again    CAS, FAA: the old value
const verbWords = 4

// grantWords is the payload of a grant: capability and access.
const grantWords = 3

var errFrame = errors.New("tcp: malformed frame")

// frame is a header.
type frame struct {
	kind  kind
	flags uint8
	count uint16
	size  uint32
	id    uint64
}

func (f frame) word0() uint64 {
	return uint64(f.kind) | uint64(f.flags)<<8 | uint64(f.count)<<16 | uint64(f.size)<<32
}

// payloadWords returns the number of words that follow the header.
func (f frame) payloadWords() int {
	switch f.kind {
	case kindCall, kindReply:
		return wordsOf(int(f.size))
	case kindGrant:
		return grantWords
	case kindBatch, kindResults:
		return int(f.size)
	}
	return 0
}

func wordsOf(bytes int) int { return (bytes + mem.WordBytes - 1) / mem.WordBytes }

// decodeFrame checks what does not depend on the receiver's state.
func decodeFrame(w0, w1 uint64) (frame, error) {
	f := frame{kind: kind(w0), flags: uint8(w0 >> 8), count: uint16(w0 >> 16), size: uint32(w0 >> 32), id: w1}
	ok := f.flags == 0 && f.count == 0
	switch f.kind {
	case kindBatch:
		ok = f.flags&^flagMore == 0 && f.count > 0 && f.count <= rdma.MaxBatch &&
			f.size >= uint32(f.count)*verbWords && f.size <= frameWordsMax
	case kindResults:
		ok = f.flags == 0 && f.count > 0 && f.count <= rdma.MaxBatch &&
			f.size >= uint32(f.count) && f.size <= frameWordsMax
	case kindCall, kindReply:
		ok = ok && f.size <= rdma.MaxMessageBytes
	case kindAsk, kindGrant:
		ok = ok && f.size == 0 && f.id <= 1<<32-1
	case kindPing, kindPong:
		ok = ok && f.size == 0 && f.id == 0
	default:
		ok = false
	}
	if !ok {
		return frame{}, fmt.Errorf("%w: kind %d, flags %d, count %d, size %d, id %d", errFrame, f.kind, f.flags, f.count, f.size, f.id)
	}
	return f, nil
}

// frameWordsMax admits the largest WRITE and the largest READ, and else what
// fits a chunk.
const frameWordsMax = rdma.MaxReadBytes/mem.WordBytes + verbWords

// verb is a decoded work request.
type verb struct {
	op    rdma.Op
	slot  uint16
	words uint32
	addr  uint64
	cap   capability
}

func (v *verb) word0() uint64 {
	return uint64(v.op) | uint64(v.slot)<<16 | uint64(v.words)<<32
}

// decodeVerb decodes the first verbWords of w. It fails only if the rest of the
// frame could not be read. The agent decides whether the verb may be performed.
func decodeVerb(w []uint64) (verb, error) {
	v := verb{
		op: rdma.Op(w[0]), slot: uint16(w[0] >> 16), words: uint32(w[0] >> 32),
		addr: w[1], cap: capability{w[2], w[3]},
	}
	if w[0]>>8&0xff != 0 || v.op == rdma.OpWrite && v.words > rdma.MaxReadBytes/mem.WordBytes {
		return verb{}, fmt.Errorf("%w: %v of %d words", errFrame, v.op, v.words)
	}
	return v, nil
}

// tailWords returns the number of words that follow the verb in its frame.
func (v *verb) tailWords() int {
	switch v.op {
	case rdma.OpWrite:
		return int(v.words)
	case rdma.OpCAS:
		return 2
	case rdma.OpFAA:
		return 1
	}
	return 0
}

// requestWords returns the number of words of a work request in a batch.
func requestWords(wr *rdma.WR) int {
	v := verb{op: wr.Op, words: uint32(len(wr.Buf))}
	return verbWords + v.tailWords()
}

// appendWR encodes a work request.
func appendWR(w []uint64, wr *rdma.WR, slot uint16, c capability) []uint64 {
	v := verb{op: wr.Op, slot: slot, words: uint32(len(wr.Buf))}
	w = append(w, v.word0(), wr.Addr, c[0], c[1])
	switch wr.Op {
	case rdma.OpWrite:
		w = append(w, wr.Buf...)
	case rdma.OpCAS:
		w = append(w, wr.Arg, wr.Swap)
	case rdma.OpFAA:
		w = append(w, wr.Arg)
	}
	return w
}

// word reads the word at the start of b.
func word(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
