package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"drtmx/internal/cluster"
	"drtmx/internal/hist"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
	"drtmx/internal/placement"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
	"drtmx/txn"
)

// chaosLog is the log of the hosts, in the data directory.
const chaosLog = "chaos.log"

const (
	// patientDeadline is the deadline of the transactions of patient clients, who
	// should not notice a failover but for the wait.
	patientDeadline = 30 * time.Second
	// plannedDeadline is that deadline if nothing fails: errors of these clients are
	// then faults.
	plannedDeadline = 10 * time.Second
	// patientEvery is one in so many clients that is patient.
	patientEvery = 2
	// movedTimeout bounds the time until a data server that is lost commits again, a
	// host serves that was started, and all are complete again.
	movedTimeout = 2 * time.Minute
	// chaosTick is how often the state of the cluster is looked at.
	chaosTick = 20 * time.Millisecond
	// lookDeadline bounds a View of a witness.
	lookDeadline = 100 * time.Millisecond
	// lookPause is the time between two Views of one witness.
	lookPause = time.Millisecond
	// cutCopiesMin is the least time for which hosts are cut off from each other: a
	// copy that does not answer leaves the set after 2 s.
	cutCopiesMin = 3 * time.Second
)

// What a cut host is cut off from.
const (
	cutAll   = "all"   // from all others: hosts, store, clients
	cutStore = "store" // from the store of members alone
	cutHosts = "hosts" // from the other hosts alone, and so from its copies
)

// chaosRun is a run with --chaos.
type chaosRun struct {
	ledgerTest
	f       *chaosFlags
	report  *chaosReport
	log     io.Closer // of the hosts, which are given it when they start
	network *network  // nil unless each host has a network of its own
	began   time.Time
	marks   *tpcc.Marks
	home    []int // data server of each warehouse

	views, still, late, stale atomic.Int64

	mu struct {
		sync.Mutex
		at      []servedAt // by data server
		errs    [2]map[string]int
		stale   string // the first View that was stale
		victim  int    // host of the event that is under way; -1: none
		moved   []int  // of its data servers: were taken over
		away    []int  // data servers by the host that has them
		alone   []bool // data servers without a copy in sync
		returns []returnEvent
		times   latencies
	}
}

// calm reports whether nothing fails in a run: all that is done is planned.
func (f *chaosFlags) calm() bool {
	return !slices.ContainsFunc(f.kinds, func(kind string) bool { return !planned(kind) })
}

// patience is the deadline of patient clients.
func (f *chaosFlags) patience() time.Duration {
	if f.calm() {
		return plannedDeadline
	}
	return patientDeadline
}

// servedAt is what is known of the commits at a data server. Times are since began.
type servedAt struct {
	last time.Duration // of the newest commit
	lost *stall        // since its host was hit; nil: it was not
	away *stall        // since it was taken over; nil: it is at its own host
}

// stall is the longest time without a commit since a moment.
type stall struct {
	from, longest time.Duration
	commits       int
	returned      time.Duration // when the data server was seen at its own host again
}

// commit takes note of a commit, the one before it being at last.
func (s *stall) commit(last, now time.Duration) {
	if s != nil {
		s.longest = max(s.longest, now-max(last, s.from))
		s.commits++
	}
}

// run starts, loads, runs and checks.
func (t *chaosRun) run(ctx context.Context) error {
	t.Say("seed %d", t.f.load.seed)
	if err := t.start(ctx); err != nil {
		return err
	}
	if _, err := t.load(ctx, t.s, &t.f.load); err != nil {
		return err
	}
	var err error
	if t.info, err = tpcc.ReadLoadInfo(ctx, t.s.db); err != nil {
		return err
	}
	if err := t.findHomes(ctx); err != nil {
		return err
	}
	t.marks = tpcc.NewMarks(t.info)
	t.mu.errs = [2]map[string]int{t.report.Errors, t.report.Patient}
	t.mu.times = latencies{rest: hist.New(), beside: hist.New()}
	t.keep(t.f.load.seed, t.f.clients, t.note)
	for i, c := range t.clients {
		c.Failed = func(err error) { t.failed(i, err) }
	}
	if err := t.runBeside(ctx); err != nil {
		return err
	}
	return t.check(ctx)
}

