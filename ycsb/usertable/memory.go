package usertable

import (
	"bytes"

	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/tables"
)

// Records returns how many records a load inserts, 0 if the properties do not say.
func (l *Layout) Records() int64 { return l.loads }

// RowBytesMin returns the least memory, in bytes, that a record of the mean length takes
// at a data server: its block, which has the key and the row, and its entry in the
// index. TestMemory compares it with the memory of real loads.
func (l *Layout) RowBytesMin(tab *tables.Table) uint64 {
	row := tab.NewRow()
	value := bytes.Repeat([]byte{'v'}, l.meanBytes)
	for i := range tab.Def().Columns {
		l.Set(&row, tab.Field(tab.Def().Columns[i].Name), value)
	}
	if l.Numbers { // with its key, header and link to older versions, and no free slots
		return uint64(len(row)) + 3*mem.WordBytes
	}
	words := func(n int) int { return (n + mem.WordBytes - 1) / mem.WordBytes }
	// Words of a block before its key, and of an entry of the index: docs/layouts.md.
	front, entry := 5, uint64(2*mem.WordBytes)
	if !tab.Primary().Ordered {
		front, entry = 4, mem.WordBytes
	}
	size := front + words(len(l.Keys.Name(l.first))) + words(len(row))
	if l.constant {
		return block.ClassFor(size).Bytes() + entry
	}
	return uint64(size)*mem.WordBytes + entry // shorter records have smaller blocks
}
