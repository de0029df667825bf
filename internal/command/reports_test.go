package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/tpcc/bench"
)

// scriptReports reads the JSON of one run or of several.
func scriptReports(ts *testscript.TestScript, name string) (all []*bench.Report) {
	text := ts.ReadFile(name)
	if !strings.HasPrefix(text, "[") {
		text = "[" + text + "]"
	}
	ts.Check(json.Unmarshal([]byte(text), &all))
	return all
}

// ladder FILE CLIENTS... checks the reports of several numbers of clients.
func checkLadder(ts *testscript.TestScript, _ bool, args []string) {
	all := scriptReports(ts, args[0])
	var clients []string
	for _, r := range all {
		clients = append(clients, strconv.Itoa(r.Clients))
		if r.Throughput <= 0 || len(r.Consistency) == 0 || r.Consistency.Err() != nil || r.LoadRows == 0 {
			ts.Fatalf("%d clients: %v per second, %v", r.Clients, r.Throughput, r.Consistency)
		}
	}
	if strings.Join(clients, " ") != strings.Join(args[1:], " ") {
		ts.Fatalf("clients %v, want %v", clients, args[1:])
	}
}

// hgrm FILE REPORT [INDEX [TYPE]] checks percentiles against a report.
func checkPercentiles(ts *testscript.TestScript, _ bool, args []string) {
	reports := scriptReports(ts, args[1])
	r := reports[0]
	if len(args) > 2 {
		i, err := strconv.Atoi(args[2])
		ts.Check(err)
		r = reports[i]
	}
	count := uint64(0)
	for name, t := range r.Types {
		if len(args) < 4 || args[3] == name {
			count += t.Committed
		}
	}
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, fmt.Sprintf("Total count    = %12d]", count)) {
		ts.Fatalf("want %d transactions in %s", count, text)
	}
	if len(args) < 4 {
		return
	}
	var value, percentile float64
	for line := range strings.Lines(text) {
		if _, err := fmt.Sscan(line, &value, &percentile); err == nil && percentile >= 0.5 {
			break
		}
	}
	if p50 := r.Types[args[3]].P50; value < p50*0.99 || value > p50*1.01 {
		ts.Fatalf("median %v µs, the report has %v", value, p50)
	}
}

// hlog FILE REPORTS checks that the intervals of a log add up to the reports.
func checkLog(ts *testscript.TestScript, _ bool, args []string) {
	got, want := map[string]int64{}, map[string]int64{}
	reader := hdr.NewHistogramLogReader(strings.NewReader(ts.ReadFile(args[0])))
	for intervals := 0; ; intervals++ {
		h, err := reader.NextIntervalHistogram()
		ts.Check(err)
		if h == nil {
			if intervals < 8 {
				ts.Fatalf("%d intervals", intervals)
			}
			break
		}
		// A busy machine is late, and the next interval is then so much shorter.
		if took := h.EndTimeMs() - h.StartTimeMs(); took < 0 || took > patience().Milliseconds() {
			ts.Fatalf("an interval of %d ms", took)
		}
		got[h.Tag()] += h.TotalCount()
	}
	for _, r := range scriptReports(ts, args[1]) {
		for name, t := range r.Types {
			want[fmt.Sprintf("%s.%d", name, r.Clients)] = int64(t.Committed)
		}
	}
	if !maps.Equal(got, want) {
		ts.Fatalf("the log has %v, the reports %v", got, want)
	}
}

// page FILE CHARTS checks that a page needs nothing else, and has its charts.
func checkPage(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, foreign := range []string{"<script", "http:", "https:", "src=", "url(", "NaN", "Inf"} {
		if strings.Contains(text, foreign) {
			ts.Fatalf("the page has %s", foreign)
		}
	}
	if n := strings.Count(text, "<svg"); strconv.Itoa(n) != args[1] || strings.Count(text, "</svg>") != n || !strings.HasSuffix(text, "</html>\n") {
		ts.Fatalf("%d charts, want %s", n, args[1])
	}
}
