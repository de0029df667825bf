package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/txn"
)

// Background runs transactions that workers have deferred, in a session of its
// own.
type Background interface {
	// Run runs what is deferred until Finish was called and nothing is left,
	// or ctx ends. It passes each transaction to done when it has ended, from
	// its own goroutine. Its error ends the run.
	Run(ctx context.Context, done func(Done)) error
	// Finish is called once, from another goroutine, when nothing more will be
	// deferred.
	Finish()
	// Stats is the session's account, for the goroutine of Run.
	Stats() txn.SessionStats
	// Close releases the session.
	Close() error
}

// Done is a deferred transaction that has ended.
type Done struct {
	Type   int
	Took   time.Duration // since it was deferred
	Result Result
	GaveUp bool // after conflicts in every attempt
}

// aide is one Background. Only its goroutine touches it while the run lasts,
// finished excepted.
type aide struct {
	background Background
	shard      *shard
	entry      entry
	finished   atomic.Uint64
}

func (r *run) makeAides(ctx context.Context) error {
	for id := range r.cfg.Backgrounds {
		b, err := r.cfg.NewBackground(ctx, id)
		if err != nil {
			return fmt.Errorf("load: background %d: %w", id, err)
		}
		a := &aide{background: b, shard: r.shards[id%len(r.shards)], entry: entry{late: notDue}}
		a.entry.after = b.Stats()
		r.aides = append(r.aides, a)
	}
	return nil
}

// aid runs one Background. All that its session does belongs to the
// transaction that ends next.
func (r *run) aid(a *aide) {
	err := a.background.Run(r.hard, func(d Done) {
		e := &a.entry
		e.last, e.before = e.after, e.after
		e.after, e.took, e.result = a.background.Stats(), d.Took, d.Result
		if d.GaveUp {
			e.result.Outcome = gaveUp
		}
		a.finished.Add(1)
		e.at = time.Since(r.base)
		if in := r.now(); in != over {
			a.shard.record(in, d.Type, e, false)
		}
	})
	if err == nil {
		return
	}
	if err := r.classify("deferred transactions", err); err != nil {
		r.fail(err)
	}
}
