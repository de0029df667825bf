package server

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// TestOutcomesAtRandom: whatever is lost, late or repeated, and whatever a server
// forgets, a transaction is executed at most once, an answer that it committed or
// never will is true for good, and what is sent after all that was forgotten is
// executed.
func TestOutcomesAtRandom(t *testing.T) {
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var refused, forgotten, ran int
	for round := range uint64(1000) {
		w := &outcomesWorld{t: t, r: rand.New(rand.NewPCG(seed, round)), what: fmt.Sprintf("round %d", round), fates: map[wire.ID]*simpleFate{}}
		w.now = wire.Sent{Incarnation: 7, Epoch: 1, At: time.Duration(r.IntN(2)) * time.Hour}
		w.o = newOutcomes(w.reply, func() wire.Sent { return w.now })
		w.o.ofPeerMax, w.o.ofGoneMax, w.o.forgotten.max = 1+w.r.IntN(3), 1+w.r.IntN(4), w.r.IntN(3)
		if round%2 == 0 {
			w.restore()
		}
		for range 400 {
			w.step()
		}
		refused, forgotten, ran = refused+w.refused, forgotten+w.forgotten, ran+w.ran
	}
	t.Logf("%d executed, %d refused as late, %d answers that the outcome is forgotten", ran, refused, forgotten)
	if ran == 0 || refused == 0 || forgotten == 0 {
		t.Error("not all happened")
	}
}

// TestRequestsOfAFormerLife: a request that was sent to another life of the server, or
// at a time that has not been yet, is not executed.
func TestRequestsOfAFormerLife(t *testing.T) {
	now := wire.Sent{Incarnation: 1, Epoch: 2, At: time.Hour}
	var answer []byte
	o := newOutcomes(func(_ *rdma.Request, b []byte) { answer = b }, func() wire.Sent { return now })
	o.forgotten.restored = true
	for i, sent := range []wire.Sent{{}, {Incarnation: 1, Epoch: 1, At: time.Hour}, {Incarnation: 2, Epoch: 2, At: time.Hour}, {Incarnation: 1, Epoch: 2, At: time.Hour + 1}} {
		if o.begin(wire.ID{Client: uint64(i), Seq: 1}, sent, &rdma.Request{From: &rdma.Identity{}}) {
			t.Errorf("a request that was sent at %+v is executed", sent)
		} else if wire.Code(answer[0]) != wire.Conflict {
			t.Errorf("it is answered %v", answer)
		}
	}
}

// simpleFate is the truth about a transaction.
type simpleFate struct {
	runs      int
	committed bool // of those that ended
	said      bool // that it has not committed, and never will
}

// outcomesWorld has sessions of a few identities that send commits and questions,
// which arrive at any time, or never.
type outcomesWorld struct {
	t        *testing.T
	r        *rand.Rand
	what     string
	o        *outcomes
	now      wire.Sent
	sessions []*outcomesSession
	under    []func() // messages on their way, and executions that end
	fates    map[wire.ID]*simpleFate
	answer   map[*rdma.Request]func([]byte)

	refused, forgotten, ran int
}

type outcomesSession struct {
	id      wire.ID
	who     rdma.Identity
	peer    rdma.PeerID
	sent    wire.Sent
	waiting bool // for the answer to its last transaction
	closed  bool
}

// restore makes the server one that was started again: it knows of sessions whose
// transactions it has committed in a former life.
func (w *outcomesWorld) restore() {
	w.o.forgotten.restored = true
	for i := range 9 {
		n := i % 3
		s := &outcomesSession{id: wire.ID{Client: w.r.Uint64(), Seq: 1}, who: rdma.Identity{Name: fmt.Sprint("client ", n)}, peer: rdma.PeerID(n)}
		s.sent, s.waiting = wire.Sent{Incarnation: w.now.Incarnation, At: time.Hour}, w.r.IntN(2) == 0
		w.sessions = append(w.sessions, s)
		*w.fate(s.id) = simpleFate{runs: 1, committed: true}
		w.o.restore(s.id, []byte{byte(wire.OK), 0})
		w.under = append(w.under, w.commit(s, s.id, s.sent)) // a copy
	}
}

