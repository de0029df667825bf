package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// task is a transaction of several servers that this server coordinates. It has
// its own goroutine and performs the effects of the coordinator's machine. If
// it ends before the decision, the server's ticks continue the transaction.
type task struct {
	batch
	home  *partition // the coordinator
	id    twophase.ID
	msg   wire.Commit
	read  time.Duration // time of the first read of the proofs
	links map[int]*link // by server
	buf   []byte

	handed  bool // the decision may have been handed over
	unheard int  // parties elsewhere whose vote or answer has not come
}

// coordinate commits a transaction of several servers. The verdict wire.InDoubt
// means that the server stops before it knows the decision.
func (s *Server) coordinate(ctx context.Context, c *wire.Commit, sh share) verdict {
	t := &task{batch: batch{s: s, commit: c}, msg: wire.Commit{ID: c.ID, Parts: c.Parts}, read: sh.read, links: map[int]*link{}}
	if len(sh.at) > 0 {
		t.home = sh.at[0]
	} else if t.home = s.first(); t.home == nil {
		return verdict{code: wire.Bad, text: "a transaction for a server that holds no partition"}
	}
	if sh.twice() {
		return verdict{code: wire.Bad, text: "two parts of one partition"}
	}
	// Connect to all other servers before taking any lock.
	defer t.release()
	parties, agent, err := t.reach(ctx)
	if err != nil {
		return unreachable(err)
	}
	told, err := t.begin(parties, agent)
	if err != nil {
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("server %d: %v", s.cfg.Index, err)}
	}
	t.run()
	select {
	case commit := <-told:
		if commit {
			return verdict{}
		}
		return t.aborted(ctx, agent)
	case <-s.ctx.Done():
		return verdict{code: wire.InDoubt, text: "the server stops before it knows: " + t.v.text}
	}
}

// aborted is the answer to a transaction that was decided against: it has no
// effect anywhere. It never says that all is well, even if no one refused: a
// party of it may be one whose memory is lost, which was not even asked.
func (t *task) aborted(ctx context.Context, agent twophase.Party) verdict {
	w := t.v.weight()
	if w == 1 && agent != (twophase.Party{}) && !t.handed {
		return t.confirm(ctx)
	}
	if w == 0 || w == 1 && t.unheard > 0 {
		for _, l := range t.links { // they may lead to memory that is lost
			l.drop()
		}
		clear(t.links)
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
	return verdict{code: wire.Unavailable, text: err.Error()}
}

// reach connects to the other servers that have a share, and returns all
// parties. If exactly one partition is at another server, it is the last agent.
func (t *task) reach(ctx context.Context) (parties []twophase.Party, agent twophase.Party, err error) {
	elsewhere := 0
	for i := range t.msg.Parts {
		part := int(t.msg.Parts[i].Partition)
		if part >= len(t.s.primaries) {
			return nil, agent, fmt.Errorf("%w: partition %d of %d", errLink, part, len(t.s.primaries))
		}
		server := t.s.primaries[part]
		p := twophase.Party{Partition: uint16(part), Epoch: t.s.incarnation}
		if server != t.s.cfg.Index {
			l := t.links[server]
			if l == nil {
				if l, err = t.connect(ctx, server); err != nil {
					return nil, agent, err
				}
			}
			if l.replaced {
				return nil, agent, fmt.Errorf("server %s, which holds partition %d: %w", t.s.cfg.Addrs[server], part, exec.ErrRestarted)
			}
			p.Epoch = l.incarnation
			agent = p
			elsewhere++
		}
		if known := t.msg.Parts[i].Epoch; known != 0 && known != p.Epoch {
			return nil, agent, fmt.Errorf("server %s, which holds partition %d: %w", t.s.cfg.Addrs[server], part, exec.ErrRestarted)
		}
		parties = append(parties, p)
	}
	if t.unheard = elsewhere; elsewhere != 1 {
		agent = twophase.Party{}
	}
	return parties, agent, nil
}

func (t *task) connect(ctx context.Context, server int) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	l, err := t.s.peers[server].link(ctx)
	if err == nil {
		t.links[server] = l
	}
	return l, err
}

// release returns the connections to their peers for reuse.
func (t *task) release() {
	for _, l := range t.links {
		l.release()
	}
	clear(t.links)
}

// begin enters the transaction into the coordinator's machine. told receives
// the decision.
func (t *task) begin(parties []twophase.Party, agent twophase.Party) (told chan bool, err error) {
	told = make(chan bool, 1)
	t.step(t.home, func(m *twophase.Machine) {
		if t.id, err = m.Begin(parties, agent, &t.out); err == nil {
			t.home.side.waiting[t.id] = told
		}
	})
	if err == nil {
		t.s.coordinated.Add(1)
	}
	return told, err
}

