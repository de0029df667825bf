package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/hosting"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// leased is the lease of a data server, in the hands of a test.
type leased struct {
	left  atomic.Int64 // what the server answers
	asked atomic.Int64 // how often
}

func (l *leased) set(d time.Duration) { l.left.Store(int64(d)) }

// startLeased starts durable servers with leases, each with n accounts in each table.
func startLeased(t *testing.T, f vaultFabric, servers, n int) (*vaults, []*leased) {
	t.Helper()
	var all []*leased
	v := startVaults(t, f, servers, n, func(c *server.Config) {
		l := &leased{}
		l.set(time.Hour)
		all = append(all, l)
		c.Durability, c.Dir, c.SegmentBytes = server.Disk, t.TempDir(), 1<<20
		*c = c.Hosted(hosting.Options{Place: hosting.Place{Left: func() time.Duration {
			l.asked.Add(1)
			return time.Duration(l.left.Load())
		}}})
	})
	return v, all
}

// openFew opens a DB that makes few attempts, so that its errors come soon.
func (v *vaults) openFew(t testing.TB, attempts int, dial func(context.Context, string) (rdma.Conn, error), reads txn.ReadPath) *txn.DB {
	t.Helper()
	db, err := txn.Open(t.Context(), txn.Config{
		Servers: addrsOf(v.servers), AllServers: true, Dial: dial, Reads: reads, Retry: txn.Retry{Attempts: attempts},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// readings are all ways to read a key, and the range of it, that ask no server to
// commit.
func readings(tab *tables.Table, key tables.Key) map[string]func(context.Context, *txn.DB) error {
	get := func(x *txn.Txn) error {
		_, err := x.Get(tab, key)
		return err
	}
	all := map[string]func(context.Context, *txn.DB) error{
		"a row":                func(ctx context.Context, db *txn.DB) error { return db.View(ctx, get) },
		"a read-only Update":   func(ctx context.Context, db *txn.DB) error { return db.Update(ctx, get) },
		"a Snapshot":           func(ctx context.Context, db *txn.DB) error { return db.Snapshot(ctx, get) },
		"a Snapshot of a past": func(ctx context.Context, db *txn.DB) error { return db.Snapshot(ctx, get, txn.Staleness(time.Second)) },
		"an error of the body": func(ctx context.Context, db *txn.DB) error {
			err := db.View(ctx, func(x *txn.Txn) error { return errors.Join(get(x), errOfBody) })
			if errors.Is(err, errOfBody) {
				return nil // the body's error is an answer like another
			}
			return err
		},
		"an error of an Update": func(ctx context.Context, db *txn.DB) error {
			err := db.Update(ctx, func(x *txn.Txn) error {
				return errors.Join(get(x), x.Delete(tab, key), errOfBody)
			})
			if errors.Is(err, errOfBody) {
				return nil
			}
			return err
		},
	}
	if tab.Def().Primary == tables.Ordered {
		all["a range"] = func(ctx context.Context, db *txn.DB) error {
			return db.View(ctx, func(x *txn.Txn) error {
				_, err := x.QueueScan(tab.Primary(), key, key, 0).Entries()
				return err
			})
		}
		all["an iterator"] = func(ctx context.Context, db *txn.DB) error {
			return db.View(ctx, func(x *txn.Txn) error {
				for _, err := range x.Scan(tab.Primary(), key, key) {
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	return all
}

// TestNoViewWithoutALease: the memory of a server whose lease has ended answers
// READs, and its word says that it is served. Nothing that was read there is
// returned; the error names partition and server. What is read elsewhere is, also
// by Snapshots, which do not take their time from such a server.
func TestNoViewWithoutALease(t *testing.T) {
	const part = 1
	for _, f := range vaultFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			v, leases := startLeased(t, f, 2, 40)
			lost := leases[part]
			for _, reads := range []txn.ReadPath{txn.OneSided, txn.OrderedByRPC} {
				for _, name := range []string{"hash", "tree", "tree_strings"} {
					tab := v.table(name)
					if reads == txn.OrderedByRPC && tab.Def().Primary == tables.Hash {
						continue
					}
					there, elsewhere := v.at(t, tab, part, 1)[0], v.at(t, tab, 1-part, 1)[0]
					lost.set(0)
					db := v.openFew(t, 2, f.provider.Dial, reads)
					for what, read := range readings(tab, there) {
						err := read(t.Context(), db)
						var e *txn.Error
						if !errors.Is(err, txn.ErrUnavailable) || !errors.As(err, &e) || e.Partition != part || e.Server != v.servers[part].Addr() {
							t.Errorf("%s: %s at a server without a lease: %v", name, what, err)
						}
					}
					for what, read := range readings(tab, elsewhere) {
						if err := read(t.Context(), db); err != nil {
							t.Errorf("%s: %s elsewhere: %v", name, what, err)
						}
					}
					lost.set(time.Hour)
					for what, read := range readings(tab, there) {
						if err := read(t.Context(), db); err != nil {
							t.Errorf("%s: %s when the server has its lease again: %v", name, what, err)
						}
					}
				}
			}
		})
	}
}

// TestDeadlineWithoutALease: a View waits for the lease as long as its caller, and
// the error says both what it waited for and that the time was over.
func TestDeadlineWithoutALease(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v, leases := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 1, 10)
	tab := v.table("tree")
	key := v.at(t, tab, 0, 1)[0]
	look := func(ctx context.Context, db *txn.DB) error { return readings(tab, key)["a row"](ctx, db) }
	for _, silent := range []bool{false, true} {
		leases[0].set(0)
		db := v.openFew(t, 0, net.Dial, txn.OneSided)
		if silent {
			if err := net.Pause(v.servers[0].Addr()); err != nil {
				t.Fatal(err)
			}
		}
		// A connection that is not made yet waits for the server too.
		for patience := 20 * time.Millisecond; ; patience *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err := look(ctx, db)
			cancel()
			if err == nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("silent: %v, after %v: %v", silent, patience, err)
			}
			if silent || errors.Is(err, txn.ErrUnavailable) {
				break
			}
			if patience > time.Minute {
				t.Fatalf("after %v: %v, want ErrUnavailable", patience, err)
			}
		}
		done := make(chan error)
		go func() { done <- look(t.Context(), db) }()
		leases[0].set(time.Hour)
		if silent {
			if err := net.Resume(v.servers[0].Addr()); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Errorf("silent: %v: when it has its lease: %v", silent, err)
		}
	}
}

func inprocAddrs(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("server-%d", i))
	}
	return all
}

