package tables

import (
	"drtmx/index"
	"drtmx/internal/mem"
)

// Entry is one row of a scan. Row and KeyBytes are valid until the
// transaction's body returns.
type Entry struct {
	Key uint64 // 0 if the index has string keys
	Row Row
	str string // of the key, as the engine knows it
}

// NewEntry makes the entry of a row under the engine's form of its key.
func NewEntry(ix *Index, key index.Key, row Row) Entry { return Entry{ix.Number(key), row, key.Str} }

// KeyBytes is the key in an index with string keys; it must not be written.
func (e *Entry) KeyBytes() []byte { return mem.StringBytes(e.str) }

// EngineKey is the key as the engine knows it.
func (e *Entry) EngineKey() index.Key {
	if e.str != "" {
		return index.Str(e.str)
	}
	return index.Num(e.Key)
}
