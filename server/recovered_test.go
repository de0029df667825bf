package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/internal/hosting"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// reborn is a cluster whose servers can end and come back in another epoch with
// what the test loads into them. Its client goes through hooks.
type reborn struct {
	*vaults
	addrs  []string
	epochs []uint32
	client *hooks
}

func startReborn(t *testing.T, f vaultFabric, servers int, cfg txn.Config) *reborn {
	t.Helper()
	r := &reborn{
		vaults: &vaults{catalog: vaultCatalog(t), fabric: f, n: 60}, addrs: f.addrs(servers),
		epochs: make([]uint32, servers), client: &hooks{Provider: f.provider},
	}
	r.servers = make([]*server.Server, servers)
	for i := range r.servers {
		r.begin(t, i)
	}
	t.Cleanup(func() {
		for i, s := range r.servers {
			if s != nil {
				r.end(t, i)
			}
		}
	})
	cfg.Servers, cfg.AllServers, cfg.Dial = r.addrs, true, r.client.Dial
	db, err := txn.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	r.db = db
	return r
}

// begin starts a server in its next epoch, empty.
func (r *reborn) begin(t *testing.T, i int) {
	t.Helper()
	r.epochs[i]++
	s, err := server.New(server.Config{
		Index: i, Addrs: r.addrs, Catalog: r.catalog, Provider: r.fabric.provider, MemoryBytes: 1 << 28, Retain: testseed.Patience(),
		Procedures: []txn.Procedure{{Name: "count", Body: r.count}},
	}.Hosted(hosting.Options{Place: hosting.Place{Incarnation: uint64(1001 + i), Epoch: r.epochs[i]}}))
	testseed.SkipUnshared(t, err)
	if err == nil {
		err = errors.Join(s.SayDurable(), s.Start())
	}
	if err != nil {
		t.Fatal(err)
	}
	r.servers[i] = s
}

// count adds one to an account of the table "hash", and returns what it has.
func (r *reborn) count(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
	tab := r.table("hash")
	key := tables.Num(binary.LittleEndian.Uint64(args))
	row, err := x.Get(tab, key)
	if err != nil {
		return nil, err
	}
	n := row.Int(tab.Field("balance")) + 1
	return binary.LittleEndian.AppendUint64(nil, uint64(n)), x.Put(tab, key, r.row(tab, n, 1))
}

// load writes a balance to all accounts of a partition, with a DB of its own.
func (r *reborn) load(t *testing.T, part int, balance int64) {
	t.Helper()
	db, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs, AllServers: true, Dial: r.fabric.provider.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, name := range vaultTables {
		tab := r.table(name)
		if err := db.Update(t.Context(), func(x *txn.Txn) error {
			var errs []error
			for i := range r.n {
				if h, err := db.Home(tab, r.key(tab, i)); err != nil || int(h) == part {
					errs = append(errs, err, x.Put(tab, r.key(tab, i), r.row(tab, balance, 1)))
				}
			}
			return errors.Join(errs...)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *reborn) end(t *testing.T, i int) {
	t.Helper()
	if err := r.servers[i].Close(); err != nil {
		t.Fatal(err)
	}
	r.servers[i] = nil
}

// again ends a server and starts it in the next epoch with other balances.
func (r *reborn) again(t *testing.T, i int, balance int64) {
	t.Helper()
	r.end(t, i)
	r.begin(t, i)
	r.load(t, i, balance)
}

// balance is an expected balance of an account.
func (r *reborn) balance(x *txn.Txn, tab *tables.Table, key tables.Key, want int64) error {
	row, err := x.Get(tab, key)
	if err == nil && row.Int(tab.Field("balance")) != want {
		err = fmt.Errorf("table %s, key %v: balance %d, want %d", tab.Name(), key, row.Int(tab.Field("balance")), want)
	}
	return err
}

// TestClientsGoOnInTheNextEpoch: a DB that is not opened again uses the memory of a
// server that has come back: every way of reading and writing, of every table. What
// it keeps of another server stays.
func TestClientsGoOnInTheNextEpoch(t *testing.T) {
	t.Parallel()
	for _, f := range vaultFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			for name, reads := range map[string]txn.ReadPath{"one-sided": txn.OneSided, "by RPC": txn.OrderedByRPC} {
				t.Run(name, func(t *testing.T) { goOn(t, startReborn(t, f, 2, txn.Config{Reads: reads})) })
			}
		})
	}
}

