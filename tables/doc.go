// Package tables describes data: columns and row layouts, tables with their
// indexes, how keys map to partitions, and the catalogue that binds them.
//
// A table's rows live in its primary index, either a hash index (point access,
// [Hash]) or an ordered one (point and range access, [Ordered]). A secondary
// index is a separate ordered index. The engine computes its keys from the
// columns of the row and updates them in the same transaction as the row.
//
// A [Key] is a number or a string of bytes, and the same methods take both:
//
//	t.Get(account, tables.Num(7))
//	t.Get(page, tables.Str("/index"))
//	t.Scan(page.Primary(), tables.Str("/a"), tables.Last, 10)
//
// Everything here is plain data: servers send a catalogue over the network as
// it is, and every process derives the same layouts, index numbers and
// partitions from it.
package tables
