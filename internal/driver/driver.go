package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/rdma"
	"drtmx/txn"
)

// Bounds and defaults of a run.
const (
	// MaxClients bounds the workers of one run.
	MaxClients = 4096
	// DefaultGrace is how long a stopped run waits for the transactions under way.
	DefaultGrace = 2 * time.Second

	tickEvery = 100 * time.Millisecond
)

var (
	// ErrServerLost reports that a data server stopped answering, which ends
	// a run; the record covers what ran before.
	ErrServerLost = errors.New("driver: a data server stopped answering")
	// ErrConfig reports a Config that cannot be run.
	ErrConfig = errors.New("driver: bad configuration")
)

// Outcome is how a transaction that did not fail ended.
type Outcome uint8

// Outcomes.
const (
	Committed  Outcome = iota
	RolledBack         // by the workload's own rules, as 1 % of NEW-ORDERs
	Deferred           // accepted, and left to a Background to be run
	gaveUp             // after conflicts in every attempt
)

// Result is what came of a transaction.
type Result struct {
	Outcome Outcome
	// Count is a figure of the workload's own, summed by type, such as the
	// districts that a DELIVERY skipped.
	Count uint64
}

// Worker runs transactions for one goroutine. It owns a session.
type Worker interface {
	// Next draws the type of the next transaction, an index into Config.Types.
	Next() int
	// Pause is how long to wait before the transaction that Next drew and
	// after it, as people at a terminal do; 0 means not at all. The run's end
	// cuts a pause short.
	Pause(typ int) (before, after time.Duration)
	// Run runs one transaction to its end. Its error is a failure: an
	// outcome that the workload's rules provide for is not one.
	Run(ctx context.Context, typ int) (Result, error)
	// Stats is the session's account. It must not allocate.
	Stats() txn.SessionStats
	// Close releases the session.
	Close() error
}

// Config describes a run.
type Config struct {
	// Types names the transaction types, as reports show them.
	Types []string
	// Clients is the number of workers, 1 to MaxClients.
	Clients int
	// Warmup precedes the measured interval; 0 means none. What it recorded
	// is dropped at its end.
	Warmup time.Duration
	// Duration is the measured interval; it must be positive.
	Duration time.Duration
	// NewWorker makes worker id, counted from 0.
	NewWorker func(ctx context.Context, id int) (Worker, error)
	// Backgrounds run what workers defer; NewBackground makes one, by number
	// from 0.
	Backgrounds   int
	NewBackground func(ctx context.Context, id int) (Background, error)
	// Begin and End, if set, are called at the edges of the measured
	// interval; an error ends the run. End is called only after Begin, also
	// when the run is cut short, and then with a context of its own.
	Begin, End func(ctx context.Context) error
	// Tick, if set, is called a few times a second from one goroutine.
	Tick func(Progress)
	// Every and Interval, if set, cut the measured interval into pieces of
	// that length (the last may be shorter) and pass each to Interval as it
	// ends, from one goroutine. Together they hold exactly what the record
	// holds.
	Every    time.Duration
	Interval func(Interval)
	// Grace is how long a stopped run waits for transactions under way
	// before it breaks them off; 0 means DefaultGrace.
	Grace time.Duration
}

// Progress is a moment of a run.
type Progress struct {
	WarmingUp bool
	Elapsed   time.Duration // of the phase
	Of        time.Duration // length of the phase
	Finished  uint64        // transactions that ended in the phase, so far
}

func (c *Config) check() error {
	var faults []error
	if len(c.Types) == 0 {
		faults = append(faults, errors.New("no transaction types"))
	}
	if c.Clients < 1 || c.Clients > MaxClients {
		faults = append(faults, fmt.Errorf("%d clients, want 1 to %d", c.Clients, MaxClients))
	}
	if c.Warmup < 0 {
		faults = append(faults, fmt.Errorf("warm-up of %v, want 0 or more", c.Warmup))
	}
	if c.Duration <= 0 {
		faults = append(faults, fmt.Errorf("duration of %v, want more than 0", c.Duration))
	}
	if c.Interval != nil && c.Every <= 0 {
		faults = append(faults, fmt.Errorf("intervals of %v, want more than 0", c.Every))
	}
	if c.Backgrounds < 0 || c.Backgrounds > MaxClients || c.Backgrounds > 0 && c.NewBackground == nil {
		faults = append(faults, fmt.Errorf("%d backgrounds, want 0 to %d and NewBackground", c.Backgrounds, MaxClients))
	}
	if c.NewWorker == nil {
		faults = append(faults, errors.New("no NewWorker"))
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(faults...))
	}
	return nil
}

// phase of a run; they follow each other in this order.
type phase uint32

const (
	warming phase = iota
	measuring
	over
)

type run struct {
	cfg    Config
	hard   context.Context // of the transactions: ends after the grace
	base   time.Time
	phase  atomic.Uint32
	stop   chan struct{} // closed when the run is to end early
	over   chan struct{} // closed when it ends
	once   sync.Once
	err    error // what closed stop; guarded by once
	shards []*shard
	tasks  []*task
	aides  []*aide
	pieces *pieces // nil unless Config.Interval is set
}

func (r *run) now() phase { return phase(r.phase.Load()) }

