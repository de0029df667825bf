// Package driver is the load loop of benchmarks: a fixed number of workers,
// each a closed loop over a session of its own with pauses if the workload has
// any, a warm-up that is not counted, and a measured interval whose record holds, for every transaction type,
// latencies, outcomes, abandoned attempts by cause, and exactly what the
// transactions asked of the network.
//
// The measured interval can be watched piece by piece: what [Config.Interval]
// is given adds up to the record, and [Series] writes it to a file.
//
// A transaction counts if it ends within the measured interval; what it did is
// then counted whole. Latency runs from the first attempt to the return of the
// last. The loop is closed: a worker that waits for a stalled server offers no
// load meanwhile, so percentiles describe the transactions that ran, not those
// that a stall kept from running.
package driver
