package load

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"drtmx/txn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a worker whose transactions take a fixed time and use a fixed number
// of rounds, so that a run under fake time has exactly one right record.
type fake struct {
	takes  time.Duration
	fail   func(n int) error
	out    func(n int) Outcome
	before time.Duration
	after  time.Duration
	n      int
	stats  txn.SessionStats
	closed *atomic.Int64
}

func (f *fake) Next() int { return f.n % 2 }

func (f *fake) Pause(int) (before, after time.Duration) { return f.before, f.after }

func (f *fake) Run(ctx context.Context, typ int) (Result, error) {
	n := f.n
	f.n++
	f.stats.Rounds += uint64(1 + typ)
	f.stats.Fabric.Reads += uint64(2 + typ)
	f.stats.Fabric.ReadBytes += 64
	f.stats.Aborts[txn.CauseRow]++
	if f.takes > 0 {
		select {
		case <-time.After(f.takes):
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
	if f.fail != nil {
		if err := f.fail(n); err != nil {
			return Result{}, err
		}
	}
	if f.out != nil {
		return Result{Outcome: f.out(n), Count: 7}, nil
	}
	return Result{Count: 7}, nil
}

func (f *fake) Stats() txn.SessionStats { return f.stats }
func (f *fake) Close() error            { f.closed.Add(1); return nil }

func config(make func(id int) *fake) (Config, *atomic.Int64) {
	closed := new(atomic.Int64)
	return Config{
		Types: []string{"A", "B"}, Clients: 4, Warmup: time.Second, Duration: 10 * time.Second,
		NewWorker: func(_ context.Context, id int, _ *Recorder) (Worker, error) {
			f := make(id)
			f.closed = closed
			return f, nil
		},
	}, closed
}

func TestRecordIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, closed := config(func(int) *fake { return &fake{takes: 3 * time.Millisecond} })
		edges := []time.Time{}
		cfg.Begin = func(context.Context) error { edges = append(edges, time.Now()); return nil }
		cfg.End = cfg.Begin
		rec, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Elapsed != cfg.Duration || edges[1].Sub(edges[0]) != cfg.Duration || rec.Interrupted {
			t.Errorf("measured %v between %v, interrupted %v", rec.Elapsed, edges, rec.Interrupted)
		}
		// Each worker ends a transaction every 3 ms: 3333 or 3334 of them in 10 s.
		n := rec.Committed()
		if n < 4*3333 || n > 4*3334 {
			t.Errorf("%d transactions, want 4 × 3333 or 3334", n)
		}
		for i, ty := range rec.Types {
			if ty.Rounds != ty.Committed*uint64(1+i) || ty.Fabric.Reads != ty.Committed*uint64(2+i) ||
				ty.Fabric.ReadBytes != ty.Committed*64 || ty.Aborts[txn.CauseRow] != ty.Committed ||
				ty.Aborted() != ty.Committed || ty.Count != 7*ty.Committed || ty.Latency.Count() != int64(ty.Committed) {
				t.Errorf("%s: %+v does not add up", ty.Name, ty)
			}
			if p := ty.Latency.QuantileUs(0.5); p != 3000 {
				t.Errorf("%s: median %v µs, want 3000", ty.Name, p)
			}
		}
		if rec.Between != (Work{}) {
			t.Errorf("work between transactions: %+v", rec.Between)
		}
		if closed.Load() != 4 {
			t.Errorf("%d workers closed, want 4", closed.Load())
		}
	})
}

func TestOutcomesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(int) *fake {
			return &fake{
				takes: 10 * time.Millisecond,
				out:   func(n int) Outcome { return Outcome(n % 2) },
				fail: func(n int) error {
					if n%10 == 0 {
						return fmt.Errorf("gave up: %w", txn.ErrConflict)
					}
					return nil
				},
			}
		})
		rec, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		a, b := rec.Types[0], rec.Types[1]
		if a.RolledBack != 0 || b.Committed != 0 || b.RolledBack != b.Finished() || b.Latency.Count() != 0 {
			t.Errorf("A %+v, B %+v: want A to commit and B to roll back", a, b)
		}
		if share := float64(a.GaveUp) / float64(a.Finished()); share < 0.19 || share > 0.21 {
			t.Errorf("%d of %d gave up, want one in five", a.GaveUp, a.Finished())
		}
	})
}

func TestInterruptEndsTheRunWithItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, closed := config(func(int) *fake { return &fake{takes: 7 * time.Millisecond} })
		ended := false
		cfg.End = func(ctx context.Context) error { ended = ctx.Err() == nil; return nil }
		cfg.Begin = func(context.Context) error { return nil }
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		rec, err := Run(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if !rec.Interrupted || rec.Elapsed != 2*time.Second || rec.Committed() == 0 || !ended || closed.Load() != 4 {
			t.Errorf("record %+v, end called properly %v, closed %d", rec, ended, closed.Load())
		}
	})
}

func TestInterruptInWarmupReportsTheWarmup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(int) *fake { return &fake{takes: time.Millisecond} })
		cfg.End = func(context.Context) error { t.Error("End without Begin"); return nil }
		cfg.Every, cfg.Interval = time.Second, func(Interval) { t.Error("an interval of the warm-up") }
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		rec, err := Run(ctx, cfg)
		if err != nil || !rec.Interrupted || !rec.WarmupOnly || rec.Elapsed != 500*time.Millisecond {
			t.Errorf("record %+v, error %v", rec, err)
		}
		if n := rec.Committed(); n < 4*499 || n > 4*500 || rec.Throughput() < 3990 {
			t.Errorf("%d transactions, want 4 × 499 or 500", n)
		}
	})
}

// Nothing that the warm-up recorded may be left: its transactions are slow,
// conflict and give up, those of the measured interval do not.
func TestWarmupLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Bool
		cfg, _ := config(func(int) *fake {
			f := &fake{takes: 41 * time.Millisecond} // none ends with the warm-up
			f.fail = func(int) error {
				if !begun.Load() {
					return txn.ErrConflict
				}
				f.takes = 3 * time.Millisecond
				return nil
			}
			return f
		})
		cfg.Clients, cfg.Duration = 3*shardsMax, 5*time.Second // workers share shards
		cfg.Begin = func(context.Context) error { begun.Store(true); return nil }
		rec, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, ty := range rec.Types {
			// One of each worker's transactions began in the warm-up.
			if ty.GaveUp != 0 || ty.Lost != nil || ty.Latency.QuantileUs(0.99) > 3010 || ty.Latency.Count() != int64(ty.Committed) ||
				ty.Aborts[txn.CauseRow] != ty.Committed {
				t.Errorf("%s: %+v", ty.Name, ty)
			}
		}
	})
}

// Pauses are not latency, count against the rate, and end with the run.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(int) *fake {
			return &fake{takes: 5 * time.Millisecond, before: 20 * time.Millisecond, after: 75 * time.Millisecond}
		})
		rec, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n := rec.Committed(); n < 4*99 || n > 4*101 {
			t.Errorf("%d transactions in 10 s, want one in 100 ms from each of 4", n)
		}
		if l := rec.Types[0].Latency; l.QuantileUs(1) != 5000 {
			t.Errorf("latency %v µs, want 5000: without pauses", l.QuantileUs(1))
		}
		cfg, _ = config(func(int) *fake { return &fake{takes: time.Millisecond, after: time.Hour} })
		start := time.Now()
		if _, err := Run(t.Context(), cfg); err != nil || time.Since(start) != 11*time.Second {
			t.Errorf("took %v, error %v; want the pause cut short after 11 s", time.Since(start), err)
		}
	})
}

