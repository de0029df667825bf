package cluster

import (
	"testing"

	"drtmx/txn"
)

// TestFeedOutlivesATakeover: a feed that runs while a data server is taken over, and while
// it comes back to its own host, has each acknowledged transaction once and whole. One
// that goes on from a cursor of before the takeover has the same.
func TestFeedOutlivesATakeover(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	begin, err := h.db.Now(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	pairs := map[uint64]int{}
	take := func(c *txn.Change) {
		if len(c.Writes) != 2 || c.Writes[0].Kind != txn.Inserted || c.Writes[1].Kind != txn.Inserted {
			t.Errorf("a change of %d rows: %+v", len(c.Writes), c.Writes)
			return
		}
		pairs[min(c.Writes[0].Key.Num(), c.Writes[1].Key.Num())]++
	}
	cursor, stop, ended := begin, make(chan struct{}), make(chan error, 1)
	go func() {
		for c, err := range h.db.Changes(h.ctx, begin) {
			if err != nil {
				ended <- err
				return
			}
			take(&c)
			cursor = c.Cursor
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
		}
	}()
	w := h.write(2)
	w.goOn()
	h.gone(0)
	w.goOn()
	back := h.startAgain(0)
	back()
	h.settle(0, 0)
	w.goOn()
	close(stop)
	w.goOn()
	if err := <-ended; err != nil {
		t.Fatalf("the feed has ended: %v", err)
	}
	acked := w.end()
	rest := func(from txn.Cursor) {
		t.Helper()
		for c, err := range h.db.Changes(h.ctx, from, txn.UntilNow()) {
			if err != nil {
				t.Fatal(err)
			}
			take(&c)
		}
		w.acked.Range(func(k, _ any) bool {
			if pairs[k.(uint64)] != 1 {
				t.Errorf("the pair of key %d comes %d times", k, pairs[k.(uint64)])
			}
			return true
		})
		if len(pairs) != acked {
			t.Errorf("%d pairs, %d were acknowledged", len(pairs), acked)
		}
	}
	rest(cursor)
	clear(pairs)
	rest(begin)
	t.Logf("%d pairs acknowledged", acked)
}
