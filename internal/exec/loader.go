package exec

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// loadChunk is the size in bytes at which a loader sends its queued rows.
const loadChunk = 192 << 10

// Loader fills a table outside transactions, before the database is used. It sends
// rows in bulk, with their secondary entries. A Loader is for one goroutine. Several
// may run concurrently, preferably on different key ranges.
type Loader struct {
	s          *Session
	ctx        context.Context
	tab        *tables.Table
	maintained []*tables.Index // of tab
	as         *tables.Table   // the definition of the caller's rows
	version    uint32          // of the catalogue
	queues     []loadQueue     // by index of the table × partition
	entries    []loadEntry     // of the row that is added, by index of maintained
	keys       keyArena
	order      loadOrder
	err        error // the first of a server: rows that were queued are lost
}

// loadEntry is a row's entry in one maintained index.
type loadEntry struct {
	key tables.Key
	row tables.Row
	buf tables.EntryBuffer
}

type loadQueue struct {
	ix   *tables.Index
	part placement.Partition
	n    int
	b    []byte
	// rows, if not nil, have the entries in this queue, of a twin, and are sent before: no
	// entry is ever without its row, and a local twin gets the places of rows.
	rows *loadQueue
}

// NewLoader opens a loader for one table. It returns ErrSealed if loading has ended.
func (db *DB) NewLoader(ctx context.Context, t *tables.Table) (*Loader, error) {
	as, c := t, db.Catalog()
	t, err := c.Resolve(t)
	if err != nil {
		return nil, err
	}
	if len(t.Building()) > 0 {
		return nil, t.Building()[0].Readable()
	}
	s, err := db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	l := &Loader{s: s, ctx: ctx, tab: t, maintained: t.Maintained(), as: as, version: uint32(c.Version())}
	for _, ix := range append([]*tables.Index{t.Primary()}, t.Maintained()...) {
		for p := range placement.Partition(db.Partitions()) {
			l.queues = append(l.queues, loadQueue{ix: ix, part: p})
		}
	}
	l.entries = make([]loadEntry, len(l.maintained))
	if err := l.load(l.begin(&l.queues[0])); err != nil { // no rows: only to hear at once if none are taken
		return nil, errors.Join(err, s.Close())
	}
	return l, nil
}

// Add queues one row and its entries in other indexes. Ascending keys load fastest. The
// caller may reuse key and row on return. If a key is loaded twice the last row
// stays, with the secondary entries of both: load each key once.
//
// A row or key that does not fit the table is refused, and the loader can go on. An
// error of a server ends the load, because rows that Add has accepted are lost with
// it: every later Add and Close return it too. What was sent before stays loaded, rows
// perhaps without their entries in other indexes: such a table is of no use.
func (l *Loader) Add(key tables.Key, row tables.Row) error {
	if l.err != nil {
		return l.err
	}
	ix := l.tab.Primary()
	if err := cmp.Or(ix.CheckKey(key), l.as.CheckRow(row)); err != nil {
		return err
	}
	if l.tab.EarlierFormat(l.as) {
		row = l.tab.FromEarlier(l.as, row)
	}
	n := l.s.db.Partitions()
	if l.tab.Replicated() {
		for p := range n {
			if err := l.put(&l.queues[p], key, row); err != nil {
				return err
			}
		}
		return nil
	}
	for i, second := range l.maintained { // all, before the row is queued
		e := &l.entries[i]
		var err error
		if e.key, e.row, err = second.Entry(key, row, &e.buf); err != nil {
			return err
		}
	}
	home := &l.queues[ix.Partition.Of(key, n)]
	if err := l.put(home, key, row); err != nil {
		return err
	}
	for i, second := range l.maintained {
		e := &l.entries[i]
		q := &l.queues[(i+1)*n+second.Partition.Of(e.key, n)]
		if second.IsTwin() {
			q.rows = home
		}
		if err := l.put(q, e.key, e.row); err != nil {
			return err
		}
	}
	return nil
}

func (l *Loader) put(q *loadQueue, key tables.Key, row tables.Row) error {
	if q.n == 0 {
		l.begin(q)
	}
	l.keys.reset()
	if key := l.keys.view(q.ix, key); q.ix.Strings {
		q.b = wire.AppendBytes(wire.AppendKey(q.b, key, true), row)
	} else {
		q.b = append(binary.LittleEndian.AppendUint64(q.b, key.Num), row...)
	}
	q.n++
	if len(q.b) >= loadChunk {
		return l.send(q)
	}
	return nil
}

// loadHeader is the size of what begin writes.
const loadHeader = 9

// begin begins the next message of a queue.
func (l *Loader) begin(q *loadQueue) *loadQueue {
	q.b = append(q.b[:0], byte(wire.OpLoad))
	q.b = binary.LittleEndian.AppendUint16(q.b, uint16(q.part))
	q.b = binary.LittleEndian.AppendUint16(q.b, uint16(q.ix.ID))
	q.b = binary.LittleEndian.AppendUint32(q.b, l.version)
	return q
}

func (l *Loader) send(q *loadQueue) error {
	if q.rows != nil && q.rows.n > 0 {
		if err := l.send(q.rows); err != nil {
			return err
		}
	}
	q.n = 0
	q.b = l.order.ascending(q.ix, q.b, loadHeader)
	l.err = l.load(q)
	return l.err
}

// load sends the rows of a queue to their server.
func (l *Loader) load(q *loadQueue) error {
	server := l.s.db.placement.At(q.part)
	link, err := l.s.net.link(l.ctx, server)
	if err != nil {
		return err
	}
	resp, err := l.s.net.call(l.ctx, link, q.b)
	if err != nil {
		return err
	}
	if c := wire.Code(resp[0]); c != wire.OK {
		return loadError(q.ix, codeError(c, resp[1:]))
	}
	return nil
}

// Close sends the rows that are still queued. It returns nil if the servers have all
// rows that Add has accepted.
func (l *Loader) Close() error {
	defer l.s.Close()
	for i := range l.queues {
		if l.err != nil {
			break
		}
		if q := &l.queues[i]; q.n > 0 {
			_ = l.send(q) // kept in l.err
		}
	}
	return l.err
}

// Seal ends loading: the servers train the models of all ordered indexes, and refuse
// further loads. Models that this client has fetched before are fetched again.
func (db *DB) Seal(ctx context.Context) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	for i := range placement.Server(len(db.servers)) {
		if err := s.controlOp(ctx, i, wire.OpSeal); err != nil {
			return err
		}
		s.reader.outdate(ctx, i)
	}
	return nil
}

// loadError adds the table to a server's refusal of rows.
func loadError(ix *tables.Index, err error) error {
	var e *tables.Error
	if errors.As(err, &e) && e.Table == "" {
		e.Table = ix.Table.Name()
	}
	return err
}
