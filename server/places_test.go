package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// reserve asks for a turn of a session at account 0, as another server or a client
// does for a transaction of several partitions. A wait of 0 gives up what the
// session has.
func (g *parkingRig) reserve(name string, session uint64, wait time.Duration, again bool) *replier {
	turn := wire.Turn{Wait: wait, Losses: 3, Again: again, Rows: []wire.RowName{wire.NameRow(uint16(g.acct.Primary().ID), index.Num(0))}}
	r := &replier{g: g, name: name}
	g.s.handle(&rdma.Request{From: &anyRole, Peer: rdma.PeerID(session), Body: wire.AppendReserve(nil, session, 0, &turn), Replier: r})
	return r
}

// crowdAt lets n sessions wait for account 0. Each that has its turn leaves when
// the next one is looked for. served returns how many have had a turn.
func (g *parkingRig) crowdAt(first uint64, n int) (next func(), served func() int) {
	var all []*replier
	for i := range n {
		all = append(all, g.reserve(fmt.Sprint(first+uint64(i)), first+uint64(i), time.Minute, false))
	}
	gone := make([]bool, n)
	next = func() {
		for i, r := range all {
			if r.reserved() && !gone[i] {
				gone[i] = true
				g.reserve("leaves", first+uint64(i), 0, false)
				return
			}
		}
	}
	return next, func() (have int) {
		for _, r := range all {
			if r.reserved() {
				have++
			}
		}
		return have
	}
}

// TestPlaceAtEveryPartition: a transaction of several partitions that has its turn
// in one of them, and loses because of another, keeps its place there. Of those
// that came after it, one is served for each time that it loses, however many wait.
func TestPlaceAtEveryPartition(t *testing.T) {
	g := newParkingRig(t).untimed()
	const crowd, losses, loser = 40, 6, 900
	r := g.reserve("first", loser, time.Minute, false)
	if !r.reserved() {
		t.Fatal("no turn in an empty line")
	}
	next, served := g.crowdAt(100, crowd)
	for n := 1; n <= losses; n++ {
		g.reserve("loses", loser, 0, true)
		r = g.reserve("again", loser, time.Minute, true)
		for !r.reserved() {
			if served() > losses {
				t.Fatalf("%d of those that came later are served before one that has lost %d times", served(), n)
			}
			next()
		}
	}
	if got := served(); got != losses {
		t.Errorf("between the first arrival of the loser and its last turn %d others are served, want %d", got, losses)
	}
	g.reserve("ends", loser, 0, false)
	for served() < crowd {
		next()
	}
}

// TestPlaceIsForgotten: a place is that of one transaction, and no session keeps
// one for ever.
func TestPlaceIsForgotten(t *testing.T) {
	const loser = 900
	for name, c := range map[string]struct {
		lose  func(g *parkingRig)
		again bool
	}{
		"another transaction": {func(g *parkingRig) { g.reserve("loses", loser, 0, true) }, false},
		"after the end":       {func(g *parkingRig) { g.reserve("ends", loser, 0, false) }, true},
		"left":                {func(g *parkingRig) { g.p.mu.Lock(); defer g.p.unlock(); g.p.requests.lines.leave(loser) }, true},
		"in vain":             {func(g *parkingRig) { g.lapse(loser) }, true},
		"old": {func(g *parkingRig) {
			g.reserve("loses", loser, 0, true)
			g.p.mu.Lock()
			defer g.p.unlock()
			pl := g.p.requests.lines.places[loser]
			pl.since -= placeFor + 1
			g.p.requests.lines.places[loser] = pl
		}, true},
		"often": {func(g *parkingRig) {
			for range placeTries - 1 {
				g.reserve("loses", loser, 0, true)
				g.reserve("again", loser, time.Minute, true)
			}
			g.reserve("loses", loser, 0, true)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newParkingRig(t).untimed()
			if r := g.reserve("first", loser, time.Minute, false); !r.reserved() {
				t.Fatal("no turn in an empty line")
			}
			const crowd = 5
			if name == "often" {
				c.lose(g)
			}
			next, served := g.crowdAt(100, crowd)
			if name != "often" {
				c.lose(g)
			}
			r := g.reserve("again", loser, time.Minute, c.again)
			for !r.reserved() {
				if served() == crowd {
					next()
					break
				}
				next()
			}
			if n := served(); n != crowd {
				t.Errorf("it stands before %d of %d that came earlier", crowd-n, crowd)
			}
			for !r.reserved() {
				next()
			}
			g.reserve("ends", loser, 0, false)
			g.p.mu.Lock()
			defer g.p.mu.Unlock()
			if n := len(g.p.requests.lines.places); n != crowd && n != 0 {
				t.Logf("%d places are remembered", n)
			}
		})
	}
}

// TestPlacesAreBounded: sessions that never end their transactions do not fill the
// memory.
func TestPlacesAreBounded(t *testing.T) {
	g := newParkingRig(t).untimed()
	for session := range uint64(placesMax + 100) {
		g.reserve("asks", 1000+session, time.Minute, false)
		g.reserve("loses", 1000+session, 0, true)
	}
	g.p.mu.Lock()
	n := len(g.p.requests.lines.places)
	for session, pl := range g.p.requests.lines.places {
		pl.since -= placeFor + 1
		g.p.requests.lines.places[session] = pl
	}
	g.p.requests.lines.swept = clock.Fast()
	g.p.unlock()
	if n != placesMax {
		t.Errorf("%d places, want %d", n, placesMax)
	}
	g.reserve("asks", 2, time.Minute, false)
	g.reserve("ends", 2, 0, false)
	g.p.mu.Lock()
	if n := len(g.p.requests.lines.places); n != placesMax && clock.Fast()-g.p.requests.lines.swept < placesEvery {
		t.Errorf("all places are looked through again at once: %d are left", n)
	}
	g.p.requests.lines.swept -= placesEvery
	g.p.unlock()
	g.reserve("asks", 1, time.Minute, false)
	g.p.mu.Lock()
	defer g.p.mu.Unlock()
	if n := len(g.p.requests.lines.places); n != 1 {
		t.Errorf("%d places after the others have become too old, want 1", n)
	}
}

