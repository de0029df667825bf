// Package load is the load loop of all benchmarks. A fixed number of workers,
// each with a session of its own, run transactions: as fast as they can, with
// the pauses of a workload, or at a target rate. A warm-up that is not counted
// precedes a measured interval. The record of that interval holds, for every
// transaction type, latencies, outcomes, abandoned attempts by cause, and
// exactly what the transactions asked of the network.
//
// The measured interval can be watched piece by piece: what [Config.Interval]
// is given adds up to the record, and [Series] writes it to a file.
//
// A transaction counts if it ends within the measured interval; what it did is
// then counted whole. Latency runs from the first attempt to the return of the
// last. Without a rate the loop is closed: a worker that waits for a stalled
// server offers no load meanwhile, so percentiles describe the transactions
// that ran, not those that a stall kept from running. With a rate the loop is open:
// there is also the latency since each transaction was due, which includes the
// wait for a worker.
package load
