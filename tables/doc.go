// Package tables describes data: columns and row layouts, tables with their
// indexes, how keys map to partitions, and the catalogue that binds them.
//
// A table's rows live in its primary index, either a hash index (point
// access, [Hash]) or an ordered one (point and range access, [Ordered]).
// Secondary indexes are ordered indexes of their own, whose keys the engine
// computes from the columns of the row and keeps in step with it inside the
// same transaction. Everything here is plain data: a catalogue crosses the
// network as it stands, and every process derives the same layouts, index
// numbers and partitions from it.
package tables
