package load

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrFormat reports a file name whose extension is that of no series format.
var ErrFormat = errors.New("load: unknown series format")

// seriesFormats are the extensions of Series files.
var seriesFormats = []string{".csv", ".json", ".jsonl", ".ndjson"}

// Series writes intervals as they end: after a heading one CSV row for each interval
// and type, or one JSON object per line for each interval. Latencies are in
// microseconds, times in seconds since the measured interval began. It is not safe
// for concurrent use.
type Series struct {
	w   io.Writer
	csv *csv.Writer // nil: JSON lines
	err error
}

// SeriesFormat returns ErrFormat unless the name of a file ends in .csv, or in .json,
// .jsonl or .ndjson for JSON lines.
func SeriesFormat(name string) error {
	if slices.Contains(seriesFormats, strings.ToLower(filepath.Ext(name))) {
		return nil
	}
	return fmt.Errorf("%w: want a name that ends in %s", ErrFormat, strings.Join(seriesFormats, ", "))
}

// NewSeries returns a series that writes to w in the format that name's extension
// selects. It fails with ErrFormat.
func NewSeries(w io.Writer, name string) (*Series, error) {
	if err := SeriesFormat(name); err != nil {
		return nil, err
	}
	s := &Series{w: w}
	if strings.EqualFold(filepath.Ext(name), ".csv") {
		s.csv = csv.NewWriter(w)
		s.err = s.csv.Write([]string{
			"elapsed_s", "interval_s", "type", "committed", "aborted", "rolled_back", "gave_up", "p50_us", "p95_us", "p99_us",
		})
		s.flush()
	}
	return s, nil
}

// seriesType has the figures of one type within one interval.
type seriesType struct {
	Committed  uint64  `json:"committed"`
	Aborted    uint64  `json:"aborted"`
	RolledBack uint64  `json:"rolled_back"`
	GaveUp     uint64  `json:"gave_up"`
	P50        float64 `json:"p50_us"`
	P95        float64 `json:"p95_us"`
	P99        float64 `json:"p99_us"`
}

type seriesLine struct {
	Elapsed  float64               `json:"elapsed_s"`
	Interval float64               `json:"interval_s"`
	Types    map[string]seriesType `json:"types"`
}

// Write writes and flushes an interval. Err returns its error.
func (s *Series) Write(i Interval) {
	if s.err != nil {
		return
	}
	line := seriesLine{i.To.Seconds(), (i.To - i.From).Seconds(), map[string]seriesType{}}
	for k := range i.Types {
		t := &i.Types[k]
		lat := t.Response()
		st := seriesType{
			t.Committed, t.Aborted(), t.RolledBack, t.GaveUp,
			lat.QuantileUs(0.5), lat.QuantileUs(0.95), lat.QuantileUs(0.99),
		}
		line.Types[t.Name] = st
		if s.csv != nil && s.err == nil {
			s.err = s.csv.Write(st.row(line.Elapsed, line.Interval, t.Name))
		}
	}
	if s.csv != nil {
		s.flush()
		return
	}
	b, err := json.Marshal(line)
	if err == nil {
		_, err = s.w.Write(append(b, '\n'))
	}
	s.err = err
}

func (t *seriesType) row(elapsed, interval float64, name string) []string {
	decimal := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	whole := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return []string{
		decimal(elapsed), decimal(interval), name, whole(t.Committed), whole(t.Aborted),
		whole(t.RolledBack), whole(t.GaveUp), decimal(t.P50), decimal(t.P95), decimal(t.P99),
	}
}

func (s *Series) flush() {
	s.csv.Flush()
	s.err = errors.Join(s.err, s.csv.Error())
}

// Err returns the first error of writing. Nothing was written after it.
func (s *Series) Err() error { return s.err }
