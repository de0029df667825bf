package exec

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/mem"
	"drtmx/tables"
)

// keyArena holds the string keys of one attempt: they live until the next.
type keyArena struct{ b []byte }

const keyArenaBytes = 4 << 10

func (a *keyArena) reset() { a.b = a.b[:0] }

// room ensures that appending n bytes does not move the bytes of existing keys.
func (a *keyArena) room(n int) {
	if cap(a.b)-len(a.b) < n {
		a.b = make([]byte, 0, max(keyArenaBytes, 2*cap(a.b), n)) // existing keys keep the old buffer
	}
}

// str returns a key with a copy of the bytes.
func (a *keyArena) str(key []byte) index.Key {
	a.room(len(key))
	at := len(a.b)
	a.b = append(a.b, key...)
	return index.Str(mem.String(a.b[at:]))
}

// number is a number key of an index as the engine knows it.
func (t *Txn) number(ix *tables.Index, key uint64) index.Key {
	if !ix.Strings {
		return index.Num(key)
	}
	t.keys.room(8)
	at := len(t.keys.b)
	t.keys.b = index.AppendNum(t.keys.b, key)
	return index.Str(mem.String(t.keys.b[at:]))
}

// keyText returns a key as error texts show it.
func keyText(ix *tables.Index, key index.Key) string {
	if ix.Key == tables.NumberKey {
		return fmt.Sprintf("%#x", ix.Number(key))
	}
	return key.String()
}
