package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

var errCut = errors.New("the connection is cut")

// value is the first element of a list, 0 if there is none.
func (x *cluster) value(table int, key uint64) (v uint64, err error) {
	err = x.DB.View(context.Background(), func(t *txn.Txn) error {
		v = 0
		row, err := t.Get(x.s.tab[table], tables.Num(key))
		if errors.Is(err, txn.ErrNotFound) {
			return nil
		}
		if err == nil {
			v = x.s.first(table, row)
		}
		return err
	})
	return v, err
}

// cut is a hook that breaks the connection, once, before an operation's request
// is sent or after it was answered.
func cut(op wire.Op, sent bool) func(string, wire.Op, bool) error {
	done := false
	return func(_ string, o wire.Op, s bool) error {
		if o == op && s == sent && !done {
			done = true
			return errCut
		}
		return nil
	}
}

// both is one hook after the other.
func both(a, b func(string, wire.Op, bool) error) func(string, wire.Op, bool) error {
	return func(to string, op wire.Op, sent bool) error {
		if err := a(to, op, sent); err != nil {
			return err
		}
		return b(to, op, sent)
	}
}

// TestLostAnswers cuts the client's connection around its commit request. What
// became of it is found out, once and for all, or reported as unknown.
func TestLostAnswers(t *testing.T) {
	x, client, _ := startHooked(t, newListSchema(4), 3, txn.Config{})
	ctx := context.Background()
	const key = 3
	for i, c := range []struct {
		name    string
		hook    func(string, wire.Op, bool) error
		want    error
		written bool
	}{
		{"answer lost", cut(wire.OpCommit, true), nil, true},
		{"request lost", cut(wire.OpCommit, false), txn.ErrUnavailable, false},
		{"answer lost, and that of the question", both(cut(wire.OpCommit, true), cut(wire.OpOutcome, true)), txn.ErrOutcomeUnknown, true},
		{"request lost, and the question", both(cut(wire.OpCommit, false), cut(wire.OpOutcome, false)), txn.ErrOutcomeUnknown, false},
	} {
		before, err := x.value(inHash, key)
		if err != nil {
			t.Fatal(err)
		}
		client.set(c.hook)
		fresh := uint64(100 + i)
		err = x.DB.Update(ctx, func(tx *txn.Txn) error {
			for table := range 2 { // of several partitions
				for k := uint64(key); k < key+3; k++ {
					if err := tx.Put(x.s.tab[table], tables.Num(k), x.s.row(table, k, fresh)); err != nil {
						return err
					}
				}
			}
			return nil
		})
		client.set(nil)
		if !errors.Is(err, c.want) || (c.want == nil && err != nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		var lost *txn.UnknownOutcome
		if errors.As(err, &lost) {
			if !errors.Is(err, errCut) {
				t.Errorf("%s: the cause is not in %v", c.name, err)
			}
			want := txn.ErrConflict // the session settles it over its next connection
			if c.written {
				want = nil
			}
			for range 3 {
				if got := x.DB.Outcome(ctx, lost.ID); !errors.Is(got, want) || (want == nil && got != nil) {
					t.Errorf("%s: outcome %v, want %v", c.name, got, want)
				}
			}
		}
		want := before
		if c.written {
			want = fresh
		}
		for table := range 2 {
			if got, err := x.value(table, key+1); err != nil || (got != want && (want == fresh || got == fresh)) {
				t.Errorf("%s: table %d has %d, want %d: %v", c.name, table, got, want, err)
			}
		}
	}
}

// TestOutcomeOfRefusal: an insert of a key that exists, whose answer is lost,
// is known not to have been committed.
func TestOutcomeOfRefusal(t *testing.T) {
	x, client, _ := startHooked(t, newListSchema(4), 1, txn.Config{})
	if err := x.put(inHash, 3, 1); err != nil {
		t.Fatal(err)
	}
	client.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpCommit && sent || op == wire.OpOutcome && !sent {
			return errCut
		}
		return nil
	})
	err := x.DB.Update(context.Background(), func(tx *txn.Txn) error {
		return tx.Insert(x.s.tab[inHash], tables.Num(3), x.s.row(inHash, 3, 2))
	})
	client.set(nil)
	var lost *txn.UnknownOutcome
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	if err := x.DB.Outcome(context.Background(), lost.ID); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("outcome: %v, want that it was not committed", err)
	}
	if err := x.DB.Outcome(context.Background(), txn.ID{Client: 4711, Seq: 1}); !errors.Is(err, txn.ErrOutcomeUnknown) {
		t.Errorf("outcome of nobody's transaction: %v", err)
	}
	for _, id := range []txn.ID{{Client: 1, Seq: 1, Home: -1}, {Client: 1, Seq: 1, Home: x.DB.Partitions()}, {Client: 1, Home: 1}} {
		if err := x.DB.Outcome(context.Background(), id); !errors.Is(err, txn.ErrProtocol) {
			t.Errorf("outcome of transaction %v, which there cannot be: %v", id, err)
		}
	}
}