func goOn(t *testing.T, r *reborn) {
	t.Helper()
	r.load(t, 0, 100)
	r.load(t, 1, 100)
	s, err := r.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ways := map[string]func(fn func(x *txn.Txn) error) error{
		"View":     func(fn func(x *txn.Txn) error) error { return s.View(t.Context(), fn) },
		"Update":   func(fn func(x *txn.Txn) error) error { return s.Update(t.Context(), fn) },
		"Snapshot": func(fn func(x *txn.Txn) error) error { return s.Snapshot(t.Context(), fn) },
		"View of another session": func(fn func(x *txn.Txn) error) error {
			return r.db.View(t.Context(), fn)
		},
	}
	for what, run := range ways {
		for _, name := range vaultTables {
			tab := r.table(name)
			here, there := r.at(t, tab, 0, 1)[0], r.at(t, tab, 1, 2)
			read := func(want int64) error {
				return run(func(x *txn.Txn) error {
					err := errors.Join(r.balance(x, tab, here, 100), r.balance(x, tab, there[0], want))
					if err != nil || tab.Def().Primary == tables.Hash {
						return err
					}
					entries, err := x.QueueScan(tab.Primary(), there[1], there[1], 0).Entries()
					if err == nil && (len(entries) != 1 || entries[0].Row.Int(tab.Field("balance")) != want) {
						err = fmt.Errorf("table %s, range of %v: %v", name, there[1], entries)
					}
					return err
				})
			}
			balance := int64(1000 * r.epochs[1])
			r.again(t, 1, balance)
			if err := read(balance); err != nil {
				t.Fatalf("%s, a first use: %v", what, err)
			}
			r.again(t, 1, balance+1)
			if err := read(balance + 1); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if tab.Name() == "hash" { // the whole matrix takes long
				continue
			}
			break
		}
	}
	for _, st := range r.db.IndexStats() {
		if st.Table == "hash" && st.Partition == 1 && st.Lookups == 0 {
			t.Error("the counters of a client half began again at 0")
		}
	}
}

// TestProofsOfAnotherEpoch: what a body has read before its server ended counts for
// nothing, nor do writes that were meant for the memory before.
func TestProofsOfAnotherEpoch(t *testing.T) {
	r := startReborn(t, vaultFabrics(t)[0], 2, txn.Config{})
	r.load(t, 0, 100)
	r.load(t, 1, 100)
	s, err := r.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range vaultTables {
		tab := r.table(name)
		here, there := r.at(t, tab, 0, 1)[0], r.at(t, tab, 1, 2)
		for what, fn := range map[string]func(x *txn.Txn, n int64) error{
			"a View": func(*txn.Txn, int64) error { return nil },
			"an Update there": func(x *txn.Txn, n int64) error {
				return x.Put(tab, there[1], r.row(tab, n, 1))
			},
			"an Update elsewhere": func(x *txn.Txn, n int64) error {
				return x.Put(tab, here, r.row(tab, n, 1))
			},
			"an Update of both": func(x *txn.Txn, n int64) error {
				return errors.Join(x.Put(tab, here, r.row(tab, n, 1)), x.Put(tab, there[1], r.row(tab, n, 1)))
			},
		} {
			for _, readsFirst := range []bool{true, false} {
				bodies, seen := 0, int64(0)
				next := int64(1000 * (1 + r.epochs[1]))
				if err := s.View(t.Context(), func(x *txn.Txn) error { // so that the session knows both servers
					_, err := x.Get(tab, here)
					_, err2 := x.Get(tab, there[0])
					return errors.Join(err, err2)
				}); err != nil {
					t.Fatal(err)
				}
				if err := s.Update(t.Context(), func(x *txn.Txn) error {
					bodies++
					if readsFirst || what == "a View" {
						row, err := x.Get(tab, there[0])
						if err != nil {
							return err
						}
						seen = row.Int(tab.Field("balance"))
					}
					if bodies == 1 {
						r.again(t, 1, next)
					}
					return fn(x, next)
				}); err != nil {
					t.Fatalf("%s: %s: %v", name, what, err)
				}
				if (readsFirst || what == "a View") && (seen != next || bodies < 2) {
					t.Errorf("%s: %s has read %d in %d attempts, want %d of the next epoch", name, what, seen, bodies, next)
				}
			}
		}
	}
	if n := s.Stats().Aborts[txn.CauseFence]; n == 0 {
		t.Error("no attempt was refused because of another epoch")
	}
}