// TestQuestionsAreFew: many sessions that begin together ask a server once, and
// again only when less than half of what it promised is left, while they go on. A DB
// that is not used asks nothing.
func TestQuestionsAreFew(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v, leases := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 2, 40)
	tab := v.table("tree")
	db := v.openFew(t, 0, net.Dial, txn.OneSided)
	views := func(n int) {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				for part, l := range leases {
					key := v.at(t, tab, part, 1)[0]
					if err := readings(tab, key)["a row"](t.Context(), db); err != nil {
						t.Errorf("session %d, server with %d questions: %v", i, l.asked.Load(), err)
					}
				}
			})
		}
		all.Wait()
	}
	asked := func() int64 { return leases[0].asked.Load() + leases[1].asked.Load() }

	before := asked()
	for range 10 {
		views(32)
	}
	if n := asked() - before; n != 2 {
		t.Errorf("%d questions of 320 Views at each of 2 servers with long leases, want 2", n)
	}
	for range 20 {
		db = v.openFew(t, 0, net.Dial, txn.OneSided)
		before = asked()
		views(32)
		if n := asked() - before; n != 2 {
			t.Errorf("%d questions of 32 first Views at each of 2 servers, want 2", n)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}

	const left = 300 * time.Millisecond
	again := v.openFew(t, 0, net.Dial, txn.OneSided)
	db = again
	for _, l := range leases {
		l.set(left)
	}
	start := clock.Now()
	before = asked()
	for n := 0; asked()-before < 8; n++ {
		if views(4); n > 1e6 {
			t.Fatal("nothing is asked again")
		}
	}
	n, took := asked()-before, clock.Now()-start
	least := left/2 - left/clock.Drift - clock.Slip
	if most := 2 * (int64(took/least) + 1); n > most {
		t.Errorf("%d questions to 2 servers in %v with %v left, want at most %d", n, took, left, most)
	}
	t.Logf("%d questions to 2 servers in %v with %v left", n, took, left)

	// Questions that are on their way may come late.
	for n, end := int64(1), time.Now().Add(testseed.Patience()); n != 0; n = asked() - before {
		if time.Now().After(end) {
			t.Fatalf("%d questions of a DB that is not used", n)
		}
		before = asked()
		time.Sleep(2 * left)
	}
	views(1)
	if n := asked() - before; n < 2 {
		t.Errorf("%d questions after the leases have ended, want 2", n)
	}
}

