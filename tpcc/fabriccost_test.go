package tpcc

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"drtmx/internal/cluster"
	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/rdma/verbs"
	"drtmx/server"
	"drtmx/txn"
)

// fabricsUnderTest are all providers, and addresses for two servers on each.
var fabricsUnderTest = []struct {
	name  string
	open  func() (rdma.Provider, error)
	addrs func() ([]string, error)
}{
	{"inproc", func() (rdma.Provider, error) { return inproc.New(inproc.Options{}), nil }, named("server-%d")},
	{"shm", func() (rdma.Provider, error) { return shm.New(shm.Options{}) }, named(fmt.Sprintf("@drtmx-tpcc-%d-%%d", os.Getpid()))},
	{"tcp", func() (rdma.Provider, error) { return tcp.New(tcp.Options{}) }, func() ([]string, error) { return cluster.LoopbackAddrs(2) }},
	{"verbs", func() (rdma.Provider, error) {
		return verbs.New(verbs.Options{Device: os.Getenv("DRTMX_VERBS_DEVICE")})
	}, deviceAddrs},
}

func named(format string) func() ([]string, error) {
	return func() ([]string, error) { return []string{fmt.Sprintf(format, 0), fmt.Sprintf(format, 1)}, nil }
}

// deviceAddrs are two free ports of the RDMA device, if there is one.
func deviceAddrs() (addrs []string, err error) {
	p, err := verbs.New(verbs.Options{Device: os.Getenv("DRTMX_VERBS_DEVICE")})
	if err != nil {
		return nil, err
	}
	for range 2 {
		e, err := p.Listen("", rdma.ListenOptions{})
		if err != nil {
			return nil, err
		}
		defer e.Close()
		addrs = append(addrs, e.Addr())
	}
	return addrs, nil
}

