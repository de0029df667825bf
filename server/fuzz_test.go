package server

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// sink counts the replies to a request.
type sink struct{ n atomic.Int32 }

func (s *sink) Reply([]byte) error { s.n.Add(1); return nil }

// victim is an embedded cluster with some rows, to be sent anything.
func newVictim(t testing.TB) *Cluster {
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 20, 100)
	return cl
}

// hostileSeeds are valid requests of every kind, for the fuzzer to spoil.
func hostileSeeds(cl *Cluster) [][]byte {
	cat := cl.DB.Catalog()
	acct, entry := cat.MustTable("account"), cat.MustTable("entry")
	id := wire.ID{Client: 9, Seq: 1}
	write := func(part uint16, tab int, op wire.WriteOp, key uint64, size int) wire.Part {
		return wire.Part{Partition: placement.Partition(part), Writes: []wire.Write{{Index: uint16(tab), Op: op, Key: index.Num(key), Row: make([]byte, size)}}}
	}
	entryID, acctID := entry.Primary().ID, acct.Primary().ID
	one := wire.Commit{ID: id, Parts: []wire.Part{write(0, entryID, wire.Insert, 5, entry.RowBytes())}}
	two := wire.Commit{ID: wire.ID{Client: 10, Seq: 1}, Parts: []wire.Part{
		write(0, entryID, wire.Put, 6, entry.RowBytes()), write(1, acctID, wire.Update, 1, acct.RowBytes()),
	}}
	two.Parts[0].Gaps = cl.Servers[0].parts.of[0].index(entryID).Get(index.Num(7), nil).Proofs
	self := twophase.Party{Partition: 0, Incarnation: cl.Servers[0].parts.incarnation}
	other := twophase.Party{Partition: 1, Incarnation: cl.Servers[1].parts.incarnation}
	message := func(op wire.Op, k twophase.Kind, c *wire.Commit) []byte {
		b := wire.AppendMessages([]byte{byte(op)}, []twophase.Message{{
			Kind: k, From: other, To: self, ID: twophase.ID{Coordinator: other, Seq: 9}, Parties: []twophase.Party{self, other}, Agent: self, Commit: true, Tick: cl.Servers[0].parts.of[0].ticks.present() + 1000,
		}})
		if c != nil {
			b = wire.AppendParts(b, c, nil)
		}
		return b
	}
	now := cl.Servers[0].clocks.present()
	one.Sent, two.Sent = now, now
	twice := wire.Commit{ID: wire.ID{Client: 13, Seq: 1}, Sent: now, Parts: []wire.Part{two.Parts[0], two.Parts[1], two.Parts[1]}}
	seeds := [][]byte{
		{},
		{byte(wire.OpHello)},
		{byte(wire.OpSeal)},
		{byte(wire.OpEmpty)},
		{byte(wire.OpBackup), wire.BackupBegin},
		{byte(wire.OpBackup), wire.BackupLog, 1, 0, 0, 0, 0, 0, 0, 0},
		{byte(wire.OpStats)},
		{byte(wire.OpLease)},
		{byte(wire.OpAdopt), 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},
		{0},
		{255},
		wire.AppendCommit(nil, wire.OpCommit, &one, nil),
		wire.AppendCommit(nil, wire.OpCommit, &two, nil),
		wire.AppendCommit(nil, wire.OpCommit, &twice, nil),
		message(wire.OpPrepare, twophase.Prepare, &one),
		message(wire.OpPrepare, twophase.Prepare, &two),
		message(wire.OpHandOver, twophase.HandOver, &one),
		message(wire.OpDecide, twophase.Decide, nil),
		message(wire.OpResolve, twophase.Ask, nil),
		message(wire.OpResolve, twophase.Settled, nil),
		wire.AppendCommit(nil, wire.OpValidate, &one, nil),
		wire.AppendOutcome(nil, id, now, wire.OutcomeWait),
		wire.AppendOutcome(nil, id, now, wire.OutcomeSettle),
		wire.AppendCall(nil, wire.ID{Client: 11, Seq: 1}, now, 0, 0, 0, 0, "transfer", transferArgs(1, 2, 3)),
		wire.AppendCall(nil, wire.ID{Client: 12, Seq: 1}, now, 0, 0, 0, 1, "transfer", []byte("short")),
		wire.AppendReads(nil, []wire.Read{{Index: uint16(acctID), Lo: index.Num(3)}, {Index: uint16(entryID), Scan: true, Hi: index.Num(^uint64(0)), Limit: ^uint32(0)}}),
		wire.AppendReads(nil, []wire.Read{{Index: uint16(acctID), Lo: index.Num(3), At: 1}, {Index: uint16(entryID), Scan: true, Hi: index.Num(^uint64(0)), Limit: 9, At: 1}}),
		append([]byte{byte(wire.OpLoad), 0, 0, byte(entryID), 0, 0, 0, 0, 0}, make([]byte, 8+entry.RowBytes())...),
	}
	return seeds
}

