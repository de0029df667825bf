package bench

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/load"
)

// shown makes a report of so many clients, whose latencies are given.
func shown(design string, clients int, d ...time.Duration) *Report {
	r := &Report{
		Workload: "tpcc", Design: design, Clients: clients, Mix: "full", Throughput: 100 * float64(clients),
		Types:  map[string]TypeReport{"NEW_ORDER": {Committed: uint64(len(d))}, "PAYMENT": {Committed: 1}},
		Rounds: map[string]float64{"NEW_ORDER": 2},
	}
	r.Record = &load.Record{Types: []load.TypeRecord{
		{Name: "NEW_ORDER", Committed: uint64(len(d)), Latency: latencies(d...)}, {Name: "PAYMENT", Latency: hist.New()},
	}}
	return r
}

func timeline(points int) *Timeline {
	t := &Timeline{}
	for i := range points {
		from := time.Duration(i) * time.Second
		t.Add(load.Interval{From: from, To: from + time.Second, Types: []load.TypeRecord{
			{Name: "NEW_ORDER", Committed: 3, Latency: latencies(time.Millisecond)}, {Name: "PAYMENT", Committed: 1, Latency: hist.New()},
		}})
	}
	return t
}

// pageOf writes a page and returns its text, its tags counted, which must
// balance.
func pageOf(t *testing.T, sections ...Section) (string, map[string]int) {
	t.Helper()
	var b strings.Builder
	if err := WritePage(&b, "a <b> & c", sections); err != nil {
		t.Fatal(err)
	}
	text, count := b.String(), map[string]int{}
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	open := []string{}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		switch e := token.(type) {
		case xml.StartElement:
			count[e.Name.Local]++
			open = append(open, e.Name.Local)
		case xml.EndElement:
			if open[len(open)-1] != e.Name.Local {
				t.Fatalf("%s ends within %v", e.Name.Local, open)
			}
			open = open[:len(open)-1]
		}
	}
	for _, foreign := range []string{"<script", "http:", "https:", "src=", "url(", "@import", "href"} {
		if strings.Contains(text, foreign) {
			t.Errorf("the page has %s", foreign)
		}
	}
	if !strings.Contains(text, "<h1>a &lt;b&gt; &amp; c</h1>") {
		t.Error("the title is not escaped")
	}
	return text, count
}

func TestPageOfOneRun(t *testing.T) {
	r := shown("drtmx", 4, time.Millisecond, 2*time.Millisecond, 3*time.Millisecond)
	r.Interrupted = true
	text, n := pageOf(t, Section{Title: "full", Entries: []Entry{{Label: "4 clients", Runs: []*Report{r}, Timeline: timeline(5)}}})
	// Rate and tail by time, percentiles, CPU, costs.
	if n["svg"] != 5 || n["table"] != 3 || n["h2"] != 1 {
		t.Errorf("%v", n)
	}
	for _, want := range []string{"Throughput over time", "99th percentile", "Latency by percentile", "CPU time", "Rounds, READs and RPCs", "the run was interrupted", ">2000.9<", "not a TPC-C result"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

func TestPageOfALadderAndOfDesigns(t *testing.T) {
	one, two := shown("drtmx", 1, time.Millisecond), shown("drtmx", 2, time.Millisecond)
	text, n := pageOf(t, Section{Title: "full", Entries: []Entry{
		{Label: "1 clients", Runs: []*Report{one}, Timeline: timeline(5)}, {Label: "2 clients", Runs: []*Report{two}, Timeline: timeline(2)},
	}})
	// Rate by time, rate and latency by clients, percentiles of two types, CPU,
	// rounds, READs, RPCs.
	if n["svg"] != 9 || !strings.Contains(text, "Throughput by clients") {
		t.Errorf("%v", n)
	}
	rival := shown("rpc", 1, time.Second)
	designs := Section{Title: "full", Entries: []Entry{
		{Label: "drtmx", Runs: []*Report{one, one, shown("drtmx", 1, time.Hour)}, Timeline: timeline(1)},
		{Label: "rpc", Runs: []*Report{rival}, Timeline: &Timeline{}},
		{Label: "drtmh"}, // did not run
	}}
	text, n = pageOf(t, designs, Section{Title: "order-status=100"})
	if n["svg"] != 8 || n["h2"] != 1 || strings.Contains(text, "drtmh") {
		t.Errorf("%v", n)
	}
	if _, n = pageOf(t); n["svg"] != 0 {
		t.Errorf("of nothing: %v", n)
	}
}

// A timeline has bounded memory and loses no transaction.
func TestTimelineMerges(t *testing.T) {
	const n = 5000
	line := timeline(n)
	line.Add(load.Interval{From: n * time.Second, To: n*time.Second + time.Millisecond, Last: true, Types: []load.TypeRecord{
		{Name: "NEW_ORDER", Committed: 7, Latency: latencies(time.Second)}, {Name: "PAYMENT", Latency: hist.New()},
	}})
	sum, at := uint64(0), time.Duration(0)
	for _, p := range line.points {
		if p.from != at {
			t.Fatalf("a point begins at %v, the one before ends at %v", p.from, at)
		}
		at = p.to
		sum += p.committed[0]
	}
	last := line.points[len(line.points)-1]
	if len(line.points) > timelinePointsMax || sum != 3*n+7 || last.to != n*time.Second+time.Millisecond || last.p99Us[0] < 999_000 {
		t.Errorf("%d points, %d transactions, the last until %v with p99 %v µs", len(line.points), sum, last.to, last.p99Us)
	}
}