// Intervals are as long as asked, follow each other, and add up to the record.
func TestIntervalsAddUp(t *testing.T) {
	for _, duration := range []time.Duration{10 * time.Second, 9500 * time.Millisecond, 300 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			cfg, _ := config(func(id int) *fake {
				return &fake{takes: time.Duration(3+id) * time.Millisecond, fail: func(n int) error {
					if n%100 == 7 {
						return txn.ErrConflict
					}
					return nil
				}}
			})
			cfg.Duration, cfg.Every = duration, time.Second
			sum := newTally(cfg.Types)
			var ends []time.Duration
			cfg.Interval = func(i Interval) {
				if len(ends) > 0 && i.From != ends[len(ends)-1] || len(ends) == 0 && i.From != 0 {
					t.Errorf("interval from %v after %v", i.From, ends)
				}
				ends = append(ends, i.To)
				for k := range i.Types {
					sum.types[k].Merge(&i.Types[k])
				}
			}
			rec, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if want := int((duration + cfg.Every - 1) / cfg.Every); len(ends) != want || ends[len(ends)-1] != duration {
				t.Errorf("intervals end at %v, want %d of them", ends, want)
			}
			for k, ty := range rec.Types {
				s := sum.types[k]
				if s.Latency.Snapshot() != ty.Latency.Snapshot() || s.Committed != ty.Committed || s.GaveUp != ty.GaveUp || s.Count != ty.Count ||
					s.Work != ty.Work || s.Aborts != ty.Aborts || ty.Lost != nil && s.Lost.Snapshot() != ty.Lost.Snapshot() {
					t.Errorf("%s: intervals %+v, record %+v", ty.Name, s, ty)
				}
			}
		})
	}
}

// later is a queue of deferred transactions and what runs them.
type later struct {
	queue  chan time.Time
	takes  time.Duration
	fail   error
	stats  txn.SessionStats
	ran    int
	closed *atomic.Int64
}

func (l *later) Run(ctx context.Context, done func(Done)) error {
	for queued := range l.queue {
		select {
		case <-time.After(l.takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.fail != nil {
			return l.fail
		}
		l.stats.Rounds += 5
		l.ran++
		done(Done{Type: 1, Took: time.Since(queued), Result: Result{Count: 2}, GaveUp: l.ran%10 == 0})
	}
	return nil
}

func (l *later) Finish()                 { close(l.queue) }
func (l *later) Stats() txn.SessionStats { return l.stats }
func (l *later) Close() error            { l.closed.Add(1); return nil }

// deferring is a fake whose transactions of type 1 are left to later.
type deferring struct {
	*fake
	*later
}

func (d deferring) Run(ctx context.Context, typ int) (Result, error) {
	r, err := d.fake.Run(ctx, typ)
	if typ == 1 {
		d.queue <- time.Now()
		r.Outcome = Deferred
	}
	return r, err
}

func (d deferring) Stats() txn.SessionStats { return d.fake.Stats() }
func (d deferring) Close() error            { return d.fake.Close() }

func deferredConfig(takes time.Duration, fail error) (Config, *atomic.Int64, *later) {
	l := &later{queue: make(chan time.Time, 1000), takes: takes, fail: fail}
	cfg, closed := config(nil)
	l.closed = closed
	cfg.NewWorker = func(context.Context, int, *Recorder) (Worker, error) {
		return deferring{&fake{takes: 5 * time.Millisecond, closed: closed}, l}, nil
	}
	cfg.Backgrounds = 1
	cfg.NewBackground = func(context.Context, int) (Background, error) { return l, nil }
	return cfg, closed, l
}

// Deferred transactions count when they have run, with their own latency and
// costs; what waits at the end is run, and not counted.
func TestDeferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, closed, l := deferredConfig(time.Millisecond, nil)
		rec, err := Run(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		// Four workers defer one in 10 ms each, together.
		b := &rec.Types[1]
		if n := b.Deferred; n < 3990 || n > 4010 || b.Finished() < n-10 || b.Finished() > n+10 || b.Accepted.Count() != int64(n) {
			t.Errorf("%d deferred, %d run, want 4000", n, b.Finished())
		}
		if b.GaveUp < 395 || b.GaveUp > 405 || b.Rounds < 5*b.Finished() || b.Count < 2*b.Finished() {
			t.Errorf("record %+v", b)
		}
		if p := b.Accepted.QuantileUs(1); p != 5000 {
			t.Errorf("deferring took %v µs, want 5000", p)
		}
		if lo, hi := b.Latency.QuantileUs(0), b.Latency.QuantileUs(1); lo != 1000 || hi < 3990 || hi > 4010 {
			t.Errorf("latencies %v to %v µs, want 1000 to 4000: they run one after the other", lo, hi)
		}
		if l.ran < 4390 || closed.Load() != 5 {
			t.Errorf("%d have run in all, %d closed", l.ran, closed.Load())
		}
	})
}

func TestStuckDeferredTransactionsAreBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _, _ := deferredConfig(time.Hour, nil)
		cfg.Warmup, cfg.Duration, cfg.Clients = 0, time.Second, 1
		start := time.Now()
		rec, err := Run(t.Context(), cfg)
		if err != nil || rec.Types[1].Deferred == 0 || rec.Types[1].Finished() != 0 {
			t.Errorf("record %+v, error %v", rec, err)
		}
		if took := time.Since(start); took != time.Second+DefaultGrace {
			t.Errorf("took %v, want duration and grace", took)
		}
	})
}

func TestFailedBackgroundEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _, _ := deferredConfig(time.Millisecond, fmt.Errorf("commit: %w", txn.ErrUnavailable))
		if _, err := Run(t.Context(), cfg); !errors.Is(err, ErrServerLost) || !strings.Contains(err.Error(), "deferred") {
			t.Errorf("error %v, want ErrServerLost", err)
		}
	})
}

func TestStuckTransactionIsBrokenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(int) *fake { return &fake{takes: time.Hour} })
		cfg.Grace = 3 * time.Second
		start := time.Now()
		rec, err := Run(t.Context(), cfg)
		if err != nil || rec.Committed() != 0 {
			t.Errorf("record %+v, error %v", rec, err)
		}
		if took := time.Since(start); took != 14*time.Second {
			t.Errorf("took %v, want warm-up, duration and grace", took)
		}
	})
}

func TestLostServerEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(id int) *fake {
			return &fake{takes: time.Millisecond, fail: func(n int) error {
				if id == 2 && n == 5000 {
					return fmt.Errorf("read: %w", txn.ErrUnavailable)
				}
				return nil
			}}
		})
		rec, err := Run(t.Context(), cfg)
		if !errors.Is(err, ErrServerLost) || !errors.Is(err, txn.ErrUnavailable) {
			t.Fatalf("error %v, want ErrServerLost", err)
		}
		if rec.Elapsed < 3*time.Second || rec.Elapsed > 5*time.Second || rec.Committed() == 0 || rec.Interrupted {
			t.Errorf("record %+v", rec)
		}
	})
}

func TestFailedTransactionNamesItsType(t *testing.T) {
	cfg, _ := config(func(int) *fake {
		return &fake{fail: func(n int) error {
			if n == 3 {
				return errors.New("boom")
			}
			return nil
		}}
	})
	_, err := Run(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "B: boom") {
		t.Errorf("error %v, want one that names type B", err)
	}
}

func TestFailedEdgeEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := config(func(int) *fake { return &fake{takes: time.Millisecond} })
		cfg.Begin = func(context.Context) error { return errors.New("no statistics") }
		rec, err := Run(t.Context(), cfg)
		if err == nil || rec == nil || !rec.WarmupOnly {
			t.Errorf("record %+v, error %v", rec, err)
		}
	})
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	_, err := Run(t.Context(), Config{Clients: MaxClients + 1, Warmup: -1, Duration: -1, Rate: -1, Backgrounds: 1, Interval: func(Interval) {}})
	if !errors.Is(err, ErrConfig) {
		t.Fatalf("error %v, want ErrConfig", err)
	}
	for _, want := range []string{"types", "clients", "warm-up", "duration", "rate", "intervals", "backgrounds", "NewWorker"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %s", err, want)
		}
	}
}

// lone is a run of one worker that is measuring, with or without intervals.
func lone(ctx context.Context, intervals bool) (*run, *task) {
	r := &run{cfg: Config{Types: []string{"A", "B"}, Clients: 1}, hard: ctx, base: time.Now(), over: make(chan struct{})}
	if intervals {
		r.cfg.Interval = func(Interval) {}
	}
	r.makeShards()
	r.phase.Store(uint32(measuring))
	t := newTask(r, r.shards[0])
	t.worker = &fake{closed: new(atomic.Int64)}
	for range 4 * latencyBatch { // makes the histograms
		_, _ = r.one(t)
	}
	return r, t
}

func TestRecordingAllocatesNothing(t *testing.T) {
	r, task := lone(t.Context(), true)
	if n := testing.AllocsPerRun(100, func() { _, _ = r.one(task) }); n != 0 {
		t.Errorf("%v allocations for each transaction, want 0", n)
	}
}

func BenchmarkOverhead(b *testing.B) {
	for name, intervals := range map[string]bool{"record": false, "record+intervals": true} {
		b.Run(name, func(b *testing.B) {
			r, task := lone(b.Context(), intervals)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = r.one(task)
			}
		})
	}
}

// counting is a worker that has so many transactions to do, in two recorded
// steps each, of which every fifth fails.
type counting struct {
	rec  *Recorder
	left int
	n    int
}

func (c *counting) Next() int {
	if c.left == 0 {
		return NoMore
	}
	return 0
}

func (c *counting) Pause(int) (before, after time.Duration) { return 0, 0 }

func (c *counting) Run(context.Context, int) (Result, error) {
	if c.rec.Measuring() {
		c.left--
	}
	for typ := range 2 {
		start := c.rec.Now()
		time.Sleep(time.Duration(1+typ) * time.Millisecond)
		c.n++
		c.rec.Record(typ, start, c.n%5 == 0)
	}
	return Result{}, nil
}

func (c *counting) Stats() txn.SessionStats { return txn.SessionStats{} }
func (c *counting) Close() error            { return nil }

