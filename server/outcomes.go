package server

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// outcomes makes commits exactly-once. A client session sends one transaction
// at a time under ascending numbers, so the server remembers its last one: a
// repeated request gets the answer of the first one, and a request older than
// the last is refused.
//
// Each remembered outcome is charged to an account: the connection that the
// session uses, and once that connection is gone, the identity of its peer.
// Each account has its own bounds, so a peer that makes up sessions displaces
// only its own outcomes. Answers are kept up to a bound in bytes. Above it, the
// largest accounts lose the results of their oldest answers, but keep whether
// the transaction committed.
//
// A session that is displaced, or whose time has passed, may have committed, and
// copies of its requests may still be on their way. So each request says when it was
// sent, by the running clock of this life of the server, or earlier; and the server
// keeps for each identity the time up to which it has forgotten outcomes. A request
// is executed only if it was sent after that time, in this life and not long ago; and
// a question about a session that is not remembered has a certain answer only if the
// transaction was sent after that time.
type outcomes struct {
	reply func(*rdma.Request, []byte)
	// sent is the present, by the running clock of this life.
	sent func() wire.Sent
	// Bounds, of which there are defaults below.
	ofPeerMax, ofGoneMax int

	mu        sync.Mutex
	fates     map[uint64]*fate
	accounts  accounts
	forgotten forgotten
	// late are the transactions that clients wait for although nobody here knows
	// when they will be decided: see lateAfter.
	late []lateFate
}

// lateFate is a transaction whose clients hear that it is in doubt if it has not ended
// at a time by clock.Fast.
type lateFate struct {
	id wire.ID
	at time.Duration
}

// Bounds of the remembered outcomes.
const (
	// outcomesOfPeerMax bounds the remembered sessions of a connection. A
	// client uses one connection for each session.
	outcomesOfPeerMax = 256
	// outcomesOfGoneMax bounds the remembered sessions of an identity whose
	// connections are gone.
	outcomesOfGoneMax = 4096
	// reusedAnswerBytes bounds the answer buffer that a session reuses for its
	// next answer.
	reusedAnswerBytes = 4 << 10
	// outcomesKeep is the time for which a session is remembered after its
	// connection is gone, since its client may reconnect and ask. A session
	// that has said goodbye does not ask; it is remembered only as long as a
	// copy of its last request may arrive late and be executed. These are times of
	// the running clock.
	outcomesKeep       = 10 * time.Minute
	outcomesKeepClosed = 3 * index.MaxCommitAge / 2
	// lateAfter is how long a client of a durable server waits for a decision that
	// another server has not given. It then hears that the outcome is in doubt, and
	// asks for as long as its deadline or its patience lets it. So no client waits
	// for a server that may never come back, and a decision that comes is found.
	lateAfter = peerTimeout
)

// fate is the state of a session's last transaction.
type fate struct {
	owner    rdma.Identity // identity of the first user of the session
	client   uint64
	seq      uint64
	done     bool
	restored bool // from the log, and nobody has used the session since
	former   bool // the session had transactions in a former life of the server
	left     bool // in doubt since a former life of the server: no request of it is running
	closed   bool // the session has said goodbye
	resp     []byte
	running  *rdma.Request   // the request, nil if it has its answer
	doubtful bool            // not done, and clients are told that the outcome is in doubt
	waiting  []*rdma.Request // repeats of a request still running
	last     time.Duration   // when a request or a question came last, by the running clock
	since    time.Duration   // when its connection ended, by the running clock
	of       *account
	at       *list.Element
}

func newOutcomes(reply func(*rdma.Request, []byte), sent func() wire.Sent) *outcomes {
	return &outcomes{
		reply: reply, sent: sent, ofPeerMax: outcomesOfPeerMax, ofGoneMax: outcomesOfGoneMax,
		fates: map[uint64]*fate{}, accounts: accounts{of: map[accountKey]*account{}},
		forgotten: forgotten{max: forgottenMax, of: map[string]time.Duration{}},
	}
}

