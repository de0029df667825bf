package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/index/learned/leaf"
	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// Random transactions on lists are run by several clients, over every fault of
// the fabric, and what they found is checked to be strictly serializable.
//
// The environment changes a run:
//
//	DRTMX_SEED=n           replay the run that printed n
//	DRTMX_SIM=20s          how long each scenario lasts in all
//	DRTMX_ARTIFACTS=dir    where failing histories are kept

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

// cluster is an embedded cluster for histories.
type cluster struct {
	*server.Cluster
	net   *inproc.Network
	s     *listSchema
	addrs []string
	dbs   []*txn.DB // of the clients, in turn; nil: DB
	// as runs what the process of one of dbs does; nil: all are this process.
	as   func(db int, fn func())
	calm func() // ends the disturbances, before a run is looked at; nil if there are none
	// present says which clients take part; nil: all do.
	present func(client int) bool
	loader  func() (*txn.DB, error) // opens a DB that may change the catalogue
	rebuilt int                     // how often the twin was built again
	noTwin  bool                    // there was no memory to build it again
	mortals map[int]*mortal         // clients that are processes of their own, and die
	// finish looks at what clients leave, by a last client; nil: it reads and writes every key.
	finish func(clients []*client, last *client) error
}

// startCluster embeds servers over a network with faults. Opening may meet
// them, so it is tried again.
func startCluster(t testing.TB, s *listSchema, servers int, o inproc.Options, cfg txn.Config) *cluster {
	t.Helper()
	return setup{servers: servers, net: o, client: cfg}.start(t, s)
}

// setup says how to start a cluster.
type setup struct {
	servers    int
	partitions int // 0: one a server
	net        inproc.Options
	client     txn.Config
	upset      *disturbance                              // of requests; may be nil
	limits     twophase.Limits                           // of the commit protocol's tables
	more       func(x *cluster, i int, c *server.Config) // may be nil
	world      *sim.World                                // of a simulation; nil: the real one
	other      *workload                                 // instead of lists; nil: lists
	slots      int                                       // of a leaf; 0: the default
	retain     time.Duration                             // of versions; 0: the default
	memory     uint64                                    // of a partition; 0: the default
}

// cache is what clients cache: with some seeds inner nodes instead of models, unless an ordered
// index has string keys.
func (u *setup) cache(x *cluster) txn.Cache {
	cat := x.s.cat
	if u.other != nil {
		cat = u.other.catalog
	}
	for _, ix := range cat.Indexes {
		if ix.Ordered && ix.Strings {
			return txn.Cache{}
		}
	}
	return []txn.Cache{
		{}, {}, {}, {}, {Keep: txn.CacheTree}, {Keep: txn.CachePartTree, TableBytes: 4 << 10},
	}[rng.New(u.client.Seed).Split("cache").Intn(6)]
}

func (u setup) start(t testing.TB, s *listSchema) *cluster {
	t.Helper()
	var last error
	for try := range uint64(200) {
		u.net.Seed += try
		x := &cluster{Cluster: &server.Cluster{}, net: inproc.New(u.net), s: s}
		if last = u.open(x); last == nil {
			return x
		}
		x.Close()
	}
	t.Fatalf("the cluster does not open: %v", last)
	return nil
}

// provider is the network as one of its members sees it.
func (u *setup) provider(net *inproc.Network, who rdma.Identity) rdma.Provider {
	p := net.As(who)
	if u.world != nil {
		p = u.world.Provider(p, who.Name)
	}
	if u.upset == nil {
		return p
	}
	return &upsetProvider{p, u.upset}
}

