package server

import (
	"context"
	"testing"

	"drtmx/index"
	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// rig is one server with the bank's tables and its partition, to be driven
// without a client in between.
func newRig(t *testing.T) (*Server, *partition, *tables.Table) {
	t.Helper()
	cl, _, entry := startBank(t, 1)
	return cl.Servers[0], cl.Servers[0].parts[0], entry
}

func putEntries(t *testing.T, s *Server, entry *tables.Table, keys ...uint64) {
	t.Helper()
	db, err := s.peerDB(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if err := db.Update(context.Background(), exec.BodyFunc(func(t *exec.Txn) error { return t.Put(entry, k, entry.NewRow()) })); err != nil {
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
	res := p.indexes[entry.Primary().ID].Get(index.Num(key), nil)
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
	for keys := uint64(3); keys < 90; keys++ {
		s, p, entry := newRig(t)
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
		prep.decide(true)
		if !p.shared.Empty() {
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
	prep.decide(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.commit(&read); !v.ok() {
		t.Errorf("after the lock was released unchanged: %+v", v)
	}
}

// TestLatePrepareIsRefused: what was decided, or answered to be aborted, is not
// prepared afterwards, nor prepared twice.
func TestLatePrepareIsRefused(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10)
	peers := &wire.Peers{Coordinator: 0}
	seq := uint64(0)
	next := func() *wire.Commit {
		seq++
		return &wire.Commit{ID: wire.ID{Client: 99, Seq: seq}, Parts: []wire.Part{{Writes: []wire.Write{writeOf(entry, wire.Update, 10)}}}}
	}
	for name, before := range map[string]func(c *wire.Commit){
		"after an abort":            func(c *wire.Commit) { s.decide(c.ID, false) },
		"after a question":          func(c *wire.Commit) { s.resolve(c.ID) },
		"after a commit, once more": func(c *wire.Commit) { s.prepare(c, peers); s.decide(c.ID, true) },
		"after an abort, once more": func(c *wire.Commit) { s.prepare(c, peers); s.decide(c.ID, false) },
		"after a refusal, once more": func(c *wire.Commit) {
			bad := *c
			bad.Parts = []wire.Part{{Writes: []wire.Write{{}}}}
			s.prepare(&bad, peers)
		},
	} {
		c := next()
		before(c)
		if v := s.prepare(c, peers); v.ok() {
			t.Errorf("a prepare %s is accepted", name)
			s.decide(c.ID, false)
		}
	}
	c := next()
	if v := s.prepare(c, peers); !v.ok() {
		t.Fatal(v)
	}
	if v := s.prepare(c, peers); v.code != wire.Bad {
		t.Errorf("a prepare repeated while in doubt is accepted, or costs the first one: %+v", v)
	}
	s.decide(c.ID, true)
	if p.nprepare != 0 || conflicts(p, writeOf(entry, wire.Update, 10)) {
		t.Errorf("%d transactions left in doubt", p.nprepare)
	}
}