// settle ends what requests have left in doubt, as time would.
func settle(s *Server) error {
	for end := time.Now().Add(testseed.Patience()); s.InDoubt() > 0; {
		if time.Now().After(end) {
			return fmt.Errorf("%d transactions stay in doubt", s.InDoubt())
		}
		s.driver.tick()
		time.Sleep(time.Millisecond)
	}
	return nil
}

// FuzzHandle: whatever bytes a running server is sent, it answers once, does
// not crash, leaves nothing locked, and its memory stays sound.
func FuzzHandle(f *testing.F) {
	cl := newVictim(f)
	for _, b := range hostileSeeds(cl) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 {
			t.Skipf("%d bytes: fuzzing looks for structure, which short requests have", len(body))
		}
		r := &sink{}
		s := cl.Servers[0]
		s.handle(&rdma.Request{From: &anyRole, Body: body, Replier: r})
		for end := time.Now().Add(testseed.Patience()); r.n.Load() == 0 && time.Now().Before(end); {
			time.Sleep(50 * time.Microsecond)
		}
		if n := r.n.Load(); n != 1 {
			t.Fatalf("%d replies", n)
		}
		for _, s := range cl.Servers {
			if err := settle(s); err != nil {
				t.Fatal(err)
			}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
			if n := s.Stats().Prepared; n != 0 {
				t.Fatalf("%d transactions prepared", n)
			}
		}
	})
}

// TestForgedPrepareIsSettled: a prepare without a coordinator is released
// within the time of a real one, whichever parties it names.
func TestForgedPrepareIsSettled(t *testing.T) {
	cl := newVictim(t)
	s, p, entry := cl.Servers[0], cl.Servers[0].parts.of[0], cl.DB.Catalog().MustTable("entry")
	self, live := s.parts.party(p), twophase.Party{Partition: 1, Incarnation: cl.Servers[1].parts.incarnation}
	for i, c := range []struct {
		from    twophase.Party
		parties []twophase.Party
	}{
		{live, []twophase.Party{self}},
		{live, []twophase.Party{self, live}},
		{twophase.Party{Partition: 1, Incarnation: 4711}, []twophase.Party{self, live}},
		{twophase.Party{Partition: 1, Incarnation: 4712}, []twophase.Party{self, {Partition: 1, Incarnation: 4712}}},
	} {
		forger := &caller{s: s, self: c.from}
		v, _ := forger.ask(t, wire.OpPrepare, twophase.Message{
			Kind: twophase.Prepare, ID: twophase.ID{Coordinator: c.from, Seq: 1000 + uint64(i)}, Parties: c.parties,
		}, wire.Part{Writes: []wire.Write{writeOf(entry, wire.Put, 5)}})
		if !v.ok() {
			t.Fatal(v)
		}
		if !conflicts(p, writeOf(entry, wire.Put, 5)) {
			t.Fatal("the row is not locked")
		}
		if err := settle(s); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if conflicts(p, writeOf(entry, wire.Put, 5)) {
			t.Fatalf("%+v: the row stays locked", c)
		}
	}
}