// newEngineOver is newEngine on two servers and any provider.
func newEngineOver(t *testing.T, p rdma.Provider, addrs []string) *engine {
	t.Helper()
	var servers []*server.Server
	t.Cleanup(func() {
		for _, s := range servers {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range addrs {
		s, err := server.New(server.Config{
			Index: i, Addrs: addrs, Catalog: Catalog(), Procedures: Procedures(), Provider: p, MemoryBytes: 256 << 20,
			ManualTraining: true, // what a READ finds depends on the models, so that they must be the same
		})
		if err == nil {
			servers = append(servers, s)
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: p.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	e := &engine{Cluster: &server.Cluster{DB: db, Servers: servers}}
	e.populate(t, 2)
	return e
}

// paid is what one transaction cost, and what came of it.
type paid struct {
	what                string
	rounds, reads, rpcs uint64
	result              string
}

// script runs transactions of a seed, one after the other, and says what each
// cost.
type script struct {
	t    *testing.T
	g    *Inputs
	sess *txn.Session
	term *Terminal // where each runs unless asked otherwise
	far  *Terminal // everything in the client
	log  []paid
}

func (s *script) run(what string, f func() (any, error)) {
	s.t.Helper()
	before := s.sess.Stats()
	out, err := f()
	if err != nil && !errors.Is(err, ErrRolledBack) {
		s.t.Fatalf("%s: %v", what, err)
	}
	after := s.sess.Stats()
	n := after.Fabric.Sub(before.Fabric)
	s.log = append(s.log, paid{what, after.Rounds - before.Rounds, n.Reads, n.RPCs, fmt.Sprintf("%+v %v", out, err)})
}

func (s *script) orderStatus(w int64) {
	var in OrderStatusInput
	var out OrderStatusOutput
	s.g.OrderStatus(w, &in)
	s.run("ORDER-STATUS", func() (any, error) { return &out, s.term.OrderStatus(s.t.Context(), &in, &out) })
}

func (s *script) stockLevel(w, d int64) {
	var in StockLevelInput
	var out StockLevelOutput
	s.g.StockLevel(w, d, &in)
	s.run("STOCK-LEVEL", func() (any, error) { return &out, s.term.StockLevel(s.t.Context(), &in, &out) })
}

func (s *script) payment(term *Terminal, w, date int64) {
	var in PaymentInput
	var out PaymentOutput
	s.g.Payment(w, &in)
	in.Date = date
	s.run(fmt.Sprint("PAYMENT ", term.cfg.PaymentMode), func() (any, error) { return &out, term.Payment(s.t.Context(), &in, &out) })
}

func (s *script) newOrder(w, date int64) {
	var in NewOrderInput
	var out NewOrderOutput
	s.g.NewOrder(w, &in)
	in.EntryD = date
	s.run("NEW-ORDER", func() (any, error) { return &out, s.term.NewOrder(s.t.Context(), &in, &out) })
}

func (s *script) delivery(w, date int64) {
	var in DeliveryInput
	var out DeliveryOutput
	s.g.Delivery(w, &in)
	in.Date = date
	s.run("DELIVERY", func() (any, error) { return &out, s.term.Delivery(s.t.Context(), &in, &out) })
}

// all runs the whole mix: reads of a database as it was loaded, writes, and
// when models have followed what was written, reads again.
func (s *script) all(e *engine) {
	reads := func() {
		for i := range int64(60) {
			s.orderStatus(i%2 + 1)
			if i%4 == 0 {
				s.stockLevel(i%2+1, i%Districts+1)
			}
		}
	}
	s.settled(e, reads)
	for i := range int64(80) {
		s.payment([]*Terminal{s.term, s.far}[i%2], i/2%2+1, i+1)
		s.newOrder(i%2+1, i+1)
		if i%20 == 10 {
			s.delivery(i/20%2+1, i+1)
		}
	}
	s.settled(e, reads)
}

// settled runs reads when models have followed what was written. What a
// client fetches of models depends on how many there were in between, so that
// the first time does not count.
func (s *script) settled(e *engine, reads func()) {
	trained(s.t, e)
	before := len(s.log)
	reads()
	s.log = s.log[:before]
	reads()
}

// trained waits until no model lags behind its index.
func trained(t *testing.T, e *engine) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		pending := uint64(0)
		for _, s := range e.Servers {
			s.Train()
			for _, ix := range s.Stats().Indexes {
				pending += ix.Pending
			}
		}
		if pending == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d sub-models wait to be trained", pending)
		}
	}
}

// TestEveryFabricCostsTheSame runs one client's transactions of one seed on
// every fabric: the same answers for the same rounds, READs and RPCs, one by
// one.
func TestEveryFabricCostsTheSame(t *testing.T) {
	if raceEnabled {
		t.Skip("memory under the race detector is not shared; run without it to check")
	}
	var want []paid
	for _, f := range fabricsUnderTest {
		t.Run(f.name, func(t *testing.T) {
			addrs, err := f.addrs()
			if err != nil {
				t.Skipf("SKIP: %v", err)
			}
			p, err := f.open()
			if err != nil {
				t.Skipf("SKIP: %v", err)
			}
			e := newEngineOver(t, p, addrs)
			term := e.terminal(t, TerminalConfig{})
			s := &script{t: t, g: NewInputs(rng.New(41), e.info, e.info.RunConstants(rng.New(42))), sess: term.sess, term: term}
			s.far = NewTerminal(e.DB, term.sess, e.s, TerminalConfig{PaymentMode: Client})
			s.all(e)
			if want == nil {
				want = s.log
			}
			report(t, s.log, want)
		})
	}
}

// report prints what each kind of transaction cost in the mean, and compares
// one by one.
func report(t *testing.T, got, want []paid) {
	t.Helper()
	kinds := map[string][4]uint64{}
	for _, p := range got {
		k := kinds[p.what]
		kinds[p.what] = [4]uint64{k[0] + 1, k[1] + p.rounds, k[2] + p.reads, k[3] + p.rpcs}
	}
	var names []string
	for what := range kinds {
		names = append(names, what)
	}
	slices.Sort(names)
	for _, what := range names {
		k := kinds[what]
		n := float64(k[0])
		t.Logf("%-16s %3.0f: %.3f rounds, %.3f READs, %.3f RPCs", what, n, float64(k[1])/n, float64(k[2])/n, float64(k[3])/n)
	}
	if len(got) != len(want) {
		t.Fatalf("%d transactions, want %d", len(got), len(want))
	}
	differ := 0
	for i := range got {
		if got[i] != want[i] {
			if differ++; differ <= 5 {
				t.Errorf("transaction %d: %+v\nwant %+v", i, got[i], want[i])
			}
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d transactions differ", differ, len(got))
	}
}
