package shm

import (
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// A verb for the server's agent is verbWords words, and after them the words of a WRITE:
//
//	verb    op<<56 | words<<32 | rkey, address, argument of an atomic, new value of a CAS
//	result  status, old value of an atomic
const (
	verbWords   = 4
	resultWords = 2

	verbOpShift    = 56
	verbWordsShift = 32
	verbWordsMask  = 1<<(verbOpShift-verbWordsShift) - 1
)

const _ uint = verbWordsMask - rdma.MaxReadBytes/mem.WordBytes

// verb is a WRITE or an atomic as it stands in the verbs' area.
type verb struct {
	op        rdma.Op
	words     int
	rkey      rdma.RKey
	addr      uint64
	arg, swap uint64
}

// bodyWords is how many words follow the verb.
func (v *verb) bodyWords() int {
	if v.op == rdma.OpWrite {
		return v.words
	}
	return 0
}

func (v *verb) encode(s mem.Span) {
	s.Store(0, uint64(v.op)<<verbOpShift|uint64(v.words)<<verbWordsShift|uint64(v.rkey))
	s.Store(1, v.addr)
	s.Store(2, v.arg)
	s.Store(3, v.swap)
}

// decodeVerb loads each word of a verb once, because the peer may change them at any time.
// The words that follow it are within s too.
func decodeVerb(s mem.Span) (verb, error) {
	if s.Words() < verbWords {
		return verb{}, fmt.Errorf("%w: %d words of a verb", errWire, s.Words())
	}
	w := s.Load(0)
	v := verb{
		op: rdma.Op(w >> verbOpShift), words: int(w >> verbWordsShift & verbWordsMask), rkey: rdma.RKey(uint32(w)),
		addr: s.Load(1), arg: s.Load(2), swap: s.Load(3),
	}
	if v.bodyWords() > s.Words()-verbWords {
		return verb{}, fmt.Errorf("%w: a WRITE of %d words, of which %d follow", errWire, v.words, s.Words()-verbWords)
	}
	return v, nil
}
