package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pingcap/go-ycsb/pkg/util"

	"drtmx/internal/hist"
	"drtmx/internal/load"
)

// header is the header of go-ycsb's report.
var header = []string{
	"Operation", "Takes(s)", "Count", "OPS", "Avg(us)", "Min(us)", "Max(us)",
	"50th(us)", "90th(us)", "95th(us)", "99th(us)", "99.9th(us)", "99.99th(us)",
}

const totalName = "TOTAL"

// measurements has the measurements of each kind of operation.
type measurements struct {
	types    []load.TypeRecord
	elapsed  time.Duration
	separate bool // a read-modify-write consists of Read and Update
}

// add adds an interval.
func (m *measurements) add(i load.Interval) {
	m.elapsed = i.To
	for k := range i.Types {
		m.types[k].Merge(&i.Types[k])
	}
}

// inTotal reports whether TOTAL includes a kind. A read-modify-write of two calls is
// included as these calls.
func (m *measurements) inTotal(k kind) bool { return k != kindReadModifyWrite || !m.separate }

// line is a line of the report.
type line struct {
	name  string
	h     *hist.Histogram
	first time.Duration // when the first operation ended
}

// add merges the values of a histogram into the line.
func (l *line) add(h *hist.Histogram, first time.Duration) {
	if l.h == nil {
		l.h, l.first = hist.New(), first
	}
	l.h.Merge(h)
	l.first = min(l.first, first)
}

func some(h *hist.Histogram) bool { return h != nil && h.Count() > 0 }

// lines returns the lines of a go-ycsb report, sorted by name.
func (m *measurements) lines() []line {
	var all []line
	total := line{name: totalName}
	for k := range m.types {
		t := &m.types[k]
		if some(t.Latency) {
			all = append(all, line{kindNames[k], t.Latency, t.First})
			if m.inTotal(kind(k)) {
				total.add(t.Latency, t.First)
			}
		}
		if some(t.Lost) {
			all = append(all, line{kindNames[k] + "_ERROR", t.Lost, t.FirstLost})
		}
	}
	return sorted(all, total)
}

// fine returns the lines of the report in nanoseconds.
func (m *measurements) fine() []line {
	var all []line
	service, due := line{name: totalName + "/service"}, line{name: totalName + "/intended"}
	for k := range m.types {
		t := &m.types[k]
		if !some(t.Latency) {
			continue
		}
		all = append(all, line{kindNames[k] + "/service", t.Latency, t.First})
		if some(t.Due) {
			all = append(all, line{kindNames[k] + "/intended", t.Due, t.First})
		}
		if m.inTotal(kind(k)) {
			service.add(t.Latency, t.First)
			if some(t.Due) {
				due.add(t.Due, t.First)
			}
		}
	}
	return sorted(all, service, due)
}

// sorted appends the totals that have values, and sorts the lines by name.
func sorted(all []line, totals ...line) []line {
	for _, l := range totals {
		if l.h != nil {
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return strings.Compare(a.name, b.name) })
	return all
}

// rows returns the table of lines, at a time since the measured interval began.
// format formats latencies, given in microseconds.
func rows(all []line, at time.Duration, format func(us float64) string) [][]string {
	var table [][]string
	for _, l := range all {
		took := max((at - l.first).Seconds(), 1e-9)
		count := l.h.Count()
		row := []string{l.name, fmt.Sprintf("%.1f", took), fmt.Sprint(count), fmt.Sprintf("%.1f", float64(count)/took), format(l.h.MeanUs())}
		for _, q := range []float64{0, 1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999} {
			row = append(row, format(l.h.QuantileUs(q)))
		}
		table = append(table, row)
	}
	return table
}

func wholeUs(us float64) string { return fmt.Sprint(int64(us)) }
func fineUs(us float64) string  { return fmt.Sprintf("%.3f", us) }

func render(w io.Writer, style string, rows [][]string) {
	switch style {
	case util.OutputStyleTable:
		util.RenderTable(w, header, rows)
	case util.OutputStyleJson:
		util.RenderJson(w, header, rows)
	default:
		util.RenderString(w, "%-6s - %s\n", header, rows)
	}
}

// writeLines writes go-ycsb's lines for the measurements so far.
func (m *measurements) writeLines(w io.Writer, style string) {
	render(w, style, rows(m.lines(), m.elapsed, wholeUs))
}

// WriteFine writes the latencies in nanosecond resolution, in the form of go-ycsb's
// report: NAME/service from the beginning of each operation, and with a target rate
// NAME/intended from when it was due.
func (r *Result) WriteFine(w io.Writer) {
	if r.plan.report && !r.plan.raw {
		render(w, r.plan.style, rows(r.fine(), r.elapsed, fineUs))
	}
}

// Write writes go-ycsb's report: to the file that the properties name, or to w if
// they name none.
func (r *Result) Write(w io.Writer) error {
	if r.plan.rawFile != "" {
		f, err := os.Create(r.plan.rawFile)
		if err != nil {
			return err
		}
		defer f.Close()
		w = f
	}
	b := bufio.NewWriter(w)
	if r.plan.raw {
		r.writeRaw(b)
	} else {
		r.writeLines(b, r.plan.style)
	}
	return b.Flush()
}

// writeRaw writes every latency, as go-ycsb's measurementtype=raw does.
func (r *Result) writeRaw(w io.Writer) {
	fmt.Fprintln(w, "operation,timestamp_us,latency_us")
	for _, s := range r.samples {
		name := kindNames[s.kind]
		if s.failed {
			name += "_ERROR"
		}
		fmt.Fprintf(w, "%s,%d,%d\n", name, s.start.UnixMicro(), s.took.Microseconds())
		if !s.failed && r.inTotal(s.kind) {
			fmt.Fprintf(w, "%s,%d,%d\n", totalName, s.start.UnixMicro(), s.took.Microseconds())
		}
	}
}

// Operations returns the number of measured operations that did not fail.
func (r *Result) Operations() (n int64) {
	for k := range r.types {
		if r.inTotal(kind(k)) {
			n += int64(r.types[k].Committed)
		}
	}
	return n
}

// Kind has the figures of one kind of operation within the measured interval.
type Kind struct {
	load.TypeRecord
	InTotal bool // TOTAL includes it
}

// KindNames returns the names of all kinds of operations, in the order of Kinds.
func KindNames() []string { return slices.Clone(kindNames) }

// Kinds returns the kinds of operations that the run had.
func (r *Result) Kinds() (all []Kind) {
	for k := range r.types {
		if t := &r.types[k]; t.Committed > 0 || t.GaveUp > 0 {
			all = append(all, Kind{*t, r.inTotal(kind(k))})
		}
	}
	return all
}

// Elapsed returns the length of the measured interval.
func (r *Result) Elapsed() time.Duration { return r.elapsed }
