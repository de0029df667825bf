package server

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// standBack is a cluster in which a client has stopped with the lock of row 20 of the table "written".
type standBack struct {
	cl    *Cluster
	cat   *tables.Catalog
	tab   *tables.Table
	home  txn.Home
	p     *partition // that has the row
	stop  *halts
	ended chan error // of the client
	once  *txn.DB    // writes at the data server, and tries twice
}

// startStandBack starts it, with procedures that read that row.
func startStandBack(t *testing.T) *standBack {
	t.Helper()
	net, cat := inproc.New(inproc.Options{}), mixedCatalog(t)
	tab := cat.MustTable("written")
	read := txn.Procedure{Name: "read", ReadOnly: true, Body: func(_ context.Context, tx *txn.Txn, _ []byte) ([]byte, error) {
		_, err := tx.Get(tab, tables.Num(20))
		return nil, err
	}}
	count := txn.Procedure{Name: "count", ReadOnly: true, Body: func(_ context.Context, tx *txn.Txn, _ []byte) ([]byte, error) {
		_, err := tx.QueueScan(tab.Primary(), tables.Num(20), tables.Num(20), 0).Entries()
		return nil, err
	}}
	cl, err := Embedded(context.Background(), EmbeddedConfig{Catalog: cat, Servers: 2, Client: patient(), Network: net, Procedures: []txn.Procedure{read, count}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	loadMixed(t, cl, cat, func(k uint64) int64 { return int64(k) })
	home, err := cl.DB.Home(tab, tables.Num(20))
	if err != nil {
		t.Fatal(err)
	}
	b := &standBack{cl: cl, cat: cat, tab: tab, home: home, ended: make(chan error, 1)}
	for _, s := range cl.Servers {
		if at := s.parts.get(placement.Partition(home)); at != nil {
			b.p = at
		}
	}
	b.stop = &halts{before: make(chan struct{}), met: make(chan struct{}, 1)}
	stopped := stoppable(t, cl, net, b.stop)
	go func() { b.ended <- putN(stopped, tab, 20, 99) }()
	<-b.stop.met
	c := txn.Config{ServerWrites: true, Retry: txn.Retry{Attempts: 2}, Servers: []string{cl.Servers[0].Addr()}, Dial: net.Dial}
	b.once, err = txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.once.Close() })
	return b
}

// A commit at the data server that meets the lock of a client gets a turn, as one whose reads have changed
// does, and clients stand back meanwhile: it would meet the next lock otherwise, and the next. For a
// procedure, which has no turns, they stand back for a while.
func TestClientsStandBack(t *testing.T) {
	b := startStandBack(t)
	tab, p := b.tab, b.p
	if err := putN(b.once, tab, 20, 55); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a commit at the data server, beside a client's lock: %v", err)
	}
	p.mu.Lock()
	if p.requests.lines.reserved == 0 {
		t.Error("no turn was reserved")
	}
	p.requests.quiet = 0
	p.mu.Unlock()
	if _, err := b.once.Call(t.Context(), b.home, "read", nil); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a procedure beside a client's lock: %v", err)
	}
	p.mu.Lock()
	if p.requests.quiet == 0 {
		t.Error("clients do not stand back")
	}
	p.requests.quiet = 1<<63 - 1
	p.unlock()
	close(b.stop.before)
	if err := <-b.ended; err != nil {
		t.Errorf("the client that had its locks already: %v", err)
	}
	s, err := b.cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, quiet := range []bool{true, false} {
		before := s.Stats().OneSided
		if err := putN(s, tab, 20, 7); err != nil {
			t.Fatal(err)
		}
		if n := s.Stats().OneSided - before; n > 0 == quiet {
			t.Errorf("%d commits without the data server, quiet %v", n, quiet)
		}
		p.mu.Lock()
		p.requests.quiet = 0
		p.unlock()
	}
}

// A commit that meets the lock of a client gets its turn also while a transaction is prepared here that has
// nothing to do with it: the end of that one would not end the lock. Nor does a procedure wait for it that
// meets such a lock with a read.
func TestClientsStandBackBesidePrepared(t *testing.T) {
	b := startStandBack(t)
	tab, kept, p := b.tab, b.cat.MustTable("kept"), b.p
	unrelated, v := p.prepare(&wire.Part{Writes: []wire.Write{writeOf(kept, wire.Put, 40)}})
	if !v.ok() {
		t.Fatal(v)
	}
	if err := putN(b.once, tab, 20, 55); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a commit at the data server, beside a client's lock: %v", err)
	}
	for _, proc := range []string{"read", "count"} {
		if _, err := b.once.Call(t.Context(), b.home, proc, nil); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("procedure %s beside a client's lock: %v", proc, err)
		}
	}
	p.mu.Lock()
	if p.requests.lines.reserved == 0 {
		t.Error("no turn was reserved")
	}
	if n := p.requests.parking.parked; n > 0 {
		t.Errorf("%d requests have waited for a decision", n)
	}
	p.mu.Unlock()
	unrelated.decide(false, 0)
	b.stop.mu.Lock()
	close(b.stop.before)
	b.stop.before = nil
	b.stop.mu.Unlock()
	if err := <-b.ended; err != nil {
		t.Errorf("the client that had its locks already: %v", err)
	}
}
