package server

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/index"
	"drtmx/internal/redo"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
)

// TestExportWaitsForSteps: a step of the commit protocol that runs when a
// checkpoint begins may have logged what its machine does not know yet, as the
// commit of a last agent. One that runs when the machines are exported may have to
// apply what they have decided. The export waits for both.
func TestExportWaitsForSteps(t *testing.T) {
	cl, _, _ := openBank(t, vfs.NewMem(), 1, 2)
	s := cl.Servers[0]
	defer func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}()
	first, second := s.parts.of[0].protocol, s.parts.of[1].protocol
	begin := func() (end func()) {
		first.mu.Lock()
		defer first.mu.Unlock()
		first.steps.Add(1)
		return first.steps.Done
	}
	change := func(fn func(*twophase.Machine, *twophase.Out)) {
		first.mu.Lock()
		defer first.mu.Unlock()
		fn(first.machine, &twophase.Out{})
	}
	self, other := s.parts.party(s.parts.of[0]), twophase.Party{Partition: 1, Incarnation: 7}
	id := twophase.ID{Coordinator: other, Seq: 1}
	change(func(m *twophase.Machine, out *twophase.Out) {
		m.Receive(&twophase.Message{
			Kind: twophase.HandOver, From: other, To: self, ID: id, Parties: []twophase.Party{self, other}, Agent: self, Tick: 1,
		}, out)
	})

	settled := func(before *sync.WaitGroup) bool { // what waits for the steps that ran has begun to
		first.mu.Lock()
		defer first.mu.Unlock()
		return first.steps != before
	}
	end := begin()
	ran := first.steps
	var got []redo.Record
	done := make(chan struct{})
	go func() {
		got = s.durable.checkpoints.exportSteps()
		close(done)
	}()
	await(t, "the export waits for the steps that ran before", func() bool { return settled(ran) })
	second.mu.Lock() // so that the machines are not exported before the next step begins
	change(func(m *twophase.Machine, out *twophase.Out) { m.Carried(id, true, 1, out) })
	first.mu.Lock()
	ran = first.steps
	first.mu.Unlock()
	end()
	end = begin()
	second.mu.Unlock()
	await(t, "the export waits for the steps that run meanwhile", func() bool {
		select {
		case <-done:
			t.Error("the export does not wait for a step that runs meanwhile")
			return true
		default:
			return settled(ran)
		}
	})
	end()
	<-done
	if !slices.ContainsFunc(got, func(r redo.Record) bool { return r.Kind == redo.Decided && r.Step.ID == id && r.Step.Commit }) {
		t.Errorf("the export does not wait for a step that ran before: %+v", got)
	}
}

// TestExportInPieces: others use the commit protocol of a partition while many
// transactions are exported. At most exportMost are looked at in a row. What is
// there all the while is exported once and in order, whatever comes and goes
// meanwhile.
func TestExportInPieces(t *testing.T) {
	cl, _, _ := openBank(t, vfs.NewMem(), 1, 2)
	s := cl.Servers[0]
	defer func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}()
	const kept, leaving = 10_000, 2000
	sd, self := s.parts.of[0].protocol, s.parts.party(s.parts.of[0])
	stays, leaves := twophase.Party{Partition: 1, Incarnation: 7}, twophase.Party{Partition: 1, Incarnation: 8}
	var out twophase.Out
	commit := func(from twophase.Party, seq uint64) {
		id := twophase.ID{Coordinator: from, Seq: seq}
		sd.machine.Receive(&twophase.Message{
			Kind: twophase.HandOver, From: from, To: self, ID: id, Parties: []twophase.Party{self, from}, Agent: self, Tick: 1,
		}, &out)
		sd.machine.Carried(id, true, 1, &out)
		out.Reset()
	}
	sd.mu.Lock()
	for i := range uint64(kept) {
		commit(stays, i+1)
	}
	for i := range uint64(leaving) {
		commit(leaves, i+1)
	}
	sd.mu.Unlock()
	rests := 0
	rest := func() {
		for end := time.Now().Add(testseed.Patience()); !sd.mu.TryLock(); time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) { // nobody holds it for so long but the export
				t.Fatal("nobody else can use the machine between two pieces")
			}
		}
		defer sd.mu.Unlock()
		rests++
		sd.machine.Receive(&twophase.Message{Kind: twophase.Settled, From: leaves, To: self, Watermark: uint64(min(10*rests, leaving))}, &out)
		out.Reset()
		commit(leaves, uint64(leaving+rests))
	}
	got, last := map[twophase.ID]int{}, twophase.ID{}
	for _, r := range sd.export(0, rest) {
		if r.Step.ID.Compare(last) <= 0 {
			t.Fatalf("%v is exported after %v", r.Step.ID, last)
		}
		last = r.Step.ID
		if r.Kind != redo.Decided || !r.Step.Commit {
			t.Fatalf("%+v is exported", r)
		}
		got[r.Step.ID]++
	}
	if least := 2 * (kept / exportMost); rests < least {
		t.Errorf("%d rests while %d transactions are exported, want at least %d", rests, kept, least)
	}
	for i := range uint64(kept) {
		if n := got[twophase.ID{Coordinator: stays, Seq: i + 1}]; n != 1 {
			t.Fatalf("transaction %d is exported %d times", i+1, n)
		}
	}
	for id, n := range got {
		if n != 1 {
			t.Fatalf("%v is exported %d times", id, n)
		}
	}
}

