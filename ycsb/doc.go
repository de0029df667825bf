// Package ycsb registers drtmx as a database of go-ycsb, under the name drtmx.
// Importing it is enough:
//
//	import _ "drtmx/ycsb"
//
// A record is a row of one table with a string key and one column for each
// field. Every operation is a transaction, and so is a batch. All reads are
// one-sided. By default the data servers run in this process; the property
// drtmx.addr names a running cluster instead. docs/ycsb.md has all properties.
//
// go-ycsb's interface has no read-modify-write: its workload calls Read and
// Update. The database has the method ReadModifyWrite, which is one
// transaction, for load generators that use it, such as drtmx/ycsb/bench.
package ycsb
