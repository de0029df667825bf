package server

import (
	"context"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// rig is one server with the bank's tables and its partition, to be driven
// without a client in between.
func newRig(t *testing.T) (*Server, *partition, *tables.Table) {
	t.Helper()
	cl, _, entry := startBank(t, 1)
	return cl.Servers[0], cl.Servers[0].parts.of[0], entry
}

// newPairRig is a rig in a cluster of two servers: a test plays the other one.
func newPairRig(t *testing.T) (*Server, *partition, *tables.Table) {
	t.Helper()
	cl, _, entry := startBank(t, 2)
	return cl.Servers[0], cl.Servers[0].parts.of[0], entry
}

func putEntries(t *testing.T, s *Server, entry *tables.Table, keys ...uint64) {
	t.Helper()
	db, err := s.client.get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if err := db.Update(context.Background(), exec.BodyFunc(func(t *exec.Txn) error { return t.Put(entry, tables.Num(k), entry.NewRow()) })); err != nil {
			t.Fatal(err)
		}
	}
}

func writeOf(entry *tables.Table, op wire.WriteOp, key uint64) wire.Write {
	w := wire.Write{Index: uint16(entry.Primary().ID), Op: op, Key: index.Num(key)}
	if op != wire.Delete {
		w.Row = entry.NewRow()
	}
	return w
}

func proofsOf(t *testing.T, p *partition, entry *tables.Table, key uint64, want index.Status) []index.Proof {
	t.Helper()
	res := p.index(entry.Primary().ID).Get(index.Num(key), nil)
	if res.Status != want {
		t.Fatalf("key %d is %v, want %v", key, res.Status, want)
	}
	return append([]index.Proof(nil), res.Proofs...)
}

// conflicts reports whether a transaction of one write is refused.
func conflicts(p *partition, w wire.Write) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commit(&wire.Part{Writes: []wire.Write{w}}).code == wire.Conflict
}

// TestPreparedReadsStay: what a transaction has read cannot be written between
// its vote and its decision, wherever its rows and gaps move meanwhile: even if
// it is the transaction's own insert that splits their leaf.
func TestPreparedReadsStay(t *testing.T) {
	t.Parallel()
	preparedReadsStay(t, newRig)
}

// preparedReadsStay is TestPreparedReadsStay for a table.
func preparedReadsStay(t *testing.T, rig func(*testing.T) (*Server, *partition, *tables.Table)) {
	t.Helper()
	for keys := uint64(3); keys < 90; keys++ {
		if keys > 12 && keys%6 != 0 && !testseed.Soaking() {
			continue
		}
		s, p, entry := rig(t)
		for k := range keys {
			putEntries(t, s, entry, 10*k)
		}
		part := wire.Part{Writes: []wire.Write{writeOf(entry, wire.Insert, 5), writeOf(entry, wire.Insert, 10*keys-15)}}
		for k := range keys {
			part.Rows = append(part.Rows, proofsOf(t, p, entry, 10*k, index.Found)...)
			part.Gaps = append(part.Gaps, proofsOf(t, p, entry, 10*k+1, index.NotFound)...)
		}
		prep, v := p.prepare(&part)
		if !v.ok() {
			t.Fatalf("%d keys: vote %+v", keys, v)
		}
		for k := range keys {
			if !conflicts(p, writeOf(entry, wire.Update, 10*k)) || !conflicts(p, writeOf(entry, wire.Delete, 10*k)) {
				t.Fatalf("%d keys: row %d, read by a prepared transaction, was written", keys, 10*k)
			}
			if !conflicts(p, writeOf(entry, wire.Insert, 10*k+1)) {
				t.Fatalf("%d keys: key %d, found absent by a prepared transaction, was inserted", keys, 10*k+1)
			}
		}
		prep.decide(true, prep.vote)
		if !p.writer.shared.Empty() {
			t.Fatal("shared locks are left after the decision")
		}
		for k := range keys {
			if conflicts(p, writeOf(entry, wire.Update, 10*k)) {
				t.Fatalf("row %d is still locked after the decision", 10*k)
			}
		}
	}
}

// TestLockedIsChanged: a row that another transaction has locked is not what
// was read, although nothing has been written to it yet.
func TestLockedIsChanged(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10, 20)
	read := wire.Part{Rows: proofsOf(t, p, entry, 10, index.Found)}
	prep, v := p.prepare(&wire.Part{Writes: []wire.Write{writeOf(entry, wire.Update, 10)}})
	if !v.ok() {
		t.Fatal(v)
	}
	read.Writes = []wire.Write{writeOf(entry, wire.Update, 20)}
	p.mu.Lock()
	v = p.commit(&read)
	p.mu.Unlock()
	if v.code != wire.Conflict || v.cause != exec.CauseRow {
		t.Errorf("a commit that read a row locked by another transaction: %+v", v)
	}
	if _, v := p.prepare(&read); v.code != wire.Conflict {
		t.Errorf("a prepare that read a row locked by another transaction: %+v", v)
	}
	prep.decide(false, 0)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.commit(&read); !v.ok() {
		t.Errorf("after the lock was released unchanged: %+v", v)
	}
}

