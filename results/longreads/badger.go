//go:build peers

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger"
)

func init() { peers["badger"] = openBadger }

// badgerStore is a badger database in a directory, which does not wait for the
// disk.
type badgerStore struct {
	db  *badger.DB
	dir string
}

func openBadger(_ context.Context, _ string, rows int) (_ store, err error) {
	dir, err := os.MkdirTemp("", "longreads")
	if err != nil {
		return nil, err
	}
	o := badger.DefaultOptions
	o.Dir, o.ValueDir, o.SyncWrites = dir, dir, false
	o.ValueThreshold = 64 // rows lie in the tree, which scans read fastest
	db, err := badger.Open(o)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	b := &badgerStore{db, dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	const batch = 1000
	for _, table := range []string{hot, cold} {
		for first := 0; first < rows; first += batch {
			err := db.Update(func(x *badger.Txn) error {
				for i := first; i < min(first+batch, rows); i++ {
					if err := x.Set(badgerKey(table, uint64(i)), badgerRow(balance)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

func badgerKey(table string, key uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte(table), key)
}

func badgerRow(balance int64) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(balance)), note...)
}

func (b *badgerStore) hows() []string { return []string{"view"} }

func (b *badgerStore) writer(context.Context) (*writer, error) {
	var aborts atomic.Uint64
	return &writer{
		move: func(_ context.Context, from, to uint64) error {
			for {
				err := b.db.Update(func(x *badger.Txn) error {
					return errors.Join(badgerAdd(x, badgerKey(hot, from), -1), badgerAdd(x, badgerKey(hot, to), 1))
				})
				if !errors.Is(err, badger.ErrConflict) {
					return err
				}
				aborts.Add(1)
			}
		},
		aborts: aborts.Load,
		close:  func() error { return nil },
	}, nil
}

func badgerAdd(x *badger.Txn, key []byte, n int64) error {
	item, err := x.Get(key)
	if err != nil {
		return err
	}
	v, err := item.Value()
	if err != nil {
		return err
	}
	return x.Set(key, badgerRow(int64(binary.BigEndian.Uint64(v))+n))
}

func (b *badgerStore) reader(context.Context, string) (*reader, error) {
	return &reader{
		read: func(_ context.Context, table string) (sum int64, rows int, err error) {
			err = b.db.View(func(x *badger.Txn) error {
				it := x.NewIterator(badger.IteratorOptions{}) // in this thread: prefetching takes more time here
				defer it.Close()
				for it.Seek([]byte(table)); it.ValidForPrefix([]byte(table)); it.Next() {
					v, err := it.Item().Value()
					if err != nil {
						return err
					}
					sum, rows = sum+int64(binary.BigEndian.Uint64(v)), rows+1
				}
				return nil
			})
			return sum, rows, err
		},
		counts: func() counts { return counts{} },
		cpu:    func() time.Duration { return 0 },
		close:  func() error { return nil },
	}, nil
}

func (b *badgerStore) usage(context.Context) (usage, error) {
	u := usage{}
	entries, err := os.ReadDir(b.dir)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			u.bytes += uint64(info.Size())
		}
	}
	return u, err
}

func (b *badgerStore) rebuild(context.Context) error { return nil }

func (b *badgerStore) Close() error { return errors.Join(b.db.Close(), os.RemoveAll(b.dir)) }
