package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// parkingRig is one server with accounts, whose requests wait for as long as
// the test wants.
type parkingRig struct {
	t    *testing.T
	cl   *Cluster
	s    *Server
	p    *partition
	acct *tables.Table
	mu   sync.Mutex
	now  []string // of repliers, in the order in which they were answered
}

const startBalance = 100

func newParkingRig(t *testing.T) *parkingRig {
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 6, startBalance)
	g := &parkingRig{t: t, cl: cl, s: cl.Servers[0], p: cl.Servers[0].parts.of[0], acct: acct}
	g.p.requests.parking.limit = 0
	return g
}

// untimed lets no wait and no reservation in the lines end by itself, so that it does
// not matter how fast the machine runs a test which has no use for that.
func (g *parkingRig) untimed() *parkingRig {
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	l := &g.p.requests.lines
	if l.armed {
		g.t.Fatal("somebody waits in a line already")
	}
	l.armed, l.timer = true, time.NewTimer(time.Hour) // instead of one that calls a function
	g.s.workers.wg.Add(1)                             // which the server's stop takes back
	return g
}

// timed undoes untimed.
func (g *parkingRig) timed() {
	g.p.mu.Lock()
	defer g.p.unlock()
	l := &g.p.requests.lines
	l.armed, l.timer = false, nil
	g.s.workers.wg.Done()
	l.arm()
}

// lapse ends the reservation of a session, whose lease it returns, of an untimed rig.
func (g *parkingRig) lapse(session uint64) (lease time.Duration) {
	g.t.Helper()
	g.p.mu.Lock()
	c := g.p.requests.lines.of[session]
	if c == nil || c.q != nil || c.parked {
		g.p.unlock()
		g.t.Fatalf("session %d has no reservation", session)
	}
	lease, c.ends = c.ends-c.since, clock.Fast()
	g.p.unlock()
	g.p.requests.lines.tick()
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if l := &g.p.requests.lines; !l.armed {
		l.armed = true
		g.s.workers.wg.Add(1)
	}
	g.p.requests.lines.timer.Reset(time.Hour)
	return lease
}

// row is an account's row as it is in memory, locked or not.
func (g *parkingRig) row(id uint64, balance int64) tables.Row {
	row := g.acct.NewRow()
	row.SetInt(g.acct.Field("id"), int64(id))
	row.SetInt(g.acct.Field("balance"), balance)
	row.SetInt(g.acct.Field("owner"), int64(id%7))
	return row
}

// inDoubt prepares a transaction that sets an account's balance.
func (g *parkingRig) inDoubt(id uint64, balance int64) *prepared {
	g.t.Helper()
	w := wire.Write{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(id), Row: g.row(id, balance)}
	prep, v := g.p.prepare(&wire.Part{Writes: []wire.Write{w}})
	if !v.ok() {
		g.t.Fatalf("prepare: %+v", v)
	}
	return prep
}

// awaitParked waits until n requests are parked.
func (g *parkingRig) awaitParked(n int) {
	g.t.Helper()
	for end := time.Now().Add(testseed.Patience()); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		g.p.mu.Lock()
		have := len(g.p.requests.parking.queue)
		for _, c := range g.p.requests.lines.all {
			if c.q != nil {
				have++
			}
		}
		g.p.mu.Unlock()
		if have == n {
			return
		}
	}
	g.t.Fatalf("there are never %d requests parked", n)
}

// end is the result of what was started, which must come soon.
func (g *parkingRig) end(what string, done <-chan error) error {
	g.t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(testseed.Patience()):
		g.t.Fatalf("%s was not woken by the decision", what)
		return nil
	}
}

func (g *parkingRig) balances(want ...int64) {
	g.t.Helper()
	for id, w := range want {
		res := g.p.index(g.acct.Primary().ID).Get(index.Num(uint64(id)), nil)
		if res.Status != index.Found {
			g.t.Errorf("account %d is %v", id, res.Status)
			continue
		}
		row := g.row(0, 0)
		copy(row, mem.Bytes(res.Row))
		if got := row.Int(g.acct.Field("balance")); got != w {
			g.t.Errorf("account %d has %d, want %d: carried out twice, or not at all", id, got, w)
		}
	}
}

// transfer starts a procedure.
func (g *parkingRig) transfer(s *txn.Session, from, to uint64, amount int64) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.Call(context.Background(), 0, "transfer", transferArgs(from, to, amount))
		done <- err
	}()
	return done
}

func (g *parkingRig) session() *txn.Session {
	g.t.Helper()
	s, err := g.cl.DB.NewSession(context.Background())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { s.Close() })
	return s
}

func aborts(s *txn.Session) (n uint64) {
	for _, a := range s.Stats().Aborts {
		n += a
	}
	return n
}