// A run may end when its workers have done what they were to do, and a worker
// may measure for itself. What the warm-up does is not part of it.
func TestRunOfCountedTransactions(t *testing.T) {
	for _, warmup := range []time.Duration{0, 50 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var pieces uint64
			rec, err := Run(t.Context(), Config{
				Types: []string{"A", "B"}, Clients: 4, Warmup: warmup, Every: 100 * time.Millisecond, OwnRecords: true,
				Interval:  func(i Interval) { pieces += i.Types[0].Committed + i.Types[1].Committed },
				NewWorker: func(_ context.Context, _ int, r *Recorder) (Worker, error) { return &counting{rec: r, left: 100}, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			a, b := rec.Types[0], rec.Types[1]
			if n := a.Finished() + b.Finished(); n < 800 || n > 808 || warmup == 0 && n != 800 {
				t.Errorf("%d operations, want 2 × 4 × 100", n)
			}
			if a.Committed+b.Committed != pieces || uint64(b.Latency.Count()) != b.Committed || uint64(a.Lost.Count()) != a.GaveUp || a.GaveUp < 70 {
				t.Errorf("A %+v, B %+v, intervals %d", a, b, pieces)
			}
			if a.Latency.QuantileUs(1) != 1000 || b.Latency.QuantileUs(0) != 2000 || a.Due != nil {
				t.Errorf("A at most %v µs, B at least %v µs", a.Latency.QuantileUs(1), b.Latency.QuantileUs(0))
			}
			if warmup == 0 && (a.First != time.Millisecond || b.First != 3*time.Millisecond || rec.Elapsed != 300*time.Millisecond) {
				t.Errorf("first A after %v, first B after %v, all after %v", a.First, b.First, rec.Elapsed)
			}
		})
	}
}

// A rate is held, and what it makes wait counts from when it was due.
func TestRate(t *testing.T) {
	rec, err := Run(t.Context(), Config{
		Types: []string{"A", "B"}, Clients: 2, Rate: 500,
		NewWorker: func(_ context.Context, _ int, r *Recorder) (Worker, error) { return &counting{rec: r, left: 50}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	a := rec.Types[0]
	if rec.Elapsed < 190*time.Millisecond || a.Due == nil || uint64(a.Due.Count()) != a.Committed {
		t.Errorf("100 transactions at 500 a second took %v: %+v", rec.Elapsed, a)
	}
	if due, took := a.Due.MeanUs(), a.Latency.MeanUs(); due < took {
		t.Errorf("mean latency since due %v µs, since begun %v µs", due, took)
	}
}

// A schedule that workers share keeps its rate, and its seed gives its times.
func TestSchedule(t *testing.T) {
	for _, arrivals := range []Arrivals{Even, Poisson} {
		cfg := &Config{Rate: 1000, Arrivals: arrivals, Seed: 7}
		a, b := newSchedule(cfg, time.Second), newSchedule(cfg, time.Second)
		last, above := time.Duration(0), 0
		const n = 100_000
		for i := range n {
			at := a.take()
			if at != b.take() || at < last || at <= time.Second {
				t.Fatalf("arrivals %d: transaction %d is due at %v, after %v", arrivals, i, at, last)
			}
			if i > 0 && at-last > time.Millisecond+time.Microsecond {
				above++
			}
			last = at
		}
		if rate := n / (last - time.Second).Seconds(); rate < 985 || rate > 1015 {
			t.Errorf("arrivals %d: %v a second, want 1000", arrivals, rate)
		}
		// Of exponential distances 1/e = 36.8 % are above their mean.
		if share := float64(above) / n; arrivals == Even && share != 0 || arrivals == Poisson && (share < 0.36 || share > 0.375) {
			t.Errorf("arrivals %d: %v of the distances are above the mean", arrivals, share)
		}
		if got := a.behind(last + 3*time.Second); got < 2900*time.Millisecond || got > 3*time.Second || a.behind(last) != 0 {
			t.Errorf("arrivals %d: %v behind after 3 s", arrivals, got)
		}
	}
}

// limited is a fake that runs so many transactions.
type limited struct {
	*fake
	most int
}

func (l *limited) Next() int {
	if l.n == l.most {
		return NoMore
	}
	return l.fake.Next()
}

// Transactions that wait for a worker are late, although each is fast: the
// closed loop's latency hides what the open loop's shows.
func TestOpenLoopShowsTheWait(t *testing.T) {
	const each = 60 // transactions of a client, in 300 ms at least
	rec, err := Run(t.Context(), Config{
		Types: []string{"A", "B"}, Clients: 2, Rate: 2000, Arrivals: Poisson, Seed: 1,
		NewWorker: func(context.Context, int, *Recorder) (Worker, error) {
			return &limited{&fake{takes: 5 * time.Millisecond, closed: new(atomic.Int64)}, each}, nil // at most 400 a second
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := &rec.Types[0]
	if took, due := a.Latency.QuantileUs(0.5), a.Response().QuantileUs(0.5); due < 3*took || a.Due == nil {
		t.Errorf("median %v µs since begun, %v µs since due", took, due)
	}
	if rec.Behind < 150*time.Millisecond {
		t.Errorf("%v behind, want about 240 ms", rec.Behind)
	}
}