func (w *outcomesWorld) reply(r *rdma.Request, b []byte) {
	if f := w.answer[r]; f != nil {
		f(b)
	}
}

func (w *outcomesWorld) request(s *outcomesSession, f func([]byte)) *rdma.Request {
	if w.answer == nil {
		w.answer = map[*rdma.Request]func([]byte){}
	}
	r := &rdma.Request{Peer: s.peer, From: &s.who}
	w.answer[r] = f
	return r
}

func (w *outcomesWorld) step() {
	switch x := w.r.IntN(100); {
	case x < 20:
		w.now.At += time.Duration(w.r.Int64N(int64(time.Second) << w.r.IntN(6)))
	case x < 55 && len(w.under) > 0: // what is under way arrives, perhaps again
		i := w.r.IntN(len(w.under))
		f := w.under[i]
		if w.r.IntN(3) > 0 {
			w.under = append(w.under[:i], w.under[i+1:]...)
		}
		f()
	case x < 65 || len(w.sessions) == 0:
		n := w.r.IntN(3)
		w.sessions = append(w.sessions, &outcomesSession{
			id: wire.ID{Client: w.r.Uint64()}, who: rdma.Identity{Name: fmt.Sprint("client ", n)}, peer: rdma.PeerID(w.r.IntN(6)*3 + n),
		})
	default:
		w.act(w.sessions[w.r.IntN(len(w.sessions))])
	}
}

// act has a session do something.
func (w *outcomesWorld) act(s *outcomesSession) {
	switch x := w.r.IntN(10); {
	case s.closed:
		w.o.disconnected(s.peer)
	case x < 4 && !s.waiting:
		s.id.Seq++
		s.sent, s.waiting = w.now, true
		if w.r.IntN(2) == 0 { // the client has not heard of the clock lately
			s.sent.At = max(s.sent.At-time.Duration(w.r.Int64N(int64(5*time.Second))), 0)
		}
		w.under = append(w.under, w.commit(s, s.id, s.sent))
	case x < 7 && s.waiting: // the connection broke, and there is another one
		s.peer += 18
		w.under = append(w.under, w.question(s, s.id, s.sent))
	case x < 8:
		w.o.disconnected(s.peer)
	case !s.waiting:
		s.closed = true
		w.o.goodbye(s.id.Client, w.request(s, nil))
	}
}

func (w *outcomesWorld) fate(id wire.ID) *simpleFate {
	if w.fates[id] == nil {
		w.fates[id] = &simpleFate{}
	}
	return w.fates[id]
}

// commit is a commit that arrives.
func (w *outcomesWorld) commit(s *outcomesSession, id wire.ID, sent wire.Sent) func() {
	return func() {
		f := w.fate(id)
		certain := sent.Epoch == w.now.Epoch && w.now.At-sent.At <= 20*time.Second && sent.At >= w.bound() && f.runs == 0 && !f.said && s.id == id
		r := w.request(s, func(b []byte) { w.hears(s, id, b, true) })
		before := f.runs
		if w.o.begin(id, sent, r) {
			w.ran++
			if f.runs++; f.runs > 1 || f.said {
				w.t.Fatalf("%s: a transaction runs %d times, or after an answer that it never will: %v", w.what, f.runs, f.said)
			}
			w.under = append(w.under, func() { w.end(s, id, r) })
		} else if certain && f.runs == before {
			w.t.Fatalf("%s: a transaction that was sent after all that was forgotten is refused", w.what)
		}
	}
}

// end ends an execution, if it has not ended.
func (w *outcomesWorld) end(s *outcomesSession, id wire.ID, r *rdma.Request) {
	w.o.mu.Lock()
	running := w.o.fates[id.Client] != nil && w.o.fates[id.Client].running == r
	w.o.mu.Unlock()
	if !running {
		return
	}
	code := wire.OK
	if w.r.IntN(3) == 0 {
		code = wire.Conflict
	}
	w.fate(id).committed = code == wire.OK
	w.o.end(id, r, []byte{byte(code), 0})
}

