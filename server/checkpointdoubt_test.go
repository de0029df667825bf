package server_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// doubtful is a cluster of durable servers in which a transaction writes one row
// at each of them, the first its home, and stays in doubt.
type doubtful struct {
	*crashes
	r    *rand.Rand
	tab  *tables.Table
	keys []tables.Key // of the transaction, by server
	rest []tables.Key // others, by server
}

func startDoubtful(t *testing.T, servers int) *doubtful {
	t.Helper()
	d := &doubtful{crashes: startCrashes(t, servers, servers, false), r: rand.New(rand.NewPCG(testseed.Of(t), 3))}
	d.tab = d.table("hash")
	for i := range servers {
		keys := d.at(t, d.tab, i, 2)
		d.keys, d.rest = append(d.keys, keys[0]), append(d.rest, keys[1])
	}
	for range 2 { // so that all know each other
		if err := d.add(t.Context(), 0, d.keys...); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// add adds to the rows in one transaction, which makes them if they are not there.
func (d *doubtful) add(ctx context.Context, n int64, keys ...tables.Key) error {
	ctx, cancel := context.WithTimeout(ctx, testseed.Patience())
	defer cancel()
	return d.db.Update(ctx, func(x *txn.Txn) error {
		for _, k := range keys {
			had := int64(0)
			switch row, err := x.Get(d.tab, k); {
			case err == nil:
				had = row.Int(d.tab.Field("balance"))
			case !errors.Is(err, txn.ErrNotFound):
				return err
			}
			if err := x.Put(d.tab, k, d.row(d.tab, had+n, 1)); err != nil {
				return err
			}
		}
		return nil
	})
}

// lose loses the answers to requests of a kind to a server, or the requests, and
// all questions and repeated decisions, until hear.
func (d *doubtful) lose(op wire.Op, to int, answers bool) {
	d.peers.set(func(addr string, now wire.Op, sent bool) error {
		if now == wire.OpResolve || now == wire.OpDecide && op != now || now == op && addr == d.addrs[to] && sent == answers {
			return errCut
		}
		return nil
	})
}

func (d *doubtful) hear() { d.peers.set(nil) }

// checkpoint writes something at every server and makes checkpoints of all, twice.
func (d *doubtful) checkpoint(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	for range 2 {
		for i, s := range d.servers {
			if err := d.add(ctx, 1, d.rest[i]); err != nil {
				t.Fatalf("server %d: %v", i, err)
			}
			if err := s.Checkpoint(ctx); err != nil {
				t.Fatalf("server %d: %v", i, err)
			}
		}
	}
}

// restart crashes all servers. Each has as many transactions in doubt afterwards
// as before.
func (d *doubtful) restart(t *testing.T) {
	t.Helper()
	for i, s := range d.servers {
		before := s.InDoubt()
		if err := d.crash(d.r, i); err != nil {
			t.Fatal(err)
		}
		if after := d.servers[i].InDoubt(); after != before {
			t.Errorf("server %d has %d transactions in doubt after a recovery, want %d", i, after, before)
		}
	}
}

// settled waits until nothing is in doubt.
func (d *doubtful) settled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(2 * recoveryBound); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, s := range d.servers {
			left += s.InDoubt()
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d transactions stay in doubt", left)
		}
	}
}

