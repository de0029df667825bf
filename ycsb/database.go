package ycsb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/magiconair/properties"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"

	"drtmx/internal/cluster"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

// Errors of operations; callers match them with errors.Is.
var (
	// ErrNoField reports a field that the table does not have.
	ErrNoField = errors.New("ycsb: no such field")
	// ErrNoTable reports a table other than the one that the properties name.
	ErrNoTable = errors.New("ycsb: no such table")
	// ErrNoThread reports an operation whose context does not come from
	// InitThread.
	ErrNoThread = errors.New("ycsb: not a context of InitThread")
	// ErrValue reports a value that no field can hold.
	ErrValue = errors.New("ycsb: value does not fit")
)

func init() { goycsb.RegisterDBCreator("drtmx", creator{}) }

type creator struct{}

// Create opens the database that properties describe.
func (creator) Create(p *properties.Properties) (goycsb.DB, error) {
	o, err := readOptions(p)
	if err != nil {
		return nil, err
	}
	d, err := open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// database is a go-ycsb database. It does not keep the values passed to it, and
// the caller owns the values it returns.
type database struct {
	*options
	cluster *cluster.Cluster
	network *inproc.Network // of a store in this process, else nil
	db      *txn.DB
	table   *tables.Table
	names   []string
	fields  []tables.Field // by number
	longest []int          // maximum bytes of the values of fields
	number  map[string]int
	inEach  []tables.Key // one key of each partition
}

var (
	_ goycsb.DB        = (*database)(nil)
	_ goycsb.BatchDB   = (*database)(nil)
	_ goycsb.AnalyzeDB = (*database)(nil)
)

func (d *database) resolveFields() {
	d.number = map[string]int{}
	for i := range d.layout.Fields {
		name := props.FieldName(i)
		d.number[name] = i
		d.names, d.fields = append(d.names, name), append(d.fields, d.table.Field(name))
		d.longest = append(d.longest, usertable.Longest(d.table.Def().Columns[i]))
	}
}

// Close disconnects from the cluster, and stops the cluster if the database
// started it.
func (d *database) Close() error {
	var err error
	if d.db != nil {
		err = d.db.Close()
	}
	return errors.Join(err, d.cluster.Close())
}

// lostGrace bounds the time between a broken connection to a server and the
// notification that the server has ended.
const lostGrace = time.Second

// Lost returns the reason why the cluster of a database is gone, nil if the cluster
// serves or db is not a drtmx database. after is the error after which the caller
// checks; it may be nil.
func Lost(db goycsb.DB, after error) error {
	d, ok := db.(*database)
	if !ok {
		return nil
	}
	if after != nil && Fatal(after) {
		select {
		case <-d.cluster.Lost():
		case <-time.After(lostGrace):
		}
	}
	return d.cluster.Err()
}

// Durability returns where the cluster of a database stores a commit before it confirms
// it, memory or disk. It returns "" if db is not a drtmx database.
func Durability(ctx context.Context, db goycsb.DB) (string, error) {
	d, ok := db.(*database)
	if !ok {
		return "", nil
	}
	st, err := d.db.AskStats(ctx, 0)
	if err != nil {
		return "", err
	}
	return st.Durability, nil
}

// Fatal reports whether an operation's error means that no other operation
// can succeed.
func Fatal(err error) bool {
	for _, e := range []error{
		txn.ErrUnavailable, txn.ErrOutcomeUnknown, txn.ErrClosed, txn.ErrOutOfMemory, txn.ErrProtocol, rdma.ErrPeerDown, ErrNoTable,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

type threadKey struct{}

// thread is the state of one of go-ycsb's threads.
type thread struct {
	session   *txn.Session
	err       error      // the reason if there is no session
	row       tables.Row // under construction
	requested []string   // the fields of the last read
	numbers   []int      // and their numbers
	gets      []*txn.QueuedGet
	update    usertable.Update
	args      []byte
}

// InitThread opens the session of a thread. If that fails, every operation of
// the thread returns the error, because InitThread cannot return one.
func (d *database) InitThread(ctx context.Context, _, _ int) context.Context {
	t := &thread{}
	if t.session, t.err = d.db.NewSession(ctx); t.err == nil {
		t.err = d.touch(ctx, t.session)
	}
	return context.WithValue(ctx, threadKey{}, t)
}

// touch reads a key of every partition, so that the session opens its connections and
// fills its index caches before the measurement starts.
func (d *database) touch(ctx context.Context, s *txn.Session) error {
	return s.View(ctx, func(tx *txn.Txn) error {
		var gets []*txn.QueuedGet
		for _, key := range d.inEach {
			gets = append(gets, tx.QueueGet(d.table, key))
		}
		for _, g := range gets {
			if _, err := g.Row(); err != nil && !errors.Is(err, txn.ErrNotFound) {
				return err
			}
		}
		return nil
	})
}

// probesMax bounds the search for a key in each partition.
const probesMax = 1 << 16

// keysInEach finds a key for each partition; the record need not exist. A
// partition to which no key maps gets none.
func (d *database) keysInEach() error {
	seen := map[txn.Home]bool{}
	keys := d.table.Def().Partition.Bounds
	for i := 0; len(seen) < d.db.Partitions() && i < probesMax; i++ {
		key := d.layout.Probe(i)
		if i < len(keys) {
			key = keys[i]
		}
		home, err := d.db.Home(d.table, key)
		if err != nil {
			return err
		}
		if !seen[home] {
			seen[home] = true
			d.inEach = append(d.inEach, key)
		}
	}
	return nil
}

// SessionStats returns the counters of the session of a context of InitThread, and
// false for other contexts. Only the thread may call it.
func SessionStats(ctx context.Context) (s txn.SessionStats, ok bool) {
	t, ok := ctx.Value(threadKey{}).(*thread)
	if !ok || t.session == nil {
		return s, false
	}
	return t.session.Stats(), true
}

// Client returns the client of a database of this package, nil for another one. It is
// valid until the database is closed.
func Client(db goycsb.DB) *txn.DB {
	if d, ok := db.(*database); ok {
		return d.db
	}
	return nil
}

// CleanupThread closes the session of a thread.
func (d *database) CleanupThread(ctx context.Context) {
	if t, ok := ctx.Value(threadKey{}).(*thread); ok && t.session != nil {
		_ = t.session.Close()
	}
}

// Analyze trains the models of the ordered index from the loaded records.
// go-ycsb calls it after a load.
func (d *database) Analyze(ctx context.Context, _ string) error { return d.db.Seal(ctx) }

// begin returns the thread of an operation.
func (d *database) begin(ctx context.Context, table string) (*thread, error) {
	t, ok := ctx.Value(threadKey{}).(*thread)
	switch {
	case !ok:
		return nil, ErrNoThread
	case t.err != nil:
		return nil, t.err
	case table != d.layout.Name:
		return nil, fmt.Errorf("%w: %s; this database has %s", ErrNoTable, table, d.layout.Name)
	}
	return t, nil
}

// resolve stores in t the numbers of the fields of a read; no fields means all.
func (d *database) resolve(t *thread, fields []string) error {
	if len(fields) == 0 {
		fields = d.names
	}
	if slices.Equal(fields, t.requested) {
		return nil
	}
	t.requested, t.numbers = t.requested[:0], t.numbers[:0]
	for _, name := range fields {
		n, ok := d.number[name]
		if !ok {
			t.requested = t.requested[:0]
			return d.noField(name)
		}
		t.requested, t.numbers = append(t.requested, name), append(t.numbers, n)
	}
	return nil
}

func (d *database) noField(name string) error {
	return fmt.Errorf("%w: %q, want field0 to %s", ErrNoField, name, d.names[len(d.names)-1])
}

// record returns a copy of the requested fields of a row.
func (d *database) record(t *thread, row tables.Row) map[string][]byte {
	out, _ := d.recordInto(t, row, make([]byte, 0, d.valueBytes(t, row)))
	return out
}

// valueBytes returns the total size of the requested fields.
func (d *database) valueBytes(t *thread, row tables.Row) (n int) {
	for _, f := range t.numbers {
		n += len(d.layout.Value(row, d.fields[f]))
	}
	return n
}

// recordInto does the same as record, but appends the values to buf, which must have
// room for them. The records of a scan share one buffer.
func (d *database) recordInto(t *thread, row tables.Row, buf []byte) (map[string][]byte, []byte) {
	out := make(map[string][]byte, len(t.numbers))
	for i, n := range t.numbers {
		from := len(buf)
		buf = append(buf, d.layout.Value(row, d.fields[n])...)
		out[t.requested[i]] = buf[from:len(buf):len(buf)]
	}
	return out, buf
}

// checkValues returns an error for values that no row of the table can hold. It is
// called before the transaction starts.
func (d *database) checkValues(values map[string][]byte) error {
	for name, v := range values {
		n, ok := d.number[name]
		if !ok {
			return d.noField(name)
		}
		if len(v) > d.longest[n] {
			return fmt.Errorf("%w: %s has %d bytes, want at most %d", ErrValue, name, len(v), d.longest[n])
		}
	}
	return nil
}

// set writes values over t.row.
func (d *database) set(t *thread, values map[string][]byte) {
	for name, v := range values {
		d.layout.Set(&t.row, d.fields[d.number[name]], v)
	}
}

// fresh sets t.row to a new row that holds only values.
func (d *database) fresh(t *thread, values map[string][]byte) {
	t.row = append(t.row[:0], d.table.NewRow()...)
	d.set(t, values)
}

// missing adds the key to the engine's error for a missing record.
func missing(key string, err error) error {
	if errors.Is(err, txn.ErrNotFound) || errors.Is(err, txn.ErrExists) {
		return fmt.Errorf("record %s: %w", key, err)
	}
	return err
}
