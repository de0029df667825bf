//go:build simulated

package server_test

import (
	"context"
	"encoding/json"
	"time"

	"drtmx/internal/history"
	"drtmx/txn"
)

// ending is when a transaction began and ended, and how.
type ending struct {
	begin, end int64
	outcome    history.Outcome
	id         txn.ID // if the outcome is not known; may be zero
}

// queueClient is a client under way.
type queueClient struct {
	*queues
	*worker
	inserted int64    // items
	taken    int      // transactions
	settled  []uint64 // receipts that nobody needs any more
}

// work is all that one client does.
func (q *queues) work(ctx context.Context, w *worker) error {
	c := &queueClient{queues: q, worker: w}
	share := 0.3 + 0.3*w.rnd.Float64() // of insertions
	for n := range w.l.TxnsPerClient {
		inserts := w.rnd.Bool(share)
		if q.waves > 0 && w.rnd.Bool(0.9) {
			inserts = n/q.waves%2 == 0
		}
		var err error
		switch x := w.rnd.Float64(); {
		case x < 0.12:
			err = c.auditOnce(ctx)
		case x < 0.24:
			err = c.changeOnce(ctx)
		case inserts:
			err = c.insertOnce(ctx)
		default:
			err = c.takeOnce(ctx)
		}
		if err != nil || w.over {
			return err
		}
		w.rest()
	}
	return nil
}

// run runs one transaction, and notes when it began and ended.
func (c *queueClient) run(ctx context.Context, e *ending, run func(ctx context.Context) error) (lost bool, err error) {
	e.begin = now()
	e.outcome, lost, err = c.do(ctx, run)
	e.end, e.id = now(), c.worker.lost
	return lost, err
}

func (c *queueClient) insertOnce(ctx context.Context) error {
	o := &insertion{Queue: c.rnd.Intn(c.n), Time: timePlace(c.number)}
	for range 1 + c.rnd.Intn(3) {
		c.inserted++
		o.IDs = append(o.IDs, itemID{int64(c.number), c.inserted})
	}
	call := c.rnd.Bool(c.calls) && c.r.w.Part("procedures")
	_, err := c.run(ctx, &o.ending, func(ctx context.Context) error {
		if !call {
			return c.db.Update(ctx, func(t *txn.Txn) error { return c.insert(t, o) })
		}
		_, err := c.call(ctx, c.db, o.Queue, "insert", o)
		return err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inserts = append(c.inserts, o)
	if o.outcome == history.Unknown {
		for _, id := range o.IDs {
			c.doubtful[id] = true
		}
	}
	return err
}

func (c *queueClient) takeOnce(ctx context.Context) error {
	o := &taking{
		Client: c.number, Stamp: uint64(c.number)<<32 | uint64(c.taken)*receiptsMax,
		Queues: []int{c.rnd.Intn(c.n)}, Limit: 1 + c.rnd.Intn(4), Settled: c.settled, How: c.rnd.Uint64(),
	}
	if c.n > 1 && c.rnd.Bool(0.3) && c.r.w.Part("items of two queues") {
		o.Queues = append(o.Queues, (o.Queues[0]+1)%c.n)
	}
	c.taken++
	call := c.rnd.Bool(c.calls) && c.r.w.Part("procedures")
	lost, err := c.run(ctx, &o.ending, func(ctx context.Context) (err error) {
		if !call {
			return c.db.Update(ctx, func(t *txn.Txn) (err error) { o.items, err = c.take(t, o); return err })
		}
		res, err := c.call(ctx, c.db, o.Queues[0], "take", o)
		if err != nil {
			return err
		}
		return json.Unmarshal(res, &o.items)
	})
	if o.outcome == history.Unknown || call && lost {
		o.items = nil
	}
	switch {
	case o.items != nil && o.outcome == history.Committed:
		c.settled = nil
		for i := range o.items {
			c.settled = append(c.settled, o.Stamp+uint64(i))
		}
	case o.outcome != history.Aborted: // they may be deleted, and those of o are to be read in the end
		c.settled = nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.takes = append(c.takes, o)
	return err
}

// changeOnce gives one of the first items of a queue another size.
func (c *queueClient) changeOnce(ctx context.Context) error {
	var e ending
	queue, back, how := c.rnd.Intn(c.n), c.rnd.Intn(8), c.rnd.Uint64()
	if !c.r.w.Part("changes of items") {
		return nil
	}
	var changed *found
	_, err := c.run(ctx, &e, func(ctx context.Context) error {
		return c.db.Update(ctx, func(t *txn.Txn) error {
			changed = nil
			items, err := c.front(t, queue, back+1, how)
			if err != nil || len(items) == 0 {
				return err
			}
			changed = &items[len(items)-1]
			return t.Update(c.item.tab, c.key(queue, changed.Place), c.row(changed.ID, changed.Revision+1))
		})
	})
	if changed == nil || e.outcome == history.Aborted {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.changes[changed.ID]
	if e.outcome == history.Committed {
		n[0]++
	} else {
		n[1]++
	}
	c.changes[changed.ID] = n
	return err
}

// auditOnce reads all queues.
func (c *queueClient) auditOnce(ctx context.Context) error {
	how, kind := c.rnd.Uint64(), c.rnd.Intn(6)
	if !c.r.w.Part("audits") {
		return nil
	}
	body := func(t *txn.Txn) error { _, err := c.readAll(t, how); return err }
	var e ending
	_, err := c.run(ctx, &e, func(ctx context.Context) error {
		switch kind {
		case 0:
			return c.db.Snapshot(ctx, body)
		case 1:
			return c.db.Snapshot(ctx, body, txn.Staleness(c.l.Stale+time.Millisecond))
		case 2:
			_, err := c.call(ctx, c.db, int(how%uint64(c.n)), "audit", how)
			return err
		default:
			return c.db.View(ctx, body)
		}
	})
	return err
}

func (q *queues) transactions() int { return len(q.inserts) + len(q.takes) }
