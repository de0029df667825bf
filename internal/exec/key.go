package exec

import (
	"math"

	"drtmx/index"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/tables"
)

// keyArena holds the string keys of one attempt: they are valid until the next.
type keyArena struct{ b []byte }

const keyArenaBytes = 4 << 10

func (a *keyArena) reset() { a.b = a.b[:0] }

// room ensures that appending n bytes does not move the bytes of existing keys.
func (a *keyArena) room(n int) {
	if cap(a.b)-len(a.b) < n {
		a.b = make([]byte, 0, max(keyArenaBytes, 2*cap(a.b), n)) // existing keys keep the old buffer
	}
}

// view converts a checked key of an index to the engine's form. A string key shares
// the bytes of key.
func (a *keyArena) view(ix *tables.Index, key tables.Key) index.Key {
	switch {
	case ix.Key == tables.StringKey:
		return index.Str(mem.String(key.Bytes()))
	case !ix.Strings:
		return index.Num(key.Num())
	}
	a.room(8)
	at := len(a.b)
	a.b = index.AppendNum(a.b, key.Num())
	return index.Str(mem.String(a.b[at:]))
}

// keep does the same as view with a copy of the key's bytes, which is valid for the
// rest of the attempt.
func (a *keyArena) keep(ix *tables.Index, key tables.Key) index.Key {
	if !ix.Strings {
		return index.Num(key.Num())
	}
	return a.keepString(ix, key)
}

func (a *keyArena) keepString(ix *tables.Index, key tables.Key) index.Key {
	if ix.Key == tables.NumberKey {
		return a.view(ix, key)
	}
	b := key.Bytes()
	a.room(len(b))
	at := len(a.b)
	a.b = append(a.b, b...)
	return index.Str(mem.String(a.b[at:]))
}

// bound does the same as keep for a bound of a scan.
func (a *keyArena) bound(ix *tables.Index, key tables.Key) index.Key {
	switch {
	case key == tables.First:
		return index.Key{}
	case key == tables.Last && ix.Key == tables.StringKey:
		return index.Highest
	case key == tables.Last:
		key = tables.Num(math.MaxUint64)
	}
	return a.keep(ix, key)
}

// userKey is the inverse of view.
func userKey(ix *tables.Index, key index.Key) tables.Key {
	switch {
	case ix.Key == tables.StringKey:
		return tables.Str(key.Str)
	case !ix.Strings:
		return tables.Num(key.Num)
	}
	n, _ := index.NumOf(key.Str)
	return tables.Num(n)
}

// partitionOf returns the partition of a key among n partitions.
func partitionOf(ix *tables.Index, key index.Key, n int) placement.Partition {
	return placement.Partition(ix.Partition.Of(userKey(ix, key), n))
}

// after returns a lower bound for the rows after key: the next possible key.
func after(key index.Key, strings bool) index.Key {
	if !strings {
		return index.Num(key.Num + 1)
	}
	b, ok := index.AppendNext(nil, key.Str)
	if !ok {
		return key // the highest: a scan from it returns only this key again
	}
	return index.Str(string(b))
}

// entry returns the secondary entry of a row, or nothing if there is no row. The payload
// is a view of b.
func (a *keyArena) entry(ix *tables.Index, primary tables.Key, row tables.Row, b *tables.EntryBuffer) (index.Key, tables.Row, error) {
	if row == nil {
		return index.Key{}, nil, nil
	}
	key, e, err := ix.Entry(primary, row, b)
	if err != nil {
		return index.Key{}, nil, err
	}
	return a.keep(ix, key), e, nil
}