// open starts the servers, and opens a DB.
func (u *setup) open(x *cluster) error {
	for i := range u.servers {
		x.addrs = append(x.addrs, fmt.Sprintf("server-%d", i))
	}
	var err error
	for i := range u.servers {
		u.as(x.addrs[i], func() { err = u.startServer(x, i) })
		if err != nil {
			return err
		}
	}
	c := u.client
	c.Cache = u.cache(x)
	c.Servers, c.Dial = x.addrs, u.provider(x.net, rdma.Identity{Role: rdma.RoleWriter, Name: clientName}).Dial
	u.as(clientName, func() { x.DB, err = txn.Open(context.Background(), c) })
	x.loader = func() (db *txn.DB, err error) {
		c := c
		c.Dial = u.provider(x.net, rdma.Identity{Role: rdma.RoleLoader, Name: clientName}).Dial
		u.as(clientName, func() { db, err = txn.Open(context.Background(), c) })
		return db, err
	}
	if u.world != nil {
		x.as = func(_ int, fn func()) { u.as(clientName, fn) }
	}
	return err
}

func (u *setup) startServer(x *cluster, i int) error {
	srv, err := server.New(u.config(x, i))
	if err != nil {
		return err
	}
	x.Servers = append(x.Servers, srv)
	if u.limits != (twophase.Limits{}) {
		srv.LimitTables(u.limits)
	}
	return srv.Start()
}

// as runs fn in a process of a simulated world.
func (u *setup) as(name string, fn func()) {
	if u.world == nil {
		fn()
		return
	}
	u.world.As(name, fn)
}

// clientName is the name of the clients on the network; servers have their addresses as names.
const clientName = "client"

// simulatedBytes is the memory of a server of a simulation, in which no garbage is
// collected.
const simulatedBytes = 32 << 20

// mortal is a client that dies.
type mortal struct {
	db   *txn.DB
	as   func(func()) // runs what it does
	died func() bool
}

// workload is what a cluster runs instead of lists.
type workload struct {
	catalog    *tables.Catalog
	procedures []txn.Procedure
}

// config is that of one server.
func (u *setup) config(x *cluster, i int) server.Config {
	c := server.Config{
		Index: i, Addrs: x.addrs, Partitions: u.partitions, Catalog: x.s.cat, Procedures: x.s.procedures(),
		Provider:  u.provider(x.net, rdma.Identity{Role: rdma.RoleServer, Name: x.addrs[i]}),
		Checksums: u.net.Faults.Scramble > 0, MemoryBytes: 1 << 30, Retain: u.retain,
	}
	c.SmallLeaves(u.slots)
	c.PublishInner = u.cache(x).Keep.Inner()
	if w := u.other; w != nil {
		c.Catalog, c.Procedures = w.catalog, w.procedures
	}
	if u.world != nil {
		c.MemoryBytes = simulatedBytes
	}
	if u.more != nil {
		u.more(x, i, &c)
	}
	if u.memory > 0 {
		c.SmallMemory(u.memory)
	}
	return c
}

// result of one run.
type outcome struct {
	h      *history.History
	counts map[string]int
}