// fateOf returns the fate of a session, charged to the connection of r.
func (o *outcomes) fateOf(client uint64, r *rdma.Request) *fate {
	f := o.fates[client]
	if f != nil {
		f.last = o.sent().At
	}
	if f != nil && f.of.key.peer == r.Peer && f.of.key.gone == "" {
		f.of.fates.MoveToBack(f.at)
		return f
	}
	a := o.accounts.get(accountKey{peer: r.Peer}, r.From.String())
	if f == nil {
		f = &fate{client: client, owner: *r.From, last: o.sent().At}
		o.fates[client] = f
	} else {
		o.accounts.leave(f)
	}
	o.enter(f, a, o.ofPeerMax)
	return f
}

// enter charges a fate to an account. If the account is above its bound, it
// forgets the oldest fates without a running request.
func (o *outcomes) enter(f *fate, a *account, most int) {
	o.accounts.charge(f, a)
	for e := a.fates.Front(); e != nil && a.fates.Len() > most; {
		old := e.Value.(*fate)
		if e = e.Next(); old.done && old != f {
			o.forget(old)
		}
	}
}

// forget forgets a session although copies of its requests may be on their way.
func (o *outcomes) forget(f *fate) {
	o.forgotten.add(f)
	o.drop(f)
}

// drop removes a session whose late requests will not be executed.
func (o *outcomes) drop(f *fate) {
	o.accounts.leave(f)
	o.accounts.bytes -= cap(f.resp)
	delete(o.fates, f.client)
}

// begin admits a request, or answers it if the same request came before.
func (o *outcomes) begin(id wire.ID, sent wire.Sent, r *rdma.Request) (run bool) {
	if id.Seq == 0 {
		o.reply(r, numberZero)
		return false
	}
	o.mu.Lock()
	was := o.fates[id.Client]
	if was != nil && !was.belongsTo(r.From) {
		o.mu.Unlock()
		o.refuse(r)
		return false
	}
	if was == nil || id.Seq > was.seq {
		if ok, cause := o.forgotten.admits(sent, o.sent(), r.From); !ok {
			o.mu.Unlock()
			o.reply(r, conflict(cause).append(nil))
			return false
		}
	}
	f := o.fateOf(id.Client, r)
	switch {
	case id.Seq > f.seq && (f.done || f.seq == 0 || f.left):
		// A session that goes on has had the outcome of its last transaction, even if
		// this server must still ask others for it.
		asked := f.waiting
		f.seq, f.done, f.closed, f.running, f.doubtful, f.left, f.waiting = id.Seq, false, false, r, false, false, nil
		if cap(f.resp) > reusedAnswerBytes { // the session has already received it
			o.accounts.resize(f, nil)
		}
		o.mu.Unlock()
		for _, w := range asked {
			o.reply(w, doubtful)
		}
		return true
	case id.Seq == f.seq && f.doubtful:
		o.mu.Unlock()
		o.reply(r, doubtful)
		return false
	case id.Seq == f.seq && !f.done:
		f.waiting = append(f.waiting, r)
		o.mu.Unlock()
		return false
	case id.Seq == f.seq:
		resp := append([]byte(nil), f.resp...)
		o.mu.Unlock()
		o.reply(r, resp)
		return false
	}
	o.mu.Unlock()
	o.reply(r, verdict{code: wire.Bad, text: "transaction number out of order"}.append(nil))
	return false
}

// numberZero is the answer to a request of transaction number 0. A session begins at 1: 0
// is a fate without a transaction.
var numberZero = verdict{code: wire.Bad, text: "transaction number 0"}.append(nil)

// end records the answer and sends it, unless the request was told that the
// outcome is in doubt.
func (o *outcomes) end(id wire.ID, r *rdma.Request, resp []byte) {
	o.mu.Lock()
	f := o.fates[id.Client] // a running request is never forgotten
	if f.doubtful {
		r = nil
	}
	waiting := f.waiting
	f.done, f.running, f.doubtful, f.waiting = true, nil, false, nil
	o.accounts.keep(f, resp)
	o.mu.Unlock()
	if r != nil {
		o.reply(r, resp)
	}
	for _, w := range waiting {
		o.reply(w, resp)
	}
}

