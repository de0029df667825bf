// Package bench runs the YCSB core workload against any go-ycsb database and reports
// in the format of go-ycsb. It is the load generator of cmd/go-ycsb.
//
// Workloads are go-ycsb's property files. Differences from go-ycsb v1.0.1 correct its
// faults: requests never use a record that is not loaded yet, every batch is
// measured, a run ends after maxexecutiontime, and latencies are recorded in
// nanoseconds in one histogram per thread instead of microseconds in one histogram
// behind a lock. With a target rate there is also the latency from when each
// operation was due. A read-modify-write is one transaction if the database can do
// that. The README of ycsb/workloads has the list.
package bench
