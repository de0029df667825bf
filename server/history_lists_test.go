package server_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/history"
	"drtmx/tables"
	"drtmx/txn"
)

// Lists of the history checker are rows: a count and room for so many values.
// The table by hash and the ordered one hold the same kind of row; their keys
// are told apart in a history by a high bit.
//
// Each table has a secondary index that includes the list. That of the table
// by hash orders it by key, so that a scan is possible; that of the ordered
// one orders by length and key, so that every append moves an entry.
const (
	inHash, inOrdered = 0, 1
	keyBits           = 40
	hashKeys          = history.Key(1) << keyBits
	bareShift         = 6 // bits of the keys of a bare table that do not choose the partition
)

type listSchema struct {
	cat     *tables.Catalog
	strings bool // keys are strings, rows vary in size
	room    int  // values in a row
	tab     [2]*tables.Table
	key     [2]tables.Field
	count   [2]tables.Field
	list    [2]tables.Field
	byKey   struct {
		ix        *tables.Index
		key, list tables.Field
	}
	byLen struct {
		ix        *tables.Index
		key, list tables.Field
	}
}

// newListSchema makes tables whose rows hold room values. Few values are kept
// inline in the leaves of an ordered index, many apart.
func newListSchema(room int) *listSchema { return newListSchemaOf(room, "", tables.XStore, false) }

// newListSchemaOf makes them with a twin of the hashed table, and with an engine for the ordered one. If that is bare, it has no
// secondary index, and more neighbours in one partition: clients can write it without the server.
func newListSchemaOf(room int, twin tables.Twin, e tables.Engine, bare bool) *listSchema {
	columns := []tables.Column{
		{Name: "key", Type: tables.Int64},
		{Name: "count", Type: tables.Int64},
		{Name: "list", Type: tables.Text, Size: 8 * room},
	}
	ordered := tables.Def{
		Name: "ordered", Primary: tables.Ordered, Engine: e, Columns: columns, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: bareShift},
	}
	if !bare {
		ordered.Partition.Shift = 2
		ordered.Secondary = []tables.Secondary{{
			Name: "by_length", Include: []string{"key", "list"}, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: keyBits},
			Key: []tables.KeyPart{{Column: "count", Bits: 16, How: tables.Value}, {Column: "key", Bits: keyBits, How: tables.Value}},
		}}
	}
	cat, err := tables.NewCatalog(
		tables.Def{
			Name: "hashed", Primary: tables.Hash, Twin: twin, Columns: columns, Partition: tables.Partitioning{Kind: tables.ByBits},
			Secondary: []tables.Secondary{{
				Name: "by_key", Include: []string{"list"}, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 2},
				Key: []tables.KeyPart{{Column: "key", Bits: keyBits, How: tables.Value}},
			}},
		},
		ordered,
	)
	if err != nil {
		panic(err)
	}
	return schemaOf(cat, room)
}

// schemaOf finds the fields.
func schemaOf(cat *tables.Catalog, room int) *listSchema {
	s := &listSchema{cat: cat, room: room}
	for i, name := range []string{"hashed", "ordered"} {
		t := cat.MustTable(name)
		s.tab[i], s.key[i], s.count[i], s.list[i] = t, t.Field("key"), t.Field("count"), t.Field("list")
	}
	s.byKey.ix = s.tab[inHash].Secondary("by_key")
	s.byKey.key, s.byKey.list = s.byKey.ix.Field(tables.PrimaryKey), s.byKey.ix.Field("list")
	if s.byLen.ix = s.tab[inOrdered].Secondary("by_length"); s.byLen.ix == nil {
		return s
	}
	s.byLen.key, s.byLen.list = s.byLen.ix.Field(tables.PrimaryKey), s.byLen.ix.Field("list")
	return s
}

// step is one operation of a transaction as it is to be carried out.
type step struct {
	history.PlanOp
	table int
	how   uint64 // bits that vary the calls made; see the constants
}

// Variations of a step.
const (
	howPut       = 1 << iota // write by Put rather than Insert or Update
	howSecondary             // scan a secondary index instead of the primary
	howLimit                 // scan with a limit
	howQueue                 // of the first step: queue all point reads together
	howRollBack              // of the first step: the body fails in the end
	howBits      = 5

	howTwin = 1 << howBits // scan a twin, or fail
)

var (
	errFull     = errors.New("list is full")
	errRollBack = errors.New("rolled back on purpose")
)

// script is a transaction in a form that crosses the network.
func encodeSteps(b []byte, steps []step) []byte {
	le := binary.LittleEndian
	for _, s := range steps {
		b = append(b, byte(s.Kind), byte(s.table), byte(s.how))
		b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, uint64(s.Key)), uint64(s.Hi)), uint64(s.Value))
	}
	return b
}

func decodeSteps(b []byte) (steps []step) {
	le := binary.LittleEndian
	for ; len(b) >= 27; b = b[27:] {
		s := step{table: int(b[1]), how: uint64(b[2])}
		s.Kind, s.Key, s.Hi = history.OpKind(b[0]), history.Key(le.Uint64(b[3:])), history.Key(le.Uint64(b[11:]))
		s.Value = history.Value(le.Uint64(b[19:]))
		steps = append(steps, s)
	}
	return steps
}

