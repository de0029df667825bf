package tpcc

import (
	"context"
	"fmt"
	"sync/atomic"

	"drtmx/txn"
)

// Marks are values that a database must not show less of any more, because a client
// was told of them: the newest order of each district, the payments of each warehouse.
// They only grow. Methods are safe for concurrent use.
type Marks struct {
	info   LoadInfo
	orders []atomic.Int64 // by district: D_NEXT_O_ID is above
	paid   []atomic.Int64 // by warehouse: of acknowledged payments, so W_YTD has grown by as much
	ytd    []atomic.Int64 // by warehouse: what a View has shown of W_YTD
}

// NewMarks returns the marks of a database that was loaded and not changed since.
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

// Raise raises the marks by what a client has just been told.
func (m *Marks) Raise(d *Deed) {
	switch {
	case d.Fate != FateCommitted:
	case d.Type == NewOrder, d.Type == OrderStatus:
		raise(m.district(d.W, d.D), d.Number)
	case d.Type == Payment:
		m.paid[d.W-1].Add(d.Amount)
	}
}

func (m *Marks) district(w, d int64) *atomic.Int64 { return &m.orders[(w-1)*Districts+d-1] }

// raise makes v at least n.
func raise(v *atomic.Int64, n int64) {
	for {
		if was := v.Load(); was >= n || v.CompareAndSwap(was, n) {
			return
		}
	}
}

// Witness looks at a database while others write, and compares what its Views show
// with the marks. It is for one goroutine.
type Witness struct {
	marks *Marks
	s     *Schema
	sess  *txn.Session
	w, d  int64 // of the present Look
	value int64
	body  func(*txn.Txn) error
}

// NewWitness returns a witness that uses a session, which the caller closes. s is
// that of the session's database.
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

// Look shows a district of a warehouse in a View, or the warehouse itself if the
// district is 0. stale says what the View lacks of what had been acknowledged, or shown
// by another View, before it began; it is "" if nothing. The error is the View's.
//
// It is a View of one row, so that it need not wait for commits that are not durable
// yet unless they are of that row: a data server that is paused then ends no View.
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