// TestTrustCostsNoRounds: a transaction at servers with leases makes the same rounds
// and READs as at others, and allocates no more.
func TestTrustCostsNoRounds(t *testing.T) {
	type cost struct {
		rounds, reads, rpcs uint64
		allocs              float64
	}
	measure := func(t *testing.T, with bool) (c cost) {
		net := inproc.New(inproc.Options{})
		f := vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}
		var v *vaults
		if with {
			v, _ = startLeased(t, f, 1, 10)
		} else {
			v = startVaults(t, f, 1, 10, func(c *server.Config) {
				c.Durability, c.Dir, c.SegmentBytes = server.Disk, t.TempDir(), 1<<20
			})
		}
		db := v.openFew(t, 0, net.Dial, txn.OneSided)
		s, err := db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		tab := v.table("tree")
		key := v.at(t, tab, 0, 1)[0]
		body := func(x *txn.Txn) error {
			_, err := x.Get(tab, key)
			return err
		}
		look := func() {
			if err := s.View(context.Background(), body); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			look()
		}
		// Models may be trained meanwhile, and then are loaded.
		for i := range 20 {
			before := s.Stats()
			look()
			after := s.Stats()
			used := after.Fabric.Sub(before.Fabric)
			if rounds := after.Rounds - before.Rounds; i == 0 || rounds <= c.rounds && used.Reads <= c.reads && used.RPCs <= c.rpcs {
				c.rounds, c.reads, c.rpcs = rounds, used.Reads, used.RPCs
			}
		}
		// The server's own work allocates now and then.
		c.allocs = testing.AllocsPerRun(1000, look)
		for range 20 {
			c.allocs = min(c.allocs, testing.AllocsPerRun(1000, look))
		}
		return c
	}
	without, with := measure(t, false), measure(t, true)
	t.Logf("%+v", with)
	if with != without {
		t.Errorf("with leases %+v, without %+v", with, without)
	}
}

// TestLateAnswerTrustsNothing: the time for which a server promises its place counts
// from before the question. An answer that was held up for longer trusts nothing.
func TestLateAnswerTrustsNothing(t *testing.T) {
	const left = 50 * time.Millisecond
	net := inproc.New(inproc.Options{})
	v, leases := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 1, 10)
	leases[0].set(left)
	h := &hooks{Provider: net}
	db := v.openFew(t, 2, h.Dial, txn.OneSided)
	answers := 0
	h.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpLease && sent {
			answers++ // one is on its way at a time
			time.Sleep(left + left/2)
		}
		return nil
	})
	tab := v.table("tree")
	for what, read := range readings(tab, v.at(t, tab, 0, 1)[0]) {
		if err := read(t.Context(), db); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("%s rests on an answer that came late: %v", what, err)
		}
	}
	h.set(nil)
	if answers == 0 {
		t.Error("nothing was asked")
	}
	leases[0].set(time.Hour)
	for what, read := range readings(tab, v.at(t, tab, 0, 1)[0]) {
		if err := read(t.Context(), db); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTrustIsLookedAtLast: a server that is trusted when a View begins to validate,
// and not any more when it has, is not trusted.
func TestTrustIsLookedAtLast(t *testing.T) {
	const left = 400 * time.Millisecond
	net := inproc.New(inproc.Options{})
	v, leases := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 1, 10)
	h := &hooks{Provider: net}
	db := v.openFew(t, 1, h.Dial, txn.OneSided)
	tab := v.table("tree")
	key := v.at(t, tab, 0, 1)[0]
	look := func(then func()) error {
		return db.View(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(tab, key)
			then()
			return err
		})
	}
	for start := time.Now(); ; { // until the validation has begun in time
		leases[0].set(left)
		asked := clock.Now()
		if err := look(func() {}); err != nil { // the machine was held up
			t.Logf("a View beside a lease: %v", err)
		}
		// From here on nothing is promised, and what was promised is over soon.
		leases[0].set(0)
		began := time.Duration(0)
		err := look(func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.post = func(string, bool) error {
				if began == 0 {
					began = clock.Now()
					time.Sleep(time.Until(time.Now().Add(2*left - (began - asked))))
				}
				return nil
			}
		})
		h.mu.Lock()
		h.post = nil
		h.mu.Unlock()
		if !errors.Is(err, txn.ErrUnavailable) {
			t.Fatalf("a View that began %v after the question, with %v left, and was validated later: %v", began-asked, left, err)
		}
		if began != 0 && began-asked < left/2 || time.Since(start) > time.Minute {
			return
		}
	}
}