// TestParkedIsWoken: a procedure and the commit of an Update that meet a row of
// a transaction in doubt wait for its decision, see what it decided, and take
// effect once, with one message.
func TestParkedIsWoken(t *testing.T) {
	for _, commit := range []bool{true, false} {
		g := newParkingRig(t)
		caller, updater := g.session(), g.session()
		before := caller.Stats().Fabric.RPCs

		// An Update that writes what it has read while another only reads it:
		// nothing but the lock is in its way.
		reader := wire.Part{Rows: slices.Clone(g.p.index(g.acct.Primary().ID).Get(index.Num(3), nil).Proofs)}
		shared, v := g.p.prepare(&reader)
		if !v.ok() {
			t.Fatal(v)
		}
		updated := make(chan error, 1)
		go func() {
			updated <- updater.Update(context.Background(), func(tx *txn.Txn) error { return transfer(tx, g.acct, 3, 4, 20) })
		}()
		g.awaitParked(1)
		prep := g.inDoubt(0, 500)
		called := g.transfer(caller, 0, 1, 30)
		g.awaitParked(2)
		prep.decide(commit, prep.vote)
		if err := g.end("a procedure", called); err != nil {
			t.Errorf("procedure: %v", err)
		}
		shared.decide(commit, shared.vote)
		if err := g.end("a commit", updated); err != nil {
			t.Errorf("update: %v", err)
		}
		want := int64(startBalance - 30)
		if commit {
			want = 500 - 30
		}
		g.balances(want, startBalance+30, startBalance, startBalance-20, startBalance+20)
		if n := aborts(caller) + aborts(updater); n != 0 {
			t.Errorf("%d attempts were abandoned", n)
		}
		if n := caller.Stats().Fabric.RPCs - before; n > 2 { // the first says hello
			t.Errorf("%d messages for one procedure", n)
		}
	}
}

// TestParkedUpdateIsValidatedAnew: what an Update has read may change while it
// waits, and one whose reads are locked for writing does not wait at all.
func TestParkedUpdateIsValidatedAnew(t *testing.T) {
	g := newParkingRig(t)
	proofs := func(id uint64) []index.Proof {
		return slices.Clone(g.p.index(g.acct.Primary().ID).Get(index.Num(id), nil).Proofs)
	}
	write := func(id uint64) []wire.Write {
		return []wire.Write{{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(id), Row: g.row(id, 1)}}
	}
	send := func(seq uint64, part wire.Part) *replier {
		r := &replier{g: g}
		c := wire.Commit{ID: wire.ID{Client: 70, Seq: seq}, Sent: g.s.clocks.present(), Parts: []wire.Part{part}}
		g.s.handle(&rdma.Request{From: &anyRole, Body: wire.AppendCommit(nil, wire.OpCommit, &c, nil), Replier: r})
		return r
	}
	prep := g.inDoubt(0, 500)
	waits := send(1, wire.Part{Read: g.p.clock.Last(), Rows: proofs(1), Writes: write(0)}) // nothing it has read is locked
	if waits.answers() != 0 {
		t.Fatalf("answered %v", waits.code())
	}
	p, v := g.p.prepare(&wire.Part{Writes: write(1)})
	if !v.ok() {
		t.Fatal(v)
	}
	p.end(true, p.vote) // what it has read has changed
	prep.decide(true, prep.vote)
	if waits.code() != wire.Conflict || waits.cause() != exec.CauseRow {
		t.Errorf("what it had read changed while it waited: answered %v, %v", waits.code(), waits.cause())
	}
	read := wire.Part{Read: g.p.clock.Last(), Rows: proofs(2), Writes: write(3)}
	prep = g.inDoubt(2, 500)
	if r := send(2, read); r.code() != wire.Conflict || r.cause() != exec.CauseRow {
		t.Errorf("what it had read is being written: answered %v", r.all)
	}
	prep.decide(false, 0)
}

// replier takes the answer to a request that no connection has brought.
type replier struct {
	g    *parkingRig
	name string
	mu   sync.Mutex
	all  [][]byte
}

func (r *replier) Reply(b []byte) error {
	r.mu.Lock()
	r.all = append(r.all, slices.Clone(b))
	r.mu.Unlock()
	r.g.mu.Lock()
	r.g.now = append(r.g.now, r.name)
	r.g.mu.Unlock()
	return nil
}

// code of the one answer, none of wire's if there is none, or several.
func (r *replier) code() wire.Code {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) != 1 {
		return 0xff
	}
	return wire.Code(r.all[0][0])
}

func (r *replier) answers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

func (r *replier) cause() exec.Cause {
	r.mu.Lock()
	defer r.mu.Unlock()
	return exec.Cause(r.all[0][1])
}

