package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/load"
	"drtmx/txn"
)

// grace is how long a stopped run waits for the operations under way.
const grace = 2 * time.Second

// Config describes a run: its plan and its environment.
type Config struct {
	Plan *Plan
	DB   ycsb.DB
	// Out receives reports during the run, and failures if silence=false.
	Out io.Writer
	// Fatal reports whether a failure ends the run; nil means that only ErrIntegrity
	// does.
	Fatal func(error) bool
	// Stats, if set, returns the counters of the session of a thread's context, and
	// false if it has none. Each operation's work is then in Result.Kinds.
	Stats func(ctx context.Context) (txn.SessionStats, bool)
	// Compute is processor time of the client that each operation takes besides, of a modelled
	// machine: the thread sleeps for so long.
	Compute time.Duration
	// Begin and End, if set, are called at the edges of the measured interval; see
	// load.Config.
	Begin, End func(ctx context.Context) error
}

// Result is the result of a run.
type Result struct {
	plan *Plan
	measurements
	samples []sample // of measurementtype=raw

	// Took is the time from the start of the threads to their end.
	Took time.Duration
	// Interrupted says that the context ended the run.
	Interrupted bool
	// Failed is the number of failed operations, including those of the warm-up, and
	// First is the first of their errors.
	Failed int64
	First  error
}

// run has the state that the threads of a run share.
type run struct {
	Config
	rmw    ReadModifyWriter // nil if the database does not implement it, or must not use it
	failed atomic.Int64
	mu     struct {
		sync.Mutex
		first   error
		threads []*thread
	}
	out sync.Mutex
}

// Start runs a plan to its end. When ctx ends, Start waits for operations under way,
// and the result says Interrupted. The error is the failure that ended the run; the
// result covers the run until then.
func Start(ctx context.Context, c Config) (*Result, error) {
	p, r := c.Plan, &run{Config: c}
	if !p.separate {
		r.rmw, _ = c.DB.(ReadModifyWriter)
	}
	cfg := load.Config{
		Types: kindNames, Clients: p.threads, Warmup: p.warmup, Duration: p.limit, Rate: float64(p.target) / float64(p.batch),
		NewWorker: r.newWorker, OwnRecords: true, Grace: grace,
		Begin: c.Begin, End: c.End,
	}
	sum := measurements{separate: r.rmw == nil, types: make([]load.TypeRecord, kinds)}
	if p.interval > 0 {
		cfg.Every = p.interval
		cfg.Interval = func(i load.Interval) {
			sum.add(i)
			if !i.Last {
				r.out.Lock()
				defer r.out.Unlock()
				sum.writeLines(r.Out, p.style)
			}
		}
	}
	rec, err := load.Run(ctx, cfg)
	var failure *load.Failure
	if errors.As(err, &failure) {
		err = failure.Err // the report shows the type of operation
	}
	res := &Result{plan: p, measurements: measurements{separate: sum.separate}, Failed: r.failed.Load(), First: r.mu.first}
	if rec == nil {
		return res, err
	}
	res.Took, res.Interrupted = rec.Warmup+rec.Elapsed, rec.Interrupted
	if !rec.WarmupOnly {
		res.types, res.elapsed = rec.Types, rec.Elapsed
	}
	for _, t := range r.mu.threads {
		res.samples = append(res.samples, t.db.samples...)
	}
	if err == nil && !res.Interrupted && p.phase == Load {
		if db, ok := c.DB.(ycsb.AnalyzeDB); ok {
			return res, db.Analyze(ctx, p.workload.table)
		}
	}
	return res, err
}

// newWorker makes thread id of a run, with its share of the operations.
func (r *run) newWorker(_ context.Context, id int, rec *load.Recorder) (load.Worker, error) {
	p := r.Plan
	batch, _ := r.DB.(ycsb.BatchDB)
	t := p.workload.newThread(p.phase, id)
	t.run, t.left = r, unbounded
	if p.count > 0 {
		t.left = p.count / int64(p.threads)
		if int64(id) < p.count%int64(p.threads) {
			t.left++
		}
	}
	t.ctx = r.DB.InitThread(rec.Context(), id, p.threads)
	t.db = &measured{db: r.DB, batch: batch, rmw: r.rmw, rec: rec, raw: p.raw, compute: r.Compute}
	if r.Stats != nil {
		if last, ok := r.Stats(t.ctx); ok {
			t.db.stats, t.db.last = func() txn.SessionStats { s, _ := r.Stats(t.ctx); return s }, last
		}
	}
	r.mu.Lock()
	r.mu.threads = append(r.mu.threads, t)
	r.mu.Unlock()
	return t, nil
}

// unbounded is the number of remaining operations of a run that only time ends.
const unbounded = -1

// Next implements load.Worker. The thread records operations itself, under their own
// types.
func (t *thread) Next() int {
	if t.left == 0 {
		return load.NoMore
	}
	return 0
}

// Run executes the next operation, or batch.
func (t *thread) Run(ctx context.Context, _ int) (load.Result, error) {
	n := int64(t.run.Plan.batch)
	if t.left != unbounded {
		n = min(n, t.left)
	}
	counted := t.db.rec.Measuring()
	err := t.step(t.ctx, t.db, t.run.Plan.phase, int(n))
	if counted && t.left != unbounded {
		t.left -= n
	}
	if err != nil && ctx.Err() == nil && t.run.fail(err) {
		return load.Result{}, err
	}
	// One-sided reads never wait. Without this, threads that read would keep the
	// processors for whole time slices, while the answers for other threads are there
	// already.
	runtime.Gosched()
	return load.Result{}, nil
}

// Pause implements load.Worker. YCSB has no pauses.
func (t *thread) Pause(int) (before, after time.Duration) { return 0, 0 }

// Stats implements load.Worker. Databases do not report network operations.
func (t *thread) Stats() txn.SessionStats { return txn.SessionStats{} }

// Close ends the database's thread.
func (t *thread) Close() error {
	t.run.DB.CleanupThread(t.ctx)
	return nil
}

// fail counts a failed operation, and reports whether it ends the run.
func (r *run) fail(err error) (fatal bool) {
	r.failed.Add(1)
	r.mu.Lock()
	if r.mu.first == nil {
		r.mu.first = err
	}
	r.mu.Unlock()
	if !r.Plan.silent {
		r.out.Lock()
		fmt.Fprintf(r.Out, "operation err: %v\n", err)
		r.out.Unlock()
	}
	return errors.Is(err, ErrIntegrity) || r.Fatal != nil && r.Fatal(err)
}