// TestPlaceEndsWithTheTransaction: a partition forgets the place of a transaction
// that has committed, alone or with other partitions: no message tells it so.
func TestPlaceEndsWithTheTransaction(t *testing.T) {
	g := newParkingRig(t).untimed()
	const session = 900
	for name, commit := range map[string]func() bool{
		"alone": func() bool { return g.update("commits", session, 1, 0, 7, false, 0).code() == wire.OK },
		"as a share": func() bool {
			w := wire.Write{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(0), Row: g.row(0, 8)}
			v, _ := share{parts: []*wire.Part{{Writes: []wire.Write{w}}}, at: []*partition{g.p}, read: noProofs, client: session}.commitAt(0)
			return v.ok()
		},
		"prepared": func() bool {
			w := wire.Write{Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(0), Row: g.row(0, 9)}
			held, v := share{parts: []*wire.Part{{Writes: []wire.Write{w}}}, at: []*partition{g.p}, read: noProofs, client: session}.prepare()
			if v.ok() {
				held[0].decide(true, held[0].vote)
			}
			return v.ok()
		},
	} {
		if r := g.reserve("asks", session, time.Minute, false); !r.reserved() {
			t.Fatal("no turn in an empty line")
		}
		if !commit() {
			t.Fatalf("%s: the commit is refused", name)
		}
		g.p.mu.Lock()
		if n := len(g.p.requests.lines.places); n != 0 {
			t.Errorf("%s: %d places are remembered after the commit", name, n)
		}
		g.p.mu.Unlock()
	}
}

// TestNamesOfClaimsAreBounded: the rows that claims name take no more memory than
// their bound allows, and are counted as long as the claims are there.
func TestNamesOfClaimsAreBounded(t *testing.T) {
	g := newParkingRig(t).untimed()
	const each = wire.MaxTurnRows
	names := uint64(0)
	for session := range uint64(claimNamesMax/each + 20) {
		turn := wire.Turn{Wait: time.Minute, Losses: 8}
		for range each {
			names++
			turn.Rows = append(turn.Rows, wire.RowName(uint64(g.acct.Primary().ID)<<48|names))
		}
		r := &replier{g: g, name: "asks"}
		g.s.handle(&rdma.Request{From: &anyRole, Peer: 1, Body: wire.AppendReserve(nil, 1000+session, 0, &turn), Replier: r})
	}
	g.p.mu.Lock()
	have := 0
	for _, c := range g.p.requests.lines.all {
		have += len(c.names)
	}
	if counted := g.p.requests.lines.names; have > claimNamesMax || counted != have {
		t.Errorf("claims name %d rows, counted are %d, bound %d", have, counted, claimNamesMax)
	}
	g.p.requests.lines.leave(1)
	if n := g.p.requests.lines.names; n != 0 {
		t.Errorf("%d names are counted without a claim", n)
	}
	g.p.unlock()
}

// TestPlacesDoNotEnterAWholePartition: a transaction that has a whole partition for
// itself commits, although one that keeps an older place has come meanwhile.
func TestPlacesDoNotEnterAWholePartition(t *testing.T) {
	g := newParkingRig(t).untimed()
	const old, whole = 900, 901
	if r := g.reserve("first", old, time.Minute, false); !r.reserved() {
		t.Fatal("no turn in an empty line")
	}
	g.reserve("loses", old, 0, true)
	ix := g.acct.Primary().ID
	commit := func(name string, seq uint64, stale bool) *replier {
		proofs := slices.Clone(g.p.index(ix).Get(index.Num(0), nil).Proofs)
		if stale {
			proofs[0].Word--
		}
		c := wire.Commit{ID: wire.ID{Client: whole, Seq: seq}, Sent: g.s.clocks.present(), Turn: wire.Turn{Wait: time.Minute, Losses: wholeLosses, Whole: true}, Parts: []wire.Part{{
			Read: g.p.clock.Last(), Rows: proofs, Writes: []wire.Write{{Index: uint16(ix), Op: wire.Update, Key: index.Num(0), Row: g.row(0, 7)}},
		}}}
		r := &replier{g: g, name: name}
		g.s.handle(&rdma.Request{From: &anyRole, Peer: whole, Body: wire.AppendCommit(nil, wire.OpCommit, &c, nil), Replier: r})
		return r
	}
	if r := commit("loses", 1, true); !r.reserved() {
		t.Fatalf("no turn in an empty partition: %q", r.all)
	}
	again := g.reserve("again", old, time.Minute, true)
	if again.reserved() {
		t.Fatal("a turn beside one of the whole partition")
	}
	if r := commit("commits", 2, false); r.answers() == 0 || r.code() != wire.OK {
		t.Errorf("a transaction that has the whole partition for itself is answered %q", r.all)
	}
	if !again.reserved() {
		t.Error("the one with the older place has no turn afterwards")
	}
}
