package exec

import (
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A session keeps the buffers of a transaction for the next one, unless they are
// large: then it frees them. The more sessions a DB has, the less each keeps.
const (
	// keptBytes bounds the memory of a transaction that is kept.
	keptBytes = 8 << 20
	// keptTogether bounds what the sessions of a DB keep, as long as each has keptLeast:
	// enough for most transactions, which would otherwise allocate everything anew.
	keptTogether = 64 << 20
	keptLeast    = 64 << 10
	// The approximate memory of an operation, and of an entry of a scan, without the
	// bytes of rows.
	bytesPerOperation = 1 << 10
	bytesPerEntry     = 256
)

// footprint estimates how many bytes of memory the transaction has used.
func (t *Txn) footprint() int {
	return t.volume + (t.reads.n()+t.writes.n)*bytesPerOperation
}

// giveBack drops the transaction's buffers if they have grown to more than so many bytes,
// and reports whether it did.
func (t *Txn) giveBack(most int) bool {
	t.held = max(t.held, t.footprint())
	large := t.held > most
	t.volume = 0
	if large {
		t.held, t.used = 0, nil
		t.reads, t.keys, t.writes, t.entryOf = readSet{}, keyArena{}, writeSet{}, entryBuffers{}
		t.writes.init()
	}
	return large
}

// share returns how many bytes of buffers each of so many sessions may keep.
func share(sessions int32) int {
	return min(keptBytes, max(keptLeast, keptTogether/int(max(sessions, 1))))
}

// shareAnew makes idle sessions drop what is more than their share, each time that the
// number of sessions has doubled. Those in use do so when their transactions end.
func (g *gate) shareAnew(sessions int32) {
	if sessions&(sessions-1) != 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.mu.idle {
		s.giveBack()
	}
}

// giveBack drops the session's buffers if they have grown too large.
func (s *Session) giveBack() {
	if !s.txn.giveBack(share(s.db.sessions.Load())) {
		return
	}
	s.commit, s.round.touched = wire.Commit{}, nil
	s.reader.giveBack()
	s.validator.proofs, s.validator.words, s.validator.controlled = nil, nil, nil
	s.net.giveBack()
}

// giveBack drops the buffers of all operations.
func (rd *reader) giveBack() {
	for i, p := range rd.pools {
		if p != nil {
			rd.pools[i] = &opPool{client: p.client, server: p.server, attempt: p.attempt}
		}
	}
	rd.active, rd.requests = nil, nil
}

// giveBack drops the buffers of messages and of batches.
func (n *network) giveBack() {
	n.req, n.resp = nil, nil
	for _, l := range n.links {
		if l != nil && l.pending.until == 0 { // else the batches belong to the connection
			l.done, l.next, l.part = new(rdma.Batch), new(rdma.Batch), rdma.Batch{}
		}
	}
}
