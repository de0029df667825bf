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
// at a data server: its block, and its key in the index. TestMemory compares it with the
// memory of real loads.
func (l *Layout) RowBytesMin(tab *tables.Table) uint64 {
	row := tab.NewRow()
	value := bytes.Repeat([]byte{'v'}, l.meanBytes)
	for i := range tab.Def().Columns {
		row.SetBytes(tab.Field(tab.Def().Columns[i].Name), value)
	}
	const header = 1 // of a block
	words := header + (len(row)+mem.WordBytes-1)/mem.WordBytes
	const address = mem.WordBytes
	return block.ClassFor(words).Bytes() + uint64(len(l.Keys.Name(l.first))) + address
}
