package driver

import (
	"sync/atomic"
	"time"

	"drtmx/internal/hist"
	"drtmx/rdma"
	"drtmx/txn"
)

// Record is what a run measured.
type Record struct {
	Clients     int
	Warmup      time.Duration
	Elapsed     time.Duration // of the measured interval; 0 if it was never reached
	Interrupted bool          // the caller's context ended the run
	Types       []TypeRecord  // in the order of Config.Types
	// Between is what sessions did between transactions: refreshing caches.
	Between Work
}

// TypeRecord is the record of one transaction type.
type TypeRecord struct {
	Name       string
	Committed  uint64
	RolledBack uint64
	GaveUp     uint64                 // met conflicts in every attempt the retry policy allows
	Aborts     [txn.CauseCount]uint64 // abandoned attempts, of all transactions
	Work                              // of all transactions and attempts
	Latency    *hist.Histogram        // of committed transactions

	recent  [latencyBatch]time.Duration // not yet in Latency
	nrecent int
}

// latencyBatch latencies are put into the histogram together: it is large, and
// what it misses in the caches for several arrives at the same time.
const latencyBatch = 64

// Work is what transactions asked of the network.
type Work struct {
	Fabric rdma.Counters
	Rounds uint64 // network rounds waited for
}

func (w *Work) add(from, to txn.SessionStats) {
	w.Fabric = w.Fabric.Add(to.Fabric.Sub(from.Fabric))
	w.Rounds += to.Rounds - from.Rounds
}

// Finished is the number of transactions that the per-transaction figures are averages over.
func (t *TypeRecord) Finished() uint64 { return t.Committed + t.RolledBack + t.GaveUp }

// Aborted is the number of abandoned attempts.
func (t *TypeRecord) Aborted() (n uint64) {
	for _, c := range t.Aborts {
		n += c
	}
	return n
}

// Committed is the number of committed transactions of all types.
func (r *Record) Committed() (n uint64) {
	for i := range r.Types {
		n += r.Types[i].Committed
	}
	return n
}

// Throughput is the committed transactions of all types for each second.
func (r *Record) Throughput() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Committed()) / r.Elapsed.Seconds()
}

func (t *TypeRecord) record(before, after txn.SessionStats, took time.Duration, out Outcome, gaveUp bool) {
	switch {
	case gaveUp:
		t.GaveUp++
	case out == RolledBack:
		t.RolledBack++
	default:
		t.Committed++
		t.took(took)
	}
	for c := range t.Aborts {
		t.Aborts[c] += after.Aborts[c] - before.Aborts[c]
	}
	t.add(before, after)
}

func (t *TypeRecord) took(d time.Duration) {
	if t.nrecent == latencyBatch {
		t.settle()
	}
	t.recent[t.nrecent] = d
	t.nrecent++
}

// settle puts the recent latencies into the histogram.
func (t *TypeRecord) settle() {
	for _, d := range t.recent[:t.nrecent] {
		t.Latency.Record(d)
	}
	t.nrecent = 0
}

func (t *TypeRecord) merge(from *TypeRecord) {
	t.Committed += from.Committed
	t.RolledBack += from.RolledBack
	t.GaveUp += from.GaveUp
	for c := range t.Aborts {
		t.Aborts[c] += from.Aborts[c]
	}
	t.Fabric = t.Fabric.Add(from.Fabric)
	t.Rounds += from.Rounds
	t.Latency.Merge(from.Latency)
}

// task is one worker and what it has measured. Only the worker's goroutine
// touches it while the run lasts, finished excepted.
type task struct {
	worker   Worker
	types    []TypeRecord
	between  Work
	last     txn.SessionStats
	finished atomic.Uint64
	_        [64]byte // keeps the counters of two workers on lines of their own
}

func newTask(w Worker, types int) *task {
	t := &task{worker: w, types: make([]TypeRecord, types), last: w.Stats()}
	for i := range t.types {
		t.types[i].Latency = hist.New()
	}
	return t
}

// collect merges the workers' figures, once they have stopped.
func (r *run) collect(rec *Record) {
	rec.Types = make([]TypeRecord, len(r.cfg.Types))
	for i, name := range r.cfg.Types {
		sum := &rec.Types[i]
		sum.Name, sum.Latency = name, hist.New()
		for _, t := range r.tasks {
			t.types[i].settle()
			sum.merge(&t.types[i])
		}
	}
	for _, t := range r.tasks {
		rec.Between.Fabric = rec.Between.Fabric.Add(t.between.Fabric)
		rec.Between.Rounds += t.between.Rounds
	}
}
