// Package ycsb registers drtmx as a database of go-ycsb, under the name drtmx.
// Importing it is enough:
//
//	import _ "drtmx/ycsb"
//
// A record is a row of one table with a string key and one column for each
// field; every operation is a transaction, a batch is one transaction, and
// what is read are one-sided reads. By default the data servers run in this
// process; property drtmx.addr names a running cluster instead. docs/ycsb.md
// has all properties.
//
// go-ycsb's interface has no read-modify-write: its workload calls Read and
// Update. The database has ReadModifyWrite, one transaction, for load
// generators that look for it, as drtmx/ycsb/bench does.
package ycsb
