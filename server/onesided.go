package server

import (
	"errors"
	"sync"

	"drtmx/index/engine"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// oneSided are the clients that write indexes themselves, with WRITEs and atomics: see package
// rolex. A client names each of its writers; the name is the client half of the IDs of its
// transactions. The server learns of those only when it settles the writer: then it remembers the
// last one like the transactions that it has executed itself.
type oneSided struct {
	s *Server

	mu      sync.Mutex // taken with the lock of an index held
	of      map[uint64]*clientWriter
	peer    map[rdma.PeerID]int // writers of each
	opened  uint64              // counted
	settled uint64
}

// clientWriter is a writer of one index in one partition.
type clientWriter struct {
	name  uint64
	peer  rdma.PeerID
	who   *rdma.Identity
	ix    *hosted
	owner engine.Owner
}

func (h *hosted) written() engine.ClientWritten { return h.Server.(engine.ClientWritten) }

// handle serves an OpWriter.
func (os *oneSided) handle(r *rdma.Request, w *work, d *wire.Decoder) {
	var q wire.WriterRequest
	p := (*partition)(nil)
	err := q.Decode(d)
	if err == nil {
		p = os.s.parts.get(q.Partition)
	}
	if err != nil || p == nil || q.Name == 0 {
		os.s.answers.refuse(r, "malformed request of a writer, or for a partition that is not here")
		return
	}
	if !os.s.permissions.permitTable(r, q.Index) {
		return
	}
	v := verdict{}
	if w.resp = append(w.resp[:0], byte(wire.OK)); q.Step == wire.WriterOpen {
		v = os.open(p, &q, r, w)
	} else {
		v = os.extend(p, &q, r, w)
	}
	if !v.ok() {
		w.resp = v.append(w.resp[:0])
	}
	os.s.answers.reply(r, w.resp)
}

// open makes a peer a writer, or tells one that is a writer already how to go on after the index
// was fenced.
func (os *oneSided) open(p *partition, q *wire.WriterRequest, r *rdma.Request, w *work) verdict {
	p.mu.Lock() // the catalogue does not change meanwhile
	defer p.mu.Unlock()
	if v := p.serves(); !v.ok() {
		return v
	}
	has := p.has.Load()
	if q.Index >= len(has.indexes) || q.Catalog > has.catalog.Version() || has.catalog.Indexes[q.Index].Table.ChangedIn() > q.Catalog {
		return conflict(exec.CauseCatalog)
	}
	h := has.indexes[q.Index]
	if h.leaves == nil {
		return verdict{code: wire.Bad, text: "clients do not write index " + h.def.Name}
	}
	apart, refusal := os.admit(h, r.Peer)
	if refusal != "" {
		return verdict{code: wire.Unavailable, text: refusal}
	}
	o, err := h.written().Open(r.Peer, h.leaves.key)
	if err != nil {
		return verdict{code: wire.Unavailable, text: err.Error()}
	}
	if !os.enter(&clientWriter{q.Name, r.Peer, r.From, h, o.Owner}) {
		if !os.named(h, o.Owner) { // the number is free for others, and the client has lost its connection
			os.s.workers.background(func() { _, _ = h.written().Settle(o.Owner, r.Peer) })
		}
		return verdict{code: wire.Bad, text: "the writer's name is in use"}
	}
	if err := os.s.ep.Grant(r.Peer, h.leaves.key, rdma.AccessWrite|rdma.AccessAtomic); err != nil {
		os.s.workers.background(func() { os.settle(q.Name) }) // it may have gone
		return verdict{code: wire.Unavailable, text: err.Error()}
	}
	if apart && h.leaves.device.hasFailed() { // meanwhile
		os.s.ep.Revoke(r.Peer)
		return verdict{code: wire.Unavailable, text: deviceFailed}
	}
	l := h.written().Options()
	opened := wire.Opened{
		ID: o.ID, Owner: uint16(o.Owner), Key: uint32(o.Key), Fence: o.Fence, First: o.First,
		SlotsPerLeaf: uint16(l.SlotsPerLeaf), Writers: uint16(l.Writers), Checksums: l.Checksums,
	}
	w.resp = opened.Append(w.resp)
	return verdict{}
}

var writerSettled = verdict{code: wire.Unavailable, text: "the writer has been settled"}

// extend gives a writer leaves for splits.
func (os *oneSided) extend(p *partition, q *wire.WriterRequest, r *rdma.Request, w *work) verdict {
	os.mu.Lock()
	cw := os.of[q.Name]
	os.mu.Unlock()
	if cw == nil || cw.peer != r.Peer || q.Index >= len(p.has.Load().indexes) || p.has.Load().indexes[q.Index] != cw.ix {
		return writerSettled
	}
	got, err := cw.ix.written().Extend(cw.owner, r.Peer)
	if errors.Is(err, engine.ErrFenced) { // meanwhile
		return writerSettled
	}
	if err != nil {
		return verdict{code: wire.OutOfMemory, text: err.Error()}
	}
	var spares []wire.Spare
	for _, s := range got[:min(len(got), wire.MaxSpares)] {
		spares = append(spares, wire.Spare{Addr: s.Addr, Header: uint64(s.Header)})
	}
	w.resp = wire.AppendSpares(w.resp, spares)
	return verdict{}
}

// enter notes a writer. It returns false if another one has the name.
func (os *oneSided) enter(w *clientWriter) bool {
	os.mu.Lock()
	defer os.mu.Unlock()
	if was := os.of[w.name]; was != nil {
		return was.peer == w.peer && was.ix == w.ix && was.owner == w.owner
	}
	if os.byOwner(w.ix, w.owner) != nil {
		return false // under another name: whose its last transaction is would not be known
	}
	os.opened++
	os.of[w.name] = w
	os.peer[w.peer]++
	return true
}

// byOwner returns the writer with a number in an index, nil if it has no name.
func (os *oneSided) byOwner(h *hosted, o engine.Owner) *clientWriter {
	for _, w := range os.of {
		if w.ix == h && w.owner == o {
			return w
		}
	}
	return nil
}

// named reports whether a writer has a name.
func (os *oneSided) named(h *hosted, o engine.Owner) bool {
	os.mu.Lock()
	defer os.mu.Unlock()
	return os.byOwner(h, o) != nil
}

// leave forgets a writer.
func (os *oneSided) leave(w *clientWriter) {
	if os.of[w.name] != w {
		return
	}
	delete(os.of, w.name)
	if os.peer[w.peer]--; os.peer[w.peer] == 0 {
		delete(os.peer, w.peer)
	}
}

// onSettled remembers the last transaction of a writer of an index that was settled.
func (os *oneSided) onSettled(h *hosted) func(engine.Owner, uint64) {
	return func(o engine.Owner, committed uint64) {
		os.mu.Lock()
		defer os.mu.Unlock()
		w := os.byOwner(h, o)
		if w == nil {
			return
		}
		os.settled++
		if committed != 0 {
			os.s.outcomes.written(wire.ID{Client: w.name, Seq: committed}, w.who)
		}
		os.leave(w)
	}
}

// has reports whether a peer's writer with a name has not been settled.
func (os *oneSided) has(name uint64, who *rdma.Identity) bool {
	os.mu.Lock()
	defer os.mu.Unlock()
	w := os.of[name]
	return w != nil && w.who.Same(who)
}

// counts returns how many writers there are, and how many were opened and settled so far.
func (os *oneSided) counts() (now int, opened, settled uint64) {
	os.mu.Lock()
	defer os.mu.Unlock()
	return len(os.of), os.opened, os.settled
}

// settle settles a writer: nothing of it takes effect from then on, and its last transaction
// is known.
func (os *oneSided) settle(name uint64) {
	os.mu.Lock()
	w := os.of[name]
	os.mu.Unlock()
	if w == nil {
		return
	}
	if _, err := w.ix.written().Settle(w.owner, w.peer); err != nil { // the index has settled it before it was noted
		os.mu.Lock()
		defer os.mu.Unlock()
		os.leave(w)
	}
}

// disconnected settles the writers of a peer that has gone.
func (os *oneSided) disconnected(peer rdma.PeerID) {
	os.mu.Lock()
	n := os.peer[peer]
	os.mu.Unlock()
	if n == 0 {
		return
	}
	os.s.workers.background(func() {
		os.mu.Lock()
		var names []uint64
		for name, w := range os.of {
			if w.peer == peer {
				names = append(names, name)
			}
		}
		os.mu.Unlock()
		for _, name := range names {
			os.settle(name)
		}
	})
}
