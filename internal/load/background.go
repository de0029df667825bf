package load

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/txn"
)

// Background runs transactions that workers have deferred, in its own session.
type Background interface {
	// Run runs deferred transactions until Finish was called and none is left, or ctx
	// ends. When one has ended it calls done, from the same goroutine. Its error ends
	// the run.
	Run(ctx context.Context, done func(Done)) error
	// Finish is called once, from another goroutine, when workers will defer no more
	// transactions.
	Finish()
	// Stats returns the session's statistics. Only the goroutine of Run calls it.
	Stats() txn.SessionStats
	// Close releases the session.
	Close() error
}

// Done is a deferred transaction that has ended.
type Done struct {
	Type   int
	Took   time.Duration // since it was deferred
	Result Result
	GaveUp bool // met conflicts in every attempt
}

// backgroundTask runs one Background. Only its goroutine uses the fields while the
// run lasts, except finished.
type backgroundTask struct {
	background Background
	shard      *shard
	entry      entry
	finished   atomic.Uint64
}

func (r *run) makeBackgrounds(ctx context.Context) error {
	for id := range r.cfg.Backgrounds {
		b, err := r.cfg.NewBackground(ctx, id)
		if err != nil {
			return fmt.Errorf("load: background %d: %w", id, err)
		}
		a := &backgroundTask{background: b, shard: r.shards[id%len(r.shards)], entry: entry{late: notDue}}
		a.entry.after = b.Stats()
		r.backgrounds = append(r.backgrounds, a)
	}
	return nil
}

// runBackground runs one Background. All work of its session belongs to the
// transaction that ends next.
func (r *run) runBackground(a *backgroundTask) {
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