// doubtful is the answer of a server that does not know the outcome yet.
var doubtful = verdict{code: wire.InDoubt, text: "another data server does not tell the decision, and may know it"}.append(nil)

// watch makes tellLate tell the clients of a transaction that it is in doubt, if it has
// not ended by then.
func (o *outcomes) watch(id wire.ID, after time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late = append(o.late, lateFate{id, clock.Fast() + after})
}

// tellLate answers the clients of late transactions whose time is over that they are in
// doubt. It reports whether others are left.
func (o *outcomes) tellLate() (more bool) {
	var waiting []*rdma.Request
	o.mu.Lock()
	if len(o.late) > 0 {
		now := clock.Fast()
		o.late = slices.DeleteFunc(o.late, func(l lateFate) bool {
			if l.at > now {
				return false
			}
			if f := o.fates[l.id.Client]; f != nil && f.seq == l.id.Seq && !f.done {
				if f.running != nil {
					waiting = append(waiting, f.running)
				}
				waiting = append(waiting, f.waiting...)
				f.running, f.doubtful, f.waiting = nil, true, nil
			}
			return true
		})
	}
	more = len(o.late) > 0
	o.mu.Unlock()
	for _, r := range waiting {
		o.reply(r, doubtful)
	}
	return more
}

// recoveredAccount is charged with the sessions that the log has, until they use
// a connection again.
var recoveredAccount = accountKey{gone: "recovered"}

// recoveredMax bounds the sessions that are restored.
const recoveredMax = 1 << 16

// restore remembers the answer to a commit from the log or a checkpoint, unless a
// later one of the session is known. The first client that shows the session's
// number owns it, as with a new session.
func (o *outcomes) restore(id wire.ID, resp []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.fates[id.Client]
	if f == nil {
		f = &fate{client: id.Client, restored: true}
		o.fates[id.Client] = f
		o.enter(f, o.accounts.get(recoveredAccount, recoveredAccount.gone), recoveredMax)
	} else if id.Seq < f.seq {
		return
	} else {
		f.of.fates.MoveToBack(f.at)
	}
	f.seq, f.done, f.former, f.doubtful, f.left = id.Seq, true, true, false, false
	o.accounts.keep(f, resp)
}

// written remembers that a transaction has committed which its client has applied itself. Its
// connection has ended, or may end at any time. If a hostile client has a transaction running here
// under the writer's name, the fate stays as it is, because end needs it.
func (o *outcomes) written(id wire.ID, who *rdma.Identity) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.fates[id.Client]
	if f != nil && !f.done {
		return
	}
	if f == nil {
		f = &fate{client: id.Client, owner: *who, last: o.sent().At, since: o.sent().At}
		o.fates[id.Client] = f
		o.enter(f, o.accounts.get(accountKey{gone: who.String()}, who.String()), o.ofGoneMax)
	}
	f.seq, f.done = id.Seq, true
	o.accounts.keep(f, []byte{byte(wire.OK)})
}

