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
	"golang.org/x/sys/unix"
)

// grace is how long a stopped run waits for the operations under way.
const grace = 2 * time.Second

// Config is what a run needs beside its plan.
type Config struct {
	Plan *Plan
	DB   ycsb.DB
	// Out is where reports on the way go, and failures if silence=false.
	Out io.Writer
	// Fatal says which failures end the run; nil means none but ErrIntegrity.
	Fatal func(error) bool
}

// Result is a run that has ended.
type Result struct {
	plan  *Plan
	meter *meter
	ended time.Time

	// Took is the time from the start of the threads to their end.
	Took time.Duration
	// Interrupted says that the context ended the run.
	Interrupted bool
	// Failed operations, warm-up included, and the first of their errors.
	Failed int64
	First  error
}

type run struct {
	Config
	plan  *Plan
	meter *meter
	hard  context.Context // of the operations
	stop  chan struct{}   // closed when no more are to begin
	once  sync.Once
	fatal error // why, if an operation is; guarded by once

	failed atomic.Int64
	mu     struct {
		sync.Mutex
		first error
	}
	out sync.Mutex
}

// Start runs a plan to its end. When ctx ends, operations under way are
// finished and the result says Interrupted. The error is the failure that
// ended the run; the result holds what ran before it.
func Start(ctx context.Context, c Config) (*Result, error) {
	p := c.Plan
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	r := &run{Config: c, plan: p, meter: newMeter(p.threads, p.raw), hard: hard, stop: make(chan struct{})}
	rmw, ok := c.DB.(ReadModifyWriter)
	if p.separate || !ok {
		rmw = nil
	}
	r.meter.separate = rmw == nil
	r.meter.on.Store(p.warmup == 0) // not left to the conductor, which may be late
	over, begin := make(chan struct{}), make(chan struct{})
	var conductor, ready, threads sync.WaitGroup
	var started time.Time // before begin is closed
	for id := range p.threads {
		ready.Add(1)
		threads.Go(func() {
			th := r.newTask(id, rmw)
			ready.Done()
			<-begin // all at once: making connections is not part of the run
			th.work(started)
		})
	}
	ready.Wait()
	started = time.Now()
	close(begin)
	conductor.Go(func() { r.conduct(ctx, over, cancel) })
	threads.Wait()
	close(over)
	conductor.Wait()
	res := &Result{
		plan: p, meter: r.meter, ended: time.Now(), Took: time.Since(started),
		Interrupted: ctx.Err() != nil, Failed: r.failed.Load(), First: r.mu.first,
	}
	r.once.Do(func() {}) // orders fatal before the read below
	if r.fatal == nil && !res.Interrupted && p.phase == Load {
		if db, ok := c.DB.(ycsb.AnalyzeDB); ok {
			return res, db.Analyze(ctx, p.workload.table)
		}
	}
	return res, r.fatal
}

// conduct ends the warm-up, reports on the way, and stops the threads.
func (r *run) conduct(ctx context.Context, over chan struct{}, cancel func()) {
	var warm, limit, interval <-chan time.Time
	begin := func() {
		r.meter.on.Store(true)
		if r.plan.limit > 0 {
			limit = time.After(r.plan.limit)
		}
		if r.plan.interval > 0 {
			interval = time.Tick(r.plan.interval)
		}
	}
	if r.plan.warmup > 0 {
		warm = time.After(r.plan.warmup)
	} else {
		begin()
	}
	stopped := r.stop
	var broken <-chan time.Time
	for {
		select {
		case <-over:
			return
		case <-warm:
			begin()
		case <-interval:
			r.out.Lock()
			r.meter.writeLines(r.Out, r.plan.style, time.Now())
			r.out.Unlock()
		case <-limit:
			r.end(nil)
		case <-ctx.Done():
			r.end(nil)
			ctx = context.WithoutCancel(ctx)
		case <-stopped:
			stopped, broken = nil, time.After(grace)
		case <-broken:
			r.meter.on.Store(false) // what is broken off is no measurement
			cancel()
		}
	}
}

// end stops the threads, because of an error if there is one.
func (r *run) end(because error) {
	r.once.Do(func() {
		r.fatal = because
		close(r.stop)
	})
}

