package server

import (
	"container/list"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// accounts charges each remembered outcome to a connection or an identity, and bounds
// the bytes of the kept answers. The lock of outcomes guards it.
type accounts struct {
	of    map[accountKey]*account
	bytes int // total size of the kept answers
}

const (
	// answersMax bounds the kept answers of all accounts together, in bytes,
	// answersOfAccountMax those of one account.
	answersMax          = 64 << 20
	answersOfAccountMax = 4 << 20
)

// accountKey is a connection, or an identity whose connections are gone.
type accountKey struct {
	peer   rdma.PeerID
	gone   string // identity
	closed bool   // of a gone identity: for sessions that said goodbye
}

type account struct {
	key   accountKey
	who   string
	fates list.List // of *fate, least recently used first
	bytes int
}

// get returns the account of a key, a new one if there is none, for sessions of an
// identity.
func (s *accounts) get(k accountKey, who string) *account {
	a := s.of[k]
	if a == nil {
		a = &account{key: k, who: who}
		s.of[k] = a
	}
	return a
}

// charge charges a fate to an account, as its most recently used one.
func (s *accounts) charge(f *fate, a *account) {
	f.of, f.at = a, a.fates.PushBack(f)
	a.bytes += cap(f.resp)
}

// leave removes a fate from its account, and the account with its last fate.
func (s *accounts) leave(f *fate) {
	f.of.fates.Remove(f.at)
	f.of.bytes -= cap(f.resp)
	if f.of.fates.Len() == 0 {
		delete(s.of, f.of.key)
	}
}

// keep stores the answer of a fate. If a bound is exceeded, accounts lose the results
// of their oldest answers.
func (s *accounts) keep(f *fate, resp []byte) {
	s.resize(f, append(f.resp[:0], resp...))
	if cap(f.resp) > 4*len(resp)+64 {
		s.resize(f, append([]byte(nil), resp...))
	}
	s.shrink(f.of, answersOfAccountMax)
	for s.bytes > answersMax {
		fair := answersMax / len(s.of)
		over := f.of
		for _, a := range s.of {
			if over.bytes > fair {
				break
			}
			over = a
		}
		before := s.bytes
		if s.shrink(over, fair); s.bytes == before {
			return // the rest belongs to running requests
		}
	}
}

func (s *accounts) resize(f *fate, resp []byte) {
	n := cap(resp) - cap(f.resp)
	f.resp = resp
	f.of.bytes += n
	s.bytes += n
}

// shrink drops results, the oldest first, until an account is within a bound.
func (s *accounts) shrink(a *account, bound int) {
	for e := a.fates.Front(); e != nil && a.bytes > bound; e = e.Next() {
		s.dropResult(e.Value.(*fate))
	}
}

// dropResult reduces an answer to the outcome of the transaction.
func (s *accounts) dropResult(f *fate) {
	switch {
	case !f.done || cap(f.resp) <= 2:
	case wire.Code(f.resp[0]) == wire.OK && len(f.resp) > 1:
		s.resize(f, []byte{byte(wire.ResultLost)})
	default:
		s.resize(f, append(make([]byte, 0, 2), f.resp[:min(len(f.resp), 2)]...))
	}
}
