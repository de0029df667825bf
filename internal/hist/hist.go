// Package hist records latencies. Each worker records into a [Histogram] of its
// own, without locks or allocation, and the histograms are merged afterwards.
//
// Values are nanoseconds inside and microseconds in reports. A recorded value
// is kept within 0.1 % (three significant digits, by the HdrHistogram
// algorithm), so quantiles of merged histograms are as good as those of one
// histogram that saw everything. The cost is memory: some 230 KB per histogram,
// whatever it holds.
package hist

import (
	"math"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// MaxNs is the largest latency that a histogram resolves, 100 s. A longer
	// one is recorded as MaxNs and counted in [Snapshot.Clamped].
	MaxNs = int64(100 * time.Second)

	significantDigits = 3
)

// Histogram is a distribution of latencies. Make one with [New]. It must not be
// copied, nor used by two goroutines at once: give each worker its own and
// [Histogram.Merge] them when the workers have stopped.
type Histogram struct {
	counts  *hdr.Histogram
	sumNs   float64 // kept apart from the buckets so that the mean is exact
	minNs   int64   // meaningless while counts is empty
	maxNs   int64
	clamped int64
}

// New returns an empty histogram.
func New() *Histogram {
	return &Histogram{counts: hdr.New(1, MaxNs, significantDigits), minNs: math.MaxInt64}
}

// Record adds one latency. A negative one (a clock that stepped back) counts as
// zero, one above [MaxNs] as MaxNs; both are counted in [Snapshot.Clamped]. It
// does not allocate.
//
// A load loop that holds a target rate must pass the time since the operation
// was due, not since it was sent; otherwise a stalled server hides the very
// operations that it delays.
func (h *Histogram) Record(d time.Duration) {
	ns := int64(d)
	if uint64(ns) > uint64(MaxNs) {
		ns = min(max(ns, 0), MaxNs)
		h.clamped++
	}
	if err := h.counts.RecordValue(ns); err != nil {
		// Only a total beyond 2^63 is left as a cause.
		panic("hist: " + err.Error())
	}
	h.sumNs += float64(ns)
	h.minNs = min(h.minNs, ns)
	h.maxNs = max(h.maxNs, ns)
}

// Merge adds everything that from holds to h. from is unchanged.
func (h *Histogram) Merge(from *Histogram) {
	if dropped := h.counts.Merge(from.counts); dropped != 0 {
		panic("hist: merging lost samples")
	}
	h.sumNs += from.sumNs
	h.minNs = min(h.minNs, from.minNs)
	h.maxNs = max(h.maxNs, from.maxNs)
	h.clamped += from.clamped
}

// Reset empties h and keeps its memory, for the next interval or after warm-up.
func (h *Histogram) Reset() {
	h.counts.Reset()
	h.sumNs, h.minNs, h.maxNs, h.clamped = 0, math.MaxInt64, 0, 0
}

// Count returns the number of recorded latencies.
func (h *Histogram) Count() int64 { return h.counts.TotalCount() }

// QuantileUs returns, in microseconds, the latency that a fraction q of the
// recorded ones does not exceed: q = 0.5 is the median, 0 the minimum, 1 the
// maximum (both exact). A q outside [0, 1] is brought inside. It is 0 if nothing
// is recorded.
func (h *Histogram) QuantileUs(q float64) float64 {
	switch {
	case h.Count() == 0:
		return 0
	case q <= 0:
		return us(h.minNs)
	case q >= 1:
		return us(h.maxNs)
	}
	// A bucket reports its upper end, which the true extremes may undercut.
	ns := h.counts.ValueAtQuantile(q * 100)
	return us(min(max(ns, h.minNs), h.maxNs))
}

// AtMost returns how many of the recorded latencies are at most each of the
// bounds, in seconds and ascending: the cumulative buckets of a Prometheus
// histogram. A latency within 0.1 % of a bound may be counted on either side.
func (h *Histogram) AtMost(boundsSeconds []float64) []uint64 {
	out := make([]uint64, len(boundsSeconds))
	at, sum := 0, uint64(0)
	for _, bar := range h.counts.Distribution() {
		if bar.Count == 0 {
			continue
		}
		// The middle of a bar decides, which is less than half a bar off.
		for middle := float64(bar.From)/2 + float64(bar.To)/2; at < len(out) && middle > boundsSeconds[at]*1e9; at++ {
			out[at] = sum
		}
		sum += uint64(bar.Count)
	}
	for ; at < len(out); at++ {
		out[at] = sum
	}
	return out
}

// SumSeconds returns the exact sum of the recorded latencies.
func (h *Histogram) SumSeconds() float64 { return h.sumNs / 1e9 }

// MeanUs returns the exact arithmetic mean in microseconds, 0 if nothing is
// recorded.
func (h *Histogram) MeanUs() float64 {
	if h.Count() == 0 {
		return 0
	}
	return h.sumNs / float64(h.Count()) / 1e3
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

// Snapshot is the summary of a histogram, as reports and metrics carry it. It
// is plain data: copy it and encode it as JSON freely. Latencies are
// microseconds.
type Snapshot struct {
	Count   int64   `json:"count"`
	MinUs   float64 `json:"min_us"`
	MeanUs  float64 `json:"mean_us"`
	P50Us   float64 `json:"p50_us"`
	P90Us   float64 `json:"p90_us"`
	P95Us   float64 `json:"p95_us"`
	P99Us   float64 `json:"p99_us"`
	P999Us  float64 `json:"p999_us"`
	MaxUs   float64 `json:"max_us"`
	SumUs   float64 `json:"sum_us"`
	Clamped int64   `json:"clamped,omitempty"` // recorded outside [0, MaxNs]
}

// Snapshot summarises what h holds.
func (h *Histogram) Snapshot() Snapshot {
	if h.Count() == 0 {
		return Snapshot{}
	}
	return Snapshot{
		Count:   h.Count(),
		MinUs:   us(h.minNs),
		MeanUs:  h.MeanUs(),
		P50Us:   h.QuantileUs(0.50),
		P90Us:   h.QuantileUs(0.90),
		P95Us:   h.QuantileUs(0.95),
		P99Us:   h.QuantileUs(0.99),
		P999Us:  h.QuantileUs(0.999),
		MaxUs:   us(h.maxNs),
		SumUs:   h.sumNs / 1e3,
		Clamped: h.clamped,
	}
}
