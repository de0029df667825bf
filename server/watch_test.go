package server

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// TestWarningFollowsOneTransaction: the log warns of a transaction that stays in
// doubt, and not of a load under which some transaction always is.
func TestWarningFollowsOneTransaction(t *testing.T) {
	var log bytes.Buffer
	net := inproc.New(inproc.Options{})
	s, err := New(Config{
		Addrs: []string{"a"}, Catalog: bank(t), Provider: net, MemoryBytes: 1 << 24,
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // not started: the test makes the ticks
	p := s.parts.of[0]
	self, other := s.parts.party(p), twophase.Party{Partition: 1, Incarnation: 9}
	var out twophase.Out
	begin := func() twophase.ID { // a transaction in doubt: it is handed over
		id, err := p.protocol.machine.Begin([]twophase.Party{self, other}, other, &out)
		if err != nil {
			t.Fatal(err)
		}
		p.protocol.machine.Locked(id, twophase.Yes, 0, &out)
		return id
	}
	decide := func(id twophase.ID) {
		p.protocol.machine.Receive(&twophase.Message{Kind: twophase.Answer, From: other, To: self, ID: id, Known: twophase.Aborted}, &out)
	}
	warnings := func(ticks int, between func()) int {
		log.Reset()
		for range ticks {
			between()
			p.protocol.machine.Tick(&out)
			s.driver.look()
			out.Reset()
		}
		return strings.Count(log.String(), "stay in doubt")
	}
	var running []twophase.ID
	load := func() { // each transaction is in doubt for a moment less than warnAfter
		if running = append(running, begin()); len(running) == warnAfter {
			decide(running[0])
			running = running[1:]
		}
		if s.InDoubt() == 0 {
			t.Fatal("no transaction is in doubt")
		}
	}
	if n := warnings(10*warnAfter, load); n != 0 {
		t.Errorf("%d warnings, and no transaction was in doubt for long: %s", n, log.String())
	}
	old := begin()
	if n := warnings(warnAfter-1, load); n != 0 {
		t.Errorf("%d warnings before the time: %s", n, log.String())
	}
	if n := warnings(3*warnAfter, load); n != 3 {
		t.Errorf("%d warnings of a transaction that stays in doubt, want 3: %s", n, log.String())
	}
	decide(old)
	if n := warnings(3*warnAfter, load); n != 0 {
		t.Errorf("%d warnings after the decision: %s", n, log.String())
	}
}

// deaf is a peer that is gone: no answer reaches it.
type deaf struct{ replies atomic.Int32 }

func (d *deaf) Reply([]byte) error {
	d.replies.Add(1)
	return errors.New("gone")
}

// TestEveryLostReplyIsCounted: whatever a request asks and whatever the answer
// is, refusals included, an answer that cannot be sent is counted.
func TestEveryLostReplyIsCounted(t *testing.T) {
	f := roleFabrics(t)[0]
	cat, servers := f.serve(t)
	s := servers[0]
	bodies := requestBodies(cat, 1<<20)
	send := func(who rdma.Identity, peer rdma.PeerID, body []byte) {
		t.Helper()
		d, before := &deaf{}, s.Stats().RepliesLost
		s.handle(&rdma.Request{Body: body, Peer: peer, From: &who, Replier: d})
		for end := time.Now().Add(testseed.Patience()); s.Stats().RepliesLost == before && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // some requests move to a goroutine
		}
		if n, lost := d.replies.Load(), s.Stats().RepliesLost-before; n != 1 || lost != 1 {
			t.Errorf("%q as %v: %d replies, %d counted as lost", body[:min(len(body), 1)], &who, n, lost)
		}
	}
	peer := rdma.PeerID(1 << 40)
	for _, role := range rdma.Roles() {
		for b := range 256 {
			for _, req := range append(bodies[wire.Op(b)], []byte{byte(b)}, nil) {
				send(rdma.Identity{Role: role}, peer, req)
			}
		}
	}
	// The session of another client.
	one, two := rdma.Identity{Role: rdma.RoleWriter, Name: "one"}, rdma.Identity{Role: rdma.RoleWriter, Name: "two"}
	commit := requestBodies(cat, 1<<30)[wire.OpCommit][0]
	outcome := wire.AppendOutcome(nil, wire.ID{Client: 1<<30 + 1, Seq: 1}, wire.Sent{}, wire.OutcomeWait)
	for _, req := range [][]byte{commit, commit, outcome} {
		send(one, peer+1, req)
		send(two, peer+2, req)
	}
	// A table that is not the client's.
	send(rdma.Identity{Role: rdma.RoleWriter, Tables: []string{"account"}}, peer+3, requestBodies(cat, 1<<31)[wire.OpCommit][0])
}