// result is what a step found: a list by key, or the rows of a scan.
type result struct {
	table int
	kind  history.OpKind
	reads bool // of a scan: rows were read one by one, nothing is known of others
	key   history.Key
	hi    history.Key // of a scan: the last key covered
	value history.Value
	rows  []history.Row // of a read or delete: at most one
}

// results collects what a body found; a body that runs again starts anew.
type results struct {
	list   []result
	values []history.Value // the rows' memory
	full   []result        // keys whose lists have no room
	linger time.Duration   // between the steps
}

func (r *results) reset() { r.list, r.values, r.full = r.list[:0], r.values[:0], r.full[:0] }

func (r *results) add(kind history.OpKind, table int, key history.Key) *result {
	if len(r.list) < cap(r.list) {
		r.list = r.list[:len(r.list)+1]
	} else {
		r.list = append(r.list, result{})
	}
	x := &r.list[len(r.list)-1]
	*x = result{kind: kind, table: table, key: key, rows: x.rows[:0]}
	return x
}

func (r *results) row(x *result, key history.Key, text []byte) []history.Value {
	at := len(r.values)
	for i := 0; i+8 <= len(text); i += 8 {
		r.values = append(r.values, history.Value(binary.LittleEndian.Uint64(text[i:])))
	}
	list := r.values[at:len(r.values):len(r.values)]
	x.rows = append(x.rows, history.Row{Key: key, List: list})
	return list
}

// encode makes the answer of a procedure.
func (r *results) encode() (b []byte) {
	le := binary.LittleEndian
	for i := range r.list {
		x := &r.list[i]
		reads := byte(0)
		if x.reads {
			reads = 1
		}
		b = append(b, byte(x.kind), byte(x.table), reads)
		b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, uint64(x.key)), uint64(x.hi)), uint64(x.value))
		b = le.AppendUint32(b, uint32(len(x.rows)))
		for _, row := range x.rows {
			b = le.AppendUint32(le.AppendUint64(b, uint64(row.Key)), uint32(len(row.List)))
			for _, v := range row.List {
				b = le.AppendUint64(b, uint64(v))
			}
		}
	}
	return b
}

func (r *results) decode(b []byte) {
	le := binary.LittleEndian
	r.reset()
	for len(b) > 0 {
		x := r.add(history.OpKind(b[0]), int(b[1]), history.Key(le.Uint64(b[3:])))
		x.reads, x.hi, x.value = b[2] == 1, history.Key(le.Uint64(b[11:])), history.Value(le.Uint64(b[19:]))
		rows := le.Uint32(b[27:])
		b = b[31:]
		for range rows {
			n := 8 * int(le.Uint32(b[8:]))
			r.row(x, history.Key(le.Uint64(b)), b[12:12+n])
			b = b[12+n:]
		}
	}
}

// record writes what was found into the history.
func (r *results) record(rec *history.Recorder) {
	for i := range r.list {
		x := &r.list[i]
		base := history.Key(0)
		if x.table == inHash {
			base = hashKeys
		}
		one := func() []history.Value {
			if len(x.rows) == 0 {
				return nil
			}
			return x.rows[0].List
		}
		switch {
		case x.kind == history.OpAppend:
			rec.Append(base+x.key, x.value)
		case x.kind == history.OpRead:
			rec.Read(base+x.key, one())
		case x.kind == history.OpDelete:
			rec.Delete(base+x.key, one())
		case x.reads:
			for _, row := range x.rows {
				rec.Read(base+row.Key, row.List)
			}
		default:
			for j := range x.rows {
				x.rows[j].Key += base
			}
			rec.Scan(base+x.key, base+x.hi, x.rows)
			for j := range x.rows {
				x.rows[j].Key -= base
			}
		}
	}
}

// observe tells the generators how long lists have become.
func (r *results) observe(gen *[2]history.Generator) {
	for i := range r.list {
		for _, row := range r.list[i].rows {
			gen[r.list[i].table].Observe(row.Key, len(row.List))
		}
	}
	for _, x := range r.full {
		gen[x.table].Observe(x.key, 1<<20)
	}
}

// run is the body of every transaction, at the client or as a procedure.
func (s *listSchema) run(t *txn.Txn, steps []step, r *results) error {
	r.reset()
	queued := s.queue(t, steps)
	for i := range steps {
		st := &steps[i]
		if i > 0 && r.linger > 0 {
			time.Sleep(r.linger)
		}
		var err error
		if st.Kind == history.OpScan {
			err = s.scan(t, st, r)
		} else {
			var row tables.Row
			if queued != nil && queued[i] != nil {
				row, err = queued[i].Row()
			} else {
				row, err = s.get(t, st.table, uint64(st.Key))
			}
			if err == nil || errors.Is(err, txn.ErrNotFound) {
				err = s.point(t, st, row, r)
			}
		}
		if err != nil {
			return err
		}
	}
	if len(steps) > 0 && steps[0].how&howRollBack != 0 {
		return errRollBack
	}
	return nil
}

