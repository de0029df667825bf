package load

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
	// ErrServerLost reports that a data server stopped answering, which ends a run.
	// The record covers the run until then.
	ErrServerLost = errors.New("load: a data server stopped answering")
	// ErrConfig reports an invalid Config.
	ErrConfig = errors.New("load: bad configuration")
)

// Outcome says how a transaction ended that did not fail.
type Outcome uint8

// Outcomes.
const (
	Committed  Outcome = iota
	RolledBack         // by the workload's own rules, as 1 % of NEW-ORDERs
	Deferred           // accepted, and left to a Background
	gaveUp             // met conflicts in every attempt
)

// Result is the result of a transaction.
type Result struct {
	Outcome Outcome
	// Count is a figure that the workload defines, summed by type, such as the
	// districts that a DELIVERY skipped.
	Count uint64
}

// NoMore is the result of Worker.Next that ends the worker.
const NoMore = -1

// Worker runs transactions for one goroutine. It owns a session.
type Worker interface {
	// Next draws the type of the next transaction, an index into Config.Types. It
	// returns NoMore when the worker has no more to do.
	Next() int
	// Pause returns how long to wait before and after the transaction that Next drew,
	// as people at a terminal do. The end of the run cuts a pause short.
	Pause(typ int) (before, after time.Duration)
	// Run runs one transaction to its end. An error ends the run, unless it is a
	// conflict: an outcome that the workload's rules provide for is no error.
	Run(ctx context.Context, typ int) (Result, error)
	// Stats returns the session's statistics. It must not allocate.
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
	// Warmup precedes the measured interval; 0 means none. Its record is dropped when
	// it ends.
	Warmup time.Duration
	// Duration is the length of the measured interval. The interval ends earlier if
	// all workers have ended; 0 means that it ends only then.
	Duration time.Duration
	// Rate, if set, is how many transactions are due per second, over all workers. A
	// late transaction is not skipped.
	Rate float64
	// Arrivals says when they are due and which worker runs each; Seed seeds the
	// distances of Poisson.
	Arrivals Arrivals
	Seed     uint64
	// NewWorker makes worker id, which counts from 0.
	NewWorker func(ctx context.Context, id int, rec *Recorder) (Worker, error)
	// OwnRecords says that workers record their measurements with their Recorders.
	// The results of Run and Stats are then ignored, and every error of Run ends the
	// run.
	OwnRecords bool
	// Backgrounds is the number of Backgrounds; NewBackground makes the one with an
	// id, which counts from 0.
	Backgrounds   int
	NewBackground func(ctx context.Context, id int) (Background, error)
	// Begin and End, if set, are called at the edges of the measured interval; an
	// error ends the run. End is called only after Begin. If the run is cut short,
	// End is called with another context, which is still valid.
	Begin, End func(ctx context.Context) error
	// Tick, if set, is called a few times a second from one goroutine.
	Tick func(Progress)
	// Interval, if set, is called with each piece of the measured interval as it
	// ends, from one goroutine. Pieces have the length Every; the last may be
	// shorter. Together they hold exactly what the record holds.
	Every    time.Duration
	Interval func(Interval)
	// Grace is how long a stopped run waits for transactions under way before it
	// cancels their context; 0 means DefaultGrace.
	Grace time.Duration
}

