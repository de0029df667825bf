package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// reusedMessageBytes bounds the memory that a task keeps for its next message.
const reusedMessageBytes = 16 << 10

// task is a transaction of several servers that this server coordinates. It has
// its own goroutine and performs the effects of the coordinator's machine. If
// it ends before the decision, the server's ticks continue the transaction. The
// server reuses its memory.
type task struct {
	batch
	home     *partition // the coordinator
	id       twophase.ID
	msg      wire.Commit
	links    []*link   // to the servers that take part
	decision chan bool // the decision; has room for it
	sent     []twophase.Message
	calls    []call
	buf      []byte

	ctx context.Context // of the running calls

	// A client's request:
	r      *rdma.Request
	body   []byte
	commit wire.Commit
	resp   []byte
	serve  func() // answers it

	session wire.ID // the transaction of the session that waits
	handed  bool    // the decision may have been handed over
	asked   bool    // another server has been asked for its verdict
	unheard int     // parties elsewhere whose vote or answer has not come
	failed  bool    // a peer's log has failed: it tells nothing until it starts again
}

// commit commits a transaction of any partitions. asked reports that other
// servers have been asked for their verdicts.
func (s *Server) commit(ctx context.Context, c *wire.Commit, o origin) (v verdict, asked bool) {
	if len(c.Parts) == 0 {
		return verdict{}, false
	}
	t := s.tasks.Get().(*task)
	v, again := t.decide(ctx, c, o)
	asked = t.asked
	if again {
		t.free()
	}
	return v, asked
}

func newTask(s *Server) *task {
	t := &task{batch: batch{s: s}, decision: make(chan bool, 1)}
	t.serve = t.answerClient
	return t
}

// free keeps a task for reuse.
func (t *task) free() {
	t.reset()
	t.home, t.msg, t.session, t.handed, t.asked, t.unheard, t.failed, t.r = nil, wire.Commit{}, wire.ID{}, false, false, 0, false, nil
	if cap(t.body) > reusedMessageBytes {
		t.body, t.commit = nil, wire.Commit{}
	}
	t.s.tasks.Put(t)
}

// answerClient commits a client's transaction of several servers.
func (t *task) answerClient() {
	d := wire.NewDecoder(t.body)
	var v verdict
	again := true
	if err := t.commit.Decode(&d); err != nil {
		v = verdict{code: wire.Bad, text: err.Error()}
	} else {
		v, again = t.decide(t.s.ctx, &t.commit, origin{id: t.commit.ID})
	}
	t.resp = v.append(t.resp[:0])
	at := t.s.logged()
	if v.code == wire.FewCopies {
		at = 0 // the log may not become durable for long
	}
	t.s.release(answer{at: at, id: t.commit.ID, r: t.r, resp: t.resp})
	if again {
		t.free()
	}
}

// decide commits a transaction. The task can be used again, unless the decision may
// still arrive.
func (t *task) decide(ctx context.Context, c *wire.Commit, o origin) (v verdict, again bool) {
	complete := t.share.of(t.s, c)
	t.share.call, _ = ctx.(*callTime)
	t.session = o.id
	if c.Writes() { // else it is only validated: the session has not committed anything
		t.share.origin = o
	}
	if part := t.s.replaced(&t.share); part != nil {
		return unreachable(t.s.restarted(part.Partition)), true
	}
	if complete {
		return t.share.commit(), true
	}
	return t.coordinate(ctx, c)
}

// replaced returns a part of a share that is for a former life of this server,
// nil if there is none.
func (s *Server) replaced(sh *share) *wire.Part {
	for _, part := range sh.parts {
		if part.Incarnation != 0 && part.Incarnation != s.incarnation {
			return part
		}
	}
	return nil
}

// restarted is the error of a partition whose memory is gone.
func (s *Server) restarted(part placement.Partition) error {
	return &tables.Error{
		Err: exec.ErrUnavailable, Partition: int(part), Server: s.cfg.Addrs[s.placement.At(part)], Cause: exec.ErrRestarted,
	}
}

