package shm

import (
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// The agent is the part of a poller that performs WRITEs and atomics for clients, whose
// mappings of the server's memory are read-only. So nothing of a client takes effect once
// the server has stopped to perform its verbs, whatever the client does: see Revoke.

// agent is the server's side of a connection's verbs. It is the poller's.
type agent struct {
	verbs, results mem.Span
	seq            uint32 // of the verbs performed last
	extra          provide.Extra
}

// performVerbs performs the verbs in the connection's slot, if there are new ones, and
// reports whether there were any. It trusts nothing in the slot: what does not follow the
// protocol ends the connection.
func (c *serverConn) performVerbs() bool {
	seq, words := c.request.verbs()
	if seq == c.agent.seq {
		return false
	}
	c.mu.Lock() // until they are performed: see Revoke
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	err := errWire
	if seq == c.agent.seq+1 && words <= c.agent.verbs.Words() {
		c.agent.seq = seq
		err = c.performAll(c.agent.verbs.Slice(0, words))
	}
	if err != nil {
		c.mu.Unlock()
		c.violate()
		c.mu.Lock()
		return false
	}
	c.longest = max(c.longest, words*mem.WordBytes)
	c.link.responses.Or(c.word, c.mask)
	return true
}

// performAll performs verbs in their order, and publishes the results.
func (c *serverConn) performAll(verbs mem.Span) error {
	began, results := time.Now(), 0
	for at := 0; at < verbs.Words(); {
		v, err := decodeVerb(verbs.Slice(at, verbs.Words()-at))
		if err != nil {
			return err
		}
		if results == rdma.MaxBatch {
			return errWire
		}
		at += verbWords
		old := uint64(0)
		s, status := c.target(&v)
		if status == rdma.StatusOK {
			switch v.op {
			case rdma.OpWrite:
				s.CopySpan(verbs.Slice(at, v.words))
			case rdma.OpCAS:
				old = provide.CompareAndSwap(s, v.arg, v.swap)
			case rdma.OpFAA:
				old = s.Add(0, v.arg) - v.arg
			}
		}
		at += v.bodyWords()
		c.count.CountVerb(v.op, v.words, status)
		r := c.agent.results.Slice(results*resultWords, resultWords)
		r.Store(0, uint64(status))
		r.Store(1, old)
		results++
	}
	c.link.e.Spent(began)
	c.response.publishVerbs(c.agent.seq, results*resultWords)
	return nil
}

// target returns the memory that a verb may change, or the status of its refusal. READs are
// the clients' own.
func (c *serverConn) target(v *verb) (mem.Span, rdma.Status) {
	e := c.link.e
	need, words := provide.Need(v.op, v.words)
	if need == 0 || v.op == rdma.OpRead {
		e.Refuse(refusedVerb)
		return mem.Span{}, rdma.StatusUnsupported
	}
	g, ok := e.Region(v.rkey)
	if !ok || (g.Access|c.agent.extra.Of(v.rkey))&need == 0 || !c.link.who.MayRead() {
		e.Refuse(refusedRight)
		return mem.Span{}, rdma.StatusAccess
	}
	if s, ok := g.Region.Span(v.addr, uint64(words)*mem.WordBytes); ok && words > 0 {
		return s, rdma.StatusOK
	}
	e.Refuse(refusedBounds)
	return mem.Span{}, rdma.StatusAccess
}

// Grant implements rdma.Endpoint.
func (e *endpoint) Grant(peer rdma.PeerID, k rdma.RKey, a rdma.Access) error {
	c := e.connOf(peer)
	up := false
	if c != nil {
		c.mu.Lock() // it has not ended yet, so OnDisconnect comes later
		defer c.mu.Unlock()
		up = !c.ended
	}
	if err := e.CheckGrant(peer, up, up && c.link.who.MayRead(), k); err != nil {
		return err
	}
	c.agent.extra.Add(k, a)
	return nil
}

// Revoke implements rdma.Endpoint.
func (e *endpoint) Revoke(peer rdma.PeerID) {
	if c := e.connOf(peer); c != nil {
		c.expel() // the agent holds the connection's lock, as expel does
	}
}

// connOf returns the connection of a peer, nil if it is not connected.
func (e *endpoint) connOf(peer rdma.PeerID) *serverConn {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.mu.peers {
		if l == nil {
			continue
		}
		for i := range int(l.used.Load()) {
			if c := l.conns[i].Load(); c != nil && c.peer == peer {
				return c
			}
		}
	}
	return nil
}
