package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// update sends the commit of an Update that has read and writes an account, as
// the client of a session. stale makes its proof one of an older row. wait is
// how long it wants to wait for its turn.
func (g *parkingRig) update(name string, session, seq, id uint64, balance int64, stale bool, wait time.Duration) *replier {
	g.t.Helper()
	ix := g.acct.Primary().ID
	proofs := slices.Clone(g.p.index(ix).Get(index.Num(id), nil).Proofs)
	if stale {
		proofs[0].Word--
	}
	c := wire.Commit{ID: wire.ID{Client: session, Seq: seq}, Sent: g.s.clocks.present(), Turn: wire.Turn{Wait: wait}, Parts: []wire.Part{{
		Read:   g.p.clock.Last(),
		Rows:   proofs,
		Writes: []wire.Write{{Index: uint16(ix), Op: wire.Update, Key: index.Num(id), Row: g.row(id, balance)}},
	}}}
	r := &replier{g: g, name: name}
	g.s.handle(&rdma.Request{From: &anyRole, Peer: rdma.PeerID(session), Body: wire.AppendCommit(nil, wire.OpCommit, &c, nil), Replier: r})
	return r
}

func (r *replier) reserved() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all) == 1 && len(r.all[0]) == 3 && r.all[0][2] == wire.Reserved
}

// await waits until a request is answered.
func (r *replier) await(t *testing.T) *replier {
	t.Helper()
	for end := time.Now().Add(testseed.Patience()); r.answers() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s is never answered", r.name)
		}
	}
	return r
}