// TestMessagesWaitForRecords: what a party answers may rest on all that its machine knows,
// and then waits for the log. While the log does not have a decision yet, which another
// message has brought, nothing is answered: the answer would wait for a log that ends
// before the decision, and after a crash the coordinator would have forgotten what this
// party asks for.
func TestMessagesWaitForRecords(t *testing.T) {
	cl, acct, _ := openBank(t, vfs.NewMem(), 1, 1)
	s := cl.Servers[0]
	defer func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := s.parts.of[0]
	self, other := s.parts.party(p), twophase.Party{Partition: 1, Incarnation: 7}
	id := twophase.ID{Coordinator: other, Seq: 1}
	prepared, v := p.prepare(&wire.Part{Writes: []wire.Write{{Index: uint16(acct.Primary().ID), Op: wire.Insert, Key: index.Num(1), Row: acct.NewRow()}}})
	if !v.ok() {
		t.Fatal(v.text)
	}
	p.protocol.mu.Lock()
	p.protocol.prepared[id] = prepared
	p.protocol.machine.Receive(&twophase.Message{Kind: twophase.Prepare, From: other, To: self, ID: id, Parties: []twophase.Party{self}}, &twophase.Out{})
	p.protocol.machine.Locked(id, twophase.Yes, prepared.vote, &twophase.Out{})
	p.protocol.mu.Unlock()

	type answer struct {
		messages []twophase.Message
		end      wal.LSN
	}
	before := s.durable.end()
	handle := func(ms ...twophase.Message) <-chan answer {
		got := make(chan answer, 1)
		go func() {
			b := &batch{driver: &s.driver}
			for i := range ms {
				ms[i].From, ms[i].To, ms[i].ID = other, self, id
			}
			b.out.Messages = ms
			b.here()
			got <- answer{b.remote, s.durable.end()}
		}()
		return got
	}
	decide := twophase.Message{Kind: twophase.Decide, Commit: true, Tick: prepared.vote}
	p.mu.Lock() // the log does not take the record
	first := handle(decide)
	await(t, "the decision is there", func() bool {
		p.protocol.mu.Lock()
		defer p.protocol.mu.Unlock()
		return !p.protocol.machine.Doubts(id)
	})
	var again [3]<-chan answer
	for i, m := range []twophase.Message{decide, {Kind: twophase.Ask}, {Kind: twophase.Settled}} {
		again[i] = handle(m)
	}
	ticked := make(chan struct{})
	go func() {
		s.driver.tick()
		close(ticked)
	}()
	<-ticked // whatever the log does
	time.Sleep(20 * time.Millisecond)
	p.mu.Unlock()
	for _, got := range append(again[:], first) {
		a := <-got
		if len(a.messages) != 1 {
			t.Fatalf("answered with %+v, want one message", a.messages)
		}
		if a.end == before {
			t.Errorf("answered with %v while the log ends at %d, before the decision", a.messages[0].Kind, before)
		}
	}
}