// bound is the time before which something may have been sent that is forgotten.
func (w *outcomesWorld) bound() (most time.Duration) {
	w.o.mu.Lock()
	defer w.o.mu.Unlock()
	most = w.o.forgotten.most
	for _, at := range w.o.forgotten.of {
		most = max(most, at)
	}
	return most
}

// question is one that arrives.
func (w *outcomesWorld) question(s *outcomesSession, id wire.ID, sent wire.Sent) func() {
	return func() {
		w.o.question(id, sent, byte(w.r.IntN(2)), w.request(s, func(b []byte) { w.hears(s, id, b, false) }))
	}
}

// hears checks an answer, to a commit or to a question. One that comes to a commit
// over a connection that was given up is not heard, nor is one after the goodbye.
func (w *outcomesWorld) hears(s *outcomesSession, id wire.ID, b []byte, commit bool) {
	if s.closed {
		return // nobody listens
	}
	f := w.fate(id)
	switch c := wire.Code(b[0]); {
	case c == wire.OK || c == wire.ResultLost:
		if !f.committed {
			w.t.Fatalf("%s: a transaction that has not committed is answered %v", w.what, c)
		}
	case c == wire.Bad, c == wire.InDoubt:
		return
	case c == wire.Forgotten:
		w.forgotten++
		return // the session would go on under another number
	case c == wire.Conflict && commit && (exec.Cause(b[1]) == exec.CauseLate || exec.Cause(b[1]) == exec.CauseFence):
		w.refused++
		if f.runs == 0 && s.id == id {
			s.waiting = false // its next attempt has another number
			f.said = true
		}
		return
	default: // not committed, for whatever reason
		if f.committed {
			w.t.Fatalf("%s: a transaction that has committed is answered %v", w.what, c)
		}
		f.said = f.said || f.runs == 0
	}
	if s.id == id {
		s.waiting = false
	}
}

// TestWriterNamesOfSessions: a client that sends a transaction under the name of its own writer gets an
// answer, also if the writer is settled while the transaction runs and others fill its account.
func TestWriterNamesOfSessions(t *testing.T) {
	now := wire.Sent{Incarnation: 1, Epoch: 1, At: time.Hour}
	answers := map[*rdma.Request]wire.Code{}
	o := newOutcomes(func(r *rdma.Request, b []byte) { answers[r] = wire.Code(b[0]) }, func() wire.Sent { return now })
	o.ofPeerMax, o.ofGoneMax = 2, 2
	who := &rdma.Identity{Name: "client"}
	const name = 5
	first := &rdma.Request{Peer: 1, From: who}
	id := wire.ID{Client: name, Seq: 1}
	if !o.begin(id, now, first) {
		t.Fatal("it is not executed")
	}
	o.written(wire.ID{Client: name, Seq: 9}, who)
	for k := range uint64(8) {
		now.At += time.Second
		other, r := wire.ID{Client: 100 + k, Seq: 1}, &rdma.Request{Peer: 1, From: who}
		if !o.begin(other, now, r) {
			t.Fatalf("another transaction is not executed: answer %d", answers[r])
		}
		o.end(other, r, []byte{byte(wire.OK)})
	}
	o.end(id, first, []byte{byte(wire.Exists)})
	if code, ok := answers[first]; !ok || code != wire.Exists {
		t.Errorf("its answer is %d, %v; want %d", code, ok, wire.Exists)
	}
	// The next one of the writer itself is remembered.
	o.written(wire.ID{Client: name, Seq: 10}, who)
	asked := &rdma.Request{Peer: 1, From: who}
	o.question(wire.ID{Client: name, Seq: 10}, now, wire.OutcomeWait, asked)
	if code := answers[asked]; code != wire.OK {
		t.Errorf("the outcome of the writer's transaction is %d, want %d", code, wire.OK)
	}
}