// start starts the hosts and opens the database.
func (t *chaosRun) start(ctx context.Context) error {
	size := t.f.size.size()
	size.DataDir = t.f.data.dir
	o, err := processes([]string{t.f.fabric}, &t.f.tls, "", size)
	if err != nil {
		return fmt.Errorf("--fabric %s: %w", t.f.fabric, err)
	}
	if t.dir, err = runDirOf(size.DataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(size.DataDir, 0o700); err != nil {
		return err
	}
	records, err := os.Create(filepath.Join(size.DataDir, chaosLog))
	if err != nil {
		return err
	}
	t.log = records
	o.Log = cluster.Log{File: records}
	o.Dir, o.Hosts = t.dir, t.hosts(cluster.Log{}, 0)
	if t.f.namespaces {
		t.network = enteredNetwork(size.Servers)
		t.network.place(&o)
	}
	if t.s, err = t.startProcesses(ctx, o, t.f.tls.options()); err != nil {
		t.s = nil
		return err
	}
	return t.s.open(ctx, &bench.Config{Design: &bench.Designs[0]})
}

// findHomes finds the data server of each warehouse.
func (t *chaosRun) findHomes(ctx context.Context) error {
	state, err := t.s.Members(ctx)
	if err != nil {
		return err
	}
	table, err := t.s.db.Table(tpcc.TableWarehouse)
	if err != nil {
		return err
	}
	for w := int64(1); w <= t.info.Warehouses; w++ {
		key, err := tpcc.WarehouseKey(w)
		if err != nil {
			return err
		}
		home, err := t.s.db.Home(table, key)
		if err != nil {
			return err
		}
		t.home = append(t.home, int(state.Map.Placement.At(placement.Partition(home))))
	}
	t.mu.at = make([]servedAt, t.f.size.servers)
	t.mu.victim, t.mu.alone = -1, make([]bool, t.f.size.servers)
	for i := range t.f.size.servers {
		t.mu.away = append(t.mu.away, i)
	}
	return nil
}

// note takes note of an entry of a ledger.
func (t *chaosRun) note(client int, d *tpcc.LedgerEntry) {
	t.marks.Raise(d)
	if d.Outcome != tpcc.OutcomeCommitted || d.Type == tpcc.OrderStatus || d.Type == tpcc.Delivery && d.To == 0 {
		return
	}
	now, took := time.Since(t.began), time.Since(t.clients[client].began)
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Type == tpcc.NewOrder {
		t.mu.times.record(now, took)
	}
	at := &t.mu.at[t.home[d.W-1]]
	at.lost.commit(at.last, now)
	at.away.commit(at.last, now)
	at.last = now
	if a := at.away; a != nil && a.returned != 0 && now > a.returned {
		t.mu.returns = append(t.mu.returns, returnEvent{t.home[d.W-1], a.longest.Seconds()})
		at.away = nil
	}
}

func (t *chaosRun) failed(client int, err error) {
	if errors.Is(err, context.Canceled) { // the run ends
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.errs[map[bool]int{true: 1}[patient(client)]][errorKind(err)]++
}

func patient(client int) bool { return client%patientEvery == 0 }

// runBeside lets the clients and the witnesses work while hosts are hit.
func (t *chaosRun) runBeside(ctx context.Context) (err error) {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	do := func(fn func() error) {
		all.Go(func() {
			if err := fn(); err != nil && working.Err() == nil {
				stop(err)
			}
		})
	}
	t.began = time.Now()
	for i, c := range t.clients {
		limit := c.within
		if patient(i) {
			limit = t.f.patience
		}
		do(func() error { return c.work(working, t.s.db, nil, limit) })
	}
	do(func() error { return t.witness(working, t.s.db, nil, &t.views) })
	do(func() error { return t.watchMoves(working) })
	err = t.hitAll(working)
	if err == nil {
		err = t.ready(working, true)
	}
	if err == nil {
		err = t.allCommit(working)
	}
	if err != nil && ctx.Err() == nil && working.Err() != nil {
		err = context.Cause(working)
	}
	stop(nil)
	all.Wait()
	t.report.DurationS = time.Since(t.began).Seconds()
	return err
}

// witness looks at warehouses until ctx ends: at those of some data servers, or nil for
// all.
func (t *chaosRun) witness(ctx context.Context, db *txn.DB, servers []int, views *atomic.Int64) error {
	sess, err := db.NewSession(ctx)
	if err != nil {
		return err
	}
	defer sess.Close()
	schema, err := tpcc.NewSchema(db.Catalog())
	if err != nil {
		return err
	}
	var of []int64
	for w, server := range t.home {
		if servers == nil || slices.Contains(servers, server) {
			of = append(of, int64(w)+1)
		}
	}
	w := tpcc.NewWitness(t.marks, schema, sess)
	for n := 0; ctx.Err() == nil; n++ {
		look, cancel := context.WithTimeout(ctx, lookDeadline)
		stale, err := w.Look(look, of[n%len(of)], int64(n/len(of)%(tpcc.Districts+1)))
		cancel()
		switch {
		case stale != "":
			t.stale.Add(1)
			t.mu.Lock()
			if t.mu.stale == "" {
				t.mu.stale = fmt.Sprintf("at %.2f s, data server %d: %s", time.Since(t.began).Seconds(), t.home[of[n%len(of)]-1], stale)
			}
			t.mu.Unlock()
		case err == nil:
			views.Add(1)
		case errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrConflict), errors.Is(err, context.DeadlineExceeded), ctx.Err() != nil:
		default:
			return fmt.Errorf("a View: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookPause):
		}
	}
	return nil
}

// stillStore is the store of a client that hears of no change.
type stillStore struct{ member.Store }

func (s stillStore) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	if after != 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Watch(ctx, after)
}

// watchStill looks at the warehouses of some data servers with a client that only
// knows where they are now, until stop is called.
func (t *chaosRun) watchStill(ctx context.Context, servers []int) (stop func() error, err error) {
	found, err := cluster.Connect(ctx, cluster.ConnectOptions{Dir: t.dir, Fabrics: t.f.tls.options(), Members: func(ctx context.Context, l *member.Location) (member.Store, error) {
		s, err := etcd.OpenExisting(ctx, l)
		if err != nil {
			return nil, err
		}
		return stillStore{s}, nil
	}})
	if err != nil {
		return nil, err
	}
	db, err := found.Open(ctx, nil)
	if err != nil {
		return nil, errors.Join(err, found.Close())
	}
	look, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- t.witness(look, db, servers, &t.still) }()
	return func() error {
		cancel()
		err := <-done
		if ctx.Err() != nil {
			err = nil
		}
		return errors.Join(err, db.Close(), found.Close())
	}, nil
}

