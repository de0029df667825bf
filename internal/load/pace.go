package load

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"

	"drtmx/internal/rng"
)

// Recorder records what a worker measures by itself, such as the operations
// that one transaction consists of: see Config.OwnRecords. It is for the worker's
// goroutine.
type Recorder struct {
	run   *run
	shard *shard
	due   time.Duration // when the transaction under way was to begin; 0 without a rate
	entry entry         // used again and again
}

// Context is that of the worker's transactions: it ends some time after the
// run was told to.
func (rec *Recorder) Context() context.Context { return rec.run.hard }

// Now is the time since the run's base, for Record.
func (rec *Recorder) Now() time.Duration { return time.Since(rec.run.base) }

// Measuring reports whether the measured interval is under way.
func (rec *Recorder) Measuring() bool { return rec.run.now() == measuring }

// Record records an operation of a type, an index into Config.Types, that began
// at a time of Now and has ended. It allocates nothing, but for the first of a
// type, and returns what the operation took.
func (rec *Recorder) Record(typ int, start time.Duration, failed bool) time.Duration {
	now := rec.Now()
	e := &rec.entry
	e.at, e.took, e.late, e.result.Outcome = now, now-start, rec.late(start), Committed
	if failed {
		e.result.Outcome = gaveUp
	}
	if in := rec.run.now(); in != over {
		rec.shard.record(in, typ, e, true)
	}
	return e.took
}

// late is how late an operation began.
func (rec *Recorder) late(start time.Duration) time.Duration {
	if rec.due == 0 {
		return notDue
	}
	return max(start-rec.due, 0)
}

// Arrivals says when the transactions of a rate are due, and who runs them.
type Arrivals uint8

const (
	// Shares gives each worker an equal share of them, at equal distances, as
	// go-ycsb's threads have. A slow transaction delays only its own worker's.
	Shares Arrivals = iota
	// Even has one schedule for all workers, at equal distances: a worker that
	// is free takes the transaction that is due next.
	Even
	// Poisson is Even with the random distances of many independent users.
	Poisson
)

// schedule is when transactions are due, for all workers together. The load is
// open as long as some worker is free: transactions are due whether or not
// those before them have ended.
type schedule struct {
	distance float64     // mean, in ns
	rnd      *rng.Stream // nil: equal distances

	mu   sync.Mutex
	next float64 // ns since the run's base
}

// newSchedule is nil unless workers share a schedule.
func newSchedule(cfg *Config, from time.Duration) *schedule {
	if cfg.Rate == 0 || cfg.Arrivals == Shares {
		return nil
	}
	s := &schedule{distance: float64(time.Second) / cfg.Rate, next: float64(from)}
	if cfg.Arrivals == Poisson {
		s.rnd = rng.New(cfg.Seed).Split("load.arrivals")
	}
	s.take()
	return s
}

// take returns when the next transaction is due, and moves on.
func (s *schedule) take() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.next
	if s.rnd == nil {
		s.next += s.distance
	} else {
		s.next -= math.Log(1-s.rnd.Float64()) * s.distance // 1 - r lies in (0, 1], where the logarithm is finite
	}
	return time.Duration(due)
}

// behind is for how long the next transaction has been due, 0 if it is not.
func (s *schedule) behind(now time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(now-time.Duration(s.next), 0)
}

// pace says when a worker's transactions are due: by the schedule of all
// workers, or at equal distances, those of all workers interleaved.
type pace struct {
	schedule *schedule     // nil: the worker has its own
	tick     time.Duration // 0: at once
	next     time.Duration // since the run's base
	timer    *time.Timer
}

func newPace(rate float64, id, workers int, from time.Duration) pace {
	if rate == 0 {
		return pace{}
	}
	tick := max(time.Duration(float64(workers)/rate*float64(time.Second)), 1)
	return pace{tick: tick, next: from + tick*time.Duration(id)/time.Duration(workers)}
}

// wait returns when the next transaction is due, 0 without a rate, and false if
// the run ended meanwhile.
func (p *pace) wait(r *run) (due time.Duration, more bool) {
	switch {
	case p.schedule != nil:
		due = p.schedule.take()
	case p.tick == 0:
		return 0, true
	default:
		due = p.next
		p.next += p.tick
	}
	if d := due - time.Since(r.base) - timerSlack; d > 0 {
		if p.timer == nil {
			p.timer = time.NewTimer(d)
		} else {
			p.timer.Reset(d)
		}
		select {
		case <-r.over:
			p.timer.Stop()
			return due, false
		case <-p.timer.C:
		}
	}
	sleepUntil(r.base, due)
	return due, true
}

const (
	// timerSlack is by how much Go's timers may be late on a machine that
	// idles: the runtime waits in whole milliseconds.
	timerSlack = 1500 * time.Microsecond
	// kernelSlack is by how much the kernel's may.
	kernelSlack = 60 * time.Microsecond
)

// sleepUntil sleeps for the last stretch with the kernel's precision, so that
// the lateness of the load loop is not counted as the database's.
func sleepUntil(base time.Time, due time.Duration) {
	if d := due - time.Since(base) - kernelSlack; d > 0 {
		nanosleep(d) // it may be cut short, and the rest is waited for below
	}
	for time.Since(base) < due {
		runtime.Gosched()
	}
}
