package exec

import (
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A session keeps the buffers of a transaction for the next one, unless they are
// large: then it frees them.
const (
	// keptBytes bounds the memory of a transaction that is kept.
	keptBytes = 8 << 20
	// The approximate memory of an operation, and of an entry of a scan, without the
	// bytes of rows.
	bytesPerOperation = 1 << 10
	bytesPerEntry     = 256
)

// footprint estimates how many bytes of memory the transaction has used.
func (t *Txn) footprint() int {
	return t.volume + (t.nGet+t.nScan+t.writes.n)*bytesPerOperation
}

// giveBack drops the transaction's buffers if they are too large to keep, and reports
// whether it did.
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

// giveBack drops the session's buffers after a transaction that has used too much
// memory.
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
		if l != nil && l.pending.until == 0 { // else the batches belong to the connection
			l.done, l.next, l.part = new(rdma.Batch), new(rdma.Batch), rdma.Batch{}
		}
	}
}
