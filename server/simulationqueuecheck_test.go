//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/internal/history"
	"drtmx/tables"
	"drtmx/txn"
)

// queueCheck compares the queues in the end with what the clients know.
type queueCheck struct {
	*queues
	left     []found // items that are still there
	receipts map[uint64]found
	takenBy  map[itemID]*taking
	is       map[itemID]found // where each item was taken, or is
	errs     []error
}

func (k *queueCheck) fault(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf("ledger: "+format, args...))
}

// judge compares the queues with the ledgers of all clients, and then empties them.
func (q *queues) judge(ctx context.Context, x *cluster, out *outcome) error {
	k := &queueCheck{queues: q, receipts: map[uint64]found{}, takenBy: map[itemID]*taking{}, is: map[itemID]found{}}
	err := insist(func() error {
		return x.DB.View(ctx, func(t *txn.Txn) (err error) { k.left, err = q.readAll(t, 0); return err })
	})
	if err == nil {
		err = k.readReceipts(ctx, x.DB)
	}
	if err != nil {
		return fmt.Errorf("in the end: %w", err)
	}
	for _, o := range q.takes {
		k.took(o)
	}
	for _, y := range k.left {
		if by := k.takenBy[y.ID]; by != nil {
			k.fault("%+v is there, and client %d has taken it: %+v", y, by.Client, k.is[y.ID])
		}
		k.is[y.ID] = y
	}
	k.produced()
	k.order()
	for _, o := range q.takes {
		k.first(o)
	}
	for _, o := range q.takes {
		out.counts["items taken"] += len(o.items)
		if o.outcome == history.Committed && len(o.items) == 0 {
			out.counts["queues found empty"]++
		}
	}
	out.counts["items left"] += len(k.left)
	return errors.Join(errors.Join(k.errs...), q.empty(ctx, x.DB))
}

// readReceipts reads all receipts.
func (k *queueCheck) readReceipts(ctx context.Context, db *txn.DB) error {
	return insist(func() error {
		return db.View(ctx, func(t *txn.Txn) error {
			clear(k.receipts)
			for e, err := range t.Scan(k.receipt.tab.Primary(), tables.First, tables.Last) {
				if err != nil {
					return err
				}
				id, revision := unpack(e.Row.Int(k.receipt.id))
				k.receipts[e.Key.Num()] = found{id, revision, int(e.Row.Int(k.receipt.queue)), uint64(e.Row.Int(k.receipt.from))}
			}
			return nil
		})
	})
}

// took compares a taking with its receipts. If its outcome or its result is not known,
// the receipts tell.
func (k *queueCheck) took(o *taking) {
	var there []found
	for i := range uint64(receiptsMax) {
		if x, ok := k.receipts[o.Stamp+i]; ok {
			there = append(there, x)
		}
	}
	switch {
	case o.outcome == history.Aborted:
		if len(there) > 0 {
			k.fault("client %d has receipts of what was refused: %+v", o.Client, there)
		}
		o.items = nil
		return
	case o.items == nil:
		o.items, o.late = there, true
		if len(there) > 0 {
			o.outcome = history.Committed
		}
	case len(there) > 0 && !slices.Equal(there, o.items):
		k.fault("client %d has taken %+v, its receipts say %+v", o.Client, o.items, there)
	}
	for _, x := range o.items {
		if before := k.takenBy[x.ID]; before != nil {
			k.fault("clients %d and %d have both taken %+v: %+v", before.Client, o.Client, x, k.is[x.ID])
		}
		if !slices.Contains(o.Queues, x.Queue) {
			k.fault("client %d has taken %+v from another queue than %v", o.Client, x, o.Queues)
		}
		k.takenBy[x.ID], k.is[x.ID] = o, x
	}
}

