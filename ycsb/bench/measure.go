package bench

import (
	"context"
	"time"

	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/load"
	"drtmx/txn"
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

var kindNames = []string{
	"READ", "SCAN", "UPDATE", "INSERT", "DELETE", "READ_MODIFY_WRITE",
	"BATCH_READ", "BATCH_UPDATE", "BATCH_INSERT", "BATCH_DELETE",
}

// sample is a latency of measurementtype=raw.
type sample struct {
	kind   kind
	failed bool
	start  time.Time
	took   time.Duration
}

// measured wraps a database for one thread and measures its operations.
type measured struct {
	db      ycsb.DB
	batch   ycsb.BatchDB     // nil if the database has no batches
	rmw     ReadModifyWriter // nil if the database does not implement it, or must not use it
	rec     *load.Recorder
	raw     bool
	samples []sample // if raw
	compute time.Duration
	// stats returns the counters of the thread's session, and last has them after the
	// operation before; nil if nobody counts.
	stats func() txn.SessionStats
	last  txn.SessionStats
}

// record records an operation that began at start, a time of the recorder.
func (m *measured) record(k kind, start time.Duration, err error) {
	var took time.Duration
	if m.compute > 0 {
		time.Sleep(m.compute)
	}
	if m.stats == nil {
		took = m.rec.Record(int(k), start, err != nil)
	} else {
		now := m.stats()
		took = m.rec.RecordWork(int(k), start, err != nil, &m.last, &now)
		m.last = now
	}
	if m.raw && m.rec.Measuring() {
		m.samples = append(m.samples, sample{k, err != nil, time.Now().Add(-took), took})
	}
}

// Close does nothing, because the caller owns the database.
func (m *measured) Close() error { return nil }

// InitThread calls the database's method.
func (m *measured) InitThread(ctx context.Context, id, threads int) context.Context {
	return m.db.InitThread(ctx, id, threads)
}

// CleanupThread calls the database's method.
func (m *measured) CleanupThread(ctx context.Context) { m.db.CleanupThread(ctx) }

// Read calls and measures the database's method.
func (m *measured) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	start := m.rec.Now()
	values, err := m.db.Read(ctx, table, key, fields)
	m.record(kindRead, start, err)
	return values, err
}

// Scan calls and measures the database's method.
func (m *measured) Scan(ctx context.Context, table, from string, count int, fields []string) ([]map[string][]byte, error) {
	start := m.rec.Now()
	rows, err := m.db.Scan(ctx, table, from, count, fields)
	m.record(kindScan, start, err)
	return rows, err
}

// Update calls and measures the database's method.
func (m *measured) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	start := m.rec.Now()
	err := m.db.Update(ctx, table, key, values)
	m.record(kindUpdate, start, err)
	return err
}

// Insert calls and measures the database's method.
func (m *measured) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	start := m.rec.Now()
	err := m.db.Insert(ctx, table, key, values)
	m.record(kindInsert, start, err)
	return err
}

// Delete calls and measures the database's method.
func (m *measured) Delete(ctx context.Context, table, key string) error {
	start := m.rec.Now()
	err := m.db.Delete(ctx, table, key)
	m.record(kindDelete, start, err)
	return err
}

// ReadModifyWrite measures one transaction if the database implements it. Otherwise
// it calls Read and Update, which are also measured separately, as in go-ycsb.
func (m *measured) ReadModifyWrite(ctx context.Context, table, key string, fields []string, values map[string][]byte) (row map[string][]byte, err error) {
	start := m.rec.Now()
	if m.rmw != nil {
		row, err = m.rmw.ReadModifyWrite(ctx, table, key, fields, values)
	} else if row, err = m.Read(ctx, table, key, fields); err == nil {
		err = m.Update(ctx, table, key, values)
	}
	m.record(kindReadModifyWrite, start, err)
	return row, err
}

// BatchRead calls and measures the database's method. If the database has no batches
// it calls Read for each key.
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
	start := m.rec.Now()
	rows, err := m.batch.BatchRead(ctx, table, keys, fields)
	m.record(kindBatchRead, start, err)
	return rows, err
}

// BatchUpdate calls and measures the database's method, or calls Update for each key.
func (m *measured) BatchUpdate(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Update(ctx, table, keys[i], values[i]) })
	}
	start := m.rec.Now()
	err := m.batch.BatchUpdate(ctx, table, keys, values)
	m.record(kindBatchUpdate, start, err)
	return err
}

// BatchInsert calls and measures the database's method, or calls Insert for each key.
func (m *measured) BatchInsert(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Insert(ctx, table, keys[i], values[i]) })
	}
	start := m.rec.Now()
	err := m.batch.BatchInsert(ctx, table, keys, values)
	m.record(kindBatchInsert, start, err)
	return err
}

// BatchDelete calls and measures the database's method, or calls Delete for each key.
func (m *measured) BatchDelete(ctx context.Context, table string, keys []string) error {
	if m.batch == nil {
		return each(keys, func(i int) error { return m.Delete(ctx, table, keys[i]) })
	}
	start := m.rec.Now()
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
