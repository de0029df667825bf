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

// startStandBack starts a cluster with procedures that read the table "written".
func startStandBack(t *testing.T, net *inproc.Network, cat *tables.Catalog) *Cluster {
	t.Helper()
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
	return cl
}

// A commit at the data server that meets the lock of a client gets a turn, as one whose reads have changed
// does, and clients stand back meanwhile: it would meet the next lock otherwise, and the next. For a
// procedure, which has no turns, they stand back for a while.
func TestClientsStandBack(t *testing.T) {
	net, cat := inproc.New(inproc.Options{}), mixedCatalog(t)
	tab := cat.MustTable("written")
	cl := startStandBack(t, net, cat)
	home, err := cl.DB.Home(tab, tables.Num(20))
	if err != nil {
		t.Fatal(err)
	}
	var p *partition
	for _, s := range cl.Servers {
		if at := s.parts.get(placement.Partition(home)); at != nil {
			p = at
		}
	}
	stop := &halts{before: make(chan struct{}), met: make(chan struct{}, 1)}
	stopped := stoppable(t, cl, net, stop)
	ended := make(chan error, 1)
	go func() { ended <- putN(stopped, tab, 20, 99) }()
	<-stop.met
	c := txn.Config{ServerWrites: true, Retry: txn.Retry{Attempts: 2}, Servers: []string{cl.Servers[0].Addr()}, Dial: net.Dial}
	once, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	if err := putN(once, tab, 20, 55); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a commit at the data server, beside a client's lock: %v", err)
	}
	p.mu.Lock()
	if p.requests.lines.reserved == 0 {
		t.Error("no turn was reserved")
	}
	p.requests.quiet = 0
	p.mu.Unlock()
	if _, err := once.Call(t.Context(), home, "read", nil); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a procedure beside a client's lock: %v", err)
	}
	p.mu.Lock()
	if p.requests.quiet == 0 {
		t.Error("clients do not stand back")
	}
	p.requests.quiet = 1<<63 - 1
	p.unlock()
	close(stop.before)
	if err := <-ended; err != nil {
		t.Errorf("the client that had its locks already: %v", err)
	}
	s, err := cl.DB.NewSession(t.Context())
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
	net, cat := inproc.New(inproc.Options{}), mixedCatalog(t)
	cl := startStandBack(t, net, cat)
	tab, kept := cat.MustTable("written"), cat.MustTable("kept")
	home, err := cl.DB.Home(tab, tables.Num(20))
	if err != nil {
		t.Fatal(err)
	}
	var p *partition
	for _, s := range cl.Servers {
		if at := s.parts.get(placement.Partition(home)); at != nil {
			p = at
		}
	}
	stop := &halts{before: make(chan struct{}), met: make(chan struct{}, 1)}
	stopped := stoppable(t, cl, net, stop)
	ended := make(chan error, 1)
	go func() { ended <- putN(stopped, tab, 20, 99) }()
	<-stop.met
	unrelated, v := p.prepare(&wire.Part{Writes: []wire.Write{writeOf(kept, wire.Put, 40)}})
	if !v.ok() {
		t.Fatal(v)
	}
	c := txn.Config{ServerWrites: true, Retry: txn.Retry{Attempts: 2}, Servers: []string{cl.Servers[0].Addr()}, Dial: net.Dial}
	once, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	if err := putN(once, tab, 20, 55); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a commit at the data server, beside a client's lock: %v", err)
	}
	for _, proc := range []string{"read", "count"} {
		if _, err := once.Call(t.Context(), home, proc, nil); !errors.Is(err, txn.ErrConflict) {
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
	stop.mu.Lock()
	close(stop.before)
	stop.before = nil
	stop.mu.Unlock()
	if err := <-ended; err != nil {
		t.Errorf("the client that had its locks already: %v", err)
	}
}