// coordinate commits a transaction of several servers. The verdict wire.InDoubt
// means that the server stops before it knows the decision. coordinate reports
// whether the task can be reused: it cannot while the decision may still arrive.
func (t *task) coordinate(ctx context.Context, c *wire.Commit) (_ verdict, again bool) {
	s := t.s
	t.msg = wire.Commit{ID: c.ID, Parts: c.Parts, Seen: s.now()}
	if len(t.share.at) > 0 {
		t.home = t.share.at[0]
	} else if t.home = s.first(); t.home == nil {
		return verdict{code: wire.Bad, text: "a transaction for a server that holds no partition"}, true
	}
	if t.share.twice() {
		return verdict{code: wire.Bad, text: "two parts of one partition"}, true
	}
	// Connect to all other servers before taking any lock.
	defer t.release()
	parties, agent, err := t.reach(ctx)
	if v := ended(ctx); !v.ok() {
		return v, true
	}
	if err != nil {
		return unreachable(err), true
	}
	if v := t.setAside(len(parties)); !v.ok() {
		return v, true
	}
	if err := t.begin(parties, agent); err != nil {
		t.giveUp()
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("server %d: %v", s.self, err)}, true
	}
	if t.share.call != nil {
		s.elsewhere.commits(1)
		defer s.elsewhere.commits(-1)
	}
	t.run()
	if s.durable != nil && len(t.decision) == 0 {
		t.watch()
	}
	select {
	case commit, ok := <-t.decision:
		switch {
		case !ok:
			return verdict{code: wire.InDoubt, text: "the server's log has failed"}, false
		case commit:
			return verdict{}, true
		}
		return t.aborted(agent), true
	case <-s.ctx.Done():
		return verdict{code: wire.InDoubt, text: "the server stops before it knows: " + t.v.text}, false
	}
}

// watch lets the session hear after a while that its transaction is in doubt. Only
// another server can decide it, and perhaps not before that server starts again.
// The task goes on waiting, so the outcome is known when it comes.
func (t *task) watch() {
	after := lateAfter
	if t.failed {
		after = 0
	}
	t.s.outcomes.watch(t.session, after)
}

// aborted is the answer to a transaction that was decided against: it has no
// effect anywhere. It never says that all is well, even if no one refused: a
// party of it may be one whose memory is lost, which was not even asked.
func (t *task) aborted(agent twophase.Party) verdict {
	w := t.v.weight()
	if w == 1 && agent != (twophase.Party{}) && !t.handed {
		return t.confirm()
	}
	if w == 0 || w == 1 && t.unheard > 0 {
		for _, l := range t.links { // they may lead to memory that is lost
			l.drop()
		}
		clear(t.links)
		t.links = t.links[:0]
		return verdict{code: wire.Unavailable, text: "a server that takes part may have lost its memory"}
	}
	return t.v
}

// first returns the first partition of this server, nil if it has none.
func (s *Server) first() *partition {
	for _, p := range s.parts {
		if p != nil {
			return p
		}
	}
	return nil
}

// unreachable returns the verdict for a message without an answer.
func unreachable(err error) verdict {
	if errors.Is(err, rdma.ErrTooLarge) {
		return verdict{code: wire.TooLarge, text: err.Error()}
	}
	return verdict{code: wire.Unavailable, text: exec.Fault(err)}
}

// reach connects to the other servers that have a share, and returns all
// parties. If exactly one partition is at another server, it is the last agent.
func (t *task) reach(ctx context.Context) (parties []twophase.Party, agent twophase.Party, err error) {
	elsewhere := 0
	parties = make([]twophase.Party, 0, len(t.msg.Parts)) // the machine keeps it
	for i := range t.msg.Parts {
		part := t.msg.Parts[i].Partition
		server, ok := t.s.placement.Primary(part)
		if !ok {
			return nil, agent, fmt.Errorf("%w: partition %d of %d", errLink, part, t.s.placement.Partitions())
		}
		p := twophase.Party{Partition: part, Incarnation: t.s.incarnation}
		if server != t.s.self {
			l := t.link(server)
			if l == nil {
				if l, err = t.connect(ctx, server); err != nil {
					err = &tables.Error{Err: exec.ErrUnavailable, Partition: int(part), Server: t.s.cfg.Addrs[server], Cause: err}
					return nil, agent, err
				}
			}
			if l.replaced {
				return nil, agent, t.s.restarted(part)
			}
			p.Incarnation = l.incarnation
			if part := &t.msg.Parts[i]; part.Memory == 0 { // a later epoch must not take it for its own
				part.Memory = l.epoch
			}
			agent = p
			elsewhere++
		}
		if known := t.msg.Parts[i].Incarnation; known != 0 && known != p.Incarnation {
			return nil, agent, t.s.restarted(part)
		}
		parties = append(parties, p)
	}
	if t.unheard = elsewhere; elsewhere != 1 {
		agent = twophase.Party{}
	}
	return parties, agent, nil
}

// link returns the connection to a server that has a share, nil if there is none.
func (t *task) link(server placement.Server) *link {
	for _, l := range t.links {
		if l.peer.server == server {
			return l
		}
	}
	return nil
}

