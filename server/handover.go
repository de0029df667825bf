package server

import (
	"context"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// handover commits a transaction in which one other server takes part: the
// last agent of two-phase commit. The home prepares its own share and hands
// the decision over to the other, which carries out its share in one step; its
// answer is the decision. That is one message instead of two, and the other
// holds no lock between two messages.
//
//	        start          home: yes          answer
//	idle ----------> voting ---------> handed ------> done
//	                   |                 | lost         ^ ^
//	                   |                 v     told     | |
//	                   |               asking ----------+ |
//	                   +----------------------------------+
//	                     home: no
//
// From handed on the home is in doubt, as a participant is whose coordinator is
// the other: if the answer is lost it asks, and holds its locks until it knows.
// The other remembers that it committed until the home says that it knows it.
// Asked about a transaction that it has not seen, it answers aborted, and
// refuses it should it still come.
type handover struct {
	state       handoverState
	home, other int
}

type handoverState uint8

const (
	handIdle handoverState = iota
	handVoting
	handHanded
	handAsking
	handDone
)

// step takes one event and appends the effects to out. Like coordinator.step it
// ignores what does not belong to its state.
func (h *handover) step(e event, out []effect) []effect {
	switch {
	case e.kind == evStart && h.state == handIdle:
		h.state = handVoting
		out = append(out, effect{kind: doPrepare, server: h.home})
	case e.kind == evVote && e.server == h.home && h.state == handVoting && e.v.ok():
		h.state = handHanded
		out = append(out, effect{kind: doHandOver, server: h.other})
	case e.kind == evVote && e.server == h.home && h.state == handVoting:
		h.state = handDone
		out = append(out, effect{kind: doReply, v: e.v})
	case e.kind == evLost && e.server == h.other && h.state == handHanded:
		h.state = handAsking
		out = append(out, effect{kind: doAsk, server: h.other, v: e.v})
	case e.kind == evVote && e.server == h.other && (h.state == handHanded || h.state == handAsking):
		h.state = handDone
		out = append(out, effect{kind: doDecide, server: h.home, commit: e.v.ok()})
		if e.v.ok() {
			out = append(out, effect{kind: doAcknowledge, server: h.other})
		}
		out = append(out, effect{kind: doReply, v: e.v})
	}
	return out
}

// lastAgent is the server that can be handed the decision on a transaction: the
// only other one with a share, in one partition. Of any other transaction, ok
// is false.
func (s *Server) lastAgent(c *wire.Commit) (other int, ok bool) {
	own, others := 0, 0
	for i := range c.Parts {
		part := int(c.Parts[i].Partition)
		if part >= len(s.primaries) {
			return 0, false
		}
		if server := s.primaries[part]; server == s.cfg.Index {
			own++
		} else {
			others++
			other = server
		}
	}
	return other, own > 0 && others == 1
}

// handoverDriver carries out a handover's effects.
type handoverDriver struct {
	s           *Server
	ctx         context.Context
	sess        *exec.Session
	other       int
	incarnation uint64 // of the other
	msg         wire.Commit
	doubt       *doubt
	told        chan bool
	handed      bool // the other may have decided
}

// handOver commits a transaction whose last agent is other.
func (s *Server) handOver(ctx context.Context, sess *exec.Session, c *wire.Commit, other int) verdict {
	// Before anything is locked: to be in doubt about a server that cannot be
	// reached would be silly.
	reach, cancel := context.WithTimeout(ctx, peerTimeout)
	incarnation, err := sess.Reach(reach, other)
	cancel()
	if err != nil {
		return verdict{code: wire.Unavailable, text: err.Error()}
	}
	id := wire.ID{Client: s.incarnation, Seq: s.coordinated.Add(1)}
	d := &handoverDriver{
		s: s, ctx: ctx, sess: sess, other: other, incarnation: incarnation,
		msg: wire.Commit{ID: id, Parts: c.Parts}, told: make(chan bool, 1),
	}
	h := &handover{home: s.cfg.Index, other: other}
	var result verdict
	var room [4]effect
	for effects := h.step(event{kind: evStart}, room[:0]); len(effects) > 0; effects = effects[1:] {
		switch e := effects[0]; e.kind {
		case doReply:
			result = e.v
		case doDecide:
			s.decide(id, e.commit)
		case doAcknowledge:
			s.owe(e.server, id)
		default:
			effects = h.step(d.perform(e), effects)
		}
	}
	if result.weight() == 1 && !d.handed {
		s.decide(id, false)
		return d.confirm(result)
	}
	return result
}

// confirm is the answer to a transaction whose home refuses a write. The proofs
// held at home at that moment; the refusal counts if those of the other server
// still hold now, later. The home is not asked again: its own placeholders have
// changed what its proofs rest on.
func (d *handoverDriver) confirm(refusal verdict) verdict {
	ctx, cancel := context.WithTimeout(d.ctx, peerTimeout)
	defer cancel()
	reads := wire.Commit{ID: d.msg.ID}
	for i := range d.msg.Parts {
		part := d.msg.Parts[i]
		part.Writes = nil
		reads.Parts = append(reads.Parts, part)
	}
	req := wire.AppendCommit(nil, wire.OpValidate, &reads, func(part uint16) bool { return d.s.primaries[part] == d.other })
	err := d.sess.StartPeer(ctx, d.other, req)
	var resp []byte
	if err == nil {
		resp, err = d.sess.FinishPeer(ctx, d.other)
	}
	if err != nil {
		return verdict{code: wire.Unavailable, text: err.Error()}
	}
	return heavier(refusal, verdictIn(resp))
}

func (d *handoverDriver) perform(e effect) event {
	ev := event{kind: evVote, server: e.server}
	switch e.kind {
	case doPrepare:
		own, other := uint16(d.s.cfg.Index), uint16(d.other)
		d.doubt = &doubt{
			peers: wire.Peers{Coordinator: other, Participants: []uint16{own, other}}, incarnation: d.incarnation, told: d.told,
		}
		ev.v = d.s.vote(&d.msg, d.doubt)
	case doHandOver:
		d.handed = true
		resp, err := d.send()
		if err != nil {
			return event{kind: evLost, server: e.server, v: verdict{code: wire.Unavailable, text: err.Error()}}
		}
		ev.v = verdictIn(resp)
	case doAsk:
		ev.v = d.ask(e.v)
	}
	return ev
}

// acknowledgeMax bounds the acknowledgements that travel with one message.
const acknowledgeMax = 64

// send hands the transaction over, with acknowledgements of earlier ones.
func (d *handoverDriver) send() (resp []byte, err error) {
	ctx, cancel := context.WithTimeout(d.ctx, peerTimeout)
	defer cancel()
	owed := d.s.owed(d.other)
	req := wire.AppendCommit(nil, wire.OpHandOver, &d.msg, func(part uint16) bool { return d.s.primaries[part] == d.other })
	req = wire.AppendIDs(req, owed)
	if err = d.sess.StartPeer(ctx, d.other, req); err == nil {
		resp, err = d.sess.FinishPeer(ctx, d.other)
	}
	if err != nil {
		d.s.owe(d.other, owed...) // to say it twice does no harm
	}
	return resp, err
}

// ask finds out what became of a transaction whose answer was lost: at once if
// the other can be reached, else from the resolver, which goes on asking.
func (d *handoverDriver) ask(lost verdict) verdict {
	d.s.ask(d.ctx, question{d.msg.ID, d.doubt.peers, d.incarnation, 0})
	select {
	case commit := <-d.told:
		if commit {
			return verdict{}
		}
		return lost // and certainly without effect
	case <-d.s.ctx.Done():
		return verdict{code: wire.InDoubt, text: lost.text}
	}
}

// owe notes that another server may forget transactions it was handed.
func (s *Server) owe(server int, ids ...wire.ID) {
	s.doubts.Lock()
	defer s.doubts.Unlock()
	s.doubts.owed[server] = append(s.doubts.owed[server], ids...)
}

// owed takes acknowledgements to send.
func (s *Server) owed(server int) []wire.ID {
	s.doubts.Lock()
	defer s.doubts.Unlock()
	all := s.doubts.owed[server]
	n := min(len(all), acknowledgeMax)
	s.doubts.owed[server] = all[n:]
	return all[:n:n]
}

// handedMax bounds the commits a server remembers for those that handed them
// over. In use there are about as many as connections between servers.
const handedMax = 1 << 16

// commitHanded decides a transaction that was handed over: it takes this
// server's share of it in one step, or refuses.
func (s *Server) commitHanded(c *wire.Commit, forget []wire.ID) verdict {
	p := s.single(c)
	if p == nil {
		return verdict{code: wire.Bad, text: "a transaction handed over with no share, or several, for this server"}
	}
	s.doubts.Lock()
	for _, id := range forget {
		delete(s.doubts.handed, id)
	}
	_, known := s.doubts.part.decided[c.ID]
	switch {
	case known, s.doubts.handed[c.ID], s.doubts.active[c.ID], s.doubts.part.doubt[c.ID] != nil:
		s.doubts.Unlock()
		return verdict{code: wire.Bad, text: "a transaction handed over repeatedly or late"}
	case len(s.doubts.handed) >= handedMax:
		s.doubts.Unlock()
		return verdict{code: wire.Unavailable, text: "too many transactions handed over and not acknowledged"}
	}
	s.doubts.active[c.ID] = true // a question that comes meanwhile is answered when it is decided
	s.doubts.Unlock()

	p.mu.Lock()
	v := p.commit(&c.Parts[0])
	p.mu.Unlock()

	s.doubts.Lock()
	defer s.doubts.Unlock()
	delete(s.doubts.active, c.ID)
	s.doubts.part.remember(c.ID, v.ok())
	if v.ok() {
		s.doubts.handed[c.ID] = true
	}
	return v
}

func (s *Server) handleHandOver(r *rdma.Request, w *work, d *wire.Decoder) {
	err := w.commit.Decode(d)
	if err == nil {
		w.ids, err = d.IDs(w.ids)
	}
	if err != nil {
		s.refuse(r, err.Error())
		return
	}
	s.handovers.Add(1)
	w.resp = s.commitHanded(&w.commit, w.ids).append(w.resp[:0])
	s.reply(r, w.resp)
}
