package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
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
	failed  bool    // a peer's log has failed: it acknowledges nothing until it starts again
}

func newTask(dr *driver) *task {
	t := &task{batch: batch{driver: dr}, decision: make(chan bool, 1)}
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
	t.driver.tasks.Put(t)
}

// answerClient commits a client's transaction of several servers.
func (t *task) answerClient() {
	d := wire.NewDecoder(t.body)
	var v verdict
	again := true
	if err := t.commit.Decode(&d); err != nil {
		v = verdict{code: wire.Bad, text: err.Error()}
	} else {
		v, again = t.decide(t.driver.workers.ctx, &t.commit, origin{id: t.commit.ID})
	}
	t.resp = v.append(t.resp[:0])
	at := t.driver.durable.end()
	if v.code == wire.FewCopies {
		at = 0 // do not wait: the log may not become durable for long
	}
	t.driver.answers.release(answer{at: at, id: t.commit.ID, r: t.r, resp: t.resp})
	if again {
		t.free()
	}
}

// decide commits a transaction. again reports whether the task can be reused: it cannot
// while the decision may still arrive.
func (t *task) decide(ctx context.Context, c *wire.Commit, o origin) (v verdict, again bool) {
	complete := t.share.of(t.driver.parts, c)
	t.share.call, _ = ctx.(*callTime)
	t.session = o.id
	if c.Writes() { // else it is only validated: the session has not committed anything
		t.share.origin = o
	}
	for _, part := range t.share.parts {
		if part.Incarnation != 0 && part.Incarnation != t.driver.parts.incarnation { // it is for a former life of this server
			return unreachable(t.driver.parts.restarted(part.Partition)), true
		}
	}
	if complete {
		return t.share.commit(), true
	}
	return t.coordinate(ctx, c)
}

// coordinate commits a transaction of several servers. The verdict wire.InDoubt
// means that the server stops before it knows the decision. coordinate reports
// whether the task can be reused: it cannot while the decision may still arrive.
func (t *task) coordinate(ctx context.Context, c *wire.Commit) (_ verdict, again bool) {
	dr := t.driver
	t.msg = wire.Commit{ID: c.ID, Parts: c.Parts, Seen: dr.clocks.now()}
	switch {
	case len(t.share.at) > 0:
		t.home = t.share.at[0]
	case len(dr.parts.here) > 0:
		t.home = dr.parts.here[0]
	default:
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
	if err := t.begin(ctx, parties, agent); err != nil {
		t.giveUp()
		if v := ended(ctx); !v.ok() { // its client waits no longer: the table may have room
			return v, true
		}
		return verdict{code: wire.Unavailable, text: fmt.Sprintf("server %d: %v", dr.parts.self, err)}, true
	}
	if c := t.share.call; c != nil {
		c.of.commits(1)
		defer c.of.commits(-1)
	}
	t.run()
	if dr.durable != nil && len(t.decision) == 0 {
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
	case <-dr.workers.ctx.Done():
		return verdict{code: wire.InDoubt, text: "the server stops before it knows: " + t.v.text}, false
	}
}

// watch makes the server tell the session after lateAfter that its transaction is in
// doubt, or at once if a peer's log has failed. Only another server can decide it, and
// perhaps not before that server starts again. The task goes on waiting, so the outcome
// is known when it comes.
func (t *task) watch() {
	after := lateAfter
	if t.failed {
		after = 0
	}
	t.driver.outcomes.watch(t.session, after)
}

// aborted returns the answer to an aborted transaction, which has no effect anywhere.
// It is never OK, even if no party refused: a party whose memory is lost may not have
// been asked.
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

// unreachable returns the verdict for a message without an answer.
func unreachable(err error) verdict {
	if errors.Is(err, rdma.ErrTooLarge) {
		return verdict{code: wire.TooLarge, text: err.Error()}
	}
	return verdict{code: wire.Unavailable, text: exec.EncodeFault(err)}
}

// begin enters the transaction into the coordinator's machine. t.decision receives the
// decision. While one of the parties has too many unsettled transactions of this
// server, begin waits for room, until ctx ends and for at most peerTimeout, and then
// fails with twophase.ErrBusy: acknowledgements may be on their way, and the next tick
// asks for lost ones. The transaction has no locks yet.
func (t *task) begin(ctx context.Context, parties []twophase.Party, agent twophase.Party) error {
	err := t.enter(parties, agent)
	if !errors.Is(err, twophase.ErrBusy) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	for pause := roomAfter; errors.Is(err, twophase.ErrBusy); pause = min(2*pause, tickEvery) {
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		err = t.enter(parties, agent)
	}
	return err
}

// roomAfter is the first pause of a transaction that waits for room in the
// coordinator's table: about the time of an acknowledgement.
const roomAfter = 100 * time.Microsecond

// enter enters the transaction, or fails with twophase.ErrBusy at once.
func (t *task) enter(parties []twophase.Party, agent twophase.Party) (err error) {
	t.step(t.home, func(m *twophase.Machine) {
		if t.id, err = m.Begin(parties, agent, &t.out); err == nil {
			t.home.protocol.waiting[t.id] = t.decision
			if t.driver.durable != nil {
				t.home.protocol.origins[t.id] = origin{id: t.share.origin.id, result: slices.Clone(t.share.origin.result), aside: t.share.origin.aside}
			}
		}
	})
	if err == nil {
		t.driver.coordinated.Add(1)
	}
	return err
}

// setAside sets room aside in the log for the decision of a home server without a
// share.
func (t *task) setAside(parties int) verdict {
	d := t.driver.durable
	if d == nil || len(t.share.at) > 0 {
		return verdict{}
	}
	a := &aside{}
	t.share.origin.aside = a
	return d.setAside(a, parties, len(t.share.origin.result), nil)
}

// giveUp returns that room if the transaction does not begin.
func (t *task) giveUp() {
	if a := t.share.origin.aside; a != nil {
		t.driver.durable.log.GiveUp(a.take(twophase.Decided))
	}
}
