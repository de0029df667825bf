// Package load is the load loop of all benchmarks. A fixed number of workers, each
// with its own session, run transactions: as fast as they can, with the pauses of a
// workload, or at a target rate. A warm-up that is not counted precedes a measured
// interval. The record of that interval holds, for every transaction type, latencies,
// outcomes, abandoned attempts by cause, and the exact counts of network operations.
//
// The measured interval can be observed piece by piece: the pieces passed to
// [Config.Interval] add up to the record, and [Series] writes them to a file.
//
// A transaction counts if it ends within the measured interval. Then all its work
// counts. Latency runs from the first attempt to the return of the last. Without a
// rate the loop is closed: a worker that waits for a stalled server offers no load
// meanwhile, so percentiles describe the transactions that ran, not those that a
// stall kept from running. With a rate the loop is open: the record also has the
// latency from when each transaction was due, which includes its wait for a worker.
package load