// TestOutcomeIsFinal: a client that asks for the outcome of a commit on its way hears at
// once that it never commits, although another server is paused, and however late it
// then arrives. A commit that has arrived is committed, as its client hears.
func TestOutcomeIsFinal(t *testing.T) {
	x, client, _ := startHooked(t, newListSchema(4), 3, txn.Config{})
	for _, arrives := range []bool{true, false} {
		const key = 4 // at server 1
		var body []byte
		client.mu.Lock()
		client.request = func(_ string, req []byte) {
			if wire.Op(req[0]) == wire.OpCommit {
				body = slices.Clone(req)
			}
		}
		client.mu.Unlock()
		client.set(func(_ string, op wire.Op, sent bool) error {
			if op == wire.OpCommit && sent == arrives || op == wire.OpOutcome {
				return errCut
			}
			return nil
		})
		before, err := x.value(inOrdered, key)
		if err != nil {
			t.Fatal(err)
		}
		err = x.put(inOrdered, key, before+1)
		client.set(nil)
		var lost *txn.UnknownOutcome
		if !errors.As(err, &lost) || len(body) == 0 {
			t.Fatalf("got %v, want an unknown outcome", err)
		}
		if err := x.net.Pause(x.addrs[0]); err != nil {
			t.Fatal(err)
		}
		want := error(nil)
		if !arrives {
			want = txn.ErrConflict
		}
		for range 2 {
			if err := x.DB.Outcome(t.Context(), lost.ID); !errors.Is(err, want) {
				t.Errorf("outcome: %v, want %v", err, want)
			}
		}
		if err := x.net.Resume(x.addrs[0]); err != nil {
			t.Fatal(err)
		}
		c, err := x.net.Dial(t.Context(), x.addrs[1])
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := rdma.Call(t.Context(), c, body, nil); err != nil || (wire.Code(resp[0]) == wire.OK) != arrives {
			t.Errorf("the commit, when it arrives after all: %v, %v", resp, err)
		}
		c.Close()
		if arrives {
			before++
		}
		if v, err := x.value(inOrdered, key); err != nil || v != before {
			t.Errorf("the value is %d, %v; want %d", v, err, before)
		}
	}
}