// Progress is the state of a run at one moment.
type Progress struct {
	WarmingUp bool
	Elapsed   time.Duration // since the phase began
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
	if c.Duration < 0 {
		faults = append(faults, fmt.Errorf("duration of %v, want 0 or more", c.Duration))
	}
	if c.Rate < 0 {
		faults = append(faults, fmt.Errorf("rate of %v a second, want 0 or more", c.Rate))
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
	cfg         Config
	hard        context.Context // of the transactions; ends after the grace
	base        time.Time
	phase       atomic.Uint32
	began       atomic.Int64  // when the measured interval began, since base
	stop        chan struct{} // closed when the run is to end early
	idle        chan struct{} // closed when all workers have ended
	over        chan struct{} // closed when it ends
	once        sync.Once
	err         error // why stop was closed; guarded by once
	shards      []*shard
	tasks       []*task
	backgrounds []*backgroundTask
	pieces      *pieces // nil unless Config.Interval is set

	schedule *schedule // of all workers; nil if each has its own, or none
}

func (r *run) now() phase { return phase(r.phase.Load()) }

// Run runs the load. When ctx ends, the workers finish their current transactions and
// the record says Interrupted; that is no error. A failed transaction ends the run
// with a *Failure, which is ErrServerLost if a server is gone; the record then covers
// the run until that time. A run that ends within its warm-up has a record of the
// warm-up, marked WarmupOnly. The record is nil only for ErrConfig or if a worker or
// a background could not be made.
func Run(ctx context.Context, cfg Config) (*Record, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Grace == 0 {
		cfg.Grace = DefaultGrace
	}
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r := &run{
		cfg: cfg, base: time.Now(), hard: hard,
		stop: make(chan struct{}), idle: make(chan struct{}), over: make(chan struct{}),
	}
	r.makeShards()
	defer r.closeWorkers()
	for id := range cfg.Clients {
		t := newTask(r, r.shards[id%len(r.shards)])
		w, err := cfg.NewWorker(ctx, id, &t.recorder)
		if err != nil {
			return nil, fmt.Errorf("load: client %d: %w", id, err)
		}
		t.worker, t.entry.last = w, w.Stats()
		r.tasks = append(r.tasks, t)
	}
	if err := r.makeBackgrounds(ctx); err != nil {
		return nil, err
	}
	rec := &Record{Clients: cfg.Clients}
	begun := true
	if cfg.Warmup == 0 { // work counts from the start
		begun = r.begin(ctx)
	}
	var workers, backgrounds sync.WaitGroup
	for _, a := range r.backgrounds {
		backgrounds.Go(func() { r.runBackground(a) })
	}
	from := time.Since(r.base)
	r.schedule = newSchedule(&cfg, from)
	for id, t := range r.tasks {
		t.pace = pace{schedule: r.schedule}
		if r.schedule == nil {
			t.pace = newPace(cfg.Rate, id, cfg.Clients, from)
		}
		workers.Go(func() { r.work(t) })
	}
	go func() {
		workers.Wait()
		close(r.idle)
	}()
	r.conduct(ctx, rec, begun)
	breakOff := time.AfterFunc(cfg.Grace, cancel)
	<-r.idle
	for _, a := range r.backgrounds {
		a.background.Finish()
	}
	backgrounds.Wait()
	breakOff.Stop()
	if r.pieces != nil && !rec.WarmupOnly {
		r.piece(rec.Elapsed, true)
	}
	r.collect(rec)
	r.once.Do(func() {}) // orders err before the read below
	return rec, r.err
}

// begin begins the measured interval. It returns false if that failed; then the run
// ends.
func (r *run) begin(ctx context.Context) bool {
	if r.cfg.Begin != nil {
		if err := r.cfg.Begin(ctx); err != nil {
			r.fail(fmt.Errorf("load: begin of the measured interval: %w", err))
			return false
		}
	}
	r.began.Store(int64(time.Since(r.base)))
	r.phase.Store(uint32(measuring))
	return true
}

// conduct takes the run through its phases. begun says that the measured interval has
// begun already, as in a run without a warm-up.
func (r *run) conduct(ctx context.Context, rec *Record, begun bool) {
	if r.cfg.Warmup > 0 {
		started := time.Now()
		begun = r.await(ctx, warming, started, r.cfg.Warmup)
		rec.Warmup = time.Since(started)
		rec.Elapsed = rec.Warmup
		begun = begun && r.begin(ctx)
	}
	rec.WarmupOnly = !begun
	if begun {
		started := r.base.Add(time.Duration(r.began.Load()))
		r.await(ctx, measuring, started, r.cfg.Duration)
		rec.Elapsed = time.Since(started)
	}
	r.phase.Store(uint32(over))
	close(r.over)
	if r.schedule != nil {
		rec.Behind = r.schedule.behind(time.Since(r.base))
	}
	if begun {
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
		r.fail(fmt.Errorf("load: end of the measured interval: %w", err))
	}
}

// await waits for the end of a phase: for a time, or until all workers have ended if
// that is 0. It returns false if the run is cut short.
func (r *run) await(ctx context.Context, in phase, started time.Time, of time.Duration) bool {
	var ended <-chan time.Time
	if of > 0 {
		timer := time.NewTimer(of - time.Since(started))
		defer timer.Stop()
		ended = timer.C
	}
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
		case <-r.idle:
			return in == measuring
		case <-ended:
			r.tick(in, of, of, base)
			return true
		case <-piece:
			// The rest at the end is the last piece, however short: two pieces never
			// end at the same time.
			if at := time.Since(started); of == 0 || at < of {
				r.piece(at, false)
			}
		case <-ticker.C:
			at := time.Since(started)
			if of > 0 {
				at = min(at, of)
			}
			r.tick(in, at, of, base)
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
	for _, a := range r.backgrounds {
		n += a.finished.Load()
	}
	return n
}

// fail ends the run with an error. Only the first call has an effect.
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
	for _, a := range r.backgrounds {
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
		if more, err := r.one(t); err != nil {
			r.fail(err)
			return
		} else if !more {
			return
		}
	}
}

