package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pingcap/go-ycsb/pkg/measurement"
)

var digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// shape is a report without its figures, so that two of them compare.
func shape(s string) string {
	s = digits.ReplaceAllString(s, "N")
	s = regexp.MustCompile(` +`).ReplaceAllString(s, " ") // a table's columns are as wide as its figures
	s = regexp.MustCompile(`-{2,}`).ReplaceAllString(s, "--")
	// The names of columns hold figures that are part of the contract.
	return s
}

// The report is, but for its figures, what go-ycsb's own measurement writes.
func TestReportIsGoYCSBs(t *testing.T) {
	for _, style := range []string{"plain", "table", "json"} {
		path := filepath.Join(t.TempDir(), "theirs")
		theirs := with("measurement.output_file", path, "outputstyle", style)
		measurement.InitMeasure(theirs)
		m := newMeter(1, false)
		m.on.Store(true)
		db := &measured{meter: m, shard: m.shards[0]}
		for k, op := range map[kind]string{kindRead: "READ", kindUpdate: "UPDATE", kindReadModifyWrite: "READ_MODIFY_WRITE"} {
			for range 12 {
				start := time.Now().Add(-5 * time.Millisecond)
				measurement.Measure(op, start, 5*time.Millisecond)
				measurement.Measure("TOTAL", start, 5*time.Millisecond)
				db.record(k, start, nil)
			}
		}
		measurement.Measure("READ_ERROR", time.Now(), time.Millisecond)
		db.record(kindRead, time.Now().Add(-time.Millisecond), errAbsent)
		measurement.Output()
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		m.writeLines(&got, style, time.Now())
		if shape(got.String()) != shape(string(want)) {
			t.Errorf("%s: got\n%swant the form of\n%s", style, &got, want)
		}
	}
}

func TestReportFigures(t *testing.T) {
	p := with("recordcount", "10", "operationcount", "10", "outputstyle", "json")
	plan, err := NewPlan(p, Run)
	if err != nil {
		t.Fatal(err)
	}
	m := newMeter(2, false)
	now := time.Now()
	for i, us := range []float64{0.5, 10.25, 20.75} { // go-ycsb shows the first as 0
		m.shards[i%2].mu.done[kindRead].record(time.Duration(us*1000), now.Add(-time.Second))
	}
	m.shards[0].mu.failed[kindUpdate].record(time.Second, now)
	r := &Result{plan: plan, meter: m, ended: now}
	for fine, want := range map[bool]map[string]string{
		false: {"Operation": "READ", "Count": "3", "OPS": "3.0", "Takes(s)": "1.0", "Avg(us)": "10", "Min(us)": "0", "Max(us)": "20", "99.99th(us)": "20"},
		true:  {"Operation": "READ/service", "Count": "3", "Avg(us)": "10.500", "Min(us)": "0.500", "Max(us)": "20.750"},
	} {
		var b bytes.Buffer
		if fine {
			r.WriteFine(&b)
		} else if err := r.Write(&b); err != nil {
			t.Fatal(err)
		}
		var rows []map[string]string
		if err := json.Unmarshal(b.Bytes(), &rows); err != nil {
			t.Fatalf("%v in %s", err, &b)
		}
		for name, value := range want {
			if rows[0][name] != value {
				t.Errorf("%s of %s is %s, want %s", name, rows[0]["Operation"], rows[0][name], value)
			}
		}
	}
	if n := r.Operations(); n != 3 {
		t.Errorf("%d operations, want 3", n)
	}
}

func TestRawMeasurements(t *testing.T) {
	db := newFake()
	file := filepath.Join(t.TempDir(), "raw.csv")
	p := with("recordcount", "10", "operationcount", "30", "measurementtype", "raw", "measurement.output_file", file,
		"readproportion", "1", "updateproportion", "0")
	loadInto(t, db, p)
	r, err := start(t, db, Run, p)
	if err != nil {
		t.Fatal(err)
	}
	if out := lines(t, r); out != "" {
		t.Errorf("beside the file %q", out)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(rows) != 61 || rows[0] != "operation,timestamp_us,latency_us" || !regexp.MustCompile(`^READ,[0-9]{16},[0-9]+$`).MatchString(rows[1]) {
		t.Errorf("%d rows, the first %q", len(rows), rows[:2])
	}
}

// Reports on the way take histograms away; the last has all of them.
func TestReportsOnTheWayLoseNothing(t *testing.T) {
	m := newMeter(1, false)
	m.on.Store(true)
	db := &measured{meter: m, shard: m.shards[0]}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2000 {
			db.record(kindRead, time.Now(), nil)
		}
	}()
	for range 20 {
		m.collect(func(*totals) {})
	}
	<-done
	m.collect(func(t *totals) {})
	if n := (&Result{meter: m}).Operations(); n != 2000 {
		t.Errorf("%d of 2000 operations are left", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	m := newMeter(1, false)
	m.on.Store(true)
	db := &measured{meter: m, shard: m.shards[0]}
	for b.Loop() {
		db.record(kindRead, time.Now(), nil)
	}
}

func TestRecordingDoesNotAllocate(t *testing.T) {
	m := newMeter(1, false)
	m.on.Store(true)
	db := &measured{meter: m, shard: m.shards[0], due: time.Now()}
	db.record(kindRead, time.Now(), nil)
	if n := testing.AllocsPerRun(1000, func() { db.record(kindRead, time.Now(), nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
