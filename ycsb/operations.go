package ycsb

import (
	"context"
	"errors"
	"fmt"

	"drtmx/tables"
	"drtmx/txn"
	"drtmx/ycsb/usertable"
)

// Read reads fields of a record; no fields means all. A missing record is an
// error.
func (d *database) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	t, err := d.begin(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := d.resolve(t, fields); err != nil {
		return nil, err
	}
	var out map[string][]byte
	err = t.session.View(ctx, func(tx *txn.Txn) error {
		row, err := d.get(tx, key)
		if err != nil {
			return err
		}
		out = d.record(t, row)
		return nil
	})
	if err != nil {
		return nil, missing(key, err)
	}
	return out, nil
}

// Scan reads fields of up to count records from a key on, in key order.
func (d *database) Scan(ctx context.Context, table, from string, count int, fields []string) ([]map[string][]byte, error) {
	t, err := d.begin(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := d.resolve(t, fields); err != nil {
		return nil, err
	}
	first, err := d.layout.Key(from)
	if err != nil {
		return nil, err
	}
	var out []map[string][]byte
	err = t.session.View(ctx, func(tx *txn.Txn) error {
		out = nil
		if count <= 0 {
			return nil
		}
		entries, err := tx.QueueScan(d.table.Primary(), first, tables.Last, count).Entries()
		if err != nil {
			return err
		}
		size := 0
		for i := range entries {
			size += d.valueBytes(t, entries[i].Row)
		}
		buf := make([]byte, 0, size)
		out = make([]map[string][]byte, len(entries))
		for i := range entries {
			out[i], buf = d.recordInto(t, entries[i].Row, buf)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Insert inserts a record; fields without a value are empty. An existing record
// is an error, unless drtmx.upsert=true replaces it.
func (d *database) Insert(ctx context.Context, table, key string, values map[string][]byte) error {
	t, err := d.begin(ctx, table)
	if err != nil {
		return err
	}
	if err := d.checkValues(values); err != nil {
		return err
	}
	d.fresh(t, values)
	err = t.session.Update(ctx, func(tx *txn.Txn) error { return d.insert(tx, key, t.row) })
	return missing(key, err)
}

func (d *database) insert(tx *txn.Txn, key string, row tables.Row) error {
	k, err := d.layout.Key(key)
	if err != nil {
		return err
	}
	if d.lookFirst { // the write then carries the address
		if _, err := tx.Get(d.table, k); err != nil && !errors.Is(err, txn.ErrNotFound) {
			return err
		}
	}
	if d.upsert {
		return tx.Put(d.table, k, row)
	}
	return tx.Insert(d.table, k, row)
}

// get reads a record.
func (d *database) get(tx *txn.Txn, key string) (tables.Row, error) {
	k, err := d.layout.Key(key)
	if err != nil {
		return nil, err
	}
	return tx.Get(d.table, k)
}

// rewrite replaces a record, which must exist.
func (d *database) rewrite(tx *txn.Txn, key string, row tables.Row) error {
	k, err := d.layout.Key(key)
	if err != nil {
		return err
	}
	return tx.Update(d.table, k, row)
}

// remove deletes a record, which must exist.
func (d *database) remove(tx *txn.Txn, key string) error {
	k, err := d.layout.Key(key)
	if err != nil {
		return err
	}
	return tx.Delete(d.table, k)
}

// Update writes fields of a record, which must exist.
func (d *database) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	t, err := d.begin(ctx, table)
	if err != nil {
		return err
	}
	if err := d.checkValues(values); err != nil {
		return err
	}
	if d.atServer {
		_, err := d.call(ctx, t, key, values, false)
		return missing(key, err)
	}
	whole := len(values) == len(d.fields)
	if whole {
		d.fresh(t, values)
	}
	err = t.session.Update(ctx, func(tx *txn.Txn) error {
		if !whole {
			row, err := d.get(tx, key)
			if err != nil {
				return err
			}
			t.row = append(t.row[:0], row...)
			d.set(t, values)
		}
		return d.rewrite(tx, key, t.row)
	})
	return missing(key, err)
}

// ReadModifyWrite reads fields of a record and writes others, in one
// transaction. It returns the record as it was.
func (d *database) ReadModifyWrite(ctx context.Context, table, key string, fields []string, values map[string][]byte) (map[string][]byte, error) {
	t, err := d.begin(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(d.resolve(t, fields), d.checkValues(values)); err != nil {
		return nil, err
	}
	if d.atServer {
		row, err := d.call(ctx, t, key, values, true)
		if err != nil {
			return nil, missing(key, err)
		}
		return d.record(t, row), nil
	}
	var out map[string][]byte
	err = t.session.Update(ctx, func(tx *txn.Txn) error {
		row, err := d.get(tx, key)
		if err != nil {
			return err
		}
		out = d.record(t, row)
		t.row = append(t.row[:0], row...)
		d.set(t, values)
		return d.rewrite(tx, key, t.row)
	})
	if err != nil {
		return nil, missing(key, err)
	}
	return out, nil
}

// call writes fields of a record at its home server: one RPC. If wanted is true,
// it returns the record as it was before, as a view.
func (d *database) call(ctx context.Context, t *thread, key string, values map[string][]byte, wanted bool) (tables.Row, error) {
	k, err := d.layout.Key(key)
	if err != nil {
		return nil, err
	}
	home, err := d.db.Home(d.table, k)
	if err != nil {
		return nil, err
	}
	u := &t.update
	u.Table, u.Key = append(u.Table[:0], d.layout.Name...), usertable.AppendKey(u.Key[:0], k)
	u.Return, u.Fields = wanted, u.Fields[:0]
	for name, v := range values {
		u.Fields = append(u.Fields, usertable.FieldValue{Field: d.number[name], Value: v})
	}
	t.args = u.Append(t.args[:0])
	res, err := t.session.Call(ctx, home, usertable.ProcUpdate, t.args)
	switch {
	case err != nil:
		return nil, err
	case len(res) == 1 && res[0] == usertable.StatusMissing:
		return nil, txn.ErrNotFound
	case len(res) == 0 || res[0] != usertable.StatusOK:
		return nil, fmt.Errorf("%w: the result of %s", txn.ErrProtocol, usertable.ProcUpdate)
	case !wanted:
		return nil, nil
	}
	row := tables.Row(res[1:])
	return row, d.table.CheckRow(row)
}

// Delete deletes a record, which must exist.
func (d *database) Delete(ctx context.Context, table, key string) error {
	t, err := d.begin(ctx, table)
	if err != nil {
		return err
	}
	return missing(key, t.session.Update(ctx, func(tx *txn.Txn) error { return d.remove(tx, key) }))
}

// batch checks a batch: as many keys as records, and no more than one
// transaction may write.
func (d *database) batch(ctx context.Context, table string, keys []string, values []map[string][]byte) (*thread, error) {
	t, err := d.begin(ctx, table)
	if err != nil {
		return nil, err
	}
	if len(keys) != len(values) {
		return nil, fmt.Errorf("%w: %d keys with %d records", ErrValue, len(keys), len(values))
	}
	for _, v := range values {
		if err := d.checkValues(v); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// keyed is an engine error together with the key of the batch that it concerns.
type keyed struct {
	key string
	err error
}

func (k *keyed) Error() string { return "record " + k.key + ": " + k.err.Error() }
func (k *keyed) Unwrap() error { return k.err }

// inBatch adds the number of records to an error of the commit, which names no
// record.
func inBatch(keys []string, err error) error {
	var k *keyed
	if err == nil || errors.As(err, &k) {
		return err
	}
	return fmt.Errorf("a batch of %d records: %w", len(keys), err)
}

// BatchInsert inserts records in one transaction: all or none.
func (d *database) BatchInsert(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	t, err := d.batch(ctx, table, keys, values)
	if err != nil {
		return err
	}
	err = t.session.Update(ctx, func(tx *txn.Txn) error {
		for i, key := range keys {
			d.fresh(t, values[i])
			if err := d.insert(tx, key, t.row); err != nil {
				return &keyed{key, err}
			}
		}
		return nil
	})
	return inBatch(keys, err)
}

// BatchRead reads records in one transaction, as of one moment. A missing
// record is an error.
func (d *database) BatchRead(ctx context.Context, table string, keys, fields []string) ([]map[string][]byte, error) {
	t, err := d.begin(ctx, table)
	if err != nil {
		return nil, err
	}
	if err := d.resolve(t, fields); err != nil {
		return nil, err
	}
	var out []map[string][]byte
	err = t.session.View(ctx, func(tx *txn.Txn) error {
		out = out[:0]
		if err := d.queue(t, tx, keys); err != nil {
			return err
		}
		for i, g := range t.gets {
			row, err := g.Row()
			if err != nil {
				return &keyed{keys[i], err}
			}
			out = append(out, d.record(t, row))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// queue queues the reads of a batch, so that they share network rounds.
func (d *database) queue(t *thread, tx *txn.Txn, keys []string) error {
	t.gets = t.gets[:0]
	for _, key := range keys {
		k, err := d.layout.Key(key)
		if err != nil {
			return err
		}
		t.gets = append(t.gets, tx.QueueGet(d.table, k))
	}
	return nil
}

// BatchUpdate writes fields of records in one transaction: all or none.
func (d *database) BatchUpdate(ctx context.Context, table string, keys []string, values []map[string][]byte) error {
	t, err := d.batch(ctx, table, keys, values)
	if err != nil {
		return err
	}
	err = t.session.Update(ctx, func(tx *txn.Txn) error {
		if err := d.queue(t, tx, keys); err != nil {
			return err
		}
		written := make(map[string]bool, len(keys))
		for i, key := range keys {
			row, err := t.gets[i].Row()
			if written[key] { // the key is in the batch twice: use the row already written
				row, err = d.get(tx, key)
			}
			if err == nil {
				t.row = append(t.row[:0], row...)
				d.set(t, values[i])
				err = d.rewrite(tx, key, t.row)
			}
			if err != nil {
				return &keyed{key, err}
			}
			written[key] = true
		}
		return nil
	})
	return inBatch(keys, err)
}

// BatchDelete deletes records in one transaction: all or none.
func (d *database) BatchDelete(ctx context.Context, table string, keys []string) error {
	t, err := d.begin(ctx, table)
	if err != nil {
		return err
	}
	err = t.session.Update(ctx, func(tx *txn.Txn) error {
		for _, key := range keys {
			if err := d.remove(tx, key); err != nil {
				return &keyed{key, err}
			}
		}
		return nil
	})
	return inBatch(keys, err)
}
