package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pingcap/go-ycsb/pkg/util"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/rng"
)

// ErrIntegrity reports a value that is not the one written under
// dataintegrity=true. It ends a run.
var ErrIntegrity = errors.New("data integrity")

// ReadModifyWriter is a database that can read a record, and write fields of it, as
// one transaction. The go-ycsb interface has no such operation: its workload calls
// Read and then Update, so that another client's write between them is lost. The
// method does not keep values after it returns. It returns the record as it was read.
type ReadModifyWriter interface {
	ReadModifyWrite(ctx context.Context, table, key string, fields []string, values map[string][]byte) (map[string][]byte, error)
}

// thread generates the load of one thread. Its values are in buffers that it reuses
// when an operation has returned.
type thread struct {
	run  *run
	ctx  context.Context // the database's, from InitThread
	db   *measured
	left int64 // operations to do; unbounded if only time ends the run

	w      *Workload
	r      *rng.Stream
	keys   chooser
	values map[string][]byte
	bufs   [][]byte // by field
	fields []string // not shared, because databases sort them
	one    []string
	spare  []byte

	batchKeys   []string
	batchValues []map[string][]byte
}

func (w *Workload) newThread(phase Phase, id int) *thread {
	return &thread{
		w: w, r: rng.New(w.seed).Split("ycsb." + string(phase)).SplitN(uint64(id)), keys: w.newChooser(),
		values: map[string][]byte{}, bufs: make([][]byte, len(w.fields)), fields: slices.Clone(w.fields), one: make([]string, 1),
	}
}

// step executes one operation, or a batch of n.
func (t *thread) step(ctx context.Context, db *measured, phase Phase, n int) error {
	switch {
	case phase == Load && n > 1:
		return t.batchInsert(ctx, db, n, t.w.loaded.next, func(int64) {})
	case phase == Load:
		return t.load(ctx, db)
	}
	op := t.chooseOperation()
	if n > 1 {
		switch op {
		case opRead:
			_, err := db.BatchRead(ctx, t.w.table, t.drawKeys(n), t.readFields())
			return err
		case opInsert:
			return t.batchInsert(ctx, db, n, t.w.inserted.next, t.w.inserted.acknowledge)
		}
		return t.batchUpdate(ctx, db, n) // NewPlan has refused other operations
	}
	switch op {
	case opRead:
		return t.read(ctx, db)
	case opUpdate:
		key := t.drawKey()
		return db.Update(ctx, t.w.table, key, t.writeValues(key))
	case opInsert:
		n := t.w.inserted.next()
		defer t.w.inserted.acknowledge(n)
		key := t.w.key(n)
		return db.Insert(ctx, t.w.table, key, t.allValues(key))
	case opScan:
		_, err := db.Scan(ctx, t.w.table, t.drawKey(), t.w.scanLength(t.r), t.readFields())
		return err
	}
	return t.readModifyWrite(ctx, db)
}

func (t *thread) chooseOperation() operation {
	x := t.r.Float64()
	last := opRead
	for op, p := range t.w.weights {
		if p == 0 {
			continue
		}
		if last = operation(op); x < p {
			break
		}
		x -= p
	}
	return last
}

func (t *thread) drawKey() string { return t.w.key(t.keys.draw(t.r)) }

func (t *thread) drawKeys(n int) []string {
	t.batchKeys = t.batchKeys[:0]
	for range n {
		t.batchKeys = append(t.batchKeys, t.drawKey())
	}
	return t.batchKeys
}

// readFields returns the fields that a read requests.
func (t *thread) readFields() []string {
	if t.w.readAll {
		return t.fields
	}
	t.one[0] = t.w.fields[t.r.Intn(len(t.w.fields))]
	return t.one
}

// load inserts the next record of a load. It repeats a failed insert as often as
// properties allow.
func (t *thread) load(ctx context.Context, db *measured) error {
	key := t.w.key(t.w.loaded.next())
	values := t.allValues(key)
	return t.again(ctx, func() error { return db.Insert(ctx, t.w.table, key, values) })
}