// call is a running request to another server.
type call struct {
	l        *link
	ms       []twophase.Message
	ctx      context.Context
	cancel   context.CancelFunc
	err      error
	v        verdict
	answered batch
}

// run performs the machine's effects until nothing is left to do or to wait
// for. It sends the requests to other servers before it prepares this server's
// share, and waits for the answers afterwards. Each request has its own
// deadline.
func (t *task) run() {
	for len(t.out.Messages) > 0 || len(t.locks) > 0 || len(t.remote) > 0 {
		t.local()
		calls := t.start()
		t.lock()
		t.finish(calls)
	}
}

// start sends the machine's messages to other servers, one request per server
// and kind of message.
func (t *task) start() (calls []*call) {
	remote := t.remote
	t.remote = nil
	for len(remote) > 0 {
		to, kind := t.s.serverOf(remote[0].To), remote[0].Kind
		var ms, rest []twophase.Message
		for _, m := range remote {
			if t.s.serverOf(m.To) == to && m.Kind == kind {
				ms = append(ms, m)
			} else {
				rest = append(rest, m)
			}
		}
		remote = rest
		l := t.links[to]
		if l == nil || ms[0].To.Epoch != l.incarnation || kind != twophase.Prepare && kind != twophase.HandOver && kind != twophase.Decide {
			t.s.post(ms)
			continue
		}
		c := &call{l: l, ms: ms}
		c.ctx, c.cancel = context.WithTimeout(t.s.ctx, peerTimeout)
		c.err = l.conn.StartCall(c.ctx, t.request(to, ms))
		calls = append(calls, c)
	}
	return calls
}

// request encodes messages of one kind to one server. Prepare and HandOver come
// with that server's parts of the transaction.
func (t *task) request(to int, ms []twophase.Message) []byte {
	switch ms[0].Kind {
	case twophase.Decide:
		t.buf = wire.AppendMessages(append(t.buf[:0], byte(wire.OpDecide)), ms)
		return t.buf
	case twophase.HandOver:
		t.handed = true
		t.buf = append(t.buf[:0], byte(wire.OpHandOver))
	default:
		t.buf = append(t.buf[:0], byte(wire.OpPrepare))
	}
	t.msg.Age = proofAge(t.read)
	t.buf = wire.AppendParts(wire.AppendMessages(t.buf, ms), &t.msg, func(part uint16) bool { return t.s.primaries[part] == to })
	return t.buf
}

// finish waits for the answers of all servers concurrently.
func (t *task) finish(calls []*call) {
	if len(calls) == 1 {
		calls[0].await()
	} else if len(calls) > 1 {
		done := make(chan struct{}, len(calls))
		for _, c := range calls {
			go func() { c.await(); done <- struct{}{} }()
		}
		for range calls {
			<-done
		}
	}
	for _, c := range calls {
		c.cancel()
		t.answer(c)
	}
}

func (c *call) await() {
	if c.err == nil {
		c.v, c.err = c.l.finish(c.ctx, &c.answered)
	}
}

// answer takes the result of a request: the messages and the verdict of the
// other server, or an error, which loses the request.
func (t *task) answer(c *call) {
	if c.err == nil {
		t.v = heavier(t.v, c.v)
		if c.ms[0].Kind != twophase.Decide {
			t.unheard -= len(c.ms)
		}
		t.out.Messages = append(t.out.Messages, c.answered.out.Messages...)
		t.local()
	} else {
		if !errors.Is(c.err, rdma.ErrTooLarge) {
			delete(t.links, c.l.peer.server)
			c.l.drop()
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

// confirm returns the answer to a transaction of which the home server refused
// a write before it handed the decision over. The proofs at the home server
// held at that moment. The refusal counts if the proofs at the other server
// still hold now. The home server does not validate again, because its own
// placeholders have changed the proven words.
func (t *task) confirm(ctx context.Context) verdict {
	reads := wire.Commit{ID: t.msg.ID, Age: proofAge(t.read)}
	to := 0
	for i := range t.msg.Parts {
		part := t.msg.Parts[i]
		if t.s.hosted(int(part.Partition)) == nil {
			to = t.s.primaries[part.Partition]
			part.Writes = nil
			reads.Parts = append(reads.Parts, part)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	l := t.links[to]
	if l == nil {
		return verdict{code: wire.Unavailable, text: "the connection to the other server is lost"}
	}
	err := l.conn.StartCall(ctx, wire.AppendCommit(t.buf[:0], wire.OpValidate, &reads, nil))
	var v verdict
	if err == nil {
		v, err = l.finish(ctx, &batch{})
	}
	if err != nil {
		delete(t.links, to)
		l.drop()
		return unreachable(err)
	}
	return heavier(t.v, v)
}
