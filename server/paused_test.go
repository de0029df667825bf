package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestPausedServerHoldsUpNoOthers: a server is paused before any other has a
// connection to it. Transactions between two other servers, their first ones
// included, do not wait for it, and nothing that it was asked is left when all
// have stopped. The machine may hold them up, and not each time.
func TestPausedServerHoldsUpNoOthers(t *testing.T) {
	for begin := time.Now(); !t.Failed(); {
		err := besideAPausedServer(t)
		if err == nil {
			return
		}
		if t.Log(err); time.Since(begin) > testseed.Patience() {
			t.Error("transactions wait for the paused server each time")
		}
	}
}

// besideAPausedServer returns an error if transactions are held up.
func besideAPausedServer(t *testing.T) error {
	t.Helper()
	// The deadline is far above what a transaction takes, and below the 2 s for
	// which a server waits for another one.
	const sessions, rounds, deadline = 8, 20, 1500 * time.Millisecond
	before := goleak.IgnoreCurrent()
	cat := bank(t)
	entry := cat.MustTable("entry")
	move := txn.Procedure{Name: "move", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
		return nil, putBoth(x, entry, uint64(args[0]), uint64(args[1]))
	}}
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 3, Network: net, Procedures: []txn.Procedure{move}})
	if err != nil {
		t.Fatal(err)
	}
	open := make([]*txn.Session, sessions)
	for i := range open {
		if open[i], err = cl.DB.NewSession(t.Context()); err != nil {
			t.Fatal(err)
		}
		for p := range uint64(2) { // its own connections
			key := tables.Num(p<<32 + 1000 + uint64(i))
			if err := open[i].Update(t.Context(), func(x *txn.Txn) error { return x.Put(entry, key, entry.NewRow()) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := net.Pause("server-2"); err != nil {
		t.Fatal(err)
	}
	slowest := make([]time.Duration, sessions)
	failed := make([]error, sessions)
	var all sync.WaitGroup
	for i, s := range open {
		all.Go(func() {
			for n := range rounds {
				ctx, cancel := context.WithTimeout(context.Background(), deadline)
				start, err := time.Now(), error(nil)
				if n%2 == 0 {
					err = s.Update(ctx, func(x *txn.Txn) error { return putBoth(x, entry, uint64(i), uint64(n)) })
				} else {
					_, err = s.Call(ctx, txn.Home(i%2), "move", []byte{byte(i), byte(n)})
				}
				cancel()
				slowest[i] = max(slowest[i], time.Since(start))
				if err != nil {
					failed[i] = errors.Join(failed[i], fmt.Errorf("session %d, transaction %d: %w", i, n, err))
				}
			}
		})
	}
	all.Wait()
	for i := range open {
		t.Logf("session %d: the slowest transaction took %v", i, slowest[i])
		if failed[i] != nil && !errors.Is(failed[i], context.DeadlineExceeded) {
			t.Error(failed[i])
		}
	}
	if err := net.Resume("server-2"); err != nil {
		t.Fatal(err)
	}
	for _, s := range open {
		s.Close()
	}
	if err := cl.Close(); err != nil {
		t.Error(err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
	return errors.Join(failed...)
}

// putBoth writes a row at each of the first two servers.
func putBoth(x *txn.Txn, entry *tables.Table, a, b uint64) error {
	for p := range uint64(2) {
		if err := x.Put(entry, tables.Num(p<<32+a<<8+b), entry.NewRow()); err != nil {
			return err
		}
	}
	return nil
}

// TestPausedParticipantsShareADeadline: participants of one commit are paused before
// it asks for their votes. However many there are, the commit waits for them
// together. Timers run on simulated time, so what it waits is exact.
func TestPausedParticipantsShareADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cat := bank(t)
		entry := cat.MustTable("entry")
		net := inproc.New(inproc.Options{})
		cl, err := Embedded(t.Context(), EmbeddedConfig{
			Catalog: cat, Servers: 4, Network: net, Client: txn.Config{Retry: txn.Retry{Attempts: 1}},
		})
		if err != nil {
			t.Fatal(err)
		}
		home := cl.Servers[0]
		write := func() (took time.Duration, err error) {
			home.ForgetDeadline()
			start := time.Now()
			err = cl.DB.Update(t.Context(), func(x *txn.Txn) error {
				for p := range uint64(4) {
					if err := x.Put(entry, tables.Num(p<<32), entry.NewRow()); err != nil {
						return err
					}
				}
				return nil
			})
			return time.Since(start), err
		}
		for paused := range 4 {
			if took, err := write(); err != nil || took != 0 { // makes connections
				t.Fatalf("while none is paused: %v after %v", err, took)
			}
			for i := range paused {
				if err := net.Pause(fmt.Sprintf("server-%d", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			asked := home.driver.coordinated.Load()
			took, err := write()
			want := time.Duration(0)
			if paused > 0 {
				want = peerTimeout + deadlineShared + time.Duration(paused-1)*answeredTimeout
			}
			if took != want || (err != nil) != (paused > 0) || home.driver.coordinated.Load() != asked+1 {
				t.Errorf("%d participants are paused: %v after %v, want %v; %d commits of server 0", paused, err, took, want, home.driver.coordinated.Load()-asked)
			}
			for i := range paused {
				if err := net.Resume(fmt.Sprintf("server-%d", i+1)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(5 * time.Second) // the participants hear that it is aborted
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
}