// TestLineIsServedInOrder: Updates that have lost, an Update that has not, and a
// procedure that writes the same row wait in one line. Each has its turn in the
// order of arrival, and no one in between.
func TestLineIsServedInOrder(t *testing.T) {
	g := newParkingRig(t).untimed()
	const wait = time.Minute
	first := g.update("first", 101, 1, 0, 1, true, wait)
	if !first.reserved() {
		t.Fatalf("the first that loses is answered %q, want a reservation", first.all)
	}
	second := g.update("second", 102, 1, 0, 2, true, wait)
	fresh := g.update("fresh", 103, 1, 0, 3, false, wait)
	called := g.call("called", 104, 1, 0, 1, 5)
	third := g.update("third", 105, 1, 0, 4, true, wait)
	other := g.update("other", 106, 1, 2, 77, false, wait) // another row
	if n := second.answers() + fresh.answers() + called.answers() + third.answers(); n != 0 || other.code() != wire.OK {
		t.Fatalf("%d that must wait are answered, the one of another row %q", n, other.all)
	}
	if r := g.update("first again", 101, 2, 0, 60, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if !second.reserved() || fresh.answers() != 0 {
		t.Fatalf("after the first turn, the second has %q and the next %q", second.all, fresh.all)
	}
	if r := g.update("second again", 102, 2, 0, 70, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if !fresh.reserved() { // what it had read has changed meanwhile
		t.Fatalf("the third in line has %q", fresh.all)
	}
	if r := g.update("fresh again", 103, 2, 0, 80, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if called.code() != wire.OK || !third.reserved() {
		t.Fatalf("the procedure has %q and the last Update %q", called.all, third.all)
	}
	// Those whose turn has come hear of it before the one that has ended its turn.
	want := []string{"first", "other", "second", "first again", "fresh", "second again", "called", "third", "fresh again"}
	if !slices.Equal(g.now, want) {
		t.Errorf("answered in the order %v, want %v", g.now, want)
	}
	g.balances(75, startBalance+5, 77)
}

// TestReservationEnds: the reservation of a client that does not come ends with
// its lease, that of one that has left at once, and both serve those behind.
func TestReservationEnds(t *testing.T) {
	g := newParkingRig(t).untimed()
	const wait = time.Minute
	dead := g.update("dead", 101, 1, 0, 1, true, wait)
	left := g.update("left", 102, 1, 0, 2, true, wait)
	waits := g.update("waits", 103, 1, 0, 3, true, wait)
	if !dead.reserved() || left.answers()+waits.answers() != 0 {
		t.Fatalf("answers %q, %q, %q", dead.all, left.all, waits.all)
	}
	g.timed()
	if !left.await(t).reserved() {
		t.Fatalf("after a lease has ended in vain, the next has %q", left.all)
	}
	g.p.mu.Lock()
	g.p.requests.lines.leave(102)
	g.p.unlock()
	if !waits.await(t).reserved() {
		t.Fatalf("after a client has left, the next has %q", waits.all)
	}
	if r := g.update("waits again", 103, 2, 0, 60, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if r := g.update("too late", 101, 2, 0, 70, true, 0); r.code() != wire.Conflict || r.reserved() {
		t.Errorf("without a wait: %q", r.all)
	}
	g.balances(60)
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if l := &g.p.requests.lines; len(l.all)+len(l.rows)+len(l.of)+l.bytes != 0 {
		t.Errorf("%d claims, %d lines, %d sessions and %d bytes are left", len(l.all), len(l.rows), len(l.of), l.bytes)
	}
}

// TestLeasesInVainShrink: of many dead clients in one line, each holds up the
// others for half as long as the one before, until a client comes in time.
func TestLeasesInVainShrink(t *testing.T) {
	g := newParkingRig(t).untimed()
	const dead, wait = 60, time.Minute
	for i := range uint64(dead) {
		g.update(fmt.Sprint("dead ", i), 101+i, 1, 0, 1, true, wait)
	}
	alive := g.update("alive", 200, 1, 0, 3, true, wait)
	held, last := time.Duration(0), 2*leaseMin
	for i := range uint64(dead) {
		lease := g.lapse(101 + i)
		if held += lease; lease > max(last/2, leaseLeast) {
			t.Errorf("dead client %d has a lease of %v after one of %v that ended in vain", i, lease, last)
		}
		last = lease
	}
	if !alive.reserved() {
		t.Fatalf("answered %q", alive.all)
	}
	if held > dead*leaseMin/10 {
		t.Errorf("%d dead clients hold up a row for %v", dead, held)
	}
}

// TestLoserKeepsItsPlace: a procedure of several servers that has lost under its turn
// at home, because of another server, does not go behind all that came after it.
func TestLoserKeepsItsPlace(t *testing.T) {
	g := newParkingRig(t).untimed()
	const wait = time.Minute
	p := g.s.parts.get(0)
	turn := wire.Turn{Wait: wait, Losses: 1, Rows: []wire.RowName{wire.NameRow(uint16(g.acct.Primary().ID), index.Num(0))}}
	if !p.requests.lines.reserveFor(t.Context(), 900, &turn) {
		t.Fatal("no turn in an empty line")
	}
	first := g.update("first", 101, 1, 0, 1, true, wait)
	second := g.update("second", 102, 1, 0, 2, true, wait)
	p.requests.lines.release(900, true)
	if !first.reserved() {
		t.Fatalf("the turn after the procedure's: %q", first.all)
	}
	turn.Wait, turn.Losses, turn.Again = wait, 2, true
	granted := make(chan bool)
	go func() { granted <- p.requests.lines.reserveFor(t.Context(), 900, &turn) }()
	for waits := 0; waits < 3; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		waits = len(p.requests.lines.all)
		p.mu.Unlock()
	}
	if r := g.update("first again", 101, 2, 0, 10, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if second.answers() != 0 {
		t.Fatalf("one that came later is served before the procedure: %q", second.all)
	}
	if !<-granted {
		t.Error("the procedure has no turn")
	}
	p.requests.lines.release(900, false)
	if !second.reserved() {
		t.Errorf("after the procedure: %q", second.all)
	}
}

// TestWholePartition: a transaction that has lost again and again has the
// partition for itself, after those before it and before those behind.
func TestWholePartition(t *testing.T) {
	g := newParkingRig(t).untimed()
	const wait = time.Minute
	before := g.update("before", 101, 1, 0, 1, true, wait)
	whole := &replier{g: g, name: "whole"}
	turn := wire.Turn{Wait: wait, Losses: wholeLosses, Whole: true}
	g.s.handle(&rdma.Request{From: &anyRole, Peer: 102, Body: wire.AppendReserve(nil, 102, 0, &turn), Replier: whole})
	behind := g.update("behind", 103, 1, 3, 5, false, wait)
	same := g.update("same row", 104, 1, 4, 5, true, wait)
	if !before.reserved() || whole.answers()+behind.answers()+same.answers() != 0 {
		t.Fatalf("answers %q, %q, %q, %q", before.all, whole.all, behind.all, same.all)
	}
	if r := g.update("before again", 101, 2, 0, 60, false, wait); r.code() != wire.OK {
		t.Fatalf("under a reservation: %q", r.all)
	}
	if !whole.reserved() || behind.answers() != 0 {
		t.Fatalf("the partition's turn: %q, behind it %q", whole.all, behind.all)
	}
	if r := g.update("whole again", 102, 1, 4, 70, false, wait); r.code() != wire.OK {
		t.Fatalf("with the partition reserved: %q", r.all)
	}
	if behind.code() != wire.OK || !same.reserved() {
		t.Fatalf("behind: %q, %q", behind.all, same.all)
	}
	g.balances(60, startBalance, startBalance, 5, 70)
}

// TestEveryUpdateEnds: many goroutines update few rows, of one partition and of
// several servers. None gives up, and no Update makes more than a few attempts.
func TestEveryUpdateEnds(t *testing.T) {
	const goroutines, each, rows = 200, 4, 6
	for _, servers := range []int{1, 2} {
		cl, acct, _ := startBank(t, servers)
		putAccounts(t, cl.DB, acct, rows, startBalance)
		ended := make(chan error, goroutines)
		for i := range uint64(goroutines) {
			go func() {
				var err error
				for n := range uint64(each) {
					from := (i + n) % rows
					if e := cl.DB.Update(context.Background(), func(tx *txn.Txn) error { return deposit(tx, acct, from, (from+i)%rows) }); e != nil {
						err = e
					}
				}
				ended <- err
			}()
		}
		for range goroutines {
			if err := <-ended; err != nil {
				t.Fatalf("%d servers: %v", servers, err)
			}
		}
		sum := int64(0)
		if err := cl.DB.View(context.Background(), func(tx *txn.Txn) error {
			sum = 0
			for id := range uint64(rows) {
				row, err := tx.Get(acct, tables.Num(id))
				if err != nil {
					return err
				}
				sum += row.Int(acct.Field("balance"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if want := int64(rows*startBalance + goroutines*each); sum != want {
			t.Errorf("%d servers: the sum is %d, want %d", servers, sum, want)
		}
	}
}

// deposit reads two accounts and adds 1 to the second.
func deposit(tx *txn.Txn, acct *tables.Table, read, add uint64) error {
	if _, err := tx.Get(acct, tables.Num(read)); err != nil {
		return err
	}
	row, err := tx.Get(acct, tables.Num(add))
	if err != nil {
		return err
	}
	row = slices.Clone(row)
	row.SetInt(acct.Field("balance"), row.Int(acct.Field("balance"))+1)
	return tx.Update(acct, tables.Num(add), row)
}

// answered reports the answers of requests, in the order given: whether each has
// been answered.
func answered(rs ...*replier) (done []bool) {
	for _, r := range rs {
		done = append(done, r.answers() > 0)
	}
	return done
}

// TestLockedRowHasALine: of those that meet the lock of one row, the first waits
// for the decision and the others behind it. They hold up no other row, not even
// one that they would write too. After the decision all run in order of arrival.
func TestLockedRowHasALine(t *testing.T) {
	g := newParkingRig(t).untimed()
	prep := g.inDoubt(0, 500)
	first := g.call("first", 71, 1, 0, 1, 1)
	update := &replier{g: g, name: "update"}
	ix := g.acct.Primary().ID
	c := wire.Commit{ID: wire.ID{Client: 72, Seq: 1}, Sent: g.s.clocks.present(), Parts: []wire.Part{{
		Rows:   slices.Clone(g.p.index(ix).Get(index.Num(3), nil).Proofs),
		Writes: []wire.Write{{Index: uint16(ix), Op: wire.Update, Key: index.Num(0), Row: g.row(0, 600)}},
	}}}
	g.s.handle(&rdma.Request{From: &anyRole, Body: wire.AppendCommit(nil, wire.OpCommit, &c, nil), Replier: update})
	second := g.call("second", 73, 1, 0, 1, 1)
	g.p.mu.Lock()
	parked := len(g.p.requests.parking.queue)
	g.p.mu.Unlock()
	if parked != 1 {
		t.Errorf("%d requests are parked for one row, want the first one", parked)
	}
	other := g.call("other", 74, 1, 1, 2, 10)
	if got := answered(first, update, second, other); !slices.Equal(got, []bool{false, false, false, true}) {
		t.Fatalf("answered: %v; only the last one writes no locked row", got)
	}
	prep.decide(true, prep.vote)
	for _, r := range []*replier{first, update, second} {
		if r.code() != wire.OK {
			t.Errorf("%s: %q", r.name, r.all)
		}
	}
	if want := []string{"other", "first", "update", "second"}; !slices.Equal(g.now, want) {
		t.Errorf("answered in the order %v, want %v", g.now, want)
	}
	g.balances(599, startBalance-10+2, startBalance+10)
}

// TestPreparesWaitForNoLine: a transaction of several servers, which must not
// wait, is refused a row that is reserved, and not one for which others wait that
// have no turn yet. These have their turn all the same, and wait for the lock.
func TestPreparesWaitForNoLine(t *testing.T) {
	g := newParkingRig(t).untimed()
	ix := uint16(g.acct.Primary().ID)
	if r := g.update("reserves", 101, 1, 0, 1, true, time.Minute); !r.reserved() {
		t.Fatalf("answered %q, want a reservation", r.all)
	}
	waits := &replier{g: g, name: "waits"} // for rows 0 and 1
	turn := wire.Turn{Wait: time.Minute, Losses: 1, Rows: []wire.RowName{wire.NameRow(ix, index.Num(0)), wire.NameRow(ix, index.Num(1))}}
	g.s.handle(&rdma.Request{From: &anyRole, Peer: 102, Body: wire.AppendReserve(nil, 102, 0, &turn), Replier: waits})
	prepare := func(id uint64) (*prepared, verdict) {
		w := wire.Write{Index: ix, Op: wire.Update, Key: index.Num(id), Row: g.row(id, 500)}
		return g.p.prepare(&wire.Part{Writes: []wire.Write{w}})
	}
	if _, v := prepare(0); v.ok() {
		t.Fatal("a reserved row is locked for another transaction")
	}
	prep, v := prepare(1)
	if !v.ok() || waits.answers() != 0 {
		t.Fatalf("%+v: refused because of one that waits for another row, which is answered %q", v, waits.all)
	}
	if r := g.update("reserves again", 101, 2, 0, 60, false, time.Minute); r.code() != wire.OK || !waits.reserved() {
		t.Fatalf("under the reservation %q, behind it %q", r.all, waits.all)
	}
	if _, v := prepare(0); v.ok() {
		t.Fatal("a reserved row is locked for another transaction")
	}
	prep.decide(true, prep.vote)
	if r := g.update("waits again", 102, 1, 1, 70, false, 0); r.code() != wire.OK {
		t.Errorf("under the second reservation: %q", r.all)
	}
	g.balances(60, 70)
}

// TestWaitsHoldUpNoOtherRow: a request that waits for a reserved row holds up no
// other row that it would write.
func TestWaitsHoldUpNoOtherRow(t *testing.T) {
	g := newParkingRig(t).untimed()
	if r := g.update("reserves", 101, 1, 0, 1, true, time.Minute); !r.reserved() {
		t.Fatalf("answered %q, want a reservation", r.all)
	}
	waits := g.call("waits", 102, 1, 0, 1, 1)
	if r := g.call("other", 103, 1, 1, 2, 1); r.code() != wire.OK || waits.answers() != 0 {
		t.Errorf("row 1 is held up by one that waits for another row: %q, %q", r.all, waits.all)
	}
	if r := g.update("reserves again", 101, 2, 0, 50, false, time.Minute); r.code() != wire.OK || waits.code() != wire.OK {
		t.Errorf("under the reservation %q, behind it %q", r.all, waits.all)
	}
	g.balances(49, startBalance, startBalance+1)
}

// TestWaitsMoveToTheNextLock: a request that meets another lock when its turn has
// come leaves the line of the first row to others, and has the place of its
// arrival in the next one.
func TestWaitsMoveToTheNextLock(t *testing.T) {
	g := newParkingRig(t).untimed()
	zero, one := g.inDoubt(0, 500), g.inDoubt(1, 500)
	oldest := g.call("oldest", 71, 1, 0, 1, 1) // at row 0
	head := g.call("head", 72, 1, 1, 2, 1)
	last := g.call("last", 73, 1, 1, 3, 1)
	zero.decide(true, zero.vote)
	beside := g.call("beside", 74, 1, 0, 4, 1)
	if got := answered(oldest, head, last, beside); !slices.Equal(got, []bool{false, false, false, true}) {
		t.Fatalf("answered: %v; the last one writes no locked row", got)
	}
	one.decide(true, one.vote)
	if want := []string{"beside", "head", "oldest", "last"}; !slices.Equal(g.now, want) {
		t.Errorf("answered in the order %v, want %v", g.now, want)
	}
	g.balances(498, 499, startBalance+1, startBalance+1, startBalance+1)
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if l, k := &g.p.requests.lines, &g.p.requests.parking; len(l.all)+len(l.rows)+len(l.of)+l.bytes+len(k.queue)+k.bytes != 0 {
		t.Errorf("%d claims, %d lines, %d parked and %d bytes are left", len(l.all), len(l.rows), len(k.queue), l.bytes+k.bytes)
	}
}

// TestMovesEnd: two rows are locked in turn, each before the other one is free.
// A request that writes both keeps its place at both after some moves: from then
// on neither is locked before it has run.
func TestMovesEnd(t *testing.T) {
	g := newParkingRig(t).untimed()
	prep := g.inDoubt(0, 500)
	both := g.call("both", 71, 1, 0, 1, 1)
	for id := uint64(1); both.answers() == 0; id++ {
		w := wire.Write{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(id % 2), Row: g.row(id%2, 500)}
		next, v := g.p.prepare(&wire.Part{Writes: []wire.Write{w}})
		if !v.ok() && id <= movesMax {
			t.Fatalf("after %d moves: %+v", id, v)
		}
		if id > 2*movesMax {
			t.Fatalf("the request has not run after %d decisions", id)
		}
		prep.decide(true, prep.vote)
		if prep = next; prep == nil && both.answers() == 0 {
			t.Fatalf("after %d decisions no row is locked, and the request waits", id)
		}
	}
	if both.code() != wire.OK {
		t.Errorf("answered %q", both.all)
	}
	if prep != nil {
		prep.decide(false, 0)
	}
	g.balances(499, 501)
}

// TestTurnOutlastsOlderLocks: the row that an Update has reserved is still locked
// by an older transaction. The Update keeps its reservation, and so its place,
// until that one is decided.
func TestTurnOutlastsOlderLocks(t *testing.T) {
	g := newParkingRig(t).untimed()
	prep := g.inDoubt(0, 500)
	s := g.session()
	done := make(chan error, 1)
	var attempts atomic.Uint64
	go func() {
		done <- s.Update(context.Background(), func(tx *txn.Txn) error {
			attempts.Add(1)
			return deposit(tx, g.acct, 1, 0)
		})
	}()
	reserved := func() uint64 {
		g.p.mu.Lock()
		defer g.p.mu.Unlock()
		return g.p.requests.lines.reserved
	}
	await(t, "the Update has a reservation", func() bool { return reserved() > 0 })
	at := attempts.Load()
	await(t, "the Update tries again and again", func() bool { return attempts.Load() >= at+keptAttempts })
	if n := reserved(); n != 1 {
		t.Errorf("%d reservations for one Update that waits for a lock", n)
	}
	prep.decide(true, prep.vote)
	if err := g.end("an Update", done); err != nil {
		t.Error(err)
	}
	g.balances(501)
}

// TestTurnWaitsForOlderLocks: the Update of two servers has a turn at both, and its
// commit meets the lock of a transaction in doubt. A turn that it asks for again is
// granted at once, each time, so it must not mean that the next attempt need not wait.
func TestTurnWaitsForOlderLocks(t *testing.T) {
	const backoff, last = 50 * time.Millisecond, 10
	cat := bank(t)
	cl, err := Embedded(context.Background(), EmbeddedConfig{
		Catalog: cat, Servers: 2, Client: txn.Config{Retry: txn.Retry{BackoffMin: backoff, BackoffMax: backoff}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	entry := cat.MustTable("entry")
	keys := []uint64{0, 1 << 32} // by server
	parts := []*partition{cl.Servers[0].parts.of[0], cl.Servers[1].parts.of[1]}
	row := entry.NewRow()
	prep, v := parts[1].prepare(&wire.Part{Writes: []wire.Write{{Index: uint16(entry.Primary().ID), Op: wire.Insert, Key: index.Num(keys[1]), Row: row}}})
	if !v.ok() {
		t.Fatalf("prepare: %+v", v)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	attempts, begun := 0, time.Now()
	err = cl.DB.Update(ctx, func(tx *txn.Txn) error {
		if attempts++; attempts == last {
			cancel()
		}
		for _, k := range keys {
			if err := tx.Insert(entry, tables.Num(k), row); err != nil {
				return err
			}
		}
		return nil
	})
	lasted := time.Since(begun)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an Update that meets a lock until it is given up: %v", err)
	}
	reserved := uint64(0)
	for _, p := range parts {
		p.mu.Lock()
		reserved += p.requests.lines.reserved
		p.mu.Unlock()
	}
	if reserved < 4 {
		t.Errorf("%d reservations, want turns at both servers, again and again", reserved)
	}
	// A backoff lasts half its length at least, and the first turn needs none.
	if least := (last - 2) * backoff / 2; lasted < least {
		t.Errorf("%d attempts within %v, want at least %v with backoffs of %v", attempts, lasted, least, backoff)
	}
	prep.decide(false, 0)
}

// keptAttempts is less than the attempts of one turn.
const keptAttempts = 12
