package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"drtmx/internal/cluster"
	"drtmx/rdma/multi"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
	"drtmx/txn/stats"
)

const (
	// lastGasp is how long clients may go on after the last data server was killed.
	lastGasp = 100 * time.Millisecond
	// killedStartsMax bounds how often the start of one round is killed.
	killedStartsMax = 3
)

// run starts, loads and repeats rounds.
func (t *durabilityTest) run(ctx context.Context) error {
	t.Say("seed %d", t.f.load.seed)
	t.dir = filepath.Join(t.f.data.dir, runDir)
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
	t.keep(t.f.load.seed, t.f.clients, nil)
	bar := t.progressOf("rounds")
	defer bar.done()
	for n := 1; n <= t.f.rounds; n++ {
		bar.set(int64(n-1), int64(t.f.rounds), "round %d of %d", n, t.f.rounds)
		if err := t.round(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// start starts the data servers and opens the database.
func (t *durabilityTest) start(ctx context.Context) error {
	begin := time.Now()
	size := t.f.size.size()
	size.DataDir = t.f.data.dir
	o, err := processes([]string{t.f.fabric}, &tlsFlags{}, "", size)
	if err != nil {
		return fmt.Errorf("--fabric %s: %w", t.f.fabric, err)
	}
	if t.hosted() {
		o.Dir, o.Hosts = t.dir, t.hosts(cluster.Log{}, 0)
	}
	if t.s, err = t.startProcesses(ctx, o, multi.Options{}); err != nil {
		t.s = nil
		return err
	}
	t.took = time.Since(begin)
	return t.s.open(ctx, &bench.Config{Design: &bench.Designs[0]})
}

// hosted reports whether the data servers are hosts.
func (t *durabilityTest) hosted() bool { return t.f.size.replicas > 1 }

// round is one round. Its error is errLost if the database is not what it should
// be.
func (t *durabilityTest) round(ctx context.Context, n int) error {
	r := &roundReport{Round: n}
	before := make([]int, len(t.clients))
	for i, c := range t.clients {
		before[i] = len(c.entries)
	}
	run := t.loadAndKill
	if t.f.victims > 0 {
		run = t.loadAndReplace
	}
	if err := run(ctx, r); err != nil {
		return err
	}
	var entries []tpcc.LedgerEntry
	for i, c := range t.clients {
		entries = append(entries, c.entries...)
		for _, d := range c.entries[before[i]:] {
			r.count(d)
		}
	}
	if t.f.victims == 0 {
		if err := t.restart(ctx, r); err != nil {
			return err
		}
	}
	if err := t.compare(ctx, r, entries); err != nil {
		return err
	}
	return t.end(r)
}

func (r *roundReport) count(d tpcc.LedgerEntry) {
	switch {
	case d.Type == tpcc.OrderStatus:
	case d.Outcome == tpcc.OutcomeCommitted:
		r.Acknowledged++
	case d.Outcome == tpcc.OutcomeNotDone:
		r.Refused++
	default:
		r.Unknown++
	}
}

// loadAndKill lets the clients work, and kills the data servers at a random moment.
func (t *durabilityTest) loadAndKill(ctx context.Context, r *roundReport) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	killed := make(chan struct{})
	errs := make([]error, len(t.clients))
	var all sync.WaitGroup
	begin := time.Now()
	for i, c := range t.clients {
		all.Go(func() { errs[i] = c.work(working, t.s.db, killed, noLimit) })
	}
	moment := time.NewTimer(time.Duration(t.rnd.Uint64n(uint64(t.f.duration))))
	defer moment.Stop()
	var lost error
	select {
	case <-moment.C:
	case <-ctx.Done():
		lost = context.Cause(ctx)
	case <-t.s.Lost(): // by itself
		lost = t.s.Err()
		_, _ = t.stderr.Write(t.s.Output())
	}
	r.LoadS = time.Since(begin).Seconds()
	close(killed)
	err := errors.Join(lost, t.kill())
	time.AfterFunc(lastGasp, stop)
	all.Wait()
	stop()
	_ = t.leave() // reports that the servers were killed
	return errors.Join(append(errs, err)...)
}

// kill sends SIGKILL to all data servers, in half of the rounds at once, in the
// others with some time between them, for which the others serve on.
func (t *durabilityTest) kill() error {
	pids := t.s.PIDs()
	gaps := t.rnd.Bool(0.5)
	var errs []error
	first := t.rnd.Intn(len(pids))
	for k := range pids {
		i := (first + k) % len(pids)
		if err := syscall.Kill(pids[i], syscall.SIGKILL); err != nil {
			errs = append(errs, fmt.Errorf("kill data server %d (pid %d): %w", i, pids[i], err))
		}
		if gaps {
			time.Sleep(time.Duration(t.rnd.Uint64n(uint64(30 * time.Millisecond))))
		}
	}
	return errors.Join(errs...)
}

// restart starts the data servers on what the killed ones have left. In some
// rounds it kills them while they recover.
func (t *durabilityTest) restart(ctx context.Context, r *roundReport) error {
	for r.KilledStarts < killedStartsMax && t.rnd.Bool(0.25) {
		short, cancel := context.WithTimeout(ctx, time.Duration(t.rnd.Uint64n(uint64(max(t.took, time.Millisecond)))))
		err := t.start(short) // kills them when short ends
		cancel()
		if err == nil {
			r.StartS = t.took.Seconds()
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		_ = t.leave()
		r.KilledStarts++
	}
	err := t.start(ctx)
	r.StartS = t.took.Seconds()
	return err
}

// compare checks the conditions, and compares all ledgers with the database.
func (t *durabilityTest) compare(ctx context.Context, r *roundReport, entries []tpcc.LedgerEntry) error {
	begin := time.Now()
	defer func() { r.CheckS = time.Since(begin).Seconds() }()
	longest := -1.0
	_, err := t.hold(ctx, &r.ledgerFaults, entries, func(rec *stats.Recovery) {
		took := 0.0
		for _, p := range rec.Phases {
			took += p.Seconds
		}
		if took > longest {
			longest, r.Recovery = took, rec
		}
	})
	all := t.committed()
	r.Committed, t.resolved = all-t.resolved, all
	return err
}