// Run runs the load. When ctx ends the workers finish what they are at and the
// record says Interrupted; that is no error. A failed transaction ends the run
// with its error, ErrServerLost if a server is gone; the record then holds
// what was measured until then. A run that ends within its warm-up has a
// record of that, marked WarmupOnly. The record is nil only for ErrConfig or
// if a worker could not be made.
func Run(ctx context.Context, cfg Config) (*Record, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r := &run{cfg: cfg, base: time.Now(), hard: hard, stop: make(chan struct{}), over: make(chan struct{})}
	r.makeShards()
	defer r.closeWorkers()
	for id := range cfg.Clients {
		w, err := cfg.NewWorker(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("driver: client %d: %w", id, err)
		}
		r.tasks = append(r.tasks, newTask(w, r.shards[id%len(r.shards)]))
	}
	if err := r.makeAides(ctx); err != nil {
		return nil, err
	}
	var workers, aides sync.WaitGroup
	for _, a := range r.aides {
		aides.Go(func() { r.aid(a) })
	}
	for _, t := range r.tasks {
		workers.Go(func() { r.work(t) })
	}
	rec := &Record{Clients: cfg.Clients}
	r.conduct(ctx, rec)
	breakOff := time.AfterFunc(cfg.Grace, cancel)
	workers.Wait()
	for _, a := range r.aides {
		a.background.Finish()
	}
	aides.Wait()
	breakOff.Stop()
	if r.pieces != nil && !rec.WarmupOnly {
		r.piece(rec.Elapsed)
	}
	r.collect(rec)
	r.once.Do(func() {}) // orders err before the read below
	return rec, r.err
}

// conduct takes the run through its phases.
func (r *run) conduct(ctx context.Context, rec *Record) {
	started := time.Now()
	running := r.await(ctx, warming, started, r.cfg.Warmup)
	rec.Warmup = time.Since(started)
	rec.Elapsed, rec.WarmupOnly = rec.Warmup, true
	if running && r.cfg.Begin != nil {
		if err := r.cfg.Begin(ctx); err != nil {
			r.fail(fmt.Errorf("driver: begin of the measured interval: %w", err))
			running = false
		}
	}
	if running {
		rec.WarmupOnly = false
		started = time.Now()
		r.phase.Store(uint32(measuring))
		r.await(ctx, measuring, started, r.cfg.Duration)
		rec.Elapsed = time.Since(started)
	}
	r.phase.Store(uint32(over))
	close(r.over)
	if !rec.WarmupOnly {
		r.end(ctx)
	}
	rec.Interrupted = ctx.Err() != nil
}

func (r *run) end(ctx context.Context) {
	if r.cfg.End == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Grace)
	defer cancel()
	if err := r.cfg.End(ctx); err != nil {
		r.fail(fmt.Errorf("driver: end of the measured interval: %w", err))
	}
}

// await lets a phase last; it reports false if the run is cut short.
func (r *run) await(ctx context.Context, in phase, started time.Time, of time.Duration) bool {
	timer := time.NewTimer(of)
	defer timer.Stop()
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	var piece <-chan time.Time
	if in == measuring && r.pieces != nil {
		t := time.NewTicker(r.cfg.Every)
		defer t.Stop()
		piece = t.C
	}
	base := r.finished()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-r.stop:
			return false
		case <-timer.C:
			r.tick(in, of, of, base)
			return true
		case <-piece:
			// What is left at the end is the last piece, however short of a
			// whole one: two pieces never end at the same time.
			if at := time.Since(started); at < of {
				r.piece(at)
			}
		case <-ticker.C:
			r.tick(in, min(time.Since(started), of), of, base)
		}
	}
}

func (r *run) tick(in phase, elapsed, of time.Duration, base uint64) {
	if r.cfg.Tick != nil {
		r.cfg.Tick(Progress{in == warming, elapsed, of, r.finished() - base})
	}
}

func (r *run) finished() (n uint64) {
	for _, t := range r.tasks {
		n += t.finished.Load()
	}
	for _, a := range r.aides {
		n += a.finished.Load()
	}
	return n
}

// fail ends the run; the first cause stays.
func (r *run) fail(err error) {
	r.once.Do(func() {
		r.err = err
		close(r.stop)
	})
}

func (r *run) closeWorkers() {
	for _, t := range r.tasks {
		_ = t.worker.Close() // the run's result does not depend on it
	}
	for _, a := range r.aides {
		_ = a.background.Close()
	}
}

// work is the loop of one worker.
func (r *run) work(t *task) {
	for r.now() != over {
		select {
		case <-r.stop:
			return
		default:
		}
		if err := r.one(t); err != nil {
			r.fail(err)
			return
		}
	}
}

// one runs one transaction and records it, with its pauses. It allocates
// nothing.
func (r *run) one(t *task) error {
	typ := t.worker.Next()
	keying, think := t.worker.Pause(typ)
	if !r.pause(t, keying) {
		return nil
	}
	e := &t.entry
	e.before = t.worker.Stats()
	start := time.Since(r.base) // without the wall clock, which costs as much again
	result, err := t.worker.Run(r.hard, typ)
	e.took = time.Since(r.base) - start
	e.after, e.result = t.worker.Stats(), result
	if err != nil {
		if !errors.Is(err, txn.ErrConflict) {
			return r.classify(r.cfg.Types[typ], err)
		}
		e.result.Outcome = gaveUp
	}
	if e.result.Outcome != Deferred {
		t.finished.Add(1)
	}
	if in := r.now(); in != over {
		t.shard.record(in, typ, e)
	}
	e.last = e.after
	r.pause(t, think)
	return nil
}

// pause reports false if the run ended meanwhile.
func (r *run) pause(t *task, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t.timer.Reset(d)
	select {
	case <-t.timer.C:
		return true
	case <-r.over:
		t.timer.Stop()
		return false
	}
}

// classify turns an error of what runs into the run's. After a stop errors are
// the stop's own doing.
func (r *run) classify(what string, err error) error {
	switch {
	case r.hard.Err() != nil:
		return nil
	case errors.Is(err, rdma.ErrPeerDown), errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrOutcomeUnknown):
		return fmt.Errorf("%w: %s: %w", ErrServerLost, what, err)
	}
	return fmt.Errorf("driver: %s: %w", what, err)
}