// drop closes a connection that broke.
func (t *task) drop(l *link) {
	t.forget(l)
	l.drop()
}

// close closes a connection that still owes an answer.
func (t *task) close(l *link) {
	t.forget(l)
	l.conn.Close()
}

func (t *task) forget(l *link) {
	t.links = slices.DeleteFunc(t.links, func(have *link) bool { return have == l })
}

func (t *task) connect(ctx context.Context, server placement.Server) (l *link, err error) {
	p := t.s.peers[server]
	if l, err = p.idle(); l == nil && err == nil {
		short, cancel := context.WithTimeout(ctx, peerTimeout)
		defer cancel()
		if l, err = p.dial(short); err != nil && !ended(ctx).ok() {
			p.dialAhead()
		}
	}
	if err == nil {
		t.links = append(t.links, l)
	}
	return l, err
}

// release returns the connections to their peers for reuse.
func (t *task) release() {
	for _, l := range t.links {
		l.release()
	}
	clear(t.links)
	t.links = t.links[:0]
}

// begin enters the transaction into the coordinator's machine. t.decision receives
// the decision.
func (t *task) begin(parties []twophase.Party, agent twophase.Party) (err error) {
	t.step(t.home, func(m *twophase.Machine) {
		if t.id, err = m.Begin(parties, agent, &t.out); err == nil {
			t.home.side.waiting[t.id] = t.decision
			if t.s.durable != nil {
				t.home.side.origins[t.id] = origin{id: t.share.origin.id, result: slices.Clone(t.share.origin.result), aside: t.share.origin.aside}
			}
		}
	})
	if err == nil {
		t.s.coordinated.Add(1)
	}
	return err
}

// setAside sets room aside in the log of a home server without a share.
func (t *task) setAside(parties int) verdict {
	d := t.s.durable
	if d == nil || len(t.share.at) > 0 {
		return verdict{}
	}
	a := &aside{}
	t.share.origin.aside = a
	return d.setAside(a, parties, len(t.share.origin.result), nil)
}

// giveUp is the opposite, of a transaction that has not begun.
func (t *task) giveUp() {
	if a := t.share.origin.aside; a != nil {
		t.s.durable.log.GiveUp(a.take(twophase.Decided))
	}
}

// call is a running request to another server.
type call struct {
	l   *link
	ms  []twophase.Message
	err error
	v   verdict
}

// run performs the machine's effects until nothing is left to do or to wait
// for. It sends the requests to other servers before it prepares this server's
// share, and waits for the answers afterwards. The requests of a round have one
// deadline.
func (t *task) run() {
	for len(t.out.Messages) > 0 || len(t.locks) > 0 || len(t.remote) > 0 {
		t.local()
		t.start()
		t.lock()
		t.finish()
	}
}

// start sends the machine's messages to other servers, one request per server
// and kind of message.
func (t *task) start() {
	t.sent, t.remote = t.remote, t.sent[:0]
	for left := t.sent; len(left) > 0; {
		to, ok := t.s.placement.Primary(left[0].To.Partition)
		n := 1
		for i := n; i < len(left); i++ {
			if m := left[i]; m.Kind == left[0].Kind && t.s.isAt(m.To, to) {
				copy(left[n+1:i+1], left[n:i])
				left[n] = m
				n++
			}
		}
		ms := left[:n]
		left = left[n:]
		l, kind := t.link(to), ms[0].Kind
		if !ok || l == nil || ms[0].To.Incarnation != l.incarnation || kind != twophase.Prepare && kind != twophase.HandOver && kind != twophase.Decide {
			t.s.post(ms)
			continue
		}
		if kind != twophase.Prepare && !t.s.awaitLog(ms) {
			continue // the machine asks, or repeats it
		}
		if len(t.calls) == 0 {
			t.ctx = t.s.deadline()
			if c := t.share.call; c != nil && kind == twophase.Prepare && c.ends < clock.Fast()+peerTimeout {
				t.ctx = c // a vote that comes later does not count
			}
		}
		t.calls = append(t.calls, call{l: l, ms: ms, err: l.conn.StartCall(t.ctx, t.request(to, ms))})
	}
}