// one runs and records one transaction, with its pauses. It returns false if the
// worker has no more to do or the run has ended. It does not allocate.
func (r *run) one(t *task) (more bool, err error) {
	typ := t.worker.Next()
	if typ == NoMore {
		return false, nil
	}
	if t.recorder.due, more = t.pace.wait(r); !more {
		return false, nil
	}
	keying, think := t.worker.Pause(typ)
	if !r.pause(t, keying) {
		return false, nil
	}
	if r.cfg.OwnRecords {
		if _, err := t.worker.Run(r.hard, typ); err != nil {
			return false, r.classify(r.cfg.Types[typ], err)
		}
		t.finished.Add(1)
		return r.pause(t, think), nil
	}
	e := &t.entry
	e.before = t.worker.Stats()
	start := time.Since(r.base) // time.Now would read the wall clock too, at the same cost again
	result, err := t.worker.Run(r.hard, typ)
	end := time.Since(r.base)
	e.at, e.took, e.late = end, end-start, t.recorder.late(start)
	e.after, e.result = t.worker.Stats(), result
	if err != nil {
		if !errors.Is(err, txn.ErrConflict) {
			return false, r.classify(r.cfg.Types[typ], err)
		}
		e.result.Outcome = gaveUp
	}
	if e.result.Outcome != Deferred {
		t.finished.Add(1)
	}
	if in := r.now(); in != over {
		t.shard.record(in, typ, e, false)
	}
	e.last = e.after
	return r.pause(t, think), nil
}

// pause waits. It returns false if the run ended meanwhile.
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

// classify turns an error of a worker or a background into that of the run. After the
// grace it returns nil: the end of the context causes errors.
func (r *run) classify(what string, err error) error {
	if r.hard.Err() != nil {
		return nil
	}
	lost := errors.Is(err, rdma.ErrPeerDown) || errors.Is(err, txn.ErrUnavailable) || errors.Is(err, txn.ErrOutcomeUnknown)
	return &Failure{What: what, Err: err, lost: lost}
}

// Failure is the error of a transaction that has ended a run. It wraps ErrServerLost
// if a data server stopped answering.
type Failure struct {
	What string // the transaction's type
	Err  error
	lost bool
}

// Error returns the error with the transaction's type.
func (f *Failure) Error() string {
	if f.lost {
		return fmt.Sprintf("%v: %s: %v", ErrServerLost, f.What, f.Err)
	}
	return fmt.Sprintf("load: %s: %v", f.What, f.Err)
}

// Unwrap returns the transaction's error, and ErrServerLost if a server is gone.
func (f *Failure) Unwrap() []error {
	if f.lost {
		return []error{ErrServerLost, f.Err}
	}
	return []error{f.Err}
}
