package tpcc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/rdmatest"
	"drtmx/server"
	"drtmx/txn"
)

// breaker breaks connections at random moments once it is armed: loading
// needs a fabric that holds.
type breaker struct {
	rdma.Conn
	b *breaking
}

type breaking struct {
	armed atomic.Bool
	calls float64 // probability that a call loses its request or its answer
	verbs float64 // that a round does
	mu    sync.Mutex
	rnd   *rng.Stream
}

func (b *breaking) toss(p float64) bool {
	if p == 0 || !b.armed.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rnd.Float64() < p
}

func (c breaker) fail() error {
	_ = c.Conn.Close()
	return fmt.Errorf("broken by the test: %w", rdma.ErrPeerDown)
}

func (c breaker) StartCall(ctx context.Context, req []byte) error {
	if c.b.toss(c.b.calls) {
		return c.fail()
	}
	return c.Conn.StartCall(ctx, req)
}

// FinishCall may break off with the request under way: it is, or will be, handled.
func (c breaker) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	if c.b.toss(c.b.calls) {
		return nil, c.fail()
	}
	return c.Conn.FinishCall(ctx, resp)
}

func (c breaker) Post(b *rdma.Batch) error {
	if c.b.toss(c.b.verbs) {
		return c.fail()
	}
	return c.Conn.Post(b)
}

// unsteady is a way for a fabric and its clients to fail.
type unsteady struct {
	name         string
	faults       inproc.Faults
	calls, verbs float64
	cancels      float64 // probability that a transaction has a deadline of microseconds
	kills        int     // clients killed in the middle
}

// newUnsteady is newEngine over a fabric that can be made to fail.
func newUnsteady(t *testing.T, u *unsteady, seed uint64, servers int, warehouses int64) (*engine, *breaking, rdma.Provider) {
	t.Helper()
	b := &breaking{calls: u.calls, verbs: u.verbs, rnd: rng.New(seed).Split("breaking")}
	provider := &rdmatest.Decorator{
		Provider: inproc.New(inproc.Options{Faults: u.faults, Seed: seed}),
		OnDial:   func(c rdma.Conn) rdma.Conn { return breaker{c, b} },
	}
	e := &engine{Cluster: &server.Cluster{}}
	var addrs []string
	for i := range servers {
		addrs = append(addrs, fmt.Sprintf("server-%d", i))
	}
	t.Cleanup(func() { _ = e.Close() }) // again, if all went well
	for i := range servers {
		s, err := server.New(server.Config{
			Index: i, Addrs: addrs, Catalog: Catalog(), Procedures: Procedures(), Provider: provider,
			MemoryBytes: 256 << 20, Checksums: u.faults.Scramble > 0,
		})
		if err == nil {
			e.Servers = append(e.Servers, s)
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if e.DB, err = txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: provider.Dial}); err != nil {
		t.Fatal(err)
	}
	e.populate(t, warehouses)
	return e, b, provider
}

// person is one client of the run. Like a separate process it has its own DB,
// whose connections all break when it is killed.
type person struct {
	*LedgerClient
	addrs   []string
	dial    func(context.Context, string) (rdma.Conn, error)
	mode    TerminalConfig
	u       *unsteady
	entries []LedgerEntry

	mu    sync.Mutex
	dead  bool
	conns []rdma.Conn
}

var errDead = fmt.Errorf("killed by the test: %w", rdma.ErrPeerDown)

func (p *person) connect(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := p.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		_ = c.Close()
		return nil, errDead
	}
	p.conns = append(p.conns, c)
	return c, nil
}

func (p *person) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	for _, c := range p.conns {
		_ = c.Close()
	}
}

func (p *person) killed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

// live runs transactions until the time is up or the client is killed.
func (p *person) live(ctx context.Context, end time.Time, s *Schema) (err error) {
	p.Begin = func(LedgerEntry) {}
	p.End = func(d LedgerEntry) { p.entries = append(p.entries, d) }
	for !p.killed() && time.Now().Before(end) {
		db, err := txn.Open(ctx, txn.Config{Servers: p.addrs, Dial: p.connect})
		if err == nil {
			err = errors.Join(p.session(ctx, db, end, s), db.Close())
		}
		if err != nil && !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, rdma.ErrPeerDown) {
			return err
		}
	}
	return nil
}

