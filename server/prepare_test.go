package server

import (
	"context"
	"testing"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
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
		if err := db.Update(context.Background(), func(t *txn.Txn) error { return t.Put(entry, k, entry.NewRow()) }); err != nil {
			t.Fatal(err)
		}
	}
}

func writeOf(entry *tables.Table, op wire.WriteOp, key uint64) wire.Write {
	w := wire.Write{Index: uint16(entry.Primary().ID), Op: op, Key: key}
	if op != wire.Delete {
		w.Row = entry.NewRow()
	}
	return w
}

func proofsOf(t *testing.T, p *partition, entry *tables.Table, key uint64, want index.Status) []index.Proof {
	t.Helper()
	res := p.indexes[entry.Primary().ID].Get(key, nil)
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