// TestAbsentServerIsAwaited: transactions wait for a server that may come back, as
// long as their callers do. Those of other servers go on. The error names the
// partition and the server.
func TestAbsentServerIsAwaited(t *testing.T) {
	t.Parallel()
	r := startReborn(t, vaultFabrics(t)[0], 2, txn.Config{Retry: txn.Retry{Patience: 200 * time.Millisecond}})
	r.load(t, 0, 100)
	r.load(t, 1, 100)
	tab := r.table("hash")
	here, apart, there := r.at(t, tab, 0, 2)[0], r.at(t, tab, 0, 2)[1], r.at(t, tab, 1, 1)[0]
	writes := map[string]bool{"an Update": true, "an Update of two servers": true, "a Call": true}
	args := binary.LittleEndian.AppendUint64(nil, there.Num())
	ways := map[string]func(ctx context.Context) error{
		"a View": func(ctx context.Context) error {
			return r.db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(tab, there); return err })
		},
		"an Update": func(ctx context.Context) error {
			return r.db.Update(ctx, func(x *txn.Txn) error { return x.Put(tab, there, r.row(tab, 5, 1)) })
		},
		"an Update of two servers": func(ctx context.Context) error {
			return r.db.Update(ctx, func(x *txn.Txn) error {
				return errors.Join(x.Put(tab, here, r.row(tab, 100, 1)), x.Put(tab, there, r.row(tab, 5, 1)))
			})
		},
		"a Snapshot": func(ctx context.Context) error {
			return r.db.Snapshot(ctx, func(x *txn.Txn) error { _, err := x.Get(tab, there); return err })
		},
		"a Call": func(ctx context.Context) error { _, err := r.db.Call(ctx, 1, "count", args); return err },
	}
	for what, run := range ways {
		ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
		err := run(ctx)
		cancel()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r.end(t, 1)
		for _, bounded := range []bool{true, false} {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if bounded {
				ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			}
			start := time.Now()
			err := run(ctx)
			cancel()
			// Its deadline may be over before it has found that the server is absent.
			for d := 100 * time.Millisecond; bounded && onlyLate(err) && d < testseed.Patience(); d *= 2 {
				ctx, cancel = context.WithTimeout(t.Context(), d)
				err = run(ctx)
				cancel()
			}
			if time.Since(start) < 40*time.Millisecond {
				t.Errorf("%s of an absent server: %v after %v", what, err, time.Since(start))
			}
			var e *txn.Error
			switch {
			case writes[what] && errors.Is(err, txn.ErrOutcomeUnknown): // it may have been sent
			case what == "an Update of two servers" && errors.Is(err, txn.ErrConflict): // with one whose outcome is unknown
			case !errors.Is(err, txn.ErrUnavailable) || bounded != errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%s of an absent server: %v", what, err)
			case !errors.As(err, &e) || e.Partition != 1 || e.Server != r.addrs[1]:
				t.Errorf("%s: the error does not name partition and server: %v", what, err)
			}
		}
		if err := r.db.View(t.Context(), func(x *txn.Txn) error { return r.balance(x, tab, apart, 100) }); err != nil {
			t.Errorf("a View of another server: %v", err)
		}
		ended := make(chan error, 1)
		ctx, cancel = context.WithTimeout(t.Context(), testseed.Patience())
		if what != "an Update" && what != "an Update of two servers" {
			r.begin(t, 1) // empty: what reads would not find its rows
			r.load(t, 1, 100)
			go func() { ended <- run(ctx) }()
		} else {
			go func() { ended <- run(ctx) }()
			time.Sleep(20 * time.Millisecond)
			r.begin(t, 1)
		}
		if err := <-ended; err != nil {
			t.Errorf("%s of a server that has come back: %v", what, err)
		}
		cancel()
		r.load(t, 1, 100)
	}
}

// onlyLate reports an error that says no more than that the deadline is over.
func onlyLate(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrOutcomeUnknown) && !errors.Is(err, txn.ErrConflict)
}