// queue asks for the first read of every key together.
func (s *listSchema) queue(t *txn.Txn, steps []step) []*txn.QueuedGet {
	if len(steps) == 0 || steps[0].how&howQueue == 0 {
		return nil
	}
	gets := make([]*txn.QueuedGet, len(steps))
	for i := range steps {
		first := steps[i].Kind != history.OpScan
		for j := range i {
			first = first && (steps[j].Kind == history.OpScan || steps[j].table != steps[i].table || steps[j].Key != steps[i].Key)
		}
		if first {
			gets[i] = s.queueGet(t, steps[i].table, uint64(steps[i].Key))
		}
	}
	return gets
}

// point reads a list and perhaps appends to it or deletes it. A row of nil is absent.
func (s *listSchema) point(t *txn.Txn, st *step, row tables.Row, r *results) error {
	tab, key := s.tab[st.table], uint64(st.Key)
	x := r.add(history.OpRead, st.table, st.Key)
	var list []history.Value
	if row != nil {
		list = r.row(x, st.Key, s.text(row, s.list[st.table]))
		if got := uint64(row.Int(s.key[st.table])); got != key || int(row.Int(s.count[st.table])) != len(list) {
			return fmt.Errorf("row of key %d says key %d and %d values, has %d", key, got, row.Int(s.count[st.table]), len(list))
		}
	}
	switch st.Kind {
	case history.OpDelete:
		if row == nil {
			return nil
		}
		x.kind = history.OpDelete
		return s.remove(t, st.table, key)
	case history.OpAppend:
		if len(list) == s.room {
			r.full = append(r.full, result{table: st.table, key: st.Key})
			return errFull
		}
		fresh := tab.NewRow()
		fresh.SetInt(s.key[st.table], int64(key))
		fresh.SetInt(s.count[st.table], int64(len(list)+1))
		text := make([]byte, 0, 8*s.room)
		for _, v := range list {
			text = binary.LittleEndian.AppendUint64(text, uint64(v))
		}
		fresh = s.setText(fresh, s.list[st.table], binary.LittleEndian.AppendUint64(text, uint64(st.Value)))
		r.add(history.OpAppend, st.table, st.Key).value = st.Value
		return s.write(t, st, st.how&howPut != 0, row == nil, fresh)
	}
	return nil
}

const scanLimit = 3

// scan reads a range. The table by hash is scanned through its secondary index
// by key, or through its twin; the ordered table's secondary is by length, so that a scan of it says
// nothing of keys it does not return.
func (s *listSchema) scan(t *txn.Txn, st *step, r *results) error {
	limit := 0
	if st.how&howLimit != 0 {
		limit = scanLimit
	}
	x := r.add(history.OpScan, st.table, st.Key)
	x.hi = st.Hi
	switch {
	case st.table == inHash && s.tab[inHash].Twin() != nil && st.how&howSecondary == 0:
		es, err := t.QueueScan(s.tab[inHash].Primary(), s.keyOf(uint64(st.Key)), s.keyOf(uint64(st.Hi)), limit).Entries()
		if st.how&howTwin == 0 && (errors.Is(err, tables.ErrCatalog) || errors.Is(err, tables.ErrSchema)) { // it has been taken away
			es, err = s.scanByKey(t, uint64(st.Key), uint64(st.Hi), limit)
			return s.take(x, r, es, err, s.byKey.key, s.byKey.list, limit)
		}
		return s.take(x, r, es, err, s.key[inHash], s.list[inHash], limit)
	case st.table == inHash:
		es, err := s.scanByKey(t, uint64(st.Key), uint64(st.Hi), limit)
		return s.take(x, r, es, err, s.byKey.key, s.byKey.list, limit)
	case st.how&howSecondary != 0 && s.byLen.ix != nil:
		x.reads = true
		n := uint64(st.Key) % uint64(s.room+1)
		es, err := s.scanByLen(t, n, scanLimit)
		return s.take(x, r, es, err, s.byLen.key, s.byLen.list, limit)
	}
	es, err := s.scanOrdered(t, uint64(st.Key), uint64(st.Hi), limit)
	return s.take(x, r, es, err, s.key[inOrdered], s.list[inOrdered], limit)
}

func (s *listSchema) take(x *result, r *results, es []txn.Entry, err error, key, list tables.Field, limit int) error {
	if err != nil {
		return err
	}
	for _, e := range es {
		r.row(x, history.Key(e.Row.Int(key)), s.text(e.Row, list))
	}
	if limit > 0 && len(es) == limit {
		x.hi = x.rows[len(x.rows)-1].Key
	}
	return nil
}

// procedures are run and, read-only, look.
func (s *listSchema) procedures() []txn.Procedure {
	body := func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		var r results
		if err := s.run(t, decodeSteps(args), &r); err != nil {
			return nil, err
		}
		return r.encode(), nil
	}
	return []txn.Procedure{{Name: "run", Body: body}, {Name: "look", Body: body, ReadOnly: true}}
}
