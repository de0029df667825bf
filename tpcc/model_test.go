package tpcc

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/google/btree"

	"drtmx/tables"
	"drtmx/txn"
)

// model is a database in memory: one sorted map per index, one transaction at
// a time. It is the oracle that bodies, population and checks are tested on.
type model struct {
	t  testing.TB
	s  *Schema
	mu sync.Mutex
	ix []*btree.BTreeG[txn.Entry] // by index number

	opened, closed, sealed int                 // sinks and viewers
	lastKey                map[Sink]tables.Key // each sink's keys must ascend
}

func newModel(t testing.TB) *model {
	s, err := NewSchema(Catalog())
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, s: s, lastKey: map[Sink]tables.Key{}}
	for range Catalog().Indexes {
		m.ix = append(m.ix, btree.NewG(32, func(a, b txn.Entry) bool { return a.Key.Compare(b.Key) < 0 }))
	}
	return m
}

// put writes a row and its index entries, as they are.
func (m *model) put(tab *tables.Table, key tables.Key, row tables.Row) error {
	if err := tab.CheckRow(row); err != nil {
		return err
	}
	m.remove(tab, key)
	m.ix[tab.Primary().ID].ReplaceOrInsert(txn.Entry{Key: key, Row: row.Clone()})
	for _, ix := range tab.Secondaries() {
		k, entry, err := ix.Entry(key, row, nil)
		if err != nil {
			return err
		}
		if m.ix[ix.ID].Has(txn.Entry{Key: k}) {
			return fmt.Errorf("%w: %s %#x", txn.ErrExists, ix.Name, k)
		}
		m.ix[ix.ID].ReplaceOrInsert(txn.Entry{Key: k, Row: entry})
	}
	return nil
}

func (m *model) remove(tab *tables.Table, key tables.Key) {
	old, had := m.ix[tab.Primary().ID].Delete(txn.Entry{Key: key})
	if !had {
		return
	}
	for _, ix := range tab.Secondaries() {
		k, err := ix.EntryKey(key, old.Row)
		if err != nil {
			m.t.Error(err)
		}
		m.ix[ix.ID].Delete(txn.Entry{Key: k})
	}
}

func (m *model) get(tab *tables.Table, key tables.Key) tables.Row {
	m.t.Helper()
	e, ok := m.ix[tab.Primary().ID].Get(txn.Entry{Key: key})
	if !ok {
		m.t.Fatalf("%s has no key %#x", tab.Name(), key)
	}
	return e.Row.Clone()
}

func (m *model) rows(tab *tables.Table) (all []txn.Entry) {
	m.ix[tab.Primary().ID].Ascend(func(e txn.Entry) bool { all = append(all, e); return true })
	return all
}

// clone shares rows, which are never changed in place.
func (m *model) clone() *model {
	c := &model{t: m.t, s: m.s, lastKey: map[Sink]tables.Key{}}
	for _, ix := range m.ix {
		c.ix = append(c.ix, ix.Clone())
	}
	return c
}

// Loading.

type modelSink struct {
	m   *model
	tab *tables.Table
}

func (m *model) NewSink(_ context.Context, t *tables.Table) (Sink, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	return &modelSink{m, t}, nil
}

func (m *model) Seal(context.Context) error { m.sealed++; return nil }

func (s *modelSink) Add(key tables.Key, row tables.Row) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if key.Compare(s.m.lastKey[s]) <= 0 {
		s.m.t.Errorf("%s: key %#x after %#x", s.tab.Name(), key, s.m.lastKey[s])
	}
	s.m.lastKey[s] = key
	return s.m.put(s.tab, key, row)
}

func (s *modelSink) Close() error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.closed++
	return nil
}

// Transactions.

// modelTxn runs one body. Reads queued together are answered together,
// when the first is asked for; steps counts how often that happened.
type modelTxn struct {
	m        *model
	steps    int
	pending  []*modelRead
	writes   []func() error
	readOnly bool
}

type modelRead struct {
	t       *modelTxn
	ix      *tables.Index
	lo, hi  tables.Key
	limit   int
	done    bool
	entries []txn.Entry
}

func (t *modelTxn) later(r *modelRead) *modelRead {
	t.pending = append(t.pending, r)
	return r
}

func (t *modelTxn) QueueGet(tab *tables.Table, key tables.Key) pendingRow {
	return t.later(&modelRead{t: t, ix: tab.Primary(), lo: key, hi: key, limit: 1})
}

func (t *modelTxn) QueueScan(ix *tables.Index, lo, hi tables.Key, limit int) pendingRows {
	if !ix.Ordered || lo.Compare(hi) > 0 {
		t.m.t.Errorf("scan of %s from %#x to %#x", ix.Name, lo, hi)
	}
	return t.later(&modelRead{t: t, ix: ix, lo: lo, hi: hi, limit: limit})
}

