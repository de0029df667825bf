//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/txn"
)

// job is what the clients of a simulated cluster do in place of lists.
type job interface {
	// populate makes the first rows, before anything goes wrong but the fabric.
	populate(u *setup, x *cluster) error
	// work is all that one client does. An error is one that the API does not
	// allow, or a contradiction that the client has seen.
	work(ctx context.Context, w *worker) error
	// judge compares the database, which is at rest, with what the clients know.
	judge(ctx context.Context, x *cluster, out *outcome) error
	// transactions is the number of transactions that clients have ended.
	transactions() int
}

// worker is one client of a job.
type worker struct {
	client
	number int // of the client
}

// jobs are the kinds of clusters with a job.
var jobs = map[string]func(r *simulation, seed uint64) job{
	"tpcc":  (*simulation).drawTrade,
	"bank":  (*simulation).drawBank,
	"queue": (*simulation).drawQueues,
}

// runJob lets the clients work, and looks at what they leave.
func (r *simulation) runJob(x *cluster) (*outcome, error) {
	ctx := context.Background()
	out := &outcome{counts: map[string]int{}}
	workers, errs := make([]*worker, r.l.Clients), make([]error, r.l.Clients)
	var wg sync.WaitGroup
	for i := range workers {
		w := r.newWorker(x.DB, i)
		workers[i] = w
		if !r.present(i) {
			continue
		}
		m := x.mortals[i]
		if m == nil {
			wg.Go(func() { r.u.as(clientName, func() { errs[i] = r.job.work(ctx, w) }) })
			continue
		}
		w.db, w.died = m.db, m.died
		wg.Go(func() {
			m.as(func() { errs[i] = r.job.work(ctx, w) })
			_ = m.db.Close() // of a process that may be dead
		})
	}
	wg.Wait()
	x.calm()
	for i, w := range workers {
		for what, n := range w.counts {
			out.counts[what] += n
		}
		if errs[i] = errors.Join(w.odd, errs[i]); errs[i] != nil {
			errs[i] = fmt.Errorf("client %d: %w", i, errs[i])
		}
	}
	err := errors.Join(errs...)
	r.u.as(clientName, func() { err = errors.Join(err, x.settled(ctx), r.job.judge(ctx, x, out)) })
	for _, srv := range x.Servers {
		err = errors.Join(err, srv.Check())
	}
	return out, err
}

func (r *simulation) newWorker(db *txn.DB, i int) *worker {
	w := &worker{number: i, client: client{l: &r.l, db: db, rnd: rng.New(r.l.Seed).Split(r.kind).SplitN(uint64(i)), counts: map[string]int{}}}
	if i%2 == 1 {
		w.patience = r.l.Patience
	}
	return w
}

// do runs one transaction, and asks for its outcome if it is unknown. A Call that
// has committed may have lost its result.
func (w *worker) do(ctx context.Context, run func(ctx context.Context) error) (outcome history.Outcome, lost bool, err error) {
	if w.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.patience)
		defer cancel()
	}
	err = run(ctx)
	dead := w.died != nil && w.died()
	switch {
	case errors.Is(err, txn.ErrResultLost) && !dead:
		w.counts["result lost"]++
		return history.Committed, true, nil
	case errors.Is(err, txn.ErrOutOfMemory) && !dead:
		w.counts["out of memory"]++
		w.refusals++
		return history.Aborted, false, nil
	}
	outcome, err = w.outcome(err)
	if w.lost != (txn.ID{}) {
		outcome, err = w.askFor(w.lost)
		lost = true
	}
	return outcome, lost, err
}

// rest is what a client does between two transactions.
func (w *worker) rest() {
	if w.refusals > 0 {
		time.Sleep(backoffLeast << min(w.refusals-1, backoffDoublings))
	}
	if w.rnd.Bool(0.05) {
		time.Sleep(between(w.rnd, 0, 50))
	}
	if w.l.Rest > 0 && w.rnd.Bool(0.1) {
		time.Sleep(time.Duration(w.rnd.Uint64n(uint64(w.l.Rest))))
	}
}

// insist repeats a transaction that is to succeed in the end: while the fabric refuses
// it, or memory is still quarantined. The body may commit more than once.
func insist(fn func() error) error {
	for range 20 {
		err := retryUnavailable(fn)
		if !errors.Is(err, txn.ErrOutOfMemory) {
			return err
		}
		time.Sleep(10 * time.Second)
	}
	return fn()
}

// filler makes n bytes that depend on a number, so that bytes of another row, or of an
// earlier one in the same memory, are noticed.
func filler(number uint64, n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		number = number*6364136223846793005 + 1442695040888963407
		x := number ^ number>>29
		b = append(b, byte(x), byte(x>>8), byte(x>>16), byte(x>>24), byte(x>>32), byte(x>>40), byte(x>>48), byte(x>>56))
	}
	return b[:n]
}
