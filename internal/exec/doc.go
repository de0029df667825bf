// Package exec runs transactions. Clients and data servers share it: package txn is
// its public API for programs that embed the engine, and package server uses it to
// run procedures.
//
// A [DB] is a client of a cluster. A [Session] runs one transaction at a time
// over its own connections. A [Txn] holds the state of one attempt: reads,
// buffered writes and the proofs that validation checks. A data server opens
// its DB with [OpenLocal], which reads the server's own partitions directly,
// and runs procedures of a single partition with a [Runner].
package exec
