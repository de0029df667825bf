package load

import (
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/hist"
	"drtmx/rdma"
	"drtmx/txn"
)

// Record has the measurements of a run.
type Record struct {
	Clients     int
	Warmup      time.Duration
	Elapsed     time.Duration // of the measured interval, or of the warm-up if WarmupOnly
	WarmupOnly  bool          // the run ended before the measured interval; the record is of the warm-up
	Interrupted bool          // the caller's context ended the run
	Types       []TypeRecord  // in the order of Config.Types
	// Between is the work of sessions between transactions: refreshing caches.
	Between Work
	// Behind is for how long the next transaction had been due at the end: if it is
	// large, the workers did not keep up with the rate. 0 without a shared schedule.
	Behind time.Duration
}

// TypeRecord is the record of one transaction type.
type TypeRecord struct {
	Name       string
	Committed  uint64
	RolledBack uint64
	GaveUp     uint64                 // met conflicts in every attempt that the retry policy allows
	Aborts     [txn.CauseCount]uint64 // abandoned attempts, of all transactions
	Count      uint64                 // sum of Result.Count
	Work                              // of all transactions and attempts
	Latency    *hist.Histogram        // of committed transactions
	Due        *hist.Histogram        // the same from when each was due; nil without a rate
	Deferred   uint64                 // accepted, to run later; those that have run are counted above too
	Accepted   *hist.Histogram        // time to defer one, from when it was due; nil if none was
	Lost       *hist.Histogram        // latency of those that gave up; nil if none did

	// When the first committed transaction ended, and the first that gave up, since
	// the measured interval began.
	First, FirstLost time.Duration
}

// Work counts the network operations of transactions.
type Work struct {
	Fabric rdma.Counters
	Rounds uint64 // network rounds waited for
	// Proving of them were rounds in which Views only validated what they had read.
	Proving uint64
}

func (w *Work) add(from, to *txn.SessionStats) {
	w.Fabric.AddSince(&from.Fabric, &to.Fabric)
	w.Rounds += to.Rounds - from.Rounds
	w.Proving += to.Proving - from.Proving
}

// Finished returns the number of transactions over which per-transaction figures are
// averaged.
func (t *TypeRecord) Finished() uint64 { return t.Committed + t.RolledBack + t.GaveUp }

// Response returns the latencies from when each transaction was due, which include
// its wait for a free worker. Without a rate they are from when it began.
func (t *TypeRecord) Response() *hist.Histogram {
	if t.Due != nil {
		return t.Due
	}
	return t.Latency
}

// Aborted returns the number of abandoned attempts.
func (t *TypeRecord) Aborted() (n uint64) {
	for _, c := range t.Aborts {
		n += c
	}
	return n
}

// Committed returns the number of committed transactions of all types.
func (r *Record) Committed() (n uint64) {
	for i := range r.Types {
		n += r.Types[i].Committed
	}
	return n
}

// Throughput returns the committed transactions of all types per second.
func (r *Record) Throughput() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Committed()) / r.Elapsed.Seconds()
}

// reset empties t and keeps its memory.
func (t *TypeRecord) reset() {
	if t.Latency != nil {
		t.Latency.Reset()
	}
	*t = TypeRecord{Name: t.Name, Latency: t.Latency}
}

// record counts a transaction. The caller records the latency of a committed one.
func (t *TypeRecord) record(e *entry) {
	t.recordEnd(e)
	for c := range t.Aborts {
		t.Aborts[c] += e.after.Aborts[c] - e.before.Aborts[c]
	}
	t.add(&e.before, &e.after)
}

// recordEnd counts a transaction without the work of the session.
func (t *TypeRecord) recordEnd(e *entry) {
	switch e.result.Outcome {
	case gaveUp:
		if t.GaveUp == 0 {
			t.FirstLost = e.at
		}
		t.GaveUp++
		record(&t.Lost, e.took)
	case Deferred:
		t.Deferred++
		record(&t.Accepted, e.took+max(e.late, 0))
	case RolledBack:
		t.RolledBack++
	default:
		if t.Committed == 0 {
			t.First = e.at
		}
		t.Committed++
		if e.late != notDue {
			record(&t.Due, e.took+e.late)
		}
	}
	t.Count += e.result.Count
}

// Merge adds the figures of from to t, and makes the histograms that t lacks.
func (t *TypeRecord) Merge(from *TypeRecord) {
	if from.Committed > 0 && (t.Committed == 0 || from.First < t.First) {
		t.First = from.First
	}
	if from.GaveUp > 0 && (t.GaveUp == 0 || from.FirstLost < t.FirstLost) {
		t.FirstLost = from.FirstLost
	}
	t.Committed += from.Committed
	t.RolledBack += from.RolledBack
	t.GaveUp += from.GaveUp
	t.Count += from.Count
	for c := range t.Aborts {
		t.Aborts[c] += from.Aborts[c]
	}
	t.Fabric = t.Fabric.Add(from.Fabric)
	t.Rounds += from.Rounds
	t.Proving += from.Proving
	merge(&t.Latency, from.Latency)
	merge(&t.Due, from.Due)
	t.Deferred += from.Deferred
	merge(&t.Lost, from.Lost)
	merge(&t.Accepted, from.Accepted)
}

// record and merge make a histogram when it gets its first value: few runs need it.

