package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/hist"
)

// kind is a line of the report.
type kind int

const (
	kindRead kind = iota
	kindScan
	kindUpdate
	kindInsert
	kindDelete
	kindReadModifyWrite
	kindBatchRead
	kindBatchUpdate
	kindBatchInsert
	kindBatchDelete
	kinds
)

var kindNames = [kinds]string{
	"READ", "SCAN", "UPDATE", "INSERT", "DELETE", "READ_MODIFY_WRITE",
	"BATCH_READ", "BATCH_UPDATE", "BATCH_INSERT", "BATCH_DELETE",
}

// series is one histogram of a shard, made when first used.
type series struct {
	h     *hist.Histogram
	first time.Time // when the first value came
}

func (s *series) record(d time.Duration, now time.Time) {
	if s.h == nil {
		s.h, s.first = hist.New(), now
	}
	s.h.Record(d)
}

// sample is a latency of measurementtype=raw.
type sample struct {
	kind   kind
	failed bool
	start  time.Time
	took   time.Duration
}

// shard is the measurement of one thread, or of a few if there are many: a
// histogram takes a quarter of a megabyte. The lock is for the reports on the
// way, and is otherwise free.
type shard struct {
	mu struct {
		sync.Mutex
		done, failed, due [kinds]series
		raw               []sample
	}
	_ [64]byte // shards of busy threads lie apart
}

// maxShards bounds the histograms of a run.
const maxShards = 64

// meter collects what all threads measure.
type meter struct {
	on       atomic.Bool // false while warming up
	raw      bool
	separate bool // a read-modify-write is Read and Update
	shards   []*shard
	// Merged by reports on the way, so that shards need not be read twice.
	mu struct {
		sync.Mutex
		total totals
	}
}

// totals are the merged measurements of a run.
type totals struct {
	done, failed, due [kinds]series
	raw               []sample
}

func newMeter(threads int, raw bool) *meter {
	m := &meter{raw: raw}
	for range min(threads, maxShards) {
		m.shards = append(m.shards, &shard{})
	}
	return m
}

// collect brings the totals up to date and passes them to use.
func (m *meter) collect(use func(*totals)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := &m.mu.total
	for _, s := range m.shards {
		s.mu.Lock()
		// The histograms are taken out, not read: the thread does not wait.
		done, failed, due := s.mu.done, s.mu.failed, s.mu.due
		s.mu.done, s.mu.failed, s.mu.due = [kinds]series{}, [kinds]series{}, [kinds]series{}
		t.raw = append(t.raw, s.mu.raw...)
		s.mu.raw = nil
		s.mu.Unlock()
		for k := range kinds {
			t.done[k].merge(done[k])
			t.failed[k].merge(failed[k])
			t.due[k].merge(due[k])
		}
	}
	use(t)
}

func (s *series) merge(from series) {
	switch {
	case from.h == nil:
		return
	case s.h == nil:
		*s = from
		return
	}
	s.h.Merge(from.h)
	if from.first.Before(s.first) {
		s.first = from.first
	}
}

// measured is a database whose operations are measured, for one thread.
type measured struct {
	db    ycsb.DB
	batch ycsb.BatchDB     // nil if the database has none
	rmw   ReadModifyWriter // nil if the database has none, or is not to use it
	meter *meter
	shard *shard
	due   time.Time // when the operation should have begun; zero without a target
}

func (m *measured) record(k kind, start time.Time, err error) {
	if !m.meter.on.Load() {
		return
	}
	now := time.Now()
	took := now.Sub(start)
	s := &m.shard.mu
	s.Lock()
	defer s.Unlock()
	if err != nil {
		s.failed[k].record(took, now)
	} else {
		s.done[k].record(took, now)
		if !m.due.IsZero() {
			s.due[k].record(now.Sub(m.due), now)
		}
	}
	if m.meter.raw {
		s.raw = append(s.raw, sample{k, err != nil, start, took})
	}
}

// Close does nothing: the database is the caller's.
func (m *measured) Close() error { return nil }

// InitThread is the database's.
func (m *measured) InitThread(ctx context.Context, id, threads int) context.Context {
	return m.db.InitThread(ctx, id, threads)
}

// CleanupThread is the database's.
func (m *measured) CleanupThread(ctx context.Context) { m.db.CleanupThread(ctx) }

// Read is the database's, measured.
func (m *measured) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	start := time.Now()
	values, err := m.db.Read(ctx, table, key, fields)
	m.record(kindRead, start, err)
	return values, err
}

// Scan is the database's, measured.
func (m *measured) Scan(ctx context.Context, table, from string, count int, fields []string) ([]map[string][]byte, error) {
	start := time.Now()
	rows, err := m.db.Scan(ctx, table, from, count, fields)
	m.record(kindScan, start, err)
	return rows, err
}

// Update is the database's, measured.
func (m *measured) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	start := time.Now()
	err := m.db.Update(ctx, table, key, values)
	m.record(kindUpdate, start, err)
	return err
}

// Insert is the database's, measured.
func (m *measured) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	start := time.Now()
	err := m.db.Insert(ctx, table, key, values)
	m.record(kindInsert, start, err)
	return err
}

// Delete is the database's, measured.
func (m *measured) Delete(ctx context.Context, table, key string) error {
	start := time.Now()
	err := m.db.Delete(ctx, table, key)
	m.record(kindDelete, start, err)
	return err
}

// ReadModifyWrite is one transaction if the database has it, else Read and
// Update, which are then measured too, as in go-ycsb.
func (m *measured) ReadModifyWrite(ctx context.Context, table, key string, fields []string, values map[string][]byte) (row map[string][]byte, err error) {
	start := time.Now()
	if m.rmw != nil {
		row, err = m.rmw.ReadModifyWrite(ctx, table, key, fields, values)
	} else if row, err = m.Read(ctx, table, key, fields); err == nil {
		err = m.Update(ctx, table, key, values)
	}
	m.record(kindReadModifyWrite, start, err)
	return row, err
}

// BatchRead is the database's, measured; a database without batches reads one
// by one, each measured.
func (m *measured) BatchRead(ctx context.Context, table string, keys, fields []string) ([]map[string][]byte, error) {
	if m.batch == nil {
		rows := make([]map[string][]byte, 0, len(keys))
		for _, key := range keys {
			row, err := m.Read(ctx, table, key, fields)
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
		return rows, nil
	}
	start := time.Now()
	rows, err := m.batch.BatchRead(ctx, table, keys, fields)
	m.record(kindBatchRead, start, err)
	return rows, err
}

// BatchUpdate is the database's, measured, or Update one by one.
func (m *measured) BatchUpdate(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Update(ctx, table, keys[i], values[i]) })
	}
	start := time.Now()
	err := m.batch.BatchUpdate(ctx, table, keys, values)
	m.record(kindBatchUpdate, start, err)
	return err
}

// BatchInsert is the database's, measured, or Insert one by one.
func (m *measured) BatchInsert(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Insert(ctx, table, keys[i], values[i]) })
	}
	start := time.Now()
	err := m.batch.BatchInsert(ctx, table, keys, values)
	m.record(kindBatchInsert, start, err)
	return err
}

// BatchDelete is the database's, measured, or Delete one by one.
func (m *measured) BatchDelete(ctx context.Context, table string, keys []string) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Delete(ctx, table, keys[i]) })
	}
	start := time.Now()
	err := m.batch.BatchDelete(ctx, table, keys)
	m.record(kindBatchDelete, start, err)
	return err
}

func each(keys []string, do func(i int) error) error {
	for i := range keys {
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}
