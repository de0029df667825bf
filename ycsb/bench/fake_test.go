package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/magiconair/properties"

	"drtmx/internal/testseed"
)

// fakeDB is a database in a map. It overwrites the values it was given when
// the caller takes them back, so that a workload which still needs them fails.
type fakeDB struct {
	mu      sync.Mutex
	rows    map[string]map[string][]byte
	reads   []string // keys asked for
	scans   []int    // lengths asked for
	absent  int      // reads of records that are not there
	batches []int    // lengths of batches
	fail    func(op, key string) error
	stall   func(op string)
	closed  int
	threads int
	analyze int
}

var errAbsent = errors.New("absent")

func newFake() *fakeDB { return &fakeDB{rows: map[string]map[string][]byte{}} }

func (f *fakeDB) Close() error { return nil }

func (f *fakeDB) InitThread(ctx context.Context, _, _ int) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.threads++
	return ctx
}

func (f *fakeDB) CleanupThread(context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
}

func (f *fakeDB) Analyze(context.Context, string) error {
	f.analyze++
	return nil
}

func (f *fakeDB) do(op, key string) error {
	if f.stall != nil {
		f.stall(op)
	}
	if f.fail != nil {
		return f.fail(op, key)
	}
	return nil
}

func clone(row map[string][]byte, fields []string) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range row {
		if len(fields) == 0 || slices.Contains(fields, k) {
			out[k] = slices.Clone(v)
		}
	}
	return out
}

func (f *fakeDB) Read(_ context.Context, _, key string, fields []string) (map[string][]byte, error) {
	if err := f.do("READ", key); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, key)
	row, ok := f.rows[key]
	if !ok {
		f.absent++
		return nil, fmt.Errorf("%w: %s", errAbsent, key)
	}
	return clone(row, fields), nil
}

func (f *fakeDB) Scan(_ context.Context, _, _ string, count int, _ []string) ([]map[string][]byte, error) {
	if err := f.do("SCAN", ""); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scans = append(f.scans, count)
	return nil, nil
}

func (f *fakeDB) Update(_ context.Context, _, key string, values map[string][]byte) error {
	if err := f.do("UPDATE", key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	row, ok := f.rows[key]
	if !ok {
		f.absent++
		return fmt.Errorf("%w: %s", errAbsent, key)
	}
	for k, v := range clone(values, nil) {
		row[k] = v
	}
	return nil
}

func (f *fakeDB) Insert(_ context.Context, _, key string, values map[string][]byte) error {
	if err := f.do("INSERT", key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.rows[key]; ok {
		return fmt.Errorf("%s is there already", key)
	}
	f.rows[key] = clone(values, nil)
	return nil
}

func (f *fakeDB) Delete(context.Context, string, string) error { return nil }

// batchDB is a fakeDB with batches.
type batchDB struct{ *fakeDB }

func (f batchDB) note(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, n)
}

func (f batchDB) BatchInsert(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	f.note(len(keys))
	return each(keys, func(i int) error { return f.Insert(ctx, table, keys[i], values[i]) })
}

func (f batchDB) BatchRead(ctx context.Context, table string, keys, fields []string) ([]map[string][]byte, error) {
	f.note(len(keys))
	return nil, each(keys, func(i int) error {
		_, err := f.Read(ctx, table, keys[i], fields)
		return err
	})
}

func (f batchDB) BatchUpdate(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	f.note(len(keys))
	return each(keys, func(i int) error { return f.Update(ctx, table, keys[i], values[i]) })
}

func (f batchDB) BatchDelete(context.Context, string, []string) error { return nil }

// rmwDB is a fakeDB with read-modify-writes.
type rmwDB struct {
	*fakeDB
	n int
}

func (f *rmwDB) ReadModifyWrite(ctx context.Context, table, key string, fields []string, values map[string][]byte) (map[string][]byte, error) {
	row, err := f.Read(ctx, table, key, fields)
	if err == nil {
		err = f.Update(ctx, table, key, values)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return row, err
}

// with are properties, given as name, value, …
func with(pairs ...string) *properties.Properties {
	m := map[string]string{"workload": "core", "measurement.interval": "0"}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return properties.LoadMap(m)
}

func eventually(ok func() bool) bool {
	for deadline := time.Now().Add(testseed.Patience()); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
