package server_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// TestViewWaitsForALock: a View of many rows, one of which is locked by a transaction
// in doubt, reads that row again and again, and not the others.
func TestViewWaitsForALock(t *testing.T) {
	const rows = 60
	const releaseAt = 16 // batches: more than the first operation sends, and fewer than two do
	x, client, peers := startHooked(t, newListSchema(4), 3, txn.Config{})
	for k := range uint64(rows) {
		if err := x.put(inHash, k, 1); err != nil {
			t.Fatal(err)
		}
	}
	s, err := x.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	bodies := 0
	total := func(tx *txn.Txn) error {
		bodies++
		var gets []*txn.QueuedGet
		for k := range uint64(rows) {
			gets = append(gets, x.s.queueGet(tx, inHash, k))
		}
		for _, g := range gets {
			if _, err := g.Row(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := s.View(t.Context(), total); err != nil { // it now knows where the rows are
		t.Fatal(err)
	}
	d := disturb(t, x, peers)
	release := make(chan struct{})
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		switch {
		case op == wire.OpDecide && !sent && addr == d.addrs[1]:
			<-release
		case op == wire.OpResolve: // or the participant asks for the outcome
			return errCut
		}
		return nil
	})
	wrote := make(chan error, 1)
	go func() {
		wrote <- x.DB.Update(context.Background(), func(tx *txn.Txn) error {
			for k := range uint64(3) { // one row at each server
				if err := tx.Put(x.s.tab[inHash], x.s.keyOf(k), x.s.row(inHash, k, 2)); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	d.prepared(t, d.Servers[1])
	for _, k := range []uint64{0, 2} { // these have the decision
		want := x.s.row(inHash, k, 2)
		for row := tables.Row(nil); !bytes.Equal(row, want); {
			if err := x.DB.View(t.Context(), func(tx *txn.Txn) (err error) {
				r, err := x.s.get(tx, inHash, k)
				row = bytes.Clone(r)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The lock goes while the row is read a second time.
	var posts atomic.Int32
	var once sync.Once
	client.mu.Lock()
	client.post = func(_ string, sent bool) error {
		if sent && posts.Add(1) == releaseAt {
			once.Do(func() { close(release) })
			if err := <-wrote; err != nil {
				t.Error(err)
			}
		}
		return nil
	}
	client.mu.Unlock()
	before := s.Stats()
	bodies = 0
	err = s.View(t.Context(), total)
	once.Do(func() { close(release) })
	if err != nil {
		t.Fatal(err)
	}
	if n := posts.Load(); n < releaseAt {
		t.Fatalf("the View ended after %d batches: it met no lock", n)
	}
	st := s.Stats()
	t.Logf("%d batches", posts.Load())
	if reads := st.Fabric.Reads - before.Fabric.Reads; bodies != 1 || reads > 3*rows {
		t.Errorf("a View that met a lock ran its body %d times, with %d READs for %d rows", bodies, reads, rows)
	}
}