// caller is a server elsewhere, played by a test, that sends messages of the
// commit protocol.
type caller struct {
	s    *Server
	self twophase.Party
	seq  uint64
}

// callerOf plays the party of a partition that another server would hold.
func callerOf(s *Server, part int) *caller {
	return &caller{s: s, self: twophase.Party{Partition: placement.Partition(part), Incarnation: 4711}}
}

// next is a new transaction of the caller's.
func (c *caller) next() twophase.ID {
	c.seq++
	return twophase.ID{Coordinator: c.self, Seq: c.seq}
}

// ask sends a message, with what the transaction does at the receiver, and
// returns the receiver's verdict and the messages it answers.
func (c *caller) ask(t *testing.T, op wire.Op, m twophase.Message, parts ...wire.Part) (verdict, []twophase.Message) {
	t.Helper()
	m.From, m.To = c.self, c.s.parts.party(c.s.parts.here[0])
	if m.Parties == nil && len(parts) > 0 {
		m.Parties = []twophase.Party{m.To}
	}
	if m.Kind == twophase.HandOver {
		m.Agent = m.To
	}
	m.Tick = max(m.Tick, c.s.parts.here[0].ticks.present())
	body := wire.AppendMessages([]byte{byte(op)}, []twophase.Message{m})
	if len(parts) > 0 {
		body = wire.AppendParts(body, &wire.Commit{Parts: parts}, nil)
	}
	var answer recorder
	c.s.handle(&rdma.Request{Body: body, Replier: &answer, From: &rdma.Identity{Role: rdma.RoleServer}})
	d := wire.NewDecoder(answer)
	v := verdictIn(&d)
	ms := d.Messages(nil)
	if d.End() != nil {
		return verdict{code: wire.Code(answer[0]), text: string(answer[1:])}, nil
	}
	return v, ms
}

func (c *caller) prepare(t *testing.T, id twophase.ID, part wire.Part) verdict {
	v, _ := c.ask(t, wire.OpPrepare, twophase.Message{Kind: twophase.Prepare, ID: id}, part)
	return v
}

func (c *caller) decide(t *testing.T, id twophase.ID, commit bool) {
	c.ask(t, wire.OpDecide, twophase.Message{Kind: twophase.Decide, ID: id, Commit: commit})
}

func (c *caller) known(t *testing.T, id twophase.ID) twophase.Knowledge {
	_, ms := c.ask(t, wire.OpResolve, twophase.Message{Kind: twophase.Ask, ID: id})
	if len(ms) != 1 || ms[0].Kind != twophase.Answer {
		t.Fatalf("a question is answered by %+v", ms)
	}
	return ms[0].Known
}

// recorder keeps the reply to a request.
type recorder []byte

func (r *recorder) Reply(b []byte) error { *r = append([]byte(nil), b...); return nil }

// TestLatePrepareIsRefused: what was decided, or answered to be aborted, is not
// prepared afterwards, nor prepared twice.
func TestLatePrepareIsRefused(t *testing.T) {
	s, p, entry := newPairRig(t)
	putEntries(t, s, entry, 10)
	c := callerOf(s, 1)
	part := wire.Part{Writes: []wire.Write{writeOf(entry, wire.Update, 10)}}
	for name, before := range map[string]func(id twophase.ID){
		"after an abort":            func(id twophase.ID) { c.decide(t, id, false) },
		"after a question":          func(id twophase.ID) { c.known(t, id) },
		"after a commit, once more": func(id twophase.ID) { c.prepare(t, id, part); c.decide(t, id, true) },
		"after an abort, once more": func(id twophase.ID) { c.prepare(t, id, part); c.decide(t, id, false) },
		"after a refusal, once more": func(id twophase.ID) {
			c.prepare(t, id, wire.Part{Writes: []wire.Write{{}}})
		},
		"below the watermark": func(id twophase.ID) {
			c.ask(t, wire.OpResolve, twophase.Message{Kind: twophase.Settled, Watermark: id.Seq + 1})
		},
	} {
		id := c.next()
		before(id)
		if v := c.prepare(t, id, part); v.ok() {
			t.Errorf("a prepare %s is accepted", name)
			c.decide(t, id, false)
		}
	}
	id := c.next()
	if v := c.prepare(t, id, part); !v.ok() {
		t.Fatal(v)
	}
	if v := c.prepare(t, id, part); v.code != wire.Conflict {
		t.Errorf("a prepare repeated while in doubt is accepted, or costs the first one: %+v", v)
	}
	c.decide(t, id, true)
	if p.nprepare != 0 || conflicts(p, writeOf(entry, wire.Update, 10)) {
		t.Errorf("%d transactions left in doubt", p.nprepare)
	}
}