// run lets the clients of a load work, then checks that nothing is left locked
// and that the servers' memory is sound.
func (x *cluster) run(t testing.TB, l *load) (*outcome, error) {
	t.Helper()
	ctx := context.Background()
	clients := make([]*client, l.Clients)
	errs := make([]error, l.Clients)
	var wg sync.WaitGroup
	for i := range clients {
		db := x.DB
		if len(x.dbs) > 0 {
			db = x.dbs[i%len(x.dbs)]
		}
		clients[i] = newClient(l, x.s, db, i)
		if x.present != nil && !x.present(i) {
			continue
		}
		wg.Add(1)
		m := x.mortals[i]
		if m != nil {
			clients[i].db, clients[i].died = m.db, m.died
		}
		go func() {
			defer wg.Done()
			work := func() { errs[i] = clients[i].work(ctx) }
			if m != nil {
				m.as(work)
				_ = m.db.Close() // of a process that may be dead
				return
			}
			if x.as != nil {
				x.as(i%max(len(x.dbs), 1), work)
				return
			}
			work()
		}()
	}
	built := make(chan error, 1)
	done := make(chan struct{})
	if l.Rebuild && !l.MemoryMayGo && x.loader != nil {
		go func() {
			rebuild := func() { built <- x.rebuildTwin(l, done) }
			if x.as != nil {
				x.as(0, rebuild)
				return
			}
			rebuild()
		}()
	} else {
		built <- nil
	}
	wg.Wait()
	close(done)
	if x.calm != nil {
		x.calm()
	}
	errs = append(errs, <-built)
	out := &outcome{counts: map[string]int{}}
	out.counts["rebuilt"] = x.rebuilt
	last := newClient(l, x.s, x.DB, l.Clients)
	last.noTwin = x.noTwin
	end := func() {
		if x.finish != nil {
			errs = append(errs, x.finish(clients, last))
			return
		}
		errs = append(errs, last.readAll(ctx), x.settled(ctx), last.writeAll(ctx))
	}
	if x.as != nil {
		x.as(0, end)
	} else {
		end()
	}
	clients = append(clients, last)
	counted := map[*txn.DB]bool{}
	for _, c := range clients {
		if !counted[c.db] {
			counted[c.db] = true
			out.counts["one-sided"] += int(c.db.OneSided())
		}
	}
	logs := make([]*history.Log, len(clients))
	for i, c := range clients {
		logs[i] = c.rec.Log()
		for k, n := range c.counts {
			out.counts[k] += n
		}
	}
	for _, s := range x.Servers {
		errs = append(errs, s.Check())
		out.counts["parked"] += s.Parked()
	}
	var err error
	if out.h, err = history.Merge(logs...); err != nil {
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// rebuildTwin takes the twin of the hashed table away and builds it again, until the clients are done or
// it has done so three times.
func (x *cluster) rebuildTwin(l *load, done <-chan struct{}) error {
	s := rng.New(l.Seed).Split("rebuilds")
	var db *txn.DB
	if err := retryUnavailable(func() (err error) { db, err = x.loader(); return err }); err != nil {
		return err
	}
	defer db.Close()
	rest := func() (goOn bool) {
		select {
		case <-done:
			return false
		case <-time.After(between(s, 0, 60)):
			return true
		}
	}
	set := func(twin tables.Twin) error {
		for {
			over := false // whether the clients were, before: nothing is in the way of what comes after
			select {
			case <-done:
				over = true
			default: // servers may be cut off from each other for longer than any patience
			}
			err := retryUnavailable(func() error {
				_, err := db.SetTwin(context.Background(), x.s.tab[inHash].Name(), twin)
				return err
			})
			switch {
			case l.MayBeFull && errors.Is(err, txn.ErrNoSpace):
				time.Sleep(time.Millisecond) // there will be room again
			case over, !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrConflict):
				return err
			}
		}
	}
	for n := 0; n < 3 && rest(); n++ {
		if err := set(""); err != nil {
			return fmt.Errorf("take the twin away: %w", err)
		}
		rest()
		if err := set(l.Twin); errors.Is(err, txn.ErrOutOfMemory) {
			x.noTwin = true
			return nil
		} else if err != nil {
			return fmt.Errorf("build the twin: %w", err)
		}
		x.rebuilt++
	}
	return nil
}

// retryUnavailable repeats what a faulty fabric may refuse.
func retryUnavailable(fn func() error) error {
	var err error
	for end := time.Now().Add(testseed.Patience()); time.Now().Before(end); {
		if err = fn(); !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrConflict) && !errors.Is(err, txn.ErrOutcomeUnknown) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

// windows calls fn for one window of the keys after the other, until several
// are empty. fn returns the number of rows found. Windows are small where
// connections break, for a transaction must end before one does.
func (l *load) windows(fn func(lo, hi history.Key) (rows int, err error)) error {
	keys, gap := history.Key(2048), 4
	if l.ServersToFail {
		keys, gap = 64, 128
	}
	for lo, empty := history.Key(0), 0; empty < gap; lo += keys {
		rows, err := fn(lo, lo+keys-1)
		if err != nil {
			return err
		}
		if empty++; rows > 0 {
			empty = 0
		}
	}
	return nil
}

// lookAt plans to read a window of both tables.
func (c *client) lookAt(lo, hi history.Key) {
	c.steps = c.steps[:0]
	for table := range 2 {
		c.steps = append(c.steps, step{PlanOp: history.PlanOp{Kind: history.OpScan, Key: lo, Hi: hi}, table: table})
	}
}

func (c *client) found() (rows int) {
	for i := range c.res.list {
		rows += len(c.res.list[i].rows)
	}
	return rows
}

// readAll records transactions that read both tables completely. What has a twin must be the same
// without it.
func (c *client) readAll(ctx context.Context) error {
	return c.l.windows(func(lo, hi history.Key) (int, error) {
		c.lookAt(lo, hi)
		err := retryUnavailable(func() error { return c.look(ctx) })
		rows := c.found()
		if err == nil && c.l.Twin != "" && !c.noTwin {
			err = retryUnavailable(func() error { return c.compareTwin(ctx, lo, hi) })
		}
		return rows, err
	})
}

// compareTwin reads a window of the hashed table by its twin and by its secondary index, at one moment.
// It is not part of the history.
func (c *client) compareTwin(ctx context.Context, lo, hi history.Key) error {
	scan := step{PlanOp: history.PlanOp{Kind: history.OpScan, Key: lo, Hi: hi}, table: inHash, how: howTwin}
	other := scan
	other.how = howSecondary
	return c.db.View(ctx, func(t *txn.Txn) error {
		var res results
		if err := c.s.run(t, []step{scan, other}, &res); err != nil {
			return err
		}
		a, b := res.list[0].rows, res.list[1].rows
		if same := func(a, b history.Row) bool { return a.Key == b.Key && slices.Equal(a.List, b.List) }; !slices.EqualFunc(a, b, same) {
			return fmt.Errorf("the twin has %d rows of keys %d to %d, and the secondary index has %d, or others", len(a), lo, hi, len(b))
		}
		return nil
	})
}

// writeAll deletes every row there is, and so writes every key: no lock may be
// left on one. It is not part of the history.
func (c *client) writeAll(ctx context.Context) error {
	err := c.l.windows(func(lo, hi history.Key) (int, error) {
		c.lookAt(lo, hi)
		err := retryUnavailable(func() error {
			return c.db.Update(ctx, func(t *txn.Txn) error {
				if err := c.s.run(t, c.steps, &c.res); err != nil {
					return err
				}
				for i := range c.res.list {
					x := &c.res.list[i]
					for _, row := range x.rows {
						if err := c.s.remove(t, x.table, uint64(row.Key)); err != nil {
							return err
						}
					}
				}
				return nil
			})
		})
		return c.found(), err
	})
	if err != nil {
		return fmt.Errorf("a transaction that writes every key: %w", err)
	}
	return nil
}

// settled waits until no server has a transaction in doubt.
func (x *cluster) settled(ctx context.Context) error {
	end := time.Now().Add(testseed.Patience())
	for {
		var stats []stats.Server
		if err := retryUnavailable(func() (err error) { stats, err = x.DB.ServerStats(ctx); return err }); err != nil {
			return err
		}
		left := 0
		for _, st := range stats {
			left += st.Prepared
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d transactions are still in doubt", left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// check fails the test with a counter-example, and keeps the history, if it is
// not strictly serializable.
func check(t testing.TB, name string, h *history.History) *history.Report {
	t.Helper()
	rep, err := history.Check(h, history.Options{})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := rep.Err(); err != nil {
		t.Errorf("%s: %v\nhistory kept in %s", name, err, keep(t, name, h))
	}
	return rep
}

func keep(t testing.TB, name string, h *history.History) string {
	dir := os.Getenv("DRTMX_ARTIFACTS")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "drtmx-history-"); err != nil {
			return err.Error()
		}
	}
	path := filepath.Join(dir, strings.Map(func(r rune) rune {
		if r == '/' || r == ' ' {
			return '-'
		}
		return r
	}, name)+".history")
	if err := h.Save(path); err != nil {
		return err.Error()
	}
	return path
}

// scenario is one way for a fabric and its servers to behave.
type scenario struct {
	name   string
	faults func(s *rng.Stream) inproc.Faults // nil: none
	reads  txn.ReadPath
	pause  bool // one server stops now and then
	polls  int

	servers, partitions int // 0: three servers, one partition each
	loses               bool
	leaves              bool // small
	load                func(l *load, s *rng.Stream)
	upset               func(x *upsetting) // what else goes wrong; see history_faults_test.go
	limits              func(s *rng.Stream) twophase.Limits
	lasts               time.Duration // of a long run, at least
	short               time.Duration // of all runs by default; 0: shortSim
}

func (sc *scenario) lossy(f inproc.Faults) bool {
	return sc.loses || f.DropVerb+f.DropBefore+f.DropDuring+f.DropAfter > 0
}

func scenarios() []scenario {
	return []scenario{
		{name: "no faults"},
		{name: "two pollers", polls: 2},
		{name: "pauses within reads", faults: func(*rng.Stream) inproc.Faults {
			return inproc.Faults{Pause: 0.3, Defer: 0.2, Reorder: 0.5}
		}},
		{name: "words in any order", faults: func(*rng.Stream) inproc.Faults {
			return inproc.Faults{Scramble: 0.7, Pause: 0.05, Defer: 0.2, Reorder: 0.5}
		}},
		{name: "dropped connections", faults: func(*rng.Stream) inproc.Faults {
			return inproc.Faults{DropBefore: 0.003, DropDuring: 0.003, DropAfter: 0.003, DropVerb: 0.001, Duplicate: 0.1}
		}},
		{name: "a paused server", pause: true},
		{name: "ordered reads by RPC", faults: func(*rng.Stream) inproc.Faults { return inproc.Faults{Duplicate: 0.1} }, reads: txn.OrderedByRPC},
		{name: "swarm", faults: func(s *rng.Stream) inproc.Faults {
			f := inproc.Swarm(s, 0.1)
			f.DropVerb, f.DropBefore, f.DropDuring, f.DropAfter = f.DropVerb/50, f.DropBefore/20, f.DropDuring/20, f.DropAfter/20
			return f
		}},
	}
}

// shortSim is the time for all runs of a scenario by default.
const shortSim = 200 * time.Millisecond

// TestHistories runs scenarios, each with new loads until its time is up: the harsh
// ones only if there is time for them, since they also run in simulated time.
// Scenarios that lose connections spend much of it waiting, so some of them run
// at a time: as many as the flag -parallel says.
func TestHistories(t *testing.T) {
	seed := testseed.Of(t)
	var sum tally
	t.Cleanup(func() { t.Logf("all scenarios: %v", &sum) })
	all := scenarios()
	if testseed.Soaking() || simTime(t, 0) > 0 {
		all = slices.Concat(all, harshScenarios(), combinations())
	}
	for _, sc := range all {
		t.Run(sc.name, func(t *testing.T) {
			if sc.loses {
				t.Parallel()
			}
			var own tally
			start := time.Now()
			end := start.Add(simTime(t, cmp.Or(sc.short, shortSim)))
			for own.runs == 0 || time.Now().Before(end) {
				runSeed := seed + uint64(own.runs)
				out := sc.runOnce(t, runSeed)
				if t.Failed() {
					t.Fatalf("run %d: replay with DRTMX_SEED=%d", own.runs, runSeed)
				}
				own.add(1, out.h.Len(), out.counts)
			}
			t.Logf("%v: %v", time.Since(start).Round(10*time.Millisecond), &own)
			sum.add(own.runs, own.txns, own.counts)
		})
	}
}

// tally counts the transactions of many runs.
type tally struct {
	mu         sync.Mutex
	runs, txns int
	counts     map[string]int
}

func (a *tally) add(runs, txns int, counts map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts = map[string]int{}
	}
	a.runs, a.txns = a.runs+runs, a.txns+txns
	for what, n := range counts {
		a.counts[what] += n
	}
}

// refusals are the answers to a client that did nothing wrong.
var refusals = []string{"unavailable", "unknown", "conflict", "given up"}

func (a *tally) String() string {
	other := maps.Clone(a.counts)
	delete(other, "committed")
	refused := 0
	for _, what := range refusals {
		refused += a.counts[what]
	}
	return fmt.Sprintf("%d runs, %d transactions: %d committed, %d refused; %v", a.runs, a.txns, a.counts["committed"], refused, other)
}

// draw draws the load of a run, and how its cluster starts.
func (sc *scenario) draw(stream *rng.Stream, seed uint64) (load, setup) {
	l := swarm(stream, seed)
	l.TxnsPerClient = 150 + stream.Intn(250)
	var f inproc.Faults
	if sc.faults != nil {
		f = sc.faults(stream)
	}
	l.ServersToFail, l.OutcomeMayLost, l.LossyCalls = sc.lossy(f), sc.lossy(f), sc.lossy(f)
	l.ClocksStop = sc.pause || sc.upset != nil
	if sc.load != nil {
		sc.load(&l, stream)
	}
	u := setup{
		servers: cmp.Or(sc.servers, 3), partitions: sc.partitions,
		net:    inproc.Options{Faults: f, Seed: seed, Pollers: sc.polls},
		client: txn.Config{Reads: sc.reads, Seed: seed | 1},
	}
	if sc.limits != nil {
		u.limits = sc.limits(stream)
	}
	if sc.leaves {
		u.slots = leaf.MinSlots + stream.Intn(3)
	}
	if sc.upset != nil {
		u.upset = newDisturbance(stream)
		l.Patience = between(stream, 5, 100)
	}
	return l, u
}

// disturb begins what goes wrong in a run. Upsets end with calm, before the run is
// looked at; pauses of a server go on meanwhile, until stop.
func (sc *scenario) disturb(x *cluster, b *upsetting, s *rng.Stream) (calm, stop func()) {
	calm, stop = func() {}, func() {}
	if sc.upset != nil {
		sc.upset(b)
		calm = b.end
	}
	if sc.pause {
		stop = x.pauseNowAndThen(s)
	}
	return calm, stop
}

// runOnce is one run of a scenario: its load, its faults and all else are drawn from the seed.
func (sc *scenario) runOnce(t *testing.T, seed uint64) *outcome {
	t.Helper()
	stream := rng.New(seed).Split(sc.name)
	l, u := sc.draw(stream, seed)
	switch {
	case simTime(t, 0) >= longSim:
		sc.lengthen(&l, stream)
	case testing.Short() && sc.loses: // for the race detector, which makes all of it slow
		l.TxnsPerClient = max(l.TxnsPerClient/4, 10)
	}
	x := u.start(t, newLists(&l))
	defer x.Close()
	var once sync.Once
	calm, stop := sc.disturb(x, newUpsetting(t, x, u.upset, stream), stream)
	x.calm = func() { once.Do(calm) }
	out, err := x.run(t, &l)
	x.calm()
	stop()
	if err != nil {
		t.Errorf("%+v\nfaults %+v: %v", l, u.net.Faults, err)
	}
	if out.h != nil {
		check(t, t.Name(), out.h)
	}
	if t.Failed() {
		t.Logf("%+v\nfaults %+v\n%v", l, u.net.Faults, out.counts)
	}
	if sc.upset != nil {
		for k, n := range u.upset.total() {
			out.counts[k] += n
		}
	}
	return out
}

// lengthen makes the load of a run one for a long simulation. Disturbances that
// last long need a load that lasts, and more clients, since some of them wait.
func (sc *scenario) lengthen(l *load, s *rng.Stream) {
	if sc.upset == nil {
		l.TxnsPerClient *= 1 + s.Intn(8)
		return
	}
	l.TxnsPerClient, l.Duration = 0, max(between(s, 1000, 8000), sc.lasts)
	l.Clients = max(l.Clients, 6+s.Intn(8))
}

// pauseNowAndThen stops one server after the other for some milliseconds: its
// memory answers on, it does not.
func (x *cluster) pauseNowAndThen(s *rng.Stream) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			addr := x.addrs[s.Intn(len(x.addrs))]
			_ = x.net.Pause(addr)
			time.Sleep(time.Duration(1+s.Intn(10)) * time.Millisecond)
			_ = x.net.Resume(addr)
			select {
			case <-done:
				return
			case <-time.After(time.Duration(1+s.Intn(10)) * time.Millisecond):
			}
		}
	}()
	return func() { close(done); wg.Wait() }
}
