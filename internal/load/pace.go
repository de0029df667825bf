package load

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"

	"drtmx/internal/rng"
	"drtmx/txn"
)

// Recorder records the measurements that a worker makes by itself, such as those of
// the operations within one transaction: see Config.OwnRecords. Only the worker's
// goroutine may use it.
type Recorder struct {
	run   *run
	shard *shard
	due   time.Duration // when the transaction under way was due; 0 without a rate
	entry entry         // reused
}

// Context returns the context of the worker's transactions. It ends Config.Grace
// after the run was stopped.
func (rec *Recorder) Context() context.Context { return rec.run.hard }

// Now returns the time since the run began, for Record.
func (rec *Recorder) Now() time.Duration { return time.Since(rec.run.base) }

// Measuring reports whether the measured interval is under way.
func (rec *Recorder) Measuring() bool { return rec.run.now() == measuring }

// Record records an operation of a type, an index into Config.Types, that began at
// start, a result of Now, and ends now. It returns the operation's latency. It
// allocates only for the first operation of a type.
func (rec *Recorder) Record(typ int, start time.Duration, failed bool) time.Duration {
	return rec.record(typ, start, failed, true)
}

// RecordWork does the same as Record, and counts the operation's work: the statistics of
// the session before it and after it.
func (rec *Recorder) RecordWork(typ int, start time.Duration, failed bool, before, after *txn.SessionStats) time.Duration {
	rec.entry.last, rec.entry.before, rec.entry.after = *before, *before, *after
	return rec.record(typ, start, failed, false)
}

func (rec *Recorder) record(typ int, start time.Duration, failed, own bool) time.Duration {
	now := rec.Now()
	e := &rec.entry
	e.at, e.took, e.late, e.result.Outcome = now, now-start, rec.late(start), Committed
	if failed {
		e.result.Outcome = gaveUp
	}
	if in := rec.run.now(); in != over {
		rec.shard.record(in, typ, e, own)
	}
	return e.took
}

// late returns how late an operation began.
func (rec *Recorder) late(start time.Duration) time.Duration {
	if rec.due == 0 {
		return notDue
	}
	return max(start-rec.due, 0)
}

// Arrivals says when the transactions of a rate are due, and which worker runs each.
type Arrivals uint8

const (
	// Shares gives each worker an equal share of them, at equal distances, as go-ycsb
	// does. A slow transaction delays only those of its worker.
	Shares Arrivals = iota
	// Even has one schedule for all workers, at equal distances: a free worker takes
	// the transaction that is due next.
	Even
	// Poisson is Even with the random distances of many independent users.
	Poisson
)

// schedule has the times at which transactions are due, for all workers together. The
// load is open as long as some worker is free: transactions are due whether or not
// earlier ones have ended.
type schedule struct {
	distance float64     // mean, in ns
	rnd      *rng.Stream // nil: equal distances

	mu   sync.Mutex
	next float64 // ns since the run's base
}

// newSchedule returns nil unless workers share a schedule.
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
		s.next -= math.Log(1-s.rnd.Float64()) * s.distance // 1 - r is in (0, 1], where the logarithm is finite
	}
	return time.Duration(due)
}

// behind returns for how long the next transaction has been due, 0 if it is not due
// yet.
func (s *schedule) behind(now time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(now-time.Duration(s.next), 0)
}

// pace says when a worker's transactions are due: by the schedule of all workers, or
// at equal distances, interleaved with those of the other workers.
type pace struct {
	schedule *schedule     // nil: the worker has its own pace
	tick     time.Duration // distance; 0: no rate
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

// wait waits until the next transaction is due and returns that time, 0 without a
// rate. more is false if the run ended meanwhile.
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
	// timerSlack is by how much Go's timers may be late on an idle machine: the
	// runtime waits in whole milliseconds.
	timerSlack = 1500 * time.Microsecond
	// kernelSlack is by how much the kernel's timers may be late.
	kernelSlack = 60 * time.Microsecond
)

// sleepUntil sleeps for the last part of a wait with the kernel's precision, so that
// the lateness of the load loop is not counted as the database's.
func sleepUntil(base time.Time, due time.Duration) {
	if d := due - time.Since(base) - kernelSlack; d > 0 {
		nanosleep(d) // it may be cut short; the loop below waits for the rest
	}
	for time.Since(base) < due {
		runtime.Gosched()
	}
}