func (t *modelTxn) Scan(ix *tables.Index, lo, hi tables.Key) iter.Seq2[txn.Entry, error] {
	return func(yield func(txn.Entry, error) bool) {
		rows, err := t.QueueScan(ix, lo, hi, 0).Entries()
		for _, e := range rows {
			if !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(txn.Entry{}, err)
		}
	}
}

func (r *modelRead) wait() {
	if r.done {
		return
	}
	r.t.steps++
	for _, p := range r.t.pending {
		p.t.m.ix[p.ix.ID].AscendGreaterOrEqual(txn.Entry{Key: p.lo}, func(e txn.Entry) bool {
			if e.Key.Compare(p.hi) > 0 || p.limit > 0 && len(p.entries) == p.limit {
				return false
			}
			p.entries = append(p.entries, e)
			return true
		})
		p.done = true
	}
	r.t.pending = nil
}

func (r *modelRead) Row() (tables.Row, error) {
	r.wait()
	if len(r.entries) == 0 {
		return nil, txn.ErrNotFound
	}
	return r.entries[0].Row, nil
}

func (r *modelRead) Entries() ([]txn.Entry, error) {
	r.wait()
	return r.entries, nil
}

func (t *modelTxn) write(tab *tables.Table, key tables.Key, row tables.Row, exists bool) error {
	if t.readOnly || tab.Replicated() {
		return txn.ErrReadOnly
	}
	row = row.Clone()
	t.writes = append(t.writes, func() error {
		if has := t.m.ix[tab.Primary().ID].Has(txn.Entry{Key: key}); has != exists {
			return fmt.Errorf("model: %s %#x: row exists: %v", tab.Name(), key, has)
		}
		return t.m.put(tab, key, row)
	})
	return nil
}

func (t *modelTxn) Insert(tab *tables.Table, key tables.Key, row tables.Row) error {
	return t.write(tab, key, row, false)
}

func (t *modelTxn) Update(tab *tables.Table, key tables.Key, row tables.Row) error {
	return t.write(tab, key, row, true)
}

func (t *modelTxn) Delete(tab *tables.Table, key tables.Key) error {
	if t.readOnly || tab.Replicated() {
		return txn.ErrReadOnly
	}
	t.writes = append(t.writes, func() error {
		if !t.m.ix[tab.Primary().ID].Has(txn.Entry{Key: key}) {
			return fmt.Errorf("model: %s %#x: no row to delete", tab.Name(), key)
		}
		t.m.remove(tab, key)
		return nil
	})
	return nil
}

// run runs a body as one transaction and returns its steps.
func (m *model) run(readOnly bool, body func(operations) error) (steps int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &modelTxn{m: m, readOnly: readOnly}
	if err := body(t); err != nil {
		return t.steps, err
	}
	for _, w := range t.writes {
		err = errors.Join(err, w())
	}
	return t.steps, err
}

func (m *model) viewer(context.Context) (viewer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened++
	return modelViewer{m}, nil
}

type modelViewer struct{ m *model }

// view runs the body twice, as a retried attempt would.
func (v modelViewer) view(ctx context.Context, body func(operations) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := v.m.run(true, body); err != nil {
		return err
	}
	_, err := v.m.run(true, body)
	return err
}

func (v modelViewer) close() error {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	v.m.closed++
	return nil
}

// smallScale is for tests: all of the specification's cases in few rows.
var smallScale = Scale{Items: 200, Customers: 60, Undelivered: 18}

// loadedModel is a model with an initial population.
func loadedModel(t testing.TB, warehouses int64) (*model, LoadInfo) {
	t.Helper()
	m := newModel(t)
	if _, err := LoadInto(t.Context(), m, m.s, LoadConfig{Warehouses: warehouses, Seed: 7, Scale: smallScale, Now: 1e18}); err != nil {
		t.Fatal(err)
	}
	info, err := m.s.readLoadInfo(t.Context(), modelViewer{m})
	if err != nil {
		t.Fatal(err)
	}
	return m, info
}

func (m *model) newOrder(in *NewOrderInput, out *NewOrderOutput) (int, error) {
	n := newNewOrder(m.s)
	n.in, n.out = in, out
	return m.run(false, n.run)
}

func (m *model) orderStatus(in *OrderStatusInput, out *OrderStatusOutput) (int, error) {
	q := &orderStatus{s: m.s, in: in, out: out}
	return m.run(true, q.run)
}

func (m *model) payment(in *PaymentInput, out *PaymentOutput) (int, error) {
	p := newPayment(m.s)
	p.in, p.out = in, out
	return m.run(false, p.run)
}

// delivery delivers for all districts in one transaction.
func (m *model) delivery(in *DeliveryInput, out *DeliveryOutput) (int, error) {
	v := newDelivery(m.s)
	*out = DeliveryOutput{Done: Districts}
	v.in, v.out = &deliveryPart{*in, 1, Districts}, out
	return m.run(false, v.run)
}

func (m *model) stockLevel(in *StockLevelInput, out *StockLevelOutput) (int, error) {
	l := &stockLevel{s: m.s, in: in, out: out}
	return m.run(true, l.run)
}