// watchMoves takes note of the hosts of data servers until ctx ends.
func (t *chaosRun) watchMoves(ctx context.Context) error {
	for ctx.Err() == nil {
		if state, err := t.s.Members(ctx); err == nil && state.Map != nil {
			t.mu.Lock()
			for _, s := range state.Map.Servers {
				t.mu.alone[s.Index] = state.Map.Set(s.Index).Members.Count() < 2
				if s.Host != t.mu.away[s.Index] {
					t.move(int(s.Index), t.mu.away[s.Index], s.Host)
				}
			}
			t.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(chaosTick):
		}
	}
	return nil
}

// move takes note of a data server that is at another host. The lock is held.
func (t *chaosRun) move(server, from, to int) {
	now, at := time.Since(t.began), &t.mu.at[server]
	t.mu.away[server] = to
	if from == t.mu.victim {
		t.mu.moved = append(t.mu.moved, server)
		if at.away = nil; to != server {
			at.away = &stall{from: now}
		}
		if at.lost != nil {
			at.lost.commits = 0 // those at the former host
		}
		return
	}
	if to == server && at.away != nil {
		at.away.returned = now
	}
}

// check compares the ledgers with the database.
func (t *chaosRun) check(ctx context.Context) error {
	r, begin := t.report, time.Now()
	var entries []tpcc.LedgerEntry
	for _, c := range t.clients {
		entries = append(entries, c.entries...)
		for _, d := range c.entries {
			switch {
			case d.Type == tpcc.OrderStatus || d.Type == tpcc.Delivery && d.Outcome == tpcc.OutcomeCommitted && d.To == 0:
			case d.Outcome == tpcc.OutcomeCommitted:
				r.Acknowledged++
			case d.Outcome == tpcc.OutcomeNotDone:
				r.Refused++
			default:
				r.Unknown++
			}
		}
	}
	r.Views, r.StillViews, r.LateViews, r.Stale = t.views.Load(), t.still.Load(), t.late.Load(), t.stale.Load()
	if t.mu.stale != "" {
		r.fault("stale: " + t.mu.stale)
	}
	if t.f.calm() && len(r.Patient) > 0 {
		r.wrong("clients that wait for %v met errors, though nothing failed: %s", plannedDeadline, errorsText(r.Patient))
	}
	r.Rest, r.Beside = latencyReportOf(t.mu.times.rest), latencyReportOf(t.mu.times.beside)
	var stalls, moves, returns []float64
	for _, e := range r.Events {
		if planned(e.Kind) {
			r.Moves += len(e.Moved)
			moves = append(moves, e.Stalls...)
		} else {
			r.Failovers += len(e.Moved)
			r.ByKind[e.Kind] += len(e.Moved)
			stalls = append(stalls, e.Stalls...)
		}
		for _, b := range e.Returned {
			returns = append(returns, b.StallS)
		}
	}
	r.Stall, r.MoveStall = spreadReportOf(stalls), spreadReportOf(moves)
	r.Returns, r.ReturnStall = len(returns), spreadReportOf(returns)
	verdicts, err := t.hold(ctx, &r.ledgerFaults, entries, nil)
	r.Consistency, r.Committed, r.CheckS = verdicts, t.committed(), time.Since(begin).Seconds()
	return err
}

// signalVictim is signal for the process that the victim has.
func (t *chaosRun) signalVictim(ctx context.Context, host int, s syscall.Signal) error {
	if err := t.signal(ctx, host, s); err != nil {
		return fmt.Errorf("signal %v to host %d: %w", s, host, err)
	}
	return nil
}