// forger changes the answers about leases.
type forger struct {
	rdma.Provider
	change atomic.Pointer[func(body []byte)]
}

func (f *forger) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := f.Provider.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &forgedConn{Conn: c, f: f}, nil
}

type forgedConn struct {
	rdma.Conn
	f  *forger
	op wire.Op
}

func (c *forgedConn) StartCall(ctx context.Context, req []byte) error {
	c.op = wire.Op(req[0])
	return c.Conn.StartCall(ctx, req)
}

func (c *forgedConn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	resp, err := c.Conn.FinishCall(ctx, resp)
	if fn := c.f.change.Load(); err == nil && fn != nil && c.op == wire.OpLease {
		(*fn)(resp[1:])
	}
	return resp, err
}

// TestAnswerOfAnotherLife: an answer of another epoch, or of other data, is not about
// the memory that was read.
func TestAnswerOfAnotherLife(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v, _ := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 1, 10)
	f := &forger{Provider: net}
	tab := v.table("tree")
	key := v.at(t, tab, 0, 1)[0]
	le := binary.LittleEndian
	for what, change := range map[string]func(body []byte){
		"of a later epoch":    func(b []byte) { le.PutUint32(b[8:], le.Uint32(b[8:])+1) },
		"of an earlier epoch": func(b []byte) { le.PutUint32(b[8:], le.Uint32(b[8:])-1) },
		"of other data":       func(b []byte) { le.PutUint64(b, le.Uint64(b)+1) },
	} {
		db := v.openFew(t, 2, f.Dial, txn.OneSided)
		f.change.Store(&change)
		for kind, read := range readings(tab, key) {
			if err := read(t.Context(), db); !errors.Is(err, txn.ErrUnavailable) {
				t.Errorf("%s rests on an answer %s: %v", kind, what, err)
			}
		}
		f.change.Store(nil)
		if err := readings(tab, key)["a row"](t.Context(), db); err != nil {
			t.Errorf("after an answer %s: %v", what, err)
		}
	}
}

// TestTimeOfTrustedServers: a Snapshot takes its time from all servers if all are
// trusted. Otherwise it asks those at which it reads, and does not wait for others.
func TestTimeOfTrustedServers(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v, leases := startLeased(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 2, 40)
	h := &hooks{Provider: net}
	tab := v.table("tree")
	key := v.at(t, tab, 0, 1)[0]
	var adopted atomic.Int64
	h.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpAdopt && !sent {
			adopted.Add(1)
		}
		return nil
	})
	for _, c := range []struct {
		what         string
		left         time.Duration
		pause, asked bool
	}{
		{"trusted", time.Hour, false, false},
		{"without a lease", 0, false, true},
		{"silent", time.Hour, true, true},
	} {
		db := v.openFew(t, 0, h.Dial, txn.OneSided)
		for _, part := range []int{0, 1} { // connections
			if err := db.View(t.Context(), func(x *txn.Txn) error {
				_, err := x.Get(tab, v.at(t, tab, part, 1)[0])
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		db.Close()
		db = v.openFew(t, 0, h.Dial, txn.OneSided)
		leases[1].set(c.left)
		if c.pause {
			// Over a connection that it has: a dial would not tell of the clock either.
			leases[1].set(0)
			if err := db.Snapshot(t.Context(), func(x *txn.Txn) error { _, err := x.Get(tab, key); return err }); err != nil {
				t.Fatal(err)
			}
			if err := net.Pause(v.servers[1].Addr()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			adopted.Store(0)
			err := db.Snapshot(t.Context(), func(x *txn.Txn) error { _, err := x.Get(tab, key); return err })
			if err != nil || c.asked && adopted.Load() == 0 {
				t.Errorf("the other server is %s: %v, and the time was asked of those read: %v, want %v", c.what, err, adopted.Load() > 0, c.asked)
			}
		}
		if c.pause {
			if err := net.Resume(v.servers[1].Addr()); err != nil {
				t.Fatal(err)
			}
		}
		leases[1].set(time.Hour)
		db.Close()
	}
}
