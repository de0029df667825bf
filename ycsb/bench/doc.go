// Package bench runs the YCSB core workload against any go-ycsb database and
// reports in go-ycsb's lines: it is the load generator behind cmd/go-ycsb.
//
// Workloads are go-ycsb's property files. What differs from go-ycsb v1.0.1 is
// what that gets wrong: requests never ask for a record that is not loaded
// yet, every batch is measured, a run ends after maxexecutiontime, latencies
// are nanoseconds in histograms of each thread instead of microseconds in one
// behind a lock, and under a target rate there is also the latency since each
// operation was due. A database that can read, modify and write in one
// transaction does so. The README of ycsb/workloads has the list.
package bench