// doubt remembers that a session's last transaction is in doubt.
func (o *outcomes) doubt(id wire.ID) {
	o.restore(id, nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.fates[id.Client]; f.seq == id.Seq {
		f.done, f.left = false, true
	}
}

// settle ends a transaction for which no request is running.
func (o *outcomes) settle(id wire.ID, resp []byte) {
	o.mu.Lock()
	f := o.fates[id.Client]
	if f == nil || f.seq != id.Seq || f.done {
		o.mu.Unlock()
		return
	}
	waiting := f.waiting
	f.done, f.doubtful, f.left, f.waiting = true, false, false, nil
	o.accounts.keep(f, resp)
	o.mu.Unlock()
	for _, w := range waiting {
		o.reply(w, resp)
	}
}

// belongsTo reports whether the session belongs to the peer: its first user
// owns it. Session numbers are random, so a client cannot use the session of
// another client first.
func (f *fate) belongsTo(who *rdma.Identity) bool {
	if f.restored {
		f.restored, f.owner = false, *who
	}
	return f.owner.Same(who)
}

func (o *outcomes) refuse(r *rdma.Request) {
	o.reply(r, verdict{code: wire.Forbidden, text: "the session is another client's"}.append(nil))
}

// question answers the client that owns the session what the outcome of a transaction
// is. Other clients get a refusal, and question returns false. An unknown transaction
// is refused from now on, so the answer is final. The answer is Unknown, for not
// committed, only if the outcome cannot have been forgotten, and Forgotten otherwise.
func (o *outcomes) question(id wire.ID, sent wire.Sent, how byte, r *rdma.Request) (allowed bool) {
	if id.Seq == 0 {
		o.reply(r, numberZero)
		return false
	}
	o.mu.Lock()
	f := o.fates[id.Client]
	resp := []byte{byte(wire.Unknown)}
	switch {
	case f != nil && !f.belongsTo(r.From):
		o.mu.Unlock()
		o.refuse(r)
		return false
	case f != nil && f.seq == id.Seq && !f.done && (how == wire.OutcomeSettle || f.doubtful):
		resp[0] = byte(wire.InDoubt)
	case f != nil && f.seq == id.Seq && !f.done:
		if f.running == nil && len(f.waiting) == 0 { // restored: it depends on other servers
			o.late = append(o.late, lateFate{id, clock.Fast() + lateAfter})
		}
		f.waiting = append(f.waiting, r)
		o.mu.Unlock()
		return true
	case f != nil && f.seq == id.Seq:
		resp = append([]byte(nil), f.resp...)
	case f != nil && f.seq < id.Seq && !f.done:
		resp[0] = byte(wire.InDoubt) // a session has at most one running transaction
	case f != nil && f.seq > id.Seq: // its client has begun another one, and so knew
		resp[0] = byte(wire.Forgotten)
	default:
		answer := wire.Aborted
		if !o.forgotten.excludes(sent, o.sent(), r.From) {
			answer, resp[0] = wire.Forgotten, byte(wire.Forgotten)
		}
		f = o.fateOf(id.Client, r)
		f.seq, f.done = id.Seq, true
		o.accounts.keep(f, []byte{byte(answer)})
	}
	o.mu.Unlock()
	o.reply(r, resp)
	return true
}

// goodbye drops the answer of a session that has ended, at the request of a
// connection of the same identity.
func (o *outcomes) goodbye(client uint64, r *rdma.Request) {
	o.mu.Lock()
	if f := o.fates[client]; f != nil && f.done && f.belongsTo(r.From) {
		f.closed = true
		o.accounts.dropResult(f)
	}
	o.mu.Unlock()
	o.reply(r, []byte{byte(wire.OK)})
}

// disconnected charges the sessions of an ended connection to its identity, and
// forgets the sessions of all identities whose time has passed.
func (o *outcomes) disconnected(peer rdma.PeerID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.sent().At
	if a := o.accounts.of[accountKey{peer: peer}]; a != nil {
		for e := a.fates.Front(); e != nil; {
			f := e.Value.(*fate)
			e = e.Next()
			o.accounts.leave(f)
			f.since = now
			o.enter(f, o.accounts.get(accountKey{gone: a.who, closed: f.closed}, a.who), o.ofGoneMax)
		}
	}
	for k, a := range o.accounts.of {
		if k.gone == "" || k == recoveredAccount { // restored sessions are forgotten by number only, since their clients are not known
			continue
		}
		keep := outcomesKeep
		if k.closed {
			keep = outcomesKeepClosed
		}
		for e := a.fates.Front(); e != nil && now-e.Value.(*fate).since > keep; {
			f := e.Value.(*fate)
			switch e = e.Next(); {
			case !f.done:
			case k.closed:
				o.drop(f) // copies of its requests are too old by now
			default:
				o.forget(f)
			}
		}
	}
}

// kept returns the number of sessions whose last answer is remembered, and the
// size of those answers.
func (o *outcomes) kept() (sessions, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.fates), o.accounts.bytes
}
