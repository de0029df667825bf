package server

import (
	"context"
	"errors"
	"strings"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// coordinate commits a transaction of several partitions from its home server.
// It runs in a goroutine of its own, with a session to the other servers.
func (s *Server) coordinate(ctx context.Context, sess *exec.Session, c *wire.Commit) verdict {
	if other, ok := s.lastAgent(c); ok {
		return s.handOver(ctx, sess, c, other)
	}
	id := wire.ID{Client: s.incarnation, Seq: s.coordinated.Add(1)}
	d := &driver{s: s, ctx: ctx, sess: sess, id: id, msg: wire.Commit{ID: id, Parts: c.Parts}}
	for i := range c.Parts {
		if int(c.Parts[i].Partition) >= len(s.primaries) {
			return verdict{code: wire.Bad, text: "no such partition"}
		}
		d.addServer(s.primaries[c.Parts[i].Partition])
	}
	d.peers.Coordinator = uint16(s.cfg.Index)
	s.doubts.Lock()
	s.doubts.active[id] = true
	s.doubts.Unlock()
	return d.run()
}

// driver carries out a coordinator's effects.
type driver struct {
	s     *Server
	ctx   context.Context
	sess  *exec.Session
	id    wire.ID
	msg   wire.Commit
	peers wire.Peers
	order []int
	buf   []byte
}

func (d *driver) addServer(server int) {
	for _, have := range d.order {
		if have == server {
			return
		}
	}
	d.order = append(d.order, server)
	d.peers.Participants = append(d.peers.Participants, uint16(server))
}

func (d *driver) run() verdict {
	co := newCoordinator(d.order)
	effects := co.step(event{kind: evStart}, nil)
	var result verdict
	for len(effects) > 0 {
		var events []event
		events, result = d.perform(effects, result)
		effects = effects[:0]
		for _, e := range events {
			effects = co.step(e, effects)
		}
	}
	return result
}

// perform carries out a batch of effects: requests to other servers go out
// before this server's own share is done, and are awaited after it.
func (d *driver) perform(effects []effect, result verdict) (events []event, _ verdict) {
	started := map[int]error{}
	ctx, cancel := context.WithTimeout(d.ctx, peerTimeout)
	defer cancel()
	for _, e := range effects {
		switch e.kind {
		case doRecord:
			d.s.doubts.Lock()
			d.s.doubts.committed[d.id] = true
			d.s.doubts.Unlock()
		case doReply:
			result = e.v
			d.s.doubts.Lock()
			delete(d.s.doubts.active, d.id)
			d.s.doubts.Unlock()
		case doForget:
			d.s.doubts.Lock()
			delete(d.s.doubts.committed, d.id)
			d.s.doubts.Unlock()
		case doPrepare, doDecide:
			if e.server != d.s.cfg.Index {
				started[e.server] = d.sess.StartPeer(ctx, e.server, d.request(e))
			}
		}
	}
	for _, e := range effects {
		if e.kind != doPrepare && e.kind != doDecide {
			continue
		}
		if e.server == d.s.cfg.Index {
			events = append(events, d.own(e))
			continue
		}
		resp, err := d.finish(ctx, e, started[e.server])
		events = append(events, d.answer(e, resp, err))
	}
	return events, result
}

// finish awaits the answer to a request. A decision that was lost with its
// connection is sent again: until it arrives the participant keeps its locks.
func (d *driver) finish(ctx context.Context, e effect, started error) (resp []byte, err error) {
	if err = started; err == nil {
		resp, err = d.sess.FinishPeer(ctx, e.server)
	}
	for n := 0; err != nil && e.kind == doDecide && n < decideRetries && ctx.Err() == nil; n++ {
		if err = d.sess.StartPeer(ctx, e.server, d.request(e)); err == nil {
			resp, err = d.sess.FinishPeer(ctx, e.server)
		}
	}
	return resp, err
}

func (d *driver) request(e effect) []byte {
	if e.kind == doDecide {
		d.buf = append(wire.AppendID(append(d.buf[:0], byte(wire.OpDecide)), d.id), boolByte(e.commit))
		return d.buf
	}
	d.buf = wire.AppendCommit(d.buf[:0], wire.OpPrepare, &d.msg, func(part uint16) bool {
		return d.s.primaries[part] == e.server
	})
	d.buf = wire.AppendPeers(d.buf, &d.peers)
	return d.buf
}

func (d *driver) own(e effect) event {
	if e.kind == doDecide {
		d.s.decide(d.id, e.commit)
		return event{kind: evAck, server: e.server}
	}
	return event{kind: evVote, server: e.server, v: d.s.prepare(&d.msg, &d.peers)}
}

// answer makes an event of a participant's response. One that does not answer
// a prepare may hold locks; one that does not answer a decision will ask, or
// is gone with its memory.
func (d *driver) answer(e effect, resp []byte, err error) event {
	switch {
	case e.kind == doDecide && err != nil:
		return event{kind: evUnheard, server: e.server}
	case e.kind == doDecide:
		return event{kind: evAck, server: e.server}
	case err != nil:
		return event{kind: evLost, server: e.server, v: verdict{code: wire.Unavailable, text: err.Error()}}
	}
	return event{kind: evVote, server: e.server, v: verdictIn(resp)}
}

// verdictIn is the verdict that another server's answer holds.
func verdictIn(resp []byte) verdict {
	v := verdict{code: wire.Code(resp[0])}
	if v.code == wire.Conflict {
		v.cause = exec.CauseRemote
		if len(resp) > 1 && exec.Cause(resp[1]) < exec.CauseCount {
			v.cause = exec.Cause(resp[1])
		}
	} else {
		v.text = string(resp[1:])
	}
	return v
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// prepare votes on this server's parts of a distributed transaction.
func (s *Server) prepare(c *wire.Commit, peers *wire.Peers) verdict {
	// Transactions bear the incarnation of the server that coordinates them.
	return s.vote(c, &doubt{
		peers:       wire.Peers{Coordinator: peers.Coordinator, Participants: append([]uint16(nil), peers.Participants...)},
		incarnation: c.ID.Client,
	})
}

// vote prepares this server's parts; if the vote is yes they are in doubt d.
func (s *Server) vote(c *wire.Commit, d *doubt) verdict {
	s.doubts.Lock()
	if _, known := s.doubts.part.decided[c.ID]; known || s.doubts.part.doubt[c.ID] != nil {
		s.doubts.Unlock()
		return verdict{code: wire.Bad, text: "prepare repeated or late"}
	}
	// Entered before the locks are taken: a question that comes meanwhile
	// must find it in doubt.
	s.doubts.part.doubt[c.ID] = d
	s.doubts.Unlock()

	sh, _ := s.shareOf(c)
	parts, v := sh.prepare()
	if v.ok() && len(parts) == 0 {
		v = verdict{code: wire.Bad, text: "prepare of nothing that is here"}
	}
	holds := v.weight() < 2 // something, until the decision
	s.doubts.Lock()
	aborted := s.doubts.part.doubt[c.ID] != d // decided against while preparing
	if holds && !aborted {
		d.parts = parts
	} else {
		s.doubts.part.decide(c.ID, false)
	}
	s.doubts.Unlock()
	if holds && !aborted {
		return v
	}
	for _, t := range parts {
		t.decide(false)
	}
	if v.ok() {
		v = conflict(exec.CauseRemote)
	}
	return v
}

// decide applies or releases what prepare locked. Repeats do nothing.
func (s *Server) decide(id wire.ID, commit bool) {
	s.doubts.Lock()
	d := s.doubts.part.decide(id, commit)
	var parts []*prepared
	if d != nil {
		parts = d.parts
	}
	s.doubts.Unlock()
	for _, t := range parts {
		t.decide(commit)
	}
	if d != nil && d.told != nil {
		d.told <- commit // decided once: it has room
	}
}

// resolve answers another server's question about a distributed transaction.
func (s *Server) resolve(id wire.ID) wire.Code {
	s.doubts.Lock()
	defer s.doubts.Unlock()
	switch {
	case s.doubts.committed[id], s.doubts.handed[id]:
		return wire.OK
	case s.doubts.active[id]:
		return wire.InDoubt
	}
	return s.doubts.part.ask(id)
}

const (
	// peerTimeout bounds the wait for one answer of a participant. One that
	// does not vote in time is taken to have refused.
	peerTimeout   = 2 * time.Second
	decideRetries = 3

	resolveEvery = 100 * time.Millisecond
	// resolveAfter ticks a participant begins to ask the coordinator.
	resolveAfter = 5
	// resolvePeersAfter ticks, with the coordinator gone, it asks the other
	// participants: if any knows a commit it commits, if all are in doubt or
	// gone it aborts. The coordinator's partition, which was to be the first
	// to commit, is gone with its memory. A server that is merely silent may
	// have decided, or may yet: for it a participant waits, and keeps its locks.
	resolvePeersAfter = 20
)

// resolver settles transactions whose coordinator does not come back.
func (s *Server) resolver(ctx context.Context) {
	t := time.NewTicker(resolveEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.resolveTick(ctx)
		}
	}
}

// question is about a transaction in doubt.
type question struct {
	id          wire.ID
	peers       wire.Peers
	incarnation uint64 // of the coordinator
	ticks       int    // since the vote
}

func (s *Server) resolveTick(ctx context.Context) {
	var ask []question
	s.doubts.Lock()
	for id, d := range s.doubts.part.doubt {
		d.ticks++
		own := int(d.peers.Coordinator) == s.cfg.Index && s.doubts.active[id]
		if d.parts != nil && d.ticks >= resolveAfter && !own {
			ask = append(ask, question{id, d.peers, d.incarnation, d.ticks})
		}
	}
	s.doubts.Unlock()
	for _, q := range ask {
		if q.ticks == resolvePeersAfter {
			s.log.Warn("transaction stays in doubt", "client", q.id.Client, "seq", q.id.Seq, "coordinator", q.peers.Coordinator)
		}
		if int(q.peers.Coordinator) == s.cfg.Index {
			// Said to be this server's own, which forgets a transaction only
			// after it has decided it: somebody made it up.
			s.decide(q.id, false)
			continue
		}
		s.ask(ctx, q)
	}
}

// ask settles a transaction in doubt, if anybody who answers can tell.
func (s *Server) ask(ctx context.Context, q question) {
	switch code, gone := s.askServer(ctx, int(q.peers.Coordinator), q.id, q.incarnation); {
	case code == wire.OK, code == wire.Aborted:
		s.decide(q.id, code == wire.OK)
	case gone && q.ticks >= resolvePeersAfter:
		if commit, known := s.askPeers(ctx, q.id, &q.peers); known {
			s.decide(q.id, commit)
		}
	}
}

// askPeers settles a transaction whose coordinator is gone, if no participant
// that may know its outcome is silent.
func (s *Server) askPeers(ctx context.Context, id wire.ID, peers *wire.Peers) (commit, known bool) {
	known = true
	for _, p := range peers.Participants {
		if int(p) == s.cfg.Index || p == peers.Coordinator {
			continue
		}
		switch code, gone := s.askServer(ctx, int(p), id, 0); {
		case code == wire.OK:
			return true, true
		case code == wire.Unavailable && !gone:
			known = false
		}
	}
	return false, known
}

// askServer asks another server what became of a transaction. If there is no
// answer, gone tells that the server's memory is lost for certain: nobody
// listens at its address, or an incarnation other than the one given, if not 0.
//
// It dials for itself: a DB is opened only where all servers answer.
func (s *Server) askServer(ctx context.Context, server int, id wire.ID, incarnation uint64) (code wire.Code, gone bool) {
	if server == s.cfg.Index {
		return s.resolve(id), false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := s.cfg.Provider.Dial(ctx, s.cfg.Addrs[server])
	if err != nil {
		return wire.Unavailable, errors.Is(err, rdma.ErrAddress)
	}
	defer c.Close()
	if incarnation != 0 {
		resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
		if err != nil {
			return wire.Unavailable, false
		}
		if h, err := wire.DecodeHello(resp); err != nil || h.Incarnation != incarnation {
			return wire.Unavailable, err == nil
		}
	}
	resp, err := rdma.Call(ctx, c, wire.AppendID([]byte{byte(wire.OpResolve)}, id), nil)
	if err != nil || len(resp) == 0 {
		return wire.Unavailable, false
	}
	return wire.Code(resp[0]), false
}

// runElsewhere runs a procedure that leaves its home partition. What it meets
// there is mostly another such transaction.
func (s *Server) runElsewhere(ctx context.Context, home *partition, proc *exec.Procedure, args []byte) (result []byte, v verdict) {
	db, err := s.peerDB(ctx)
	if err != nil {
		return nil, verdict{code: wire.Unavailable, text: err.Error()}
	}
	result, err = db.RunProcedure(ctx, proc, args, func(sess *exec.Session, c *wire.Commit) error {
		v := s.commit(ctx, sess, c)
		switch {
		case v.ok():
			return nil
		case v.code == wire.Conflict:
			return exec.ErrAbandoned{Cause: v.cause}
		}
		return v
	}, func() bool { return home.awaitDecision(ctx) })
	return result, verdictOf(err)
}

// verdictOf makes the answer to a call of what its body or its commit returned.
func verdictOf(err error) verdict {
	var v verdict
	switch {
	case err == nil:
		return verdict{}
	case errors.As(err, &v):
		return v
	case errors.Is(err, exec.ErrConflict):
		return conflict(exec.CauseRemote)
	case errors.Is(err, exec.ErrUnavailable):
		return verdict{code: wire.Unavailable, text: err.Error()}
	case errors.Is(err, exec.ErrTooLarge):
		return verdict{code: wire.TooLarge, text: strings.TrimPrefix(textOf(err), exec.ErrTooLarge.Error()+": ")}
	}
	return verdict{code: wire.RolledBack, text: exec.Failure(err)}
}

// errorBytesMax bounds the text of an error in an answer.
const errorBytesMax = 16 << 10

func textOf(err error) string {
	text := err.Error()
	if len(text) > errorBytesMax {
		return text[:errorBytesMax] + " … (cut)"
	}
	return text
}

// Error lets a verdict travel as an error inside the server.
func (v verdict) Error() string { return "server: " + v.text }