// TestLateHandOverIsRefused: what was answered to be aborted, or committed, is
// not carried out afterwards, and what was carried out is not forgotten until
// the home says that it knows.
func TestLateHandOverIsRefused(t *testing.T) {
	s, p, entry := newPairRig(t)
	putEntries(t, s, entry, 10)
	c := callerOf(s, 1)
	part := wire.Part{Writes: []wire.Write{writeOf(entry, wire.Update, 10)}}
	handOver := func(id twophase.ID, mark uint64, part wire.Part) verdict {
		v, _ := c.ask(t, wire.OpHandOver, twophase.Message{Kind: twophase.HandOver, ID: id, Watermark: mark}, part)
		return v
	}
	header := func() index.Proof { return proofsOf(t, p, entry, 10, index.Found)[0] }
	id := c.next()
	if k := c.known(t, id); k != twophase.Aborted {
		t.Fatalf("a transaction never seen is answered %d", k)
	}
	before := header()
	if v := handOver(id, 0, part); v.ok() || header() != before {
		t.Errorf("a transaction that was called aborted is committed when it comes after all: %+v", v)
	}
	id = c.next()
	if v := handOver(id, 0, part); !v.ok() || header() == before {
		t.Fatalf("not committed: %+v", v)
	}
	before = header()
	if k := c.known(t, id); k != twophase.Committed {
		t.Errorf("a commit that the home may not know of is answered %d", k)
	}
	if v := handOver(id, 0, part); header() != before {
		t.Errorf("repeated, it is carried out again: %+v", v)
	}
	next := c.next()
	if v := handOver(next, next.Seq, part); !v.ok() {
		t.Error(v)
	}
	if n := p.protocol.machine.Records(); n != 1 {
		t.Errorf("%d transactions remembered, want the one that is not settled", n)
	}
	if k := c.known(t, id); k != twophase.Undecided {
		t.Errorf("a settled transaction is answered %d: nobody can be in doubt about it, so the answer must decide nothing", k)
	}
	id = c.next()
	if v := handOver(id, 0, wire.Part{Writes: []wire.Write{writeOf(entry, wire.Insert, 10)}}); v.code != wire.Exists {
		t.Errorf("insert of a row that exists: %+v", v)
	}
	if k := c.known(t, id); k != twophase.Aborted {
		t.Errorf("a refusal is answered %d", k)
	}
}

// TestOldCommitsAreRefused: a commit whose first read is too long ago by the server's
// clock, or in its future, is not validated, wherever it was meanwhile.
func TestOldCommitsAreRefused(t *testing.T) {
	s, p, entry := newPairRig(t)
	putEntries(t, s, entry, 10)
	var now clocktest.Clock
	p.clock = clock.NewRunning(time.Hour, now.Now)
	now.Advance(time.Minute)
	p.clock.Now()
	part := wire.Part{Rows: proofsOf(t, p, entry, 10, index.Found), Writes: []wire.Write{writeOf(entry, wire.Update, 10)}}
	for age, want := range map[time.Duration]wire.Code{
		0: wire.OK, index.MaxCommitAge: wire.OK, index.MaxCommitAge + 1: wire.Conflict, time.Minute: wire.Conflict, -1: wire.Conflict,
	} {
		part.Read = time.Minute - age
		part.Rows = proofsOf(t, p, entry, 10, index.Found)
		sh, _ := shareOf(s, &wire.Commit{Parts: []wire.Part{part}})
		if v := sh.commit(); v.code != want {
			t.Errorf("age %v: %+v, want code %d", age, v, want)
		}
		part.Rows = proofsOf(t, p, entry, 10, index.Found)
		sh, _ = shareOf(s, &wire.Commit{Parts: []wire.Part{part}})
		held, v := sh.prepare()
		if v.code != want {
			t.Errorf("prepared at the age %v: %+v, want code %d", age, v, want)
		}
		for _, h := range held {
			h.decide(false, 0)
		}
		part.Rows = proofsOf(t, p, entry, 10, index.Found)
		q := &request{part: &part, read: p.firstRead(&part)}
		p.mu.Lock()
		how := p.requests.attempt(q)
		p.mu.Unlock()
		if how == lost && want == wire.Conflict {
			continue
		}
		if how != over || wire.Code(q.result[0]) != want {
			t.Errorf("carried out at the age %v: %v, want code %d", age, q.result, want)
		}
	}
}

// TestHeaviestVerdictCounts: what one participant says of the rows it was to
// write is the answer only if no other refuses what was read.
func TestHeaviestVerdictCounts(t *testing.T) {
	ok, light, heavy := verdict{}, verdict{code: wire.Exists}, conflict(exec.CauseRow)
	for _, c := range []struct{ a, b, want verdict }{
		{ok, ok, ok},
		{ok, light, light},
		{light, ok, light},
		{light, heavy, heavy},
		{heavy, light, heavy},
		{heavy, ok, heavy},
		{ok, heavy, heavy},
		{light, verdict{code: wire.NotFound}, light},
		{light, verdict{code: wire.Unavailable}, verdict{code: wire.Unavailable}},
	} {
		if got := heavier(c.a, c.b); got != c.want {
			t.Errorf("of %+v and %+v %+v is the answer, want %+v: a refusal counts although proofs have failed elsewhere", c.a, c.b, got, c.want)
		}
	}
}

// shareOf returns a server's share of a transaction, and whether that is all of it.
func shareOf(s *Server, c *wire.Commit) (sh share, complete bool) {
	complete = sh.of(&s.parts, c)
	return sh, complete
}