// call hands a procedure to the server as a message whose memory is used for
// something else as soon as the handler has returned.
func (g *parkingRig) call(name string, client, seq uint64, from, to uint64, amount int64) *replier {
	r := &replier{g: g, name: name}
	body := wire.AppendCall(nil, wire.ID{Client: client, Seq: seq}, g.s.clocks.present(), 0, 0, 0, 0, "transfer", transferArgs(from, to, amount))
	g.s.handle(&rdma.Request{From: &anyRole, Body: body, Replier: r})
	for i := range body {
		body[i] = 0xa5
	}
	return r
}

// TestParkedKeepsItsOwn: a parked request keeps a copy of its message, runs in
// the order of arrival and before the decision is over, is answered once to
// everyone who asked, and is one transaction.
func TestParkedKeepsItsOwn(t *testing.T) {
	g := newParkingRig(t)
	prep := g.inDoubt(0, 500)
	first := g.call("first", 71, 1, 0, 1, 500)  // all there will be
	second := g.call("second", 72, 1, 0, 2, 10) // nothing is left for it
	other := g.call("free", 73, 1, 3, 4, 10)
	again := g.call("again", 71, 1, 0, 1, 500)
	asked := &replier{g: g, name: "asked"}
	g.s.handle(&rdma.Request{From: &anyRole, Body: wire.AppendOutcome(nil, wire.ID{Client: 71, Seq: 1}, g.s.clocks.present(), wire.OutcomeWait), Replier: asked})
	if first.answers()+second.answers()+again.answers()+asked.answers() != 0 || other.answers() != 1 {
		t.Fatal("what is not in doubt must be answered, and nothing else")
	}
	prep.decide(true, prep.vote)
	for _, r := range []*replier{first, again, asked} {
		if r.answers() != 1 || r.code() != wire.OK {
			t.Errorf("%s: %d answers, %q", r.name, r.answers(), r.all)
		}
	}
	if second.answers() != 1 || second.code() != wire.RolledBack {
		t.Errorf("second: %d answers, %q", second.answers(), second.all)
	}
	if want := []string{"free", "first", "again", "asked", "second"}; !slices.Equal(g.now, want) {
		t.Errorf("answered in the order %v, want %v", g.now, want)
	}
	g.inDoubt(5, 1).decide(false, 0)
	g.balances(0, startBalance+500, startBalance, startBalance-10, startBalance+10)
	if late := g.call("late", 71, 1, 0, 1, 500); late.code() != wire.OK {
		t.Errorf("repeated after all: %q", late.all)
	}
	g.balances(0, startBalance+500)
}

// TestParkedIsBounded: beyond the bounds, in number and in bytes, a request is
// refused at once, as is one that nobody would wake.
func TestParkedIsBounded(t *testing.T) {
	g := newParkingRig(t)
	prep := g.inDoubt(0, 500)
	var parked []*replier
	g.p.requests.parking.max, g.p.requests.lines.max = 1, 64 // one waits for the decision, the others in the line behind it
	for i := range uint64(64) {
		parked = append(parked, g.call("parked", 100+i, 1, 0, 1, 1))
	}
	if r := g.call("more", 71, 1, 0, 1, 1); r.answers() != 1 || r.code() != wire.Conflict || r.cause() != exec.CauseLocked {
		t.Errorf("one more than %d: %q", 64, r.all)
	}
	if g.p.requests.parking.awaitDecision(context.Background()) {
		t.Error("a goroutine more waits too")
	}
	prep.decide(true, prep.vote)
	for _, r := range parked {
		if r.answers() != 1 || r.code() != wire.OK {
			t.Fatalf("%d answers, %q", r.answers(), r.all)
		}
	}
	g.balances(500-64, startBalance+64)
	if g.p.requests.parking.bytes != 0 {
		t.Errorf("%d bytes are counted of nothing", g.p.requests.parking.bytes)
	}

	prep = g.inDoubt(0, 500)
	r := &replier{g: g}
	args := append(transferArgs(0, 1, 1), make([]byte, parkedBytesMax-rowsOfCall)...)
	g.s.handle(&rdma.Request{From: &anyRole, Body: wire.AppendCall(nil, wire.ID{Client: 72, Seq: 1}, g.s.clocks.present(), 0, 0, 0, 0, "transfer", args), Replier: r})
	small := g.call("small", 73, 1, 0, 1, 1)
	if large := g.call("large", 74, 1, 0, 1, 1); r.answers() != 0 || small.answers() != 0 || large.code() != wire.Conflict {
		t.Errorf("of requests that fill the bytes %d, then %d are answered, then %q", r.answers(), small.answers(), large.all)
	}
	prep.decide(false, 0)
	if g.p.requests.parking.awaitDecision(context.Background()) {
		t.Error("a wait for nobody")
	}
}

// rowsOfCall is what a small call takes, and some more, less than two of them.
const rowsOfCall = 184

