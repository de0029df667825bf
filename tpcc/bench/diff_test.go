package bench

import (
	"errors"
	"testing"
)

func TestParseReports(t *testing.T) {
	const r = `{"workload": "tpcc", "clients": 3, "types": {"NEW_ORDER": {"committed": 1}}}`
	for text, want := range map[string]int{r: 1, "[" + r + "," + r + "]": 2, `{"runs": [` + r + `], "ratios": []}`: 1} {
		if all, err := ParseReports([]byte(text)); err != nil || len(all) != want || all[0].Clients != 3 {
			t.Errorf("%s: %v, error %v", text, all, err)
		}
	}
	for _, text := range []string{"", "null", "[]", "[null]", "{}", `{"runs": []}`, `{"runs": [{}]}`, `{"workload": "ycsb"}`, "7", r + r, `{"workload": 7}`} {
		if all, err := ParseReports([]byte(text)); !errors.Is(err, ErrNotReports) {
			t.Errorf("%q: %v, error %v", text, all, err)
		}
	}
}

// Of repetitions the medians are compared, and both directions have bounds.
func TestDiffReports(t *testing.T) {
	run := func(clients int, through, p99 float64) *Report {
		return &Report{
			Workload: "tpcc", Clients: clients, Throughput: through,
			Types:  map[string]TypeReport{"PAYMENT": {Committed: 10, P99: p99}, "NEW_ORDER": {Committed: 10}},
			Rounds: map[string]float64{"PAYMENT": 2},
		}
	}
	before := []*Report{run(1, 100, 5), run(1, 90, 50), run(1, 400, 6), run(2, 10, 1)}
	after := []*Report{run(1, 110, 12), run(3, 1, 1)}
	diffs, unpaired := DiffReports(before, after, Bounds{ThroughputMin: 1.2, LatencyMax: 2, CostMax: 1})
	if len(diffs) != 1 || len(unpaired) != 2 {
		t.Fatalf("%d pairs, unpaired %v", len(diffs), unpaired)
	}
	exceeded := diffs[0].Exceeded()
	if len(exceeded) != 1 || exceeded[0].Figure != "per second" || exceeded[0].Old != 100 || exceeded[0].Ratio != 1.1 {
		t.Errorf("exceeded: %+v", exceeded)
	}
	for _, c := range diffs[0].Changes {
		if c.String() == "p99 µs PAYMENT" && (c.Old != 6 || c.Ratio != 2) {
			t.Errorf("%+v", c)
		}
	}
	// One kind of run each is compared whatever it is.
	diffs, unpaired = DiffReports(before[3:], after[:1], Bounds{})
	if len(diffs) != 1 || len(unpaired) != 0 || len(diffs[0].Settings) != 1 || diffs[0].Settings[0] != "clients 2, 1" {
		t.Errorf("%+v, unpaired %v", diffs, unpaired)
	}
}