// TestKilledServer: what needs it fails with the typed error, what does not
// goes on; a commit under way at that moment has an unknown outcome.
func TestKilledServer(t *testing.T) {
	x, client, _ := startHooked(t, newListSchema(4), 3, txn.Config{Retry: txn.Retry{Attempts: 50}})
	ctx := context.Background()
	for table := range 2 {
		for key := range uint64(12) {
			if err := x.put(table, key, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	home := func(key uint64) int { return int(x.s.home(x.DB, inHash, key)) }
	// The first key at each server.
	keys := []uint64{0, 1, 2}
	for _, k := range keys {
		if home(k) != int(k) {
			t.Fatalf("key %d is at server %d", k, home(k))
		}
	}
	if err := x.net.Pause(x.addrs[2]); err != nil {
		t.Fatal(err)
	}
	under, sent := make(chan error, 1), make(chan struct{})
	client.mu.Lock()
	client.started = func(to string, op wire.Op) {
		if to == x.addrs[2] && op == wire.OpCommit {
			close(sent)
		}
	}
	client.mu.Unlock()
	go func() {
		under <- x.DB.Update(ctx, func(tx *txn.Txn) error {
			return tx.Put(x.s.tab[inOrdered], tables.Num(8), x.s.row(inOrdered, 8, 9)) // at server 2
		})
	}()
	select {
	case <-sent:
	case <-time.After(testseed.Patience()):
		t.Fatal("the commit is not sent")
	}
	client.mu.Lock()
	client.started = nil
	client.mu.Unlock()
	if err := x.net.Kill(x.addrs[2]); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-under:
		var lost *txn.UnknownOutcome
		if !errors.As(err, &lost) || !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("a commit at the server killed: %v", err)
		} else if err := x.DB.Outcome(ctx, lost.ID); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("its outcome: %v", err)
		}
	case <-time.After(testseed.Patience()):
		t.Fatal("a commit at a killed server does not end")
	}
	for name, fn := range map[string]func() error{
		"View":   func() error { _, err := x.value(inHash, keys[2]); return err },
		"Update": func() error { return x.put(inHash, keys[2], 2) },
		"Update that reads there": func() error {
			return x.DB.Update(ctx, func(tx *txn.Txn) error {
				if _, err := tx.Get(x.s.tab[inHash], tables.Num(keys[2])); err != nil {
					return err
				}
				return tx.Put(x.s.tab[inHash], tables.Num(keys[0]), x.s.row(inHash, keys[0], 2))
			})
		},
		"Call":        func() error { _, err := x.DB.Call(ctx, 2, "look", nil); return err },
		"ServerStats": func() error { _, err := x.DB.ServerStats(ctx); return err },
	} {
		if err := fn(); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	for _, k := range keys[:2] {
		if _, err := x.value(inHash, k); err != nil {
			t.Errorf("a View elsewhere: %v", err)
		}
	}
}

// TestCancelEverywhere ends the context at every round and request that a
// transaction makes, one after the other. The error says so, nothing stays
// locked, and the outcome is the one reported.
func TestCancelEverywhere(t *testing.T) {
	x, client, _ := startHooked(t, newListSchema(4), 3, txn.Config{})
	for table := range 2 {
		for key := range uint64(9) {
			if err := x.put(table, key, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	fresh := uint64(1)
	body := func(write bool) func(*txn.Txn) error {
		return func(tx *txn.Txn) error {
			for table := range 2 {
				if _, err := tx.Get(x.s.tab[table], tables.Num(4)); err != nil {
					return err
				}
			}
			if _, err := tx.QueueScan(x.s.tab[inOrdered].Primary(), tables.Num(0), tables.Num(20), 0).Entries(); err != nil {
				return err
			}
			for k := uint64(0); write && k < 6; k++ {
				if err := tx.Put(x.s.tab[k%2], tables.Num(k), x.s.row(int(k%2), k, fresh)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	steps := []step{{table: inHash}}
	steps[0].Kind, steps[0].Key = history.OpRead, 1
	kinds := map[string]func(ctx context.Context, s *txn.Session) error{
		"View":   func(ctx context.Context, s *txn.Session) error { return s.View(ctx, body(false)) },
		"Update": func(ctx context.Context, s *txn.Session) error { return s.Update(ctx, body(true)) },
		"Call": func(ctx context.Context, s *txn.Session) error {
			_, err := s.Call(ctx, 1, "look", encodeSteps(nil, steps))
			return err
		},
	}
	for name, run := range kinds {
		for at, done := int64(0), false; !done; at++ {
			if at > 500 {
				t.Fatalf("%s: no end after %d rounds", name, at)
			}
			fresh++
			var err error
			done, err = x.cancelAt(t, client, at, run)
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s, cancelled at %d: %v", name, at, err)
			}
			if done && err != nil {
				t.Errorf("%s, not cancelled: %v", name, err)
			}
			if name == "Update" {
				x.checkCancelled(t, at, fresh, err)
			}
		}
	}
	if err := x.settled(context.Background()); err != nil {
		t.Error(err)
	}
	for table := range 2 {
		for key := range uint64(9) {
			if err := x.put(table, key, 1); err != nil {
				t.Errorf("key %d after all: %v", key, err)
			}
		}
	}
}

// cancelAt runs one transaction of a new session, and cancels it when the
// client has begun and ended so many rounds and requests. done tells that it
// made fewer.
func (x *cluster) cancelAt(t *testing.T, client *hooks, at int64, run func(context.Context, *txn.Session) error) (done bool, err error) {
	t.Helper()
	s, err := x.DB.NewSession(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var n atomic.Int64
	tick := func() error {
		if n.Add(1) > at {
			cancel()
		}
		return nil
	}
	client.mu.Lock()
	client.call = func(string, wire.Op, bool) error { return tick() }
	client.post = func(string, bool) error { return tick() }
	client.mu.Unlock()
	err = run(ctx, s)
	client.mu.Lock()
	client.call, client.post = nil, nil
	client.mu.Unlock()
	return n.Load() <= at, err
}

// checkCancelled holds what an Update wrote against what it reported.
func (x *cluster) checkCancelled(t *testing.T, at int64, fresh uint64, err error) {
	t.Helper()
	var lost *txn.UnknownOutcome
	unknown := errors.As(err, &lost)
	var got []uint64
	for k := range uint64(6) {
		v, verr := x.value(int(k%2), k)
		if verr != nil {
			t.Fatal(verr)
		}
		got = append(got, v)
	}
	all, none := true, !slices.Contains(got, fresh)
	for _, v := range got {
		all = all && v == fresh
	}
	switch {
	case !all && !none:
		t.Errorf("cancelled at %d: half of it was written: %v, fresh %d", at, got, fresh)
	case err == nil && !all:
		t.Errorf("cancelled at %d: reported as committed, and was not", at)
	case err != nil && !unknown && !none:
		t.Errorf("cancelled at %d: %v, and yet it was committed", at, err)
	}
}

// TestUpdatesDoNotGrow: memory is used again. After some turns, updates,
// deletes and inserts of the same number of rows take no more, if versions are
// not retained.
func TestUpdatesDoNotGrow(t *testing.T) {
	x, _, _ := startRetaining(t, newListSchema(24), 1, txn.Config{}, -1)
	ctx := context.Background()
	const keys = 200
	used := func() (n uint64) {
		st, err := x.DB.ServerStats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return st[0].RegionBytes
	}
	turn := func(n uint64, mutate bool) {
		for k := range uint64(keys) {
			for table := range 2 {
				key := k
				if mutate {
					key = n*keys + k // a window that slides
					if n > 0 {
						if err := x.drop(table, key-keys); err != nil {
							t.Fatal(err)
						}
					}
				}
				if err := x.put(table, key, n); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, c := range []struct {
		name    string
		mutate  bool
		allowed uint64
	}{{"updates", false, 0}, {"a sliding window", true, 128 << 10}} {
		for n := range uint64(3) {
			turn(n, c.mutate)
		}
		// The first models are published when the trainer gets there: not by
		// the updates, and so not within the interval.
		if err := x.DB.Seal(ctx); err != nil {
			t.Fatal(err)
		}
		before := used()
		for n := uint64(3); n < 15; n++ {
			turn(n, c.mutate)
		}
		if after := used(); after > before+c.allowed {
			t.Errorf("%s: %d bytes used before, %d after", c.name, before, after)
		} else {
			t.Logf("%s: %d bytes used before, %d after", c.name, before, after)
		}
		for k := range uint64(keys) { // start the next with empty tables
			for table := range 2 {
				key := k
				if c.mutate {
					key += 14 * keys
				}
				if err := x.drop(table, key); err != nil {
					t.Fatal(fmt.Errorf("key %d: %w", key, err))
				}
			}
		}
	}
}