// TestParkedGivesUp: the wait for a decision that does not come ends, for each
// request after its own time, and the lock is as it was.
func TestParkedGivesUp(t *testing.T) {
	g := newParkingRig(t)
	const limit = 20 * time.Millisecond
	g.p.requests.parking.limit = limit
	prep := g.inDoubt(0, 500)
	start := time.Now()
	for i := range uint64(3) {
		r := g.call("waits", 71+i, 1, 0, 1, 1)
		time.Sleep(limit / 4)
		if early := r.answers() != 0; i == 0 && early && time.Since(start) < limit {
			t.Errorf("answered within %v, want %v", time.Since(start), limit)
		}
	}
	g.awaitParked(0)
	if took := time.Since(start); took < limit {
		t.Errorf("all gave up after %v, want %v", took, limit)
	}
	r := g.call("waits", 71, 2, 0, 1, 1) // the client's next attempt
	g.awaitParked(0)
	for end := time.Now().Add(testseed.Patience()); r.answers() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if r.code() != wire.Conflict || r.cause() != exec.CauseLocked {
		t.Errorf("answered %q", r.all)
	}
	if g.p.requests.parking.awaitDecision(context.Background()); time.Since(start) < 2*limit {
		t.Error("a goroutine does not wait")
	}
	if !conflicts(g.p, wire.Write{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(0), Row: g.row(0, 1)}) {
		t.Error("the row is free before the decision")
	}
	prep.decide(true, prep.vote)
	g.balances(500, startBalance)
	if st := g.p.stats(); st.Parked != 5 || st.ParkedLong != 5 {
		t.Errorf("%d parked and %d gave up, want 5", st.Parked, st.ParkedLong)
	}
}

// TestParkedAtShutdown: a server that stops answers what is parked, certainly
// without effect, and parks no more.
func TestParkedAtShutdown(t *testing.T) {
	for _, limit := range []time.Duration{0, time.Hour} { // with the timer set, and without
		g := newParkingRig(t)
		g.p.requests.parking.limit = limit
		s := g.session()
		if err := g.end("a procedure", g.transfer(s, 2, 3, 1)); err != nil {
			t.Fatal(err)
		}
		prep := g.inDoubt(0, 500)
		called := g.transfer(s, 0, 1, 1)
		g.awaitParked(1)
		woken := make(chan error, 1)
		go func() { g.p.requests.parking.awaitDecision(context.Background()); woken <- nil }()
		// A goroutine waits for no longer than awaitedFor, if there is a limit, so
		// it may have left before it is seen.
		for end := time.Now().Add(testseed.Patience()); g.p.stats().Parked != 2; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("%d have been parked, want 2", g.p.stats().Parked)
			}
		}
		if err := g.s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := g.end("a procedure", called); !errors.Is(err, txn.ErrUnavailable) || errors.Is(err, txn.ErrOutcomeUnknown) {
			t.Errorf("told %v, want that the server is unavailable", err)
		}
		_ = g.end("a goroutine", woken)
		if r := g.call("late", 99, 1, 0, 1, 1); r.code() != wire.Conflict {
			t.Errorf("parked although the server has stopped: %q", r.all)
		}
		prep.decide(false, 0)
		g.balances(startBalance, startBalance)
	}
}

// TestParkedClientLeaves: the client's connection ends while its request is
// parked. It is carried out all the same, and its outcome can be asked for.
func TestParkedClientLeaves(t *testing.T) {
	g := newParkingRig(t)
	prep := g.inDoubt(0, 500)
	ctx, cancel := context.WithCancel(context.Background())
	s := g.session()
	done := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, 0, "transfer", transferArgs(0, 1, 30))
		done <- err
	}()
	g.awaitParked(1)
	cancel()
	var lost *txn.UnknownOutcome
	if err := g.end("the client", done); !errors.As(err, &lost) {
		t.Fatalf("cancelled while parked: %v", err)
	}
	asked := make(chan error, 1)
	go func() { asked <- g.cl.DB.Outcome(context.Background(), lost.ID) }()
	prep.decide(true, prep.vote)
	if err := g.end("a question", asked); err != nil {
		t.Errorf("outcome %v, want committed", err)
	}
	g.balances(470, startBalance+30)
}

// TestAwaitDecision: a procedure of several servers waits in its goroutine.
func TestAwaitDecision(t *testing.T) {
	g := newParkingRig(t)
	prep := g.inDoubt(0, 500)
	woken := make(chan error, 1)
	go func() {
		if !g.p.requests.parking.awaitDecision(context.Background()) {
			woken <- errors.New("does not wait")
		}
		close(woken)
	}()
	g.awaitParked(1)
	prep.decide(true, prep.vote)
	if err := g.end("a goroutine", woken); err != nil {
		t.Error(err)
	}
	if g.p.requests.parking.awaitDecision(context.Background()) {
		t.Error("waits for nobody")
	}
}
