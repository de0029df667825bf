package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/cluster"
	"drtmx/internal/hist"
	"drtmx/internal/placement"
)

// planned reports whether a kind is what operators do, of which clients must not notice
// more than a wait, and not a failure.
func planned(kind string) bool { return kind == chaosMove || kind == chaosRestart }

// latencyReport is of the NEW-ORDERs that were acknowledged, microseconds.
type latencyReport struct {
	Count   int64   `json:"count"`
	P50us   float64 `json:"p50_us"`
	P99us   float64 `json:"p99_us"`
	WorstUs float64 `json:"worst_us"`
}

func latencyReportOf(h *hist.Histogram) (r latencyReport) {
	if r.Count = h.Count(); r.Count > 0 {
		r.P50us, r.P99us, r.WorstUs = h.QuantileUs(0.5), h.QuantileUs(0.99), h.QuantileUs(1)
	}
	return r
}

// latencies are those of NEW-ORDERs that ran while something was done to a host, and of
// the others. The lock of the run guards them.
type latencies struct {
	rest, beside *hist.Histogram
	under        bool          // something is being done
	over         time.Duration // when it was over, since the clients began
}

// record records one that took some time until now.
func (l *latencies) record(now, took time.Duration) {
	h := l.rest
	if l.under || now-took < l.over {
		h = l.beside
	}
	h.Record(took)
}

// plan moves a data server, or restarts a host, and waits until it commits where it was.
func (t *chaosRun) plan(ctx context.Context, e *chaosEvent) (err error) {
	if err := t.ready(ctx, true); err != nil {
		return err
	}
	e.AtS, e.Servers = time.Since(t.began).Seconds(), []int{e.Host} // each is at its own host
	out, back := t.moveAway(e)
	if e.Kind == chaosRestart {
		out, back = t.drainHost(e)
	}
	stopStill, err := t.watchStill(ctx, e.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopStill()) }()
	limited, cancel := context.WithTimeout(ctx, movedTimeout)
	defer cancel()
	before := t.still.Load()
	t.open(e)
	begin := time.Now()
	defer t.overWith()
	if err := out(limited); err != nil {
		return t.notMade(ctx, limited, e, err)
	}
	if err := t.awaitCommit(ctx, e); err != nil {
		return err
	}
	t.late.Add(t.still.Load() - before)
	t.shut(e)
	if err := back(limited); err != nil {
		return t.notMade(ctx, limited, e, err)
	}
	e.AwayS = time.Since(begin).Seconds()
	if err := t.awaitServed(ctx, e); err != nil {
		return err
	}
	t.report.Events = append(t.report.Events, e)
	t.line(e)
	return nil
}

// notMade takes note of a move or a restart that was not made in time. What is refused
// at once, and the end of the run, are errors.
func (t *chaosRun) notMade(ctx, limited context.Context, e *chaosEvent, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() == nil:
		return fmt.Errorf("%s of host %d: %w", e.Kind, e.Host, err)
	}
	t.report.wrong("the %s of host %d at %.1f s was not over after %v: %v", e.Kind, e.Host, e.AtS, movedTimeout, err)
	return nil
}

// moveAway moves the data server of the host of an event to another host, and back.
func (t *chaosRun) moveAway(e *chaosEvent) (out, back func(context.Context) error) {
	to := (e.Host + 1 + t.rnd.Intn(t.f.size.servers-1)) % t.f.size.servers
	e.To = &to
	return func(ctx context.Context) error { return t.moveTo(ctx, placement.Server(e.Host), to) },
		func(ctx context.Context) error { return t.moveTo(ctx, placement.Server(e.Host), e.Host) }
}

func (t *chaosRun) moveTo(ctx context.Context, server placement.Server, to int) error {
	if _, err := t.s.Move(ctx, server, to); err != nil {
		return err
	}
	_, err := t.s.AwaitPlaced(ctx, server)
	return err
}

// drainHost drains a host, and then starts it again and lets everything come back, as
// drtmx cluster restart does.
func (t *chaosRun) drainHost(e *chaosEvent) (out, back func(context.Context) error) {
	var copies map[placement.Server]int
	return func(ctx context.Context) (err error) {
			if copies, err = t.s.InSync(ctx); err != nil {
				return err
			}
			goes, err := t.s.Drain(ctx, e.Host)
			if err != nil {
				return err
			}
			return drained(ctx, t.s.Cluster, e.Host, goes)
		}, func(ctx context.Context) error {
			if err := cluster.EndHost(ctx, t.dir, e.Host); err != nil {
				return fmt.Errorf("end host %d: %w", e.Host, err)
			}
			if err := t.startHost(ctx, e.Host); err != nil {
				return fmt.Errorf("start host %d: %w", e.Host, err)
			}
			if err := t.s.Undrain(ctx, e.Host); err != nil {
				return err
			}
			return t.s.AwaitInSync(ctx, copies)
		}
}
