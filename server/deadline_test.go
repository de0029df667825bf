package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/tables"
	"drtmx/txn"
)

// fabricCluster is a bank of one server over a fabric, with a procedure echo
// that returns its arguments after the time in its first byte, in ms.
type fabricCluster struct {
	db    *txn.DB
	acct  *tables.Table
	dials atomic.Int64
	ran   [256]atomic.Bool // runs of echo, by its second argument

	mu    sync.Mutex
	conns []rdma.Conn // of the clients, closed ones too
}

// counters sums what the clients' connections have counted.
func (c *fabricCluster) counters() (sum rdma.Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		sum = sum.Add(conn.Counters())
	}
	return sum
}

// deadlineFabrics returns providers with the address of a server.
func deadlineFabrics(t testing.TB) map[string]rdma.Provider {
	t.Helper()
	overTCP, err := tcp.New(tcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]rdma.Provider{
		"inproc":  inproc.New(inproc.Options{}),
		"latency": inproc.New(inproc.Options{Latency: inproc.Latency{Read: 20 * time.Microsecond, RPC: 50 * time.Microsecond}}),
		"tcp":     overTCP,
	}
	overShm, err := shm.New(shm.Options{})
	switch {
	case errors.Is(err, rdma.ErrUnsupported):
		t.Log("no shm on this system")
	case err != nil:
		t.Fatal(err)
	default:
		all["shm"] = overShm
	}
	return all
}

func startOver(t testing.TB, name string, p rdma.Provider, accounts int) *fabricCluster {
	t.Helper()
	addr := "server-0"
	switch name {
	case "tcp":
		addr = testaddr.Free(t)
	case "shm":
		addr = "@" + t.Name()
	}
	cat := bank(t)
	c := &fabricCluster{}
	echo := txn.Procedure{Name: "echo", Body: func(_ context.Context, _ *txn.Txn, args []byte) ([]byte, error) {
		c.ran[args[1]].Store(true)
		time.Sleep(time.Duration(args[0]) * time.Millisecond)
		return args, nil
	}}
	acct := cat.MustTable("account")
	large := txn.Procedure{Name: "large", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
		return make([]byte, txn.MaxResultBytes+1), x.Insert(acct, tables.Num(1000), acct.NewRow())
	}}
	s, err := New(Config{Addrs: []string{addr}, Catalog: cat, Provider: p, Procedures: []txn.Procedure{echo, large}, MemoryBytes: 1 << 26})
	if err == nil {
		err = s.Start()
	}
	testseed.SkipUnshared(t, err)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	dial := func(ctx context.Context, addr string) (rdma.Conn, error) {
		c.dials.Add(1)
		conn, err := p.Dial(ctx, addr)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.conns = append(c.conns, conn)
		}
		return conn, err
	}
	if c.db, err = txn.Open(t.Context(), txn.Config{Servers: []string{s.Addr()}, Dial: dial, Retry: patient().Retry}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.db.Close() })
	c.acct = c.db.Catalog().MustTable("account")
	putAccounts(t, c.db, c.acct, accounts, 100)
	return c
}

// TestContextEndsInBody: nothing is sent after a context has ended inside a
// body, and the error says no more than that the context ended.
func TestContextEndsInBody(t *testing.T) {
	for name, p := range deadlineFabrics(t) {
		t.Run(name, func(t *testing.T) {
			c := startOver(t, name, p, 100)
			kinds := map[string]int{}
			for i := range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				want := context.Canceled
				if i%2 == 1 {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), 100*time.Microsecond)
					want = context.DeadlineExceeded
				}
				body := func(x *txn.Txn) error {
					row, err := x.Get(c.acct, tables.Num(uint64(i%100)))
					if err != nil {
						return err
					}
					if want == context.Canceled {
						cancel()
					}
					<-ctx.Done()
					if i%4 < 2 {
						return nil // a View, or an Update without writes
					}
					row = row.Clone()
					row.SetInt(c.acct.Field("balance"), -1)
					return x.Update(c.acct, tables.Num(uint64(i%100)), row)
				}
				run := c.db.Update
				if i%8 < 2 {
					run = c.db.View
				}
				err := run(ctx, body)
				cancel()
				switch {
				case errors.Is(err, txn.ErrOutcomeUnknown):
					kinds["outcome unknown"]++
				case errors.Is(err, want):
					kinds["context"]++
				default:
					kinds[fmt.Sprint(err)]++
				}
			}
			if kinds["context"] != 200 {
				t.Errorf("of 200 transactions whose context ended in their body: %v", kinds)
			}
			checkUntouched(t, c)
		})
	}
}

