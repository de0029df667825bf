package load

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"drtmx/txn"
)

func someInterval() Interval {
	t := newSum([]string{"A", "B"})
	for range 9 {
		t.record(0, &entry{took: 2 * time.Millisecond}, false)
	}
	t.record(0, &entry{took: 30 * time.Millisecond}, false)
	t.record(1, &entry{result: Result{Outcome: RolledBack}, after: txn.SessionStats{Aborts: [txn.CauseCount]uint64{2, 1}}}, false)
	t.record(1, &entry{result: Result{Outcome: gaveUp}, took: time.Second}, false)
	t.settle()
	return Interval{From: time.Second, To: 2500 * time.Millisecond, Types: t.types}
}

func TestSeriesCSV(t *testing.T) {
	var b bytes.Buffer
	s, err := NewSeries(&b, "dir/x.CSV")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(b.String(), "elapsed_s,") || !strings.HasSuffix(b.String(), "\n") {
		t.Errorf("heading %q, want it written at once", b.String())
	}
	s.Write(someInterval())
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	rows, err := csv.NewReader(&b).ReadAll() // flushed: no Close is needed
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{
		{"elapsed_s", "interval_s", "type", "committed", "aborted", "rolled_back", "gave_up", "p50_us", "p95_us", "p99_us"},
		{"2.500", "1.500", "A", "10", "0", "0", "0"},
		{"2.500", "1.500", "B", "0", "3", "1", "1", "0.000", "0.000", "0.000"},
	}
	for i, w := range want {
		if len(rows) != len(want) || len(rows[i]) != 10 || strings.Join(rows[i][:len(w)], " ") != strings.Join(w, " ") {
			t.Fatalf("rows %q, want %q", rows, want)
		}
	}
	if !strings.HasPrefix(rows[1][7], "200") || !strings.HasPrefix(rows[1][9], "30000.000") {
		t.Errorf("quantiles %q of nine times 2 ms and once 30 ms", rows[1][7:])
	}
}

func TestSeriesJSONLines(t *testing.T) {
	var b bytes.Buffer
	s, err := NewSeries(&b, "x.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	s.Write(someInterval())
	s.Write(someInterval())
	lines := strings.SplitAfter(b.String(), "\n")
	if len(lines) != 3 || lines[2] != "" {
		t.Fatalf("%q, want two lines", b.String())
	}
	var got seriesLine
	if err := json.Unmarshal([]byte(lines[1]), &got); err != nil {
		t.Fatal(err)
	}
	a := got.Types["A"]
	if got.Elapsed != 2.5 || got.Interval != 1.5 || a.Committed != 10 || a.P99 != 30000 || got.Types["B"].Aborted != 3 {
		t.Errorf("got %+v", got)
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("no space left")

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.room -= len(b); d.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestSeriesReportsWhatTheWriterSays(t *testing.T) {
	for _, name := range []string{"a.csv", "a.json"} {
		s, err := NewSeries(&fullDisk{room: 300}, name)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			s.Write(someInterval())
		}
		if !errors.Is(s.Err(), errFull) {
			t.Errorf("%s: error %v, want that of the writer", name, s.Err())
		}
	}
}

func TestSeriesFormats(t *testing.T) {
	for name, ok := range map[string]bool{
		"a.csv": true, "a.JSON": true, "a.jsonl": true, "a.ndjson": true,
		"a": false, "": false, "a.txt": false, "csv": false, "a.csv.gz": false,
	} {
		if _, err := NewSeries(&bytes.Buffer{}, name); (err == nil) != ok || err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%q: error %v", name, err)
		}
	}
}
