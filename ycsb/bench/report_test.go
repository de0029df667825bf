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

	"drtmx/internal/hist"
	"drtmx/internal/load"
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

// record adds a value, as a run of which it is the first did.
func (m *measurements) record(k kind, took time.Duration, failed bool) {
	from := load.TypeRecord{Latency: hist.New(), Lost: hist.New()}
	if failed {
		from.GaveUp = 1
		from.Lost.Record(took)
	} else {
		from.Committed = 1
		from.Latency.Record(took)
	}
	m.types[k].Merge(&from)
}

// The report is, but for its figures, what go-ycsb's own measurement writes.
func TestReportIsGoYCSBs(t *testing.T) {
	for _, style := range []string{"plain", "table", "json"} {
		path := filepath.Join(t.TempDir(), "theirs")
		theirs := with("measurement.output_file", path, "outputstyle", style)
		measurement.InitMeasure(theirs)
		m := measurements{types: make([]load.TypeRecord, kinds), elapsed: 10 * time.Millisecond}
		for k, op := range map[kind]string{kindRead: "READ", kindUpdate: "UPDATE", kindReadModifyWrite: "READ_MODIFY_WRITE"} {
			for range 12 {
				start := time.Now().Add(-5 * time.Millisecond)
				measurement.Measure(op, start, 5*time.Millisecond)
				measurement.Measure("TOTAL", start, 5*time.Millisecond)
				m.record(k, 5*time.Millisecond, false)
			}
		}
		measurement.Measure("READ_ERROR", time.Now(), time.Millisecond)
		m.record(kindRead, time.Millisecond, true)
		measurement.Output()
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		m.writeLines(&got, style)
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
	r := &Result{plan: plan, measurements: measurements{types: make([]load.TypeRecord, kinds), elapsed: time.Second}}
	for _, us := range []float64{0.5, 10.25, 20.75} { // go-ycsb shows the first as 0
		r.record(kindRead, time.Duration(us*1000), false)
	}
	r.record(kindUpdate, time.Second, true)
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
