package tpcc

import (
	"context"
	"fmt"
	"sync/atomic"

	"drtmx/txn"
)

// Marks are lower bounds on values that a database may show, because it has confirmed
// them to a client: the newest order of each district, the payments of each
// warehouse. They only grow. Methods are safe for concurrent use.
type Marks struct {
	info   LoadInfo
	orders []atomic.Int64 // by district: D_NEXT_O_ID is above
	paid   []atomic.Int64 // by warehouse: sum of acknowledged payments, by which W_YTD has grown at least
	ytd    []atomic.Int64 // by warehouse: the greatest W_YTD that a View has shown
}

// NewMarks returns the marks of a database that has not changed since its load.
func NewMarks(info LoadInfo) *Marks {
	m := &Marks{
		info: info, orders: make([]atomic.Int64, info.Warehouses*Districts),
		paid: make([]atomic.Int64, info.Warehouses), ytd: make([]atomic.Int64, info.Warehouses),
	}
	for i := range m.orders {
		m.orders[i].Store(info.Scale.Customers)
	}
	return m
}

// Raise raises the marks for a transaction that was just confirmed to a client.
func (m *Marks) Raise(d *LedgerEntry) {
	switch {
	case d.Outcome != OutcomeCommitted:
	case d.Type == NewOrder, d.Type == OrderStatus:
		raise(m.district(d.W, d.D), d.Number)
	case d.Type == Payment:
		m.paid[d.W-1].Add(d.Amount)
	}
}

func (m *Marks) district(w, d int64) *atomic.Int64 { return &m.orders[(w-1)*Districts+d-1] }

// raise sets v to n, unless it is greater already.
func raise(v *atomic.Int64, n int64) {
	for {
		if was := v.Load(); was >= n || v.CompareAndSwap(was, n) {
			return
		}
	}
}

// Witness reads a database while others write, and compares its Views with the marks.
// It is for one goroutine.
type Witness struct {
	marks *Marks
	s     *Schema
	sess  *txn.Session
	w, d  int64 // of the present Look
	value int64
	body  func(*txn.Txn) error
}

// NewWitness returns a witness that uses a session, which the caller closes. s is the
// schema of the session's database.
func NewWitness(m *Marks, s *Schema, sess *txn.Session) *Witness {
	w := &Witness{marks: m, s: s, sess: sess}
	w.body = w.read
	return w
}

func (w *Witness) read(t *txn.Txn) error {
	table, key, field := w.s.warehouse, must(WarehouseKey(w.w)), w.s.w.ytd
	if w.d > 0 {
		table, key, field = w.s.district, must(DistrictKey(w.w, w.d)), w.s.d.nextOID
	}
	row, err := t.Get(table, key)
	if err == nil {
		w.value = row.Int(field)
	}
	return err
}

// Look reads a district of a warehouse in a View, or the warehouse itself if the
// district is 0. stale describes what the View lacks although it was acknowledged, or
// shown by another View, before the View began; it is "" if nothing is missing. The
// error is that of the View.
//
// The View reads one row, so that it waits only for the durability of that row's
// commits. At a paused data server such a wait never ends.
func (w *Witness) Look(ctx context.Context, warehouse, district int64) (stale string, err error) {
	m := w.marks
	w.w, w.d = warehouse, district
	if district > 0 {
		mark := m.district(warehouse, district)
		least := mark.Load() + 1
		if err := w.sess.View(ctx, w.body); err != nil {
			return "", err
		}
		if w.value < least {
			return fmt.Sprintf("a View showed d_next_o_id %d in district %d of warehouse %d, after order %d there was acknowledged or shown", w.value, district, warehouse, least-1), nil
		}
		raise(mark, w.value-1)
		return "", nil
	}
	mark := &m.ytd[warehouse-1]
	least := max(Districts*m.info.Scale.Customers*initialPayment+m.paid[warehouse-1].Load(), mark.Load())
	if err := w.sess.View(ctx, w.body); err != nil {
		return "", err
	}
	if w.value < least {
		return fmt.Sprintf("a View showed w_ytd %d of warehouse %d, after %d was acknowledged or shown", w.value, warehouse, least), nil
	}
	raise(mark, w.value)
	return "", nil
}
