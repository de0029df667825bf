package bench

import (
	"context"
	"errors"
	"io"
	"time"

	"drtmx/internal/load"
	"drtmx/tpcc"
	"drtmx/txn"
)

// When DELIVERY runs.
const (
	DeliveryDeferred = "deferred" // by a queue, as clause 2.7.2 demands
	DeliveryNow      = "now"      // by the terminal, which waits
)

// Deliveries are the names of both.
var Deliveries = []string{DeliveryDeferred, DeliveryNow}

// Queues of deferred DELIVERYs, each with a session that executes them.
const (
	// One queue per warehouse barely keeps up: a DELIVERY takes as long as several
	// NEW-ORDERs, and without think times the queue grows.
	queuesPerWarehouse = 2
	queuesMax          = 64
)

// queueFullPause is how long a terminal waits before it tries a full queue
// again.
const queueFullPause = 100 * time.Microsecond

// makeQueues makes the queues, and distributes the terminals evenly over them.
func (t *terminals) makeQueues(clients int, log io.Writer) {
	at := -1
	for i, ty := range t.types {
		if ty == tpcc.Delivery {
			at = i
		}
	}
	if at < 0 || t.delivery == DeliveryNow {
		return
	}
	for range min(queuesPerWarehouse*int(t.info.Warehouses), clients, queuesMax) {
		d := &deliverer{terminals: t, typ: at}
		d.queue = tpcc.NewDeliveryQueue(tpcc.DeliveryQueueConfig{Log: log, Done: d.settled})
		t.deliverers = append(t.deliverers, d)
	}
}

// deliverer executes the deferred DELIVERYs of some terminals.
type deliverer struct {
	*txn.Session
	*terminals
	queue *tpcc.DeliveryQueue
	typ   int // index of DELIVERY in load.Config.Types
	done  func(load.Done)
}

// deliverer returns deliverer id with a new session.
func (t *terminals) deliverer(ctx context.Context, id int) (load.Background, error) {
	sess, err := t.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	d := t.deliverers[id]
	d.Session = sess
	return d, nil
}

func (d *deliverer) Run(ctx context.Context, done func(load.Done)) error {
	d.done = done
	return d.queue.Run(ctx, tpcc.NewTerminal(d.db, d.Session, d.schema, d.config))
}

func (d *deliverer) Finish() { d.queue.Close() }

// settled passes an executed DELIVERY to the load loop. A failed one has met
// conflicts in every attempt: any other error ends the run.
func (d *deliverer) settled(r tpcc.DeliveryRecord) {
	d.done(load.Done{
		Type: d.typ, Took: r.Finished.Sub(r.Queued), Result: load.Result{Count: uint64(r.Skipped)}, GaveUp: r.Error != "",
	})
}

// deferDelivery queues a DELIVERY. It waits while the queue is full.
func (w *worker) deferDelivery(ctx context.Context) (load.Result, error) {
	q := w.deliverers[w.id%len(w.deliverers)].queue
	for waited := false; ; waited = true {
		err := q.Submit(w.dlIn)
		if !errors.Is(err, tpcc.ErrQueueFull) {
			return load.Result{Outcome: load.Deferred}, err
		}
		if !waited {
			w.waited.Add(1)
		}
		select {
		case <-time.After(queueFullPause):
		case <-ctx.Done():
			return load.Result{}, ctx.Err()
		}
	}
}

// skipping returns how many DELIVERYs have skipped some district.
func (t *terminals) skipping() uint64 {
	n := t.withSkips.Load()
	for _, d := range t.deliverers {
		n += d.queue.Stats().WithSkips
	}
	return n
}
