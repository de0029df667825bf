package exec

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/tables"
)

// idleConn is a connection that nobody uses.
type idleConn struct {
	rdma.Conn
	closed atomic.Bool
}

func (c *idleConn) Close() error            { c.closed.Store(true); return nil }
func (c *idleConn) Counters() rdma.Counters { return rdma.Counters{} }

// busyDB is a DB whose one server takes no more connections.
func busyDB(t *testing.T) *DB {
	cat, err := tables.NewCatalog(tables.Def{Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}, Columns: []tables.Column{{Name: "c", Type: tables.Int64}}})
	if err != nil {
		t.Fatal(err)
	}
	db := &DB{servers: []string{"server"}, placement: placement.Spread(1, 1), lives: make([]*life, 1)}
	db.catalog.Store(cat)
	db.incarnation = make([]atomic.Uint64, 1)
	db.room.open = make([]atomic.Int32, 1)
	db.dials = []chan struct{}{make(chan struct{}, dialsMax)}
	db.mu.all = map[*Session]struct{}{}
	db.cfg.Dial = func(context.Context, string) (rdma.Conn, error) { return nil, rdma.ErrBusy }
	db.cfg.Retry.Patience = time.Second
	return db
}

func spareLink() (lentLink, *idleConn) {
	c := &idleConn{}
	l := &link{conn: c, done: new(rdma.Batch), next: new(rdma.Batch)}
	return lentLink{l, &life{}}, c
}

// TestNoWaitBesideASpare: a connection that a session gives up while another one
// begins to wait is taken by that one: nobody waits while there is a spare one.
func TestNoWaitBesideASpare(t *testing.T) {
	db := busyDB(t)
	r := &db.room
	rounds := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end) && rounds < 20000; rounds++ {
		s := newSession(db, uint64(rounds+1), 1)
		k, _ := spareLink()
		var begun atomic.Bool
		done := make(chan error, 1)
		go func() {
			begun.Store(true)
			done <- s.net.awaitLink(t.Context(), 0)
		}()
		for !begun.Load() {
		}
		for range rounds % 64 { // some time, in which the other is at different places
			func() {
				r.mu.Lock()
				defer r.mu.Unlock()
			}()
		}
		r.mu.Lock()
		r.pass(k)
		r.mu.Unlock()
		for waits := true; waits; {
			select {
			case err := <-done:
				if waits = false; err != nil || s.net.links[0] != k.l {
					t.Fatalf("round %d: %v", rounds, err)
				}
			case <-time.After(time.Millisecond):
				r.mu.Lock()
				if len(r.mu.waiting) > 0 && len(r.mu.spare) > 0 {
					t.Fatalf("round %d: a session waits for a connection beside a spare one", rounds)
				}
				r.mu.Unlock()
			}
		}
	}
	t.Logf("%d rounds", rounds)
}

// TestClosedSessionPassesOn: a connection that is handed over to a session at the
// moment at which it finds that it is closed is not lost.
func TestClosedSessionPassesOn(t *testing.T) {
	db := busyDB(t)
	r := &db.room
	s := newSession(db, 1, 1)
	done := make(chan error, 1)
	go func() { done <- s.net.awaitLink(t.Context(), 0) }()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		waits = len(r.mu.waiting) == 1
		r.mu.Unlock()
	}
	time.Sleep(5 * time.Millisecond) // it has looked whether it is the first
	r.mu.Lock()
	s.closed.Store(true)
	time.Sleep(3 * roomTry) // now it wants to leave
	k, c := spareLink()
	r.pass(k)
	r.mu.Unlock()
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.closed.Load() && len(r.mu.spare) == 0 {
		t.Error("the connection is lost: it is open, and no session has it")
	}
}
