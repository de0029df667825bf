package server

import (
	"sync"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// outcomes makes commits exactly-once. A client session sends one transaction
// at a time under ascending numbers, so its last one is all there is to
// remember: a repeated request gets the answer the first one got, and a
// request older than the last is refused.
//
// Sessions are forgotten two generations after their last use.
type outcomes struct {
	mu       sync.Mutex
	now, old map[uint64]*fate
}

// fate is the state of a session's last transaction.
type fate struct {
	owner   rdma.Identity // who used the session first
	seq     uint64
	done    bool
	resp    []byte
	waiting []*rdma.Request // repeats of a request still running
}

const outcomeGeneration = 1 << 16 // sessions

func newOutcomes() *outcomes { return &outcomes{now: map[uint64]*fate{}, old: map[uint64]*fate{}} }

func (o *outcomes) find(client uint64) *fate {
	f := o.now[client]
	if f == nil {
		if f = o.old[client]; f == nil {
			f = &fate{}
		}
		if len(o.now) >= outcomeGeneration {
			o.rotate()
		}
		o.now[client] = f
	}
	return f
}

// rotate drops the older generation, except what still runs.
func (o *outcomes) rotate() {
	next := map[uint64]*fate{}
	for c, f := range o.old {
		if !f.done && f.seq > 0 {
			next[c] = f
		}
	}
	o.old, o.now = o.now, next
}

// begin admits a request, or answers it: the same one came before.
func (o *outcomes) begin(id wire.ID, r *rdma.Request) (run bool) {
	if id.Seq == 0 { // a session begins at 1: 0 is a fate without a transaction
		_ = r.Reply(verdict{code: wire.Bad, text: "transaction number 0"}.append(nil))
		return false
	}
	o.mu.Lock()
	f := o.find(id.Client)
	switch {
	case !f.belongsTo(r.From):
		o.mu.Unlock()
		refuseSession(r)
		return false
	case id.Seq > f.seq && (f.done || f.seq == 0):
		f.seq, f.done = id.Seq, false
		o.mu.Unlock()
		return true
	case id.Seq == f.seq && !f.done:
		f.waiting = append(f.waiting, r)
		o.mu.Unlock()
		return false
	case id.Seq == f.seq:
		resp := append([]byte(nil), f.resp...)
		o.mu.Unlock()
		_ = r.Reply(resp)
		return false
	}
	o.mu.Unlock()
	_ = r.Reply(verdict{code: wire.Bad, text: "transaction number out of order"}.append(nil))
	return false
}

// end records the answer and sends it.
func (o *outcomes) end(id wire.ID, r *rdma.Request, resp []byte) {
	o.mu.Lock()
	f := o.find(id.Client)
	f.done = true
	f.resp = append(f.resp[:0], resp...)
	waiting := f.waiting
	f.waiting = nil
	o.mu.Unlock()
	_ = r.Reply(resp)
	for _, w := range waiting {
		_ = w.Reply(resp)
	}
}

// belongsTo reports whether the session is the peer's, which it is from the
// first request on. Numbers of sessions are random, so that a client which has
// not heard of a session cannot be the first.
func (f *fate) belongsTo(who *rdma.Identity) bool {
	if f.owner.Role == rdma.RoleNone {
		f.owner = *who
	}
	return f.owner.Same(who)
}

func refuseSession(r *rdma.Request) {
	v := verdict{code: wire.Forbidden, text: "the session is another client's"}
	_ = r.Reply(v.append(nil)) // a peer that is gone needs no refusal
}

// ask answers what became of a transaction to the client whose session it is;
// others get a refusal and false. Unless peek, a transaction never heard of is
// refused from now on.
func (o *outcomes) ask(id wire.ID, peek bool, r *rdma.Request) (allowed bool) {
	o.mu.Lock()
	f := o.now[id.Client]
	if f == nil {
		f = o.old[id.Client]
	}
	resp := []byte{byte(wire.Unknown)}
	switch {
	case f != nil && !f.belongsTo(r.From):
		o.mu.Unlock()
		refuseSession(r)
		return false
	case f != nil && f.seq == id.Seq && !f.done:
		f.waiting = append(f.waiting, r)
		o.mu.Unlock()
		return true
	case f != nil && f.seq == id.Seq:
		resp = append([]byte(nil), f.resp...)
	case !peek && (f == nil || f.seq < id.Seq):
		f = o.find(id.Client)
		f.belongsTo(r.From)
		f.seq, f.done, f.resp = id.Seq, true, append(f.resp[:0], byte(wire.Aborted))
	}
	o.mu.Unlock()
	_ = r.Reply(resp)
	return true
}