// TestOutcomeIsAskedUntilItIsKnown: the answer to a commit is lost, and its server
// cannot be reached for a while. The transaction has taken effect once, and its
// client hears so: of a procedure, with its result. If the deadline comes first,
// the outcome is unknown, and settled before the session sends anything else there.
func TestOutcomeIsAskedUntilItIsKnown(t *testing.T) {
	r := startReborn(t, vaultFabrics(t)[0], 1, txn.Config{})
	r.load(t, 0, 100)
	tab := r.table("hash")
	key := tables.Num(7)
	args := binary.LittleEndian.AppendUint64(nil, 7)
	s, err := r.db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var asked []wire.Op
	lose := func(op wire.Op, sent bool, absence time.Duration) (lost chan struct{}) {
		lost = make(chan struct{})
		done, back := false, time.Time{}
		r.client.set(func(_ string, now wire.Op, answered bool) error {
			asked = append(asked, now)
			if now == op && answered == sent && !done {
				done, back = true, time.Now().Add(absence)
				close(lost)
				return rdma.ErrPeerDown
			}
			return nil
		})
		r.client.mu.Lock()
		defer r.client.mu.Unlock()
		r.client.dial = func(string) error {
			if time.Now().Before(back) {
				return rdma.ErrPeerDown
			}
			return nil
		}
		return lost
	}
	want := int64(100)
	for _, sent := range []bool{false, true} {
		lose(wire.OpCommit, sent, 60*time.Millisecond)
		if err := s.Update(t.Context(), func(x *txn.Txn) error {
			if err := r.balance(x, tab, key, want); err != nil {
				return err
			}
			return x.Put(tab, key, r.row(tab, want+1, 1))
		}); err != nil {
			t.Errorf("an Update, answer lost %v: %v", sent, err)
		}
		want++
		lose(wire.OpCall, sent, 60*time.Millisecond)
		res, err := s.Call(t.Context(), 0, "count", args)
		if want++; err != nil || binary.LittleEndian.Uint64(res) != uint64(want) {
			t.Errorf("a Call, answer lost %v: %v, %v, want %d", sent, res, err, want)
		}
	}

	away := lose(wire.OpCommit, true, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-away
		time.Sleep(30 * time.Millisecond)
		cancel()
	}()
	err = s.Update(ctx, func(x *txn.Txn) error { return x.Put(tab, key, r.row(tab, want+1, 1)) })
	var unknown *txn.UnknownOutcome
	if !errors.As(err, &unknown) {
		t.Fatalf("its time is over before the server can be reached: %v", err)
	}
	r.client.mu.Lock()
	r.client.dial = nil
	r.client.mu.Unlock()
	asked = nil
	if err := s.View(t.Context(), func(x *txn.Txn) error { return r.balance(x, tab, key, want+1) }); err != nil {
		t.Error(err)
	}
	if len(asked) < 4 || asked[0] != wire.OpHello || asked[2] != wire.OpOutcome {
		t.Errorf("the session did not settle first: %v", asked)
	}
	if err := r.db.Outcome(t.Context(), unknown.ID); err != nil {
		t.Errorf("the outcome: %v, want committed", err)
	}
}

// TestEarlierEpochIsRefused: a server in an epoch before one that the client knows
// is not the one that has its data.
func TestEarlierEpochIsRefused(t *testing.T) {
	r := startReborn(t, vaultFabrics(t)[0], 1, txn.Config{Retry: txn.Retry{Patience: 50 * time.Millisecond}})
	r.load(t, 0, 100)
	r.epochs[0] = 4
	r.again(t, 0, 200)
	tab := r.table("hash")
	read := func(ctx context.Context) error {
		return r.db.View(ctx, func(x *txn.Txn) error { return r.balance(x, tab, tables.Num(3), 200) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if err := read(ctx); err != nil {
		t.Fatal(err)
	}
	r.epochs[0] = 2
	r.again(t, 0, 300)
	if err := read(t.Context()); !errors.Is(err, txn.ErrUnavailable) || !strings.Contains(err.Error(), "epoch 3, and has begun epoch 5") {
		t.Errorf("a server in an earlier epoch: %v", err)
	}
}

// TestOutcomeAskedTwice: a request is lost, and so is the answer to the question for
// its outcome, after which the server refuses the request. The session asks again,
// hears that the transaction has not committed, and repeats it.
func TestOutcomeAskedTwice(t *testing.T) {
	r := startReborn(t, vaultFabrics(t)[0], 1, txn.Config{})
	r.load(t, 0, 100)
	tab := r.table("hash")
	key := r.at(t, tab, 0, 1)[0]
	lost := map[wire.Op]bool{}
	r.client.set(func(_ string, op wire.Op, sent bool) error {
		if !lost[op] && (op == wire.OpCommit && !sent || op == wire.OpOutcome && sent) {
			lost[op] = true
			return errors.New("lost")
		}
		return nil
	})
	err := r.db.Update(t.Context(), func(x *txn.Txn) error {
		row, err := x.Get(tab, key)
		if err != nil {
			return err
		}
		return x.Put(tab, key, r.row(tab, row.Int(tab.Field("balance"))+1, 1))
	})
	r.client.set(nil)
	if err != nil || len(lost) != 2 {
		t.Errorf("an Update whose request was lost, and an answer (lost: %v): %v", lost, err)
	}
	if err := r.db.View(t.Context(), func(x *txn.Txn) error { return r.balance(x, tab, key, 101) }); err != nil {
		t.Error(err)
	}
}