// task is one thread of a run.
type task struct {
	*run
	id   int
	ctx  context.Context
	db   *measured
	load *thread
}

func (r *run) newTask(id int, rmw ReadModifyWriter) *task {
	batch, _ := r.DB.(ycsb.BatchDB)
	return &task{
		run: r, id: id, ctx: r.DB.InitThread(r.hard, id, r.plan.threads),
		db:   &measured{db: r.DB, batch: batch, rmw: rmw, meter: r.meter, shard: r.meter.shards[id%len(r.meter.shards)]},
		load: r.plan.workload.newThread(r.plan.phase, id),
	}
}

// work runs the operations of a thread.
func (r *task) work(started time.Time) {
	defer r.DB.CleanupThread(r.ctx)
	p := r.plan
	count := p.count / int64(p.threads)
	if int64(r.id) < p.count%int64(p.threads) {
		count++
	}
	pace := newPace(p, r.id, started)
	for done := int64(0); p.count == 0 || done < count; {
		n := int64(p.batch)
		if p.count > 0 {
			n = min(n, count-done)
		}
		due, ok := pace.wait(r.stop)
		if !ok {
			return
		}
		r.db.due = due
		counted := r.meter.on.Load()
		if err := r.load.step(r.ctx, r.db, p.phase, int(n)); err != nil && r.hard.Err() == nil {
			r.fail(err)
		}
		if counted {
			done += n
		}
		// One-sided reads never wait. Without this, threads that read would keep
		// the processors for whole time slices while the answers that others
		// wait for lie there.
		runtime.Gosched()
	}
}

// fail counts a failed operation.
func (r *run) fail(err error) {
	r.failed.Add(1)
	r.mu.Lock()
	if r.mu.first == nil {
		r.mu.first = err
	}
	r.mu.Unlock()
	if !r.plan.silent {
		r.out.Lock()
		fmt.Fprintf(r.Out, "operation err: %v\n", err)
		r.out.Unlock()
	}
	if errors.Is(err, ErrIntegrity) || r.Fatal != nil && r.Fatal(err) {
		r.end(err)
	}
}

// pace says when a thread's operations are due: at equal distances, the
// threads' interleaved. An operation that is late is not skipped, and its
// latency counts from when it was due.
type pace struct {
	tick  time.Duration // 0: at once
	next  time.Time
	timer *time.Timer
}

func newPace(p *Plan, id int, started time.Time) *pace {
	if p.target == 0 {
		return &pace{}
	}
	tick := time.Duration(float64(p.threads) * float64(p.batch) / float64(p.target) * float64(time.Second))
	return &pace{tick: max(tick, 1), next: started.Add(tick * time.Duration(id) / time.Duration(p.threads))}
}

// wait returns when the next operation is due, zero if there is no rate, and
// false if the run is to stop.
func (c *pace) wait(stop <-chan struct{}) (time.Time, bool) {
	select {
	case <-stop:
		return time.Time{}, false
	default:
	}
	if c.tick == 0 {
		return time.Time{}, true
	}
	due := c.next
	c.next = due.Add(c.tick)
	d := time.Until(due) - coarse
	if d <= 0 {
		sleepUntil(due)
		return due, true
	}
	if c.timer == nil {
		c.timer = time.NewTimer(d)
	} else {
		c.timer.Reset(d)
	}
	select {
	case <-stop:
		c.timer.Stop()
		return due, false
	case <-c.timer.C:
		sleepUntil(due)
		return due, true
	}
}

const (
	// coarse is by how much Go's timers may be late on a machine that idles:
	// the runtime waits in whole milliseconds.
	coarse = 1500 * time.Microsecond
	// fine is by how much the kernel's may.
	fine = 60 * time.Microsecond
)

// sleepUntil sleeps for the last stretch with the kernel's precision, so that
// the load generator's own lateness does not pass for the database's.
func sleepUntil(due time.Time) {
	if d := time.Until(due) - fine; d > 0 {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // cut short by a signal, the rest is waited for below
	}
	for time.Now().Before(due) {
		runtime.Gosched()
	}
}