// produced compares what was inserted with what was there.
func (k *queueCheck) produced() {
	known := map[itemID]bool{}
	for _, o := range k.inserts {
		n := 0
		for _, id := range o.IDs {
			known[id] = true
			x, ok := k.is[id]
			if !ok {
				continue
			}
			n++
			if x.Queue != o.Queue {
				k.fault("%+v was inserted into queue %d", x, o.Queue)
			}
			c := k.changes[id]
			if x.Revision < int64(c[0]) || x.Revision > int64(c[0]+c[1]) {
				k.fault("%+v was changed %d times, and perhaps %d times more", x, c[0], c[1])
			}
		}
		switch {
		case o.outcome == history.Committed && n < len(o.IDs):
			k.fault("of the acknowledged items %v are there, or were, %d", o.IDs, n)
		case o.outcome == history.Aborted && n > 0:
			k.fault("of the refused items %v are there, or were, %d", o.IDs, n)
		case n > 0 && n < len(o.IDs):
			k.fault("of the items %v of one transaction are there, or were, %d", o.IDs, n)
		}
	}
	for _, o := range k.takes {
		for _, x := range o.items {
			if !known[x.ID] {
				k.fault("client %d has taken %+v, which nobody has inserted", o.Client, x)
			}
		}
	}
	for _, x := range k.left {
		if !known[x.ID] {
			k.fault("%+v is there, and nobody has inserted it", x)
		}
	}
}

// order checks that each client has taken the items of each producer in order, and that
// none is left that was before one that was taken.
func (k *queueCheck) order() {
	by := make([][]found, k.r.l.Clients)
	for _, o := range k.takes {
		if !o.late {
			by[o.Client] = append(by[o.Client], o.items...)
		}
	}
	for client, items := range by {
		if err := k.inOrder(append(items, k.left...)); err != nil {
			k.fault("client %d: %w", client, err)
		}
	}
}

// first checks that a taking has missed no item: none that was acknowledged before it
// began, and was there when it had ended, before what it has taken.
func (k *queueCheck) first(o *taking) {
	if o.outcome != history.Committed || o.late {
		return
	}
	for _, queue := range o.Queues {
		last, n := uint64(lastPlace), 0
		for _, x := range o.items {
			if x.Queue == queue {
				n++
				last = x.Place
			}
		}
		if n < o.Limit {
			last = lastPlace
		}
		for _, in := range k.inserts {
			if in.outcome != history.Committed || in.Queue != queue || in.end >= o.begin {
				continue
			}
			for _, id := range in.IDs {
				x, ok := k.is[id]
				if by := k.takenBy[id]; ok && by != o && x.Place < last && (by == nil || by.begin > o.end) {
					k.fault("client %d has missed %+v, which was there: %+v", o.Client, x, o)
				}
			}
		}
	}
}

// empty takes all that is left, and so writes every row: no lock may be left.
func (q *queues) empty(ctx context.Context, db *txn.DB) error {
	remove := func(ix *tables.Index, lo, hi tables.Key) error {
		for more := true; more; {
			err := insist(func() error {
				return db.Update(ctx, func(t *txn.Txn) error {
					entries, err := t.QueueScan(ix, lo, hi, 40).Entries()
					for _, e := range entries {
						if err == nil {
							err = t.Delete(ix.Table, e.Key)
						}
					}
					more = len(entries) > 0
					return err
				})
			})
			if err != nil {
				return fmt.Errorf("a transaction that writes every key of %s: %w", ix.Name, err)
			}
		}
		return nil
	}
	var errs []error
	for queue := range q.n {
		lo, hi := q.span(queue)
		errs = append(errs, remove(q.item.tab.Primary(), lo, hi))
	}
	errs = append(errs, remove(q.receipt.tab.Primary(), tables.First, tables.Last))
	err := insist(func() error {
		return db.View(ctx, func(t *txn.Txn) error {
			if all, err := q.readAll(t, 1); err != nil || len(all) > 0 {
				return errors.Join(err, fmt.Errorf("%w: %d items are there after all were taken", errItem, len(all)))
			}
			return nil
		})
	})
	return errors.Join(append(errs, err)...)
}
