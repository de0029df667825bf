package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// TestLateCommitIsRefused: a commit is on its way for longer than its proofs are good,
// to one server, or from its coordinator to another one. It is refused, although
// nothing has changed that it has read, and the transaction is made again.
func TestLateCommitIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		held wire.Op
		keys []uint64
	}{
		{"to its only server", wire.OpCommit, []uint64{0}},
		{"to the coordinator", wire.OpCommit, []uint64{0, 4, 8}},
		{"to a participant", wire.OpPrepare, []uint64{0, 4, 8}},
		{"to the last agent", wire.OpHandOver, []uint64{0, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newLate(t)
			if err := d.add(1, c.keys...); err != nil {
				t.Fatal(err)
			}
			for _, age := range []time.Duration{index.MaxCommitAge - time.Second, index.MaxCommitAge + time.Second} {
				before := d.own.Stats()
				var held atomic.Bool
				hold := func(_ string, op wire.Op, sent bool) error {
					if op == c.held && !sent && !held.Swap(true) {
						d.runFor(age)
					}
					return nil
				}
				d.client.set(hold)
				d.peers.set(hold)
				if err := d.add(1, c.keys...); err != nil {
					t.Fatal(err)
				}
				if !held.Load() {
					t.Fatal("no message was held back")
				}
				after, aborts := d.own.Stats(), uint64(0)
				for cause := range after.Aborts {
					aborts += after.Aborts[cause] - before.Aborts[cause]
				}
				if late := age > index.MaxCommitAge; late != (aborts == 1) || !late && aborts != 0 {
					t.Errorf("%v late: %d aborts", age, aborts)
				}
			}
			for _, k := range c.keys {
				if v, err := d.value(inOrdered, k); err != nil || v != 3 {
					t.Errorf("key %d has %d, %v; want 3", k, v, err)
				}
			}
		})
	}
}

// TestClockIsAskedForRarely: a client that commits all the time asks a server for its
// clock every five seconds, and not otherwise.
func TestClockIsAskedForRarely(t *testing.T) {
	d := newLate(t)
	var questions atomic.Int64
	d.client.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpLease && !sent {
			questions.Add(1)
		}
		return nil
	})
	start := time.Now()
	for range 500 {
		if err := d.add(1, 0, 4, 8); err != nil {
			t.Fatal(err)
		}
	}
	if most := int64(3 * (1 + time.Since(start)/(5*time.Second))); questions.Load() > most {
		t.Errorf("%d questions to three servers in %v, want at most %d", questions.Load(), time.Since(start), most)
	}
}

// late is a cluster whose servers measure the ages of proofs on a clock of the test's.
type late struct {
	*cluster
	client, peers *hooks
	now           clocktest.Clock
	own           *txn.Session
}

func newLate(t *testing.T) *late {
	t.Helper()
	s, net := newListSchema(4), inproc.New(inproc.Options{})
	d := &late{cluster: &cluster{Cluster: &server.Cluster{}, net: net, s: s}, client: &hooks{Provider: net}, peers: &hooks{Provider: net}}
	for i := range 3 {
		d.addrs = append(d.addrs, fmt.Sprintf("server-%d", i))
	}
	for i := range d.addrs {
		cfg := server.Config{Index: i, Addrs: d.addrs, Catalog: s.cat, Provider: d.peers, MemoryBytes: 1 << 28}
		cfg.OnClock(d.now.Now)
		srv, err := server.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		d.Servers = append(d.Servers, srv)
		if err := srv.Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { d.Close() })
	var err error
	if d.DB, err = txn.Open(t.Context(), txn.Config{Servers: d.addrs, Dial: d.client.Dial}); err != nil {
		t.Fatal(err)
	}
	if d.own, err = d.DB.NewSession(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.runFor(time.Minute)
	return d
}

// runFor lets the clocks of all servers go on.
func (d *late) runFor(t time.Duration) {
	for ; t > 0; t -= server.RunningStep {
		d.now.Advance(min(t, server.RunningStep))
		for _, s := range d.Servers {
			s.LookAtClock()
		}
	}
}

// add adds to the values of some keys.
func (d *late) add(n uint64, keys ...uint64) error {
	return d.own.Update(context.Background(), func(x *txn.Txn) error {
		for _, k := range keys {
			v := n
			row, err := x.Get(d.s.tab[inOrdered], tables.Num(k))
			if err == nil {
				v += d.s.first(inOrdered, row)
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			if err := x.Put(d.s.tab[inOrdered], tables.Num(k), d.s.row(inOrdered, k, v)); err != nil {
				return err
			}
		}
		return nil
	})
}