// request encodes messages of one kind to one server. Prepare and HandOver come
// with that server's parts of the transaction.
func (t *task) request(to placement.Server, ms []twophase.Message) []byte {
	switch ms[0].Kind {
	case twophase.Decide:
		t.buf = wire.AppendMessages(append(t.buf[:0], byte(wire.OpDecide)), ms)
		return t.buf
	case twophase.HandOver:
		t.handed, t.asked = true, true
		t.buf = append(t.buf[:0], byte(wire.OpHandOver))
	default:
		t.asked = true
		for i := range ms {
			ms[i].Tick = t.home.tick()
		}
		t.buf = append(t.buf[:0], byte(wire.OpPrepare))
	}
	t.buf = wire.AppendParts(wire.AppendMessages(t.buf, ms), &t.msg, func(part placement.Partition) bool { return t.s.placement.At(part) == to })
	return t.buf
}

// finish waits for the answers of all servers. They have one deadline, so that
// the order of waiting does not matter.
func (t *task) finish() {
	if len(t.calls) == 0 {
		return
	}
	for i := range t.calls {
		if c := &t.calls[i]; c.err == nil {
			c.v, c.err = c.l.finish(t.ctx)
		}
		if i+1 < len(t.calls) && t.ctx.Err() != nil && t.s.ctx.Err() == nil {
			// This server did not answer. The answers of the others have arrived, or are late too.
			ctx, cancel := context.WithTimeout(t.s.ctx, answeredTimeout)
			defer cancel()
			t.ctx = ctx
		}
	}
	for i := range t.calls {
		t.answer(&t.calls[i])
	}
	clear(t.calls)
	t.calls, t.ctx = t.calls[:0], nil
}

// answer takes the result of a request: the messages and the verdict of the
// other server, or an error, which loses the request.
func (t *task) answer(c *call) {
	if c.err == nil && c.v.code == wire.InDoubt {
		t.failed = true
		if c.ms[0].Kind != twophase.Decide {
			t.v = heavier(t.v, t.logFailed(c.l, c.ms[0].To.Partition, c.v))
		}
	} else if w := t.share.ended(); c.ms[0].Kind == twophase.Prepare && !w.ok() {
		t.v = heavier(t.v, w) // the vote does not count: it counts as lost, and the decision is an abort
		if c.err != nil {
			t.close(c.l) // others to the server may well be good: the wait was short
		}
	} else if c.err == nil {
		t.v = heavier(t.v, c.v)
		if c.ms[0].Kind != twophase.Decide {
			t.unheard -= len(c.ms)
		}
		t.out.Messages = append(t.out.Messages, c.l.messages...)
		t.local()
	} else {
		if !errors.Is(c.err, rdma.ErrTooLarge) {
			t.drop(c.l)
		}
		if c.ms[0].Kind != twophase.Decide {
			t.v = heavier(t.v, unreachable(c.err))
		}
	}
	if c.ms[0].Kind == twophase.Decide {
		if c.err != nil {
			t.s.post(c.ms) // now, over another connection; the machine repeats it later
		}
		return
	}
	for _, m := range c.ms { // the machine ignores this if the message was answered
		t.step(t.home, func(machine *twophase.Machine) { machine.Lost(m.ID, m.To, &t.out) })
	}
}

// logFailed is the verdict on a transaction that needs a server whose log has
// failed, or which ends: it may not tell anything any more.
func (t *task) logFailed(l *link, part placement.Partition, v verdict) verdict {
	return unreachable(&tables.Error{Err: exec.ErrUnavailable, Partition: int(part), Server: t.s.cfg.Addrs[l.peer.server], Cause: errors.New(v.text)})
}

// confirm returns the answer to a transaction of which the home server refused
// a write before it handed the decision over. The proofs at the home server
// held at that moment. The refusal counts if the proofs at the other server
// still hold now. The home server does not validate again, because its own
// placeholders have changed the proven words.
func (t *task) confirm() verdict {
	reads := wire.Commit{ID: t.msg.ID}
	to := placement.Server(0)
	for i := range t.msg.Parts {
		part := t.msg.Parts[i]
		if t.s.hosted(part.Partition) == nil {
			to = t.s.placement.At(part.Partition)
			part.Writes = nil
			reads.Parts = append(reads.Parts, part)
		}
	}
	t.asked = true
	ctx := t.s.deadline()
	l := t.link(to)
	if l == nil {
		return verdict{code: wire.Unavailable, text: "the connection to the other server is lost"}
	}
	err := l.conn.StartCall(ctx, wire.AppendCommit(t.buf[:0], wire.OpValidate, &reads, nil))
	var v verdict
	if err == nil {
		v, err = l.finish(ctx)
	}
	switch {
	case err != nil:
		t.drop(l)
		return unreachable(err)
	case v.code == wire.InDoubt:
		return t.logFailed(l, reads.Parts[0].Partition, v)
	}
	return heavier(t.v, v)
}
