package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/load"
)

// someTypes are two types with known latencies, and one that did not run.
func someTypes() []load.TypeRecord {
	types := []load.TypeRecord{
		{Name: "PAYMENT", Latency: hist.New()}, {Name: "NEW_ORDER", Latency: hist.New(), Lost: hist.New()}, {Name: "DELIVERY", Latency: hist.New()},
	}
	for i := range 1000 {
		types[0].Latency.Record(time.Duration(i+1) * time.Millisecond)
	}
	types[1].Latency.Record(1500 * time.Microsecond)
	types[1].Lost.Record(2 * time.Second)
	return types
}

func TestPlainLines(t *testing.T) {
	var b bytes.Buffer
	printLines(&b, "[Summary] ", 30*time.Second, someTypes())
	want := `[Summary] NEW_ORDER - Takes(s): 30.0, Count: 1, TPM: 2.0, Sum(ms): 1.5, Avg(ms): 1.5, 50th(ms): 1.5, 90th(ms): 1.5, 95th(ms): 1.5, 99th(ms): 1.5, 99.9th(ms): 1.5, Max(ms): 1.5
[Summary] NEW_ORDER_ERR - Takes(s): 30.0, Count: 1, TPM: 2.0, Sum(ms): 2000.0, Avg(ms): 2000.0, 50th(ms): 2000.0, 90th(ms): 2000.0, 95th(ms): 2000.0, 99th(ms): 2000.0, 99.9th(ms): 2000.0, Max(ms): 2000.0
`
	payment, found := strings.CutPrefix(b.String(), want)
	if !found {
		t.Fatalf("got\n%swant\n%s", b.String(), want)
	}
	// Quantiles are kept within 0.1 %.
	for _, part := range []string{"[Summary] PAYMENT - Takes(s): 30.0, Count: 1000, TPM: 2000.0, Sum(ms): 500500.0, Avg(ms): 500.5, 50th(ms): 500.", " 90th(ms): 900.", " 99th(ms): 990.", ", Max(ms): 1000.0\n"} {
		if !strings.Contains(payment, part) {
			t.Errorf("%q is not in %q", part, payment)
		}
	}
}

func TestCurrentLinesCollectIntervals(t *testing.T) {
	var b bytes.Buffer
	l := &live{every: time.Second, currentEvery: 3 * time.Second, current: &b}
	late := func(s int) time.Duration { return time.Duration(s)*time.Second + 2*time.Millisecond }
	for i := range 7 {
		from := late(i)
		if i == 0 {
			from = 0
		}
		l.interval()(load.Interval{From: from, To: late(i + 1), Types: someTypes()})
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2*3 {
		t.Fatalf("%d lines, want two intervals of three types and errors: %q", len(lines), lines)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "[Current] ") || !strings.Contains(line, "Takes(s): 3.0, Count: 3") {
			t.Errorf("line %q, want three intervals together", line)
		}
	}
}