func checkUntouched(t *testing.T, c *fabricCluster) {
	t.Helper()
	if err := c.db.View(t.Context(), func(x *txn.Txn) error {
		for i := range uint64(100) {
			row, err := x.Get(c.acct, tables.Num(i))
			if err != nil {
				return err
			}
			if b := row.Int(c.acct.Field("balance")); b != 100 {
				return fmt.Errorf("account %d has %d, want 100", i, b)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestRequestsGivenUp: a request whose context ends does not break its
// connection, and its late answer is not taken for that of a later request.
func TestRequestsGivenUp(t *testing.T) {
	for name, p := range deadlineFabrics(t) {
		t.Run(name, func(t *testing.T) {
			c := startOver(t, name, p, 100)
			s, err := c.db.NewSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			call := func(ctx context.Context, ms, n byte) ([]byte, error) { return s.Call(ctx, 0, "echo", []byte{ms, n}) }
			if _, err := call(t.Context(), 0, 255); err != nil { // not a number that is used below
				t.Fatal(err)
			}
			before, late, heldUp := c.dials.Load(), 0, int64(0)
			short := time.Millisecond
			for i := byte(0); i < 20 || late == 0 && i < 100; i++ {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), short)
				unsent := false
				if _, err := call(ctx, 20+2*byte(short/time.Millisecond), i); err == nil {
					late-- // the answer was there before this goroutine ran again
				} else if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, txn.ErrOutcomeUnknown) {
					late--
					unsent = true // the deadline was over before this goroutine ran again
					short = min(2*short, 64*time.Millisecond)
				} else if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, txn.ErrOutcomeUnknown) || errors.Is(err, txn.ErrUnavailable) {
					t.Fatalf("call %d given up: %v", i, err)
				}
				cancel()
				late++
				if got, err := call(t.Context(), 0, 100+i); err != nil || len(got) != 2 || got[1] != 100+i {
					t.Fatalf("call after one given up: %v, %v", got, err)
				}
				if unsent && c.ran[i].Load() {
					t.Fatalf("call %d ran, and the caller was told that nothing was sent", i)
				}
				if time.Since(began) > time.Second/2 { // a late answer is not waited for without end
					heldUp++
				}
			}
			if n := c.dials.Load() - before; n > heldUp || late == 0 {
				t.Errorf("%d calls given up cost %d connections", late, n)
			}
		})
	}
}

// TestShortDeadlines: transactions whose deadlines are about as long as they
// take do not lose their connections, and blame no server.
func TestShortDeadlines(t *testing.T) {
	for name, p := range deadlineFabrics(t) {
		t.Run(name, func(t *testing.T) {
			c := startOver(t, name, p, 100)
			var mu sync.Mutex
			kinds := map[string]int{}
			var wg sync.WaitGroup
			const workers, span = 16, time.Second
			var committed, heldUp atomic.Int64
			for w := range uint64(workers) {
				wg.Go(func() {
					deadline := time.Millisecond
					more := func(begin time.Time) bool {
						run := time.Since(begin)
						return run < span || committed.Load() < 10*workers && run < testseed.Patience()
					}
					for i, begin := uint64(0), time.Now(); more(begin); i++ {
						start := time.Now()
						ctx, cancel := context.WithTimeout(t.Context(), deadline)
						err := c.db.Update(ctx, func(x *txn.Txn) error {
							key := tables.Num(w*6 + i%6)
							row, err := x.Get(c.acct, key)
							if err != nil {
								return err
							}
							return x.Update(c.acct, key, row)
						})
						cancel()
						if time.Since(start) > time.Second/2 { // a late answer is not waited for without end
							heldUp.Add(1)
						}
						if err == nil { // about as long as transactions take here
							committed.Add(1)
							deadline -= deadline / 8
						} else {
							deadline = min(deadline+deadline/4, time.Second/4)
						}
						kind := fmt.Sprint(err)
						switch {
						case err == nil:
							kind = "committed"
						case errors.Is(err, txn.ErrUnavailable):
							kind = "unavailable"
						case errors.Is(err, txn.ErrOutcomeUnknown):
							kind = "unknown"
						case errors.Is(err, context.DeadlineExceeded):
							kind = "deadline"
						}
						mu.Lock()
						kinds[kind]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			t.Logf("in %v: %v, %d connections", span, kinds, c.dials.Load())
			if kinds["unavailable"] > 0 || c.dials.Load() > 2*workers+heldUp.Load() || kinds["committed"] < 10*workers {
				t.Errorf("in %v: %v, %d connections", span, kinds, c.dials.Load())
			}
			if n := kinds["committed"] + kinds["deadline"] + kinds["unknown"]; n != sum(kinds) {
				t.Errorf("other errors: %v", kinds)
			}
			checkUntouched(t, c)
		})
	}
}

// TestResultTooLarge: a procedure whose result does not fit a message commits
// nothing, and its caller gets the size and the limit.
func TestResultTooLarge(t *testing.T) {
	for name, p := range deadlineFabrics(t) {
		t.Run(name, func(t *testing.T) {
			c := startOver(t, name, p, 100)
			ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
			defer cancel()
			_, err := c.db.Call(ctx, 0, "large", nil)
			var e *txn.Error
			if !errors.As(err, &e) || e.Limit != "MaxResultBytes" || e.Size != txn.MaxResultBytes+1 || !errors.Is(err, txn.ErrTooLarge) {
				t.Errorf("a result of %d bytes: %v", txn.MaxResultBytes+1, err)
			}
			err = c.db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(c.acct, tables.Num(1000)); return err })
			if !errors.Is(err, txn.ErrNotFound) {
				t.Errorf("the row that the procedure wrote: %v", err)
			}
		})
	}
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}
