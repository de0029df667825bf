package bench

import (
	"strings"
	"testing"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/tpcc"
)

func latencies(d ...time.Duration) *hist.Histogram {
	h := hist.New()
	for _, d := range d {
		h.Record(d)
	}
	return h
}

func TestTerms(t *testing.T) {
	tests := []struct {
		name     string
		of       tpcc.Type
		record   load.TypeRecord
		total    uint64
		mix      bool
		response bool
		deferred bool
	}{
		{"just enough", tpcc.Payment, load.TypeRecord{Committed: 43, Latency: latencies(5 * time.Second)}, 100, true, true, false},
		{"too few", tpcc.Payment, load.TypeRecord{Committed: 42, Latency: latencies(time.Second)}, 100, false, true, false},
		{"rolled back and given up count", tpcc.Payment, load.TypeRecord{Committed: 40, RolledBack: 2, GaveUp: 1, Latency: latencies(1)}, 100, true, true, false},
		{"NEW-ORDER has no minimum", tpcc.NewOrder, load.TypeRecord{Latency: latencies()}, 100, true, true, false},
		{"too slow", tpcc.OrderStatus, load.TypeRecord{Committed: 4, Latency: latencies(5100 * time.Millisecond)}, 100, true, false, false},
		{"STOCK-LEVEL has time", tpcc.StockLevel, load.TypeRecord{Committed: 4, Latency: latencies(19 * time.Second)}, 100, true, true, false},
		{"deferred", tpcc.Delivery, load.TypeRecord{
			Committed: 1, Deferred: 4, Latency: latencies(79 * time.Second), Accepted: latencies(time.Millisecond),
		}, 100, true, true, true},
		{"deferred too long", tpcc.Delivery, load.TypeRecord{
			Committed: 9, Deferred: 3, Latency: latencies(81 * time.Second), Accepted: latencies(6 * time.Second),
		}, 100, false, false, false},
		{"nine in ten are fast", tpcc.OrderStatus, load.TypeRecord{
			Committed: 10, Latency: latencies(1, 1, 1, 1, 1, 1, 1, 1, 1, time.Minute),
		}, 100, true, true, false},
	}
	for _, test := range tests {
		got := newTerm(&test.record, test.of.Terms(), test.total)
		if got.MixOK != test.mix || got.ResponseOK != test.response || got.DeferredOK != test.deferred {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// Even a run that did everything right says that it is no TPC-C result.
func TestNothingIsATPCCResult(t *testing.T) {
	rec := &load.Record{Elapsed: 3 * time.Hour}
	for _, ty := range tpcc.Types {
		of, _ := tpcc.FullMix().Cards(ty)
		rec.Types = append(rec.Types, load.TypeRecord{Name: ty.String(), Committed: uint64(of), Latency: latencies(time.Millisecond)})
	}
	cfg := &Config{Mix: tpcc.FullMix(), KeyingThink: true, TimeScale: 1, Clients: 20}
	info := tpcc.LoadInfo{Warehouses: 2, Scale: tpcc.FullScale()}
	r := &Report{Compliance: ComplianceReport{Terms: map[string]TermReport{}}}
	r.addCompliance(rec, cfg, info)
	if got, want := r.NotTPCC(), "not a TPC-C result: in memory only; not audited"; got != want || r.Compliance.TPCC {
		t.Errorf("got %q, want %q", got, want)
	}
	r.Compliance.Why, r.Durability = nil, durabilityDisk
	r.addCompliance(rec, cfg, info)
	if got, want := r.NotTPCC(), "not a TPC-C result: not audited"; got != want || r.Compliance.TPCC {
		t.Errorf("durable: got %q, want %q", got, want)
	}
	cfg.TimeScale = 0.5
	r.Compliance.Why = nil
	rec.Types[tpcc.Payment].Latency = latencies(7 * time.Second)
	r.addCompliance(rec, cfg, info)
	for _, want := range []string{"keying and think times × 0.5", "90th percentile of PAYMENT is 7.00 s, want 5 s"} {
		if !strings.Contains(r.NotTPCC(), want) {
			t.Errorf("%q does not say %q", r.NotTPCC(), want)
		}
	}
}