// expect compares the rows of the transaction, and checks that they can be written.
func (d *doubtful) expect(t *testing.T, want int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if err := d.db.View(ctx, func(x *txn.Txn) error {
		var errs []error
		for _, k := range d.keys {
			errs = append(errs, d.balance(x, d.tab, k, want))
		}
		return errors.Join(errs...)
	}); err != nil {
		t.Error(err)
	}
	if err := d.add(ctx, 0, d.keys...); err != nil {
		t.Errorf("the rows cannot be written: %v", err)
	}
	for _, s := range d.servers {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestSharesCrossCheckpoints: a share that is prepared before checkpoints and
// decided after them and after recoveries is applied; until then it is locked. Its
// coordinator still knows that it has committed.
func TestSharesCrossCheckpoints(t *testing.T) {
	t.Parallel()
	d := startDoubtful(t, 3)
	d.lose(wire.OpDecide, 2, false)
	if err := d.add(t.Context(), 5, d.keys...); err != nil {
		t.Fatalf("all voted yes: %v", err)
	}
	for range 2 {
		if n := d.servers[2].InDoubt(); n != 1 {
			t.Fatalf("%d transactions in doubt, want 1", n)
		}
		d.checkpoint(t)
		d.restart(t)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := d.add(ctx, 1000, d.keys[2]); err == nil {
			t.Error("a row of a share in doubt is not locked")
		}
		cancel()
	}
	d.hear()
	d.settled(t)
	d.checkpoint(t)
	d.restart(t)
	d.expect(t, 5)
}

// TestRestoredReads: after a recovery a share in doubt keeps everybody from changing
// what it has read. Its log knows the rows that it writes. Of what it has read
// beside them it knows no more than that there is something, so nothing else in the
// partition is written then, and only then.
func TestRestoredReads(t *testing.T) {
	t.Parallel()
	for what, more := range map[string]bool{"what it writes": false, "another row": true} {
		t.Run(what, func(t *testing.T) {
			d := startDoubtful(t, 3)
			if err := d.add(t.Context(), 0, d.rest[2]); err != nil {
				t.Fatal(err)
			}
			d.lose(wire.OpDecide, 2, false)
			if err := d.db.Update(t.Context(), func(x *txn.Txn) error {
				if more {
					if _, err := x.Get(d.tab, d.rest[2]); err != nil {
						return err
					}
				}
				for _, k := range d.keys {
					row, err := x.Get(d.tab, k)
					if err != nil {
						return err
					}
					if err := x.Put(d.tab, k, d.row(d.tab, row.Int(d.tab.Field("balance"))+5, 1)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatalf("all voted yes: %v", err)
			}
			d.restart(t)
			ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
			if more {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			}
			if err := d.add(ctx, 7, d.rest[2]); (err != nil) != more {
				t.Errorf("another row is written while the share is in doubt: %v", err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
			if err := d.add(ctx, 1000, d.keys[2]); err == nil {
				t.Error("a row of a share in doubt is not locked")
			}
			cancel()
			d.hear()
			d.settled(t)
			d.expect(t, 5)
			if err := d.add(t.Context(), 7, d.rest[2]); err != nil {
				t.Errorf("another row cannot be written when nothing is in doubt: %v", err)
			}
		})
	}
}

// TestHandOversCrossCheckpoints: a coordinator has handed the decision over before
// checkpoints and recoveries, and hears it after them. The session that waits for
// it does not keep the checkpoints from being made, and its transaction is carried
// out once.
func TestHandOversCrossCheckpoints(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"answer", "request"} {
		t.Run(lost+" lost", func(t *testing.T) {
			d := startDoubtful(t, 2)
			d.lose(wire.OpHandOver, 1, lost == "answer")
			ended := make(chan error, 1)
			go func() { ended <- d.add(context.Background(), 5, d.keys...) }()
			for d.servers[0].InDoubt() == 0 {
				time.Sleep(time.Millisecond)
			}
			for range 2 {
				d.checkpoint(t)
				d.restart(t)
			}
			d.hear()
			d.settled(t)
			if err := <-ended; err != nil {
				t.Errorf("the client is told %v", err)
			}
			d.checkpoint(t)
			d.restart(t)
			d.expect(t, 5)
		})
	}
}

// TestDecisionDuringCheckpoint: a share that is decided at any moment of a
// checkpoint is applied after a recovery from it.
func TestDecisionDuringCheckpoint(t *testing.T) {
	t.Parallel()
	d := startDoubtful(t, 3)
	want, done := int64(0), false
	for at := int64(1); !done; at++ {
		d.lose(wire.OpDecide, 2, false)
		if err := d.add(t.Context(), 1, d.keys...); err != nil {
			t.Fatalf("all voted yes: %v", err)
		}
		want++
		var n atomic.Int64
		decide := func() {
			d.hear()
			d.settled(t)
		}
		before := func(op vfstest.Op, name string) {
			if op.Changes() && op != vfstest.Remove && strings.Contains(name, "/checkpoint-") && n.Add(1) == at {
				decide()
			}
		}
		d.before.Store(&before)
		if err := d.servers[2].Checkpoint(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.before.Store(nil)
		if done = n.Load() < at; done {
			decide()
		}
		if err := d.crash(d.r, 2); err != nil {
			t.Fatal(err)
		}
		d.settled(t)
		if err := d.db.View(t.Context(), func(x *txn.Txn) error { return d.balance(x, d.tab, d.keys[2], want) }); err != nil {
			t.Fatalf("a decision before operation %d: %v", at, err)
		}
	}
	d.expect(t, want)
	t.Logf("%d moments", want)
}

// TestLogIsBoundedWithoutAPeer: the logs of servers stay bounded although another
// is gone and does not come back, and a transaction with it stays in doubt.
func TestLogIsBoundedWithoutAPeer(t *testing.T) {
	t.Parallel()
	d := startDoubtful(t, 3)
	d.checkpointBytes = 32 << 10
	for i := range 2 {
		if err := d.crash(d.r, i); err != nil {
			t.Fatal(err)
		}
	}
	d.lose(wire.OpHandOver, 2, true)
	go func() { _ = d.add(t.Context(), 5, d.keys[0], d.keys[2]) }()
	for d.servers[0].InDoubt() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := d.down(d.r, 2); err != nil {
		t.Fatal(err)
	}
	d.hear()
	most, ends := [2]uint64{}, [2]uint64{}
	pad := d.table("tree_strings")
	for n := 0; n < 40 || ends[0] < 20*uint64(d.checkpointBytes) || ends[1] < 20*uint64(d.checkpointBytes); n++ {
		if err := d.db.Update(t.Context(), func(x *txn.Txn) error {
			for i := range 2 {
				for j, k := range d.at(t, pad, i, 3) {
					if err := x.Put(pad, k, d.row(pad, int64(n), 70+j)); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			first, end := d.servers[i].LogRange()
			most[i], ends[i] = max(most[i], end-first), end
		}
		if n > 1000 {
			t.Fatalf("the logs have only %d bytes", ends)
		}
	}
	for i, s := range d.servers[:2] {
		made := s.Stats().Log.Checkpoints
		t.Logf("server %d: log of %d bytes, at most %d at a time, %d checkpoints", i, ends[i], most[i], made)
		if made < 3 || most[i] > 8*uint64(d.checkpointBytes) {
			t.Errorf("server %d: %d checkpoints, the log had up to %d bytes", i, made, most[i])
		}
	}
	if n := d.servers[0].InDoubt(); n != 1 {
		t.Errorf("%d transactions in doubt, want 1", n)
	}
	if err := d.crash(d.r, 0); err != nil {
		t.Fatal(err)
	}
	if got := d.servers[0].Recovered(); got.InDoubt != 1 || got.Bytes > uint64(8*d.checkpointBytes) {
		t.Errorf("recovered %+v", got)
	}
	if err := d.begin(2); err != nil {
		t.Error(err)
	}
	d.settled(t)
}
