package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/txn"
)

// TestRestartHistories kills a server under load and starts another one in its
// place, which has none of the memory. Nobody takes the second for the first,
// what the survivors hold is serializable, and they keep no lock.
func TestRestartHistories(t *testing.T) {
	seed := testseed.Of(t)
	runs, txns := 0, 0
	end := time.Now().Add(simTime(t, time.Second))
	for runs == 0 || time.Now().Before(end) {
		runSeed := seed + uint64(runs)
		txns += restartOnce(t, runSeed)
		if t.Failed() {
			t.Fatalf("run %d: replay with DRTMX_SEED=%d", runs, runSeed)
		}
		runs++
	}
	t.Logf("%d runs, %d transactions", runs, txns)
}

func restartOnce(t *testing.T, seed uint64) (txns int) {
	t.Helper()
	s := rng.New(seed).Split("restart")
	l := swarm(s, seed)
	l.Duration, l.OneTable, l.OpsPerTxn = between(s, 300, 600), false, 2+s.Intn(4)
	l.ServersToFail, l.OutcomeMayLost, l.LossyCalls, l.MemoryMayGo, l.ClocksStop = true, true, true, true, true
	u := setup{
		servers: 3, partitions: 3 * (1 + s.Intn(2)),
		net:    inproc.Options{Seed: seed, Faults: inproc.Faults{DropBefore: 0.002, DropDuring: 0.002, DropAfter: 0.002}},
		client: txn.Config{Seed: seed | 1, Retry: txn.Retry{Attempts: 200}},
	}
	x := u.start(t, newLists(&l))
	defer x.Close()

	ctx := context.Background()
	clients, errs := make([]*client, l.Clients), make([]error, l.Clients)
	var wg sync.WaitGroup
	for i := range clients {
		clients[i] = newClient(&l, x.s, x.DB, i)
		wg.Go(func() { errs[i] = clients[i].work(ctx) })
	}
	time.Sleep(between(s, 20, 150))
	lost := s.Intn(3)
	old := x.Servers[lost]
	if err := x.net.Kill(x.addrs[lost]); err != nil {
		t.Fatal(err)
	}
	time.Sleep(between(s, 0, 50))
	x.Servers[lost] = x.revive(t, &u, lost)
	wg.Wait()
	if err := old.Close(); err != nil {
		errs = append(errs, fmt.Errorf("the server that was killed: %w", err))
	}

	last := newClient(&l, x.s, x.DB, l.Clients)
	clients = append(clients, last)
	h, err := merge(clients)
	if err != nil {
		t.Fatal(err)
	}
	errs = append(errs, x.survivorsSettle(lost), last.readSurvivors(ctx, h, lost))
	if h, err = merge(clients); err != nil {
		t.Fatal(err)
	}
	for _, srv := range x.Servers {
		errs = append(errs, srv.Check())
	}
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%+v, server %d of %d partitions lost: %v", l, lost, u.partitions, err)
	}
	check(t, t.Name(), h)
	return h.Len()
}

// revive starts another server in the place of one that was killed.
func (x *cluster) revive(t *testing.T, u *setup, i int) *server.Server {
	t.Helper()
	srv, err := server.New(u.config(x, i))
	if err == nil {
		err = srv.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return srv
}

func merge(clients []*client) (*history.History, error) {
	logs := make([]*history.Log, len(clients))
	for i, c := range clients {
		logs[i] = c.rec.Log()
	}
	return history.Merge(logs...)
}

// survivorsSettle waits until no survivor has a transaction in doubt.
func (x *cluster) survivorsSettle(lost int) error {
	for end := time.Now().Add(recoveryBound); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for i, srv := range x.Servers {
			if i != lost {
				left += srv.InDoubt()
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the survivors have %d transactions in doubt after %v", left, recoveryBound)
		}
	}
}

// readSurvivors reads every key of the history that a survivor holds, and
// records what it finds. A key of the server that was lost must be refused.
// Requests may be lost with their connections, so each is tried again.
func (c *client) readSurvivors(ctx context.Context, h *history.History, lost int) error {
	var last [2]history.Key
	for x := range h.All() {
		for _, op := range x.Ops {
			table, key := inOrdered, op.Key
			if key >= hashKeys {
				table, key = inHash, key-hashKeys
			}
			last[table] = max(last[table], key)
		}
	}
	servers := 3
	for table := range 2 {
		for key := history.Key(0); key <= last[table]; key++ {
			c.steps = append(c.steps[:0], step{PlanOp: history.PlanOp{Kind: history.OpRead, Key: key}, table: table})
			there := int(c.s.home(c.db, table, uint64(key)))%servers == lost
			read := func() error { return c.look(ctx) }
			if !there {
				if err := retryUnavailable(read); err != nil {
					return fmt.Errorf("key %d of table %d: %w", key, table, err)
				}
				continue
			}
			refused := false
			for end := time.Now().Add(testseed.Patience()); !refused && time.Now().Before(end); time.Sleep(time.Millisecond) {
				err := read()
				if !errors.Is(err, txn.ErrUnavailable) {
					return fmt.Errorf("key %d of table %d was lost: %w", key, table, err)
				}
				refused = errors.Is(err, txn.ErrRestarted)
			}
			if !refused {
				return fmt.Errorf("key %d of table %d: the server that was started again is not noticed", key, table)
			}
		}
	}
	return nil
}

// look records a View of the steps that were planned.
func (c *client) look(ctx context.Context) error {
	c.res.reset()
	c.rec.Begin(now())
	err := c.db.View(ctx, func(t *txn.Txn) error { return c.s.run(t, c.steps, &c.res) })
	outcome := history.Committed
	if err != nil {
		outcome = history.Aborted
		c.res.reset()
	}
	c.res.record(c.rec)
	c.rec.End(outcome, now())
	return err
}
