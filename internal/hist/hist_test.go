package hist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
)

// The oracle is a sorted slice of everything recorded.
func TestQuantilesAgainstSortedSlice(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	workers := []*Histogram{New(), New(), New()}
	var all []int64
	for i := range 60_000 {
		ns := int64(math.Exp(r.Float64()*20) * 100) // 100 ns to 48 s, evenly over magnitudes
		all = append(all, ns)
		workers[i%len(workers)].Record(time.Duration(ns))
	}
	slices.Sort(all)
	merged := New()
	for _, w := range workers {
		merged.Merge(w)
	}
	if merged.Count() != int64(len(all)) {
		t.Fatalf("%d samples, want %d", merged.Count(), len(all))
	}
	for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
		rank := max(int(math.Ceil(q*float64(len(all))))-1, 0)
		want := float64(all[rank]) / 1e3
		if got := merged.QuantileUs(q); math.Abs(got-want)/want > 0.0011 {
			t.Errorf("quantile %v is %v µs, want %v", q, got, want)
		}
	}
	sum := 0.0
	for _, ns := range all {
		sum += float64(ns)
	}
	if got, want := merged.MeanUs(), sum/float64(len(all))/1e3; math.Abs(got-want)/want > 1e-9 {
		t.Errorf("mean %v µs, want %v", got, want)
	}
	s := merged.Snapshot()
	if s.MinUs != float64(all[0])/1e3 || s.MaxUs != float64(all[len(all)-1])/1e3 {
		t.Errorf("extremes %v and %v are not exact", s.MinUs, s.MaxUs)
	}
	if s.P50Us != merged.QuantileUs(0.5) || s.P99Us != merged.QuantileUs(0.99) {
		t.Error("snapshot and quantiles disagree")
	}
}

func TestOutOfRangeIsClampedAndCounted(t *testing.T) {
	h := New()
	h.Record(-time.Second)
	h.Record(time.Hour)
	h.Record(math.MinInt64)
	h.Record(math.MaxInt64)
	h.Record(0)
	h.Record(time.Duration(MaxNs))
	s := h.Snapshot()
	if s.Count != 6 || s.Clamped != 4 || s.MinUs != 0 || s.MaxUs != float64(MaxNs)/1e3 {
		t.Errorf("got %+v", s)
	}
}

func TestEmptyAndReset(t *testing.T) {
	h := New()
	if h.Snapshot() != (Snapshot{}) || h.QuantileUs(0.5) != 0 || h.MeanUs() != 0 {
		t.Error("an empty histogram reports something")
	}
	h.Record(time.Millisecond)
	h.Reset()
	if h.Snapshot() != (Snapshot{}) {
		t.Errorf("after Reset: %+v", h.Snapshot())
	}
	h.Record(time.Second)
	if s := h.Snapshot(); s.MinUs != 1e6 || s.MaxUs != 1e6 || s.P50Us != 1e6 {
		t.Errorf("one sample of 1 s gives %+v", s)
	}
	other := New()
	other.Merge(New())
	if other.Snapshot() != (Snapshot{}) {
		t.Error("merging nothing left something")
	}
}

func TestSnapshotJSON(t *testing.T) {
	h := New()
	h.Record(2 * time.Microsecond)
	b, err := json.Marshal(h.Snapshot())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"count":1,"min_us":2,"mean_us":2,"p50_us":2,"p90_us":2,"p95_us":2,"p99_us":2,"p999_us":2,"max_us":2,"sum_us":2}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	h := New()
	if allocs := testing.AllocsPerRun(1000, func() { h.Record(12345) }); allocs != 0 {
		t.Errorf("%v allocations per Record", allocs)
	}
}

func BenchmarkRecord(b *testing.B) {
	h := New()
	d := time.Duration(0)
	for b.Loop() {
		d = (d*5 + 977) & 0xfffff
		h.Record(d)
	}
}

func BenchmarkMerge(b *testing.B) {
	h, from := New(), New()
	for i := range 10_000 {
		from.Record(time.Duration(i * 1000))
	}
	for b.Loop() {
		h.Merge(from)
	}
}

func TestAtMost(t *testing.T) {
	h := New()
	bounds := []float64{1e-6, 1e-3, 0.5, 1, 2}
	for _, n := range h.AtMost(bounds) {
		if n != 0 {
			t.Errorf("an empty histogram has %v", h.AtMost(bounds))
		}
	}
	for _, d := range []time.Duration{0, 500, 2000, time.Millisecond / 2, time.Second * 3 / 4, time.Hour} {
		h.Record(d)
	}
	if got, want := h.AtMost(bounds), []uint64{2, 4, 4, 5, 5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := h.SumSeconds(), 0.0005025+0.75+100; math.Abs(got-want) > 1e-9 {
		t.Errorf("sum %v s, want %v", got, want) // an hour counts as 100 s
	}
}

// What is exported reads back with HdrHistogram's own reader.
func TestLogReadsBack(t *testing.T) {
	h, base := New(), time.Unix(1_700_000_000, 700e6)
	for i := range 1000 {
		h.Record(time.Duration(i+1) * time.Microsecond)
	}
	var b bytes.Buffer
	l, err := NewLog(&b, base)
	if err != nil {
		t.Fatal(err)
	}
	for i, tag := range []string{"NEW_ORDER", "PAYMENT"} {
		from := base.Add(time.Duration(i) * time.Second)
		if err := l.Write(tag, from, from.Add(500*time.Millisecond), h); err != nil {
			t.Fatal(err)
		}
	}
	r := hdr.NewHistogramLogReader(&b)
	for i, tag := range []string{"NEW_ORDER", "PAYMENT"} {
		got, err := r.NextIntervalHistogram()
		if err != nil || got == nil {
			t.Fatalf("interval %d: %v, error %v", i, got, err)
		}
		if got.TotalCount() != 1000 || got.Tag() != tag || got.EndTimeMs()-got.StartTimeMs() != 500 || got.ValueAtQuantile(50) != h.counts.ValueAtQuantile(50) {
			t.Errorf("interval %d: %d values, tag %s, from %d to %d", i, got.TotalCount(), got.Tag(), got.StartTimeMs(), got.EndTimeMs())
		}
		if at := base.Add(time.Duration(i) * time.Second).UnixMilli(); got.StartTimeMs() != at {
			t.Errorf("interval %d starts at %d, want %d", i, got.StartTimeMs(), at)
		}
	}
}

func TestPercentilesFile(t *testing.T) {
	h := New()
	for range 99 {
		h.Record(10 * time.Microsecond)
	}
	h.Record(time.Millisecond)
	var b strings.Builder
	if err := h.WritePercentiles(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	value, percentile, count := 0.0, 0.0, 0
	if _, err := fmt.Sscan(lines[2], &value, &percentile, &count); err != nil || value != 10.007 || count != 99 {
		t.Errorf("first line %q, error %v", lines[2], err)
	}
	if !strings.Contains(b.String(), "Total count    =          100]") || !strings.Contains(lines[0], "1/(1-Percentile)") {
		t.Errorf("%s", b.String())
	}
}