func record(h **hist.Histogram, took time.Duration) {
	if *h == nil {
		*h = hist.New()
	}
	(*h).Record(took)
}

func merge(h **hist.Histogram, from *hist.Histogram) {
	switch {
	case from == nil:
		return
	case *h == nil:
		*h = hist.New()
	}
	(*h).Merge(from)
}

// entry is the record of one transaction.
type entry struct {
	last   txn.SessionStats // of the session when its previous transaction ended
	before txn.SessionStats
	after  txn.SessionStats
	at     time.Duration // when it ended, since the run's base; recorded since its phase began
	took   time.Duration
	late   time.Duration // how long after it was due it began; notDue without a rate
	result Result
}

// notDue is the lateness of a transaction of a run without a rate.
const notDue time.Duration = -1

// latencyBatch is how many latencies are added to a histogram together. A histogram
// is large, and the cache misses of several latencies overlap.
const latencyBatch = 64

// recent buffers latencies that are not yet in a histogram.
type recent struct {
	took [latencyBatch]time.Duration
	n    int
}

// tally holds the figures of some transactions.
type tally struct {
	types   []TypeRecord
	recent  []recent // of each type, not yet in its Latency
	between Work
}

// newTally returns a tally that makes its histograms when it needs them.
func newTally(names []string) *tally {
	t := &tally{types: make([]TypeRecord, len(names)), recent: make([]recent, len(names))}
	for i, name := range names {
		t.types[i].Name = name
	}
	return t
}

// newSum returns a tally that has the histograms of latencies already, for callers
// that read them.
func newSum(names []string) *tally {
	t := newTally(names)
	for i := range t.types {
		t.types[i].Latency = hist.New()
	}
	return t
}

func (t *tally) reset() {
	for i := range t.types {
		t.types[i].reset()
		t.recent[i].n = 0
	}
	t.between = Work{}
}

// record counts a transaction. own says that a Recorder made the entry, which then
// has no statistics of the session.
func (t *tally) record(typ int, e *entry, own bool) {
	if own {
		t.types[typ].recordEnd(e)
	} else {
		if e.last != e.before { // the session worked between two transactions
			t.between.add(&e.last, &e.before)
		}
		t.types[typ].record(e)
	}
	if e.result.Outcome != Committed {
		return
	}
	r := &t.recent[typ]
	if r.n == latencyBatch {
		r.settle(&t.types[typ].Latency)
	}
	r.took[r.n] = e.took
	r.n++
}

func (r *recent) settle(into **hist.Histogram) {
	for _, d := range r.took[:r.n] {
		record(into, d)
	}
	r.n = 0
}

// settle adds the buffered latencies to the histograms.
func (t *tally) settle() {
	for i := range t.types {
		t.recent[i].settle(&t.types[i].Latency)
	}
}

// merge settles from and adds its figures.
func (t *tally) merge(from *tally) {
	from.settle()
	for i := range t.types {
		t.types[i].Merge(&from.types[i])
	}
	t.between.Fabric = t.between.Fabric.Add(from.between.Fabric)
	t.between.Rounds += from.between.Rounds
	t.between.Proving += from.between.Proving
}

// shardsMax bounds the memory of a run with thousands of workers: a histogram takes
// some hundred kilobytes.
const shardsMax = 64

// shard holds the figures of the workers that share it.
type shard struct {
	run   *run
	mu    sync.Mutex
	of    phase  // of tally
	tally *tally // of one phase
	piece *tally // of the interval under way; nil without Config.Interval
	_     [64]byte
}

func (r *run) makeShards() {
	if r.cfg.Interval != nil {
		r.pieces = &pieces{sum: newSum(r.cfg.Types), spare: newTally(r.cfg.Types)}
	}
	for range min(r.cfg.Clients, shardsMax) {
		s := &shard{run: r, tally: newTally(r.cfg.Types)}
		if r.pieces != nil {
			s.piece = newTally(r.cfg.Types)
		}
		r.shards = append(r.shards, s)
	}
}

// enter resets the tallies if they are those of another phase.
func (s *shard) enter(in phase) {
	if s.of != in {
		s.tally.reset()
		s.of = in
	}
}

func (s *shard) record(in phase, typ int, e *entry, own bool) {
	e.at -= time.Duration(s.run.began.Load())
	s.mu.Lock()
	s.enter(in)
	s.tally.record(typ, e, own)
	if s.piece != nil && in == measuring {
		s.piece.record(typ, e, own)
	}
	s.mu.Unlock()
}

// task runs one worker. Only the worker's goroutine uses the fields while the run
// lasts, except finished.
type task struct {
	worker   Worker
	shard    *shard
	recorder Recorder
	pace     pace
	timer    *time.Timer // of pauses
	entry    entry
	finished atomic.Uint64
	_        [64]byte // keeps the counters of two workers on different cache lines
}

func newTask(r *run, s *shard) *task {
	t := &task{shard: s, entry: entry{late: notDue}, recorder: Recorder{run: r, shard: s}, timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	return t
}

// collect merges the workers' figures, once they have stopped.
func (r *run) collect(rec *Record) {
	in := measuring
	if rec.WarmupOnly {
		in = warming
	}
	sum := newSum(r.cfg.Types)
	for _, s := range r.shards {
		s.enter(in)
		sum.merge(s.tally)
	}
	rec.Types, rec.Between = sum.types, sum.between
}