// session runs transactions in one session, some with hardly any time.
func (p *person) session(ctx context.Context, db *txn.DB, end time.Time, s *Schema) error {
	sess, err := db.NewSession(ctx)
	if err != nil {
		return err
	}
	defer sess.Close()
	term := NewTerminal(db, sess, s, p.mode)
	for !p.killed() && time.Now().Before(end) {
		ctx, cancel := ctx, context.CancelFunc(func() {})
		if p.rnd.Bool(p.u.cancels) {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(p.rnd.Range(1, 400))*time.Microsecond)
		}
		err := p.Run(ctx, term)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// Money and counts are conserved: whatever breaks, and whichever process is
// killed, the database holds exactly what the clients received, clients can ask
// for outcomes they do not know, and every consistency condition holds.
func TestConservation(t *testing.T) {
	seed := testseed.Of(t)
	for _, u := range []unsteady{
		{name: "clients killed", kills: 6, cancels: 0.05},
		{name: "connections break", calls: 0.02, verbs: 0.002, kills: 2},
		{name: "all at once", calls: 0.01, verbs: 0.001, cancels: 0.05, kills: 3, faults: inproc.Faults{
			Scramble: 0.3, Pause: 0.02, Reorder: 0.3, Defer: 0.1, Delay: 0.02, Duplicate: 0.05,
		}},
	} {
		t.Run(u.name, func(t *testing.T) {
			total := map[string]int{}
			for run, end := uint64(0), time.Now().Add(simTime(t, 0)); run == 0 || time.Now().Before(end); run++ {
				for what, n := range u.conserve(t, seed+run) {
					total[what] += n
				}
				if t.Failed() {
					t.Fatalf("run %d: replay with DRTMX_SEED=%d", run, seed+run)
				}
			}
			t.Logf("%v", total)
			for _, what := range []string{"PAYMENT committed", "NEW_ORDER committed", "DELIVERY committed"} {
				if total[what] == 0 {
					t.Errorf("%s: none", what)
				}
			}
		})
	}
}

// conserve performs one run and all checks after it.
func (u *unsteady) conserve(t *testing.T, seed uint64) map[string]int {
	t.Helper()
	e, b, provider := newUnsteady(t, u, seed, 3, 3)
	b.armed.Store(true)
	entries := u.run(t, e, provider, seed)
	b.armed.Store(false)
	e.settled(t)
	counts := verify(t, e, entries, func(id txn.ID) (bool, error) {
		switch err := e.DB.Outcome(t.Context(), id); {
		case err == nil:
			return true, nil
		case errors.Is(err, txn.ErrConflict), errors.Is(err, txn.ErrOutcomeUnknown):
			return false, nil // refused, or never arrived: no transaction is running any more
		default:
			return false, err
		}
	})
	e.mustHold(t)
	for _, s := range e.Servers {
		if err := s.Check(); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	return counts
}

// run lets clients work, kills some, and starts others in their place.
func (u *unsteady) run(t *testing.T, e *engine, provider rdma.Provider, seed uint64) (entries []LedgerEntry) {
	t.Helper()
	const clients = 4
	var all []*person
	var group sync.WaitGroup
	end := time.Now().Add(time.Second)
	hire := func() {
		n := len(all)
		p := &person{
			LedgerClient: NewLedgerClient(seed, uint64(n), e.info), dial: provider.Dial, mode: modes[n%len(modes)], u: u,
		}
		for i := range e.Servers {
			p.addrs = append(p.addrs, fmt.Sprintf("server-%d", i))
		}
		all = append(all, p)
		group.Go(func() {
			if err := p.live(context.Background(), end, e.s); err != nil {
				t.Error(err)
			}
		})
	}
	for range clients {
		hire()
	}
	rnd := rng.New(seed).Split("kills")
	for i := range u.kills {
		left := time.Until(end) / time.Duration(u.kills-i+1)
		time.Sleep(time.Duration(rnd.Uint64n(uint64(max(2*left, 1)))))
		all[i].kill()
		hire()
	}
	group.Wait()
	for _, p := range all {
		entries = append(entries, p.entries...)
	}
	return entries
}

// simTime is how long one scenario may run.
func simTime(t testing.TB, short time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv("DRTMX_SIM")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("DRTMX_SIM=%q: %v", v, err)
	}
	return d
}
