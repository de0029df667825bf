package exec

import (
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A session keeps the buffers of a transaction for the next one, unless they are
// large: then it gives the memory back.
const (
	// keptBytes bounds the memory of a transaction that is kept.
	keptBytes = 8 << 20
	// What an operation, and a row of a scan, take beside the bytes of rows,
	// about.
	bytesPerOperation = 1 << 10
	bytesPerEntry     = 256
)

// footprint is about how much memory the transaction has used.
func (t *Txn) footprint() int {
	return t.volume + (t.nGet+t.nScan+t.writes.n)*bytesPerOperation
}

// giveBack ends the transaction's use of memory. It reports whether there was
// too much to keep.
func (t *Txn) giveBack() bool {
	large := t.footprint() > keptBytes
	t.volume = 0
	if large {
		t.gets, t.scans, t.used, t.nGet, t.nScan, t.flushed = nil, nil, nil, 0, 0, 0
		t.reads, t.keys, t.writes = readsByKey{}, keyArena{}, writeSet{}
		t.writes.init()
	}
	return large
}

// giveBack ends a transaction's use of the session's memory.
func (s *Session) giveBack() {
	if !s.txn.giveBack() {
		return
	}
	for i, p := range s.pools {
		if p != nil {
			s.pools[i] = &opPool{client: p.client, server: p.server, began: p.began}
		}
	}
	s.touched, s.active, s.proofs, s.words, s.controlled, s.reads = nil, nil, nil, nil, nil, nil
	s.commit, s.req, s.resp = wire.Commit{}, nil, nil
	for _, l := range s.links {
		if l != nil && l.owes.until == 0 { // else the batches belong to the connection
			l.done, l.next, l.part = new(rdma.Batch), new(rdma.Batch), rdma.Batch{}
		}
	}
}