// again repeats a failed insert as often as properties allow.
func (t *thread) again(ctx context.Context, insert func() error) error {
	err := insert()
	for n := int64(0); err != nil && n < t.w.retries; n++ {
		// YCSB waits for 80 to 120 % of the interval.
		pause := time.NewTimer(time.Duration(t.w.retryPause * (0.8 + 0.4*t.r.Float64()) * float64(time.Second)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return err
		case <-pause.C:
		}
		err = insert()
	}
	return err
}

func (t *thread) read(ctx context.Context, db *measured) error {
	key, fields := t.drawKey(), t.readFields()
	values, err := db.Read(ctx, t.w.table, key, fields)
	if err != nil {
		return err
	}
	return t.verify(key, fields, values)
}

func (t *thread) readModifyWrite(ctx context.Context, db *measured) error {
	key, fields := t.drawKey(), t.readFields()
	values, err := db.ReadModifyWrite(ctx, t.w.table, key, fields, t.writeValues(key))
	if err != nil {
		return err
	}
	return t.verify(key, fields, values)
}

func (t *thread) batchInsert(ctx context.Context, db *measured, n int, next func() int64, done func(int64)) error {
	numbers := make([]int64, n)
	t.batchKeys = t.batchKeys[:0]
	for i := range numbers {
		numbers[i] = next()
		t.batchKeys = append(t.batchKeys, t.w.key(numbers[i]))
	}
	defer func() {
		for _, n := range numbers {
			done(n)
		}
	}()
	t.batchOf(n, t.allValues)
	return t.again(ctx, func() error { return db.BatchInsert(ctx, t.w.table, t.batchKeys, t.batchValues) })
}

func (t *thread) batchUpdate(ctx context.Context, db *measured, n int) error {
	t.drawKeys(n)
	t.batchOf(n, t.writeValues)
	return db.BatchUpdate(ctx, t.w.table, t.batchKeys, t.batchValues)
}

// batchOf fills batchValues. A batch has many records at once, so its values have
// their own memory.
func (t *thread) batchOf(n int, values func(key string) map[string][]byte) {
	t.batchValues = t.batchValues[:0]
	for _, key := range t.batchKeys[:n] {
		own := map[string][]byte{}
		for field, v := range values(key) {
			own[field] = bytes.Clone(v)
		}
		t.batchValues = append(t.batchValues, own)
	}
}

// allValues returns values for all fields of a record.
func (t *thread) allValues(key string) map[string][]byte {
	if len(t.values) != len(t.w.fields) {
		clear(t.values)
	}
	for i := range t.w.fields {
		t.setValue(key, i)
	}
	return t.values
}

// writeValues returns values for the fields that an update writes.
func (t *thread) writeValues(key string) map[string][]byte {
	if t.w.writeAll {
		return t.allValues(key)
	}
	clear(t.values)
	t.setValue(key, t.r.Intn(len(t.w.fields)))
	return t.values
}

func (t *thread) setValue(key string, field int) {
	b := t.bufs[field][:0]
	if t.w.dataIntegrity {
		b = t.w.expected(b, key, t.w.fields[field])
	} else {
		b = appendLetters(b, t.r, t.w.lengths(t.r))
	}
	t.bufs[field], t.values[t.w.fields[field]] = b, b
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// appendLetters appends n random letters. It draws one number for eight letters.
func appendLetters(b []byte, r *rng.Stream, n int) []byte {
	for n > 0 {
		word := r.Uint64()
		for range min(n, 8) {
			b = append(b, letters[uint32(byte(word))*uint32(len(letters))>>8])
			word >>= 8
		}
		n -= min(n, 8)
	}
	return b
}

// expected appends the value that a field of a record has under dataintegrity=true,
// the same as go-ycsb's.
func (w *Workload) expected(b []byte, key, field string) []byte {
	start := len(b)
	b = append(append(append(b, key...), ':'), field...)
	for len(b)-start < w.fieldLength {
		b = append(b, ':')
		b = strconv.AppendUint(b, uint64(util.BytesHash64(b[start:])), 10)
	}
	return b[:start+w.fieldLength]
}

// verify checks a record that was read.
func (t *thread) verify(key string, fields []string, values map[string][]byte) error {
	if !t.w.dataIntegrity {
		return nil
	}
	if len(values) != len(fields) {
		return fmt.Errorf("%w: record %s has %d fields, want %d", ErrIntegrity, key, len(values), len(fields))
	}
	for _, field := range fields {
		got, ok := values[field]
		t.spare = t.w.expected(t.spare[:0], key, field)
		if !ok || !bytes.Equal(got, t.spare) {
			return fmt.Errorf("%w: %s of record %s is %q, want %q", ErrIntegrity, field, key, got, t.spare)
		}
	}
	return nil
}

var (
	_ ycsb.DB      = (*measured)(nil)
	_ ycsb.BatchDB = (*measured)(nil)
)
