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
)

// header is go-ycsb's.
var header = []string{
	"Operation", "Takes(s)", "Count", "OPS", "Avg(us)", "Min(us)", "Max(us)",
	"50th(us)", "90th(us)", "95th(us)", "99th(us)", "99.9th(us)", "99.99th(us)",
}

const totalName = "TOTAL"

// inTotal reports whether TOTAL counts a kind: a read-modify-write of two
// calls is counted as these.
func (m *meter) inTotal(k kind) bool { return k != kindReadModifyWrite || !m.separate }

// named is a series with the name of its line.
type named struct {
	name string
	series
}

// lines are the series of a go-ycsb report, by name.
func (m *meter) lines(t *totals) []named {
	var all []named
	var total series
	for k := range kinds {
		if t.done[k].h != nil {
			all = append(all, named{kindNames[k], t.done[k]})
			if m.inTotal(k) {
				total.add(t.done[k])
			}
		}
		if t.failed[k].h != nil {
			all = append(all, named{kindNames[k] + "_ERROR", t.failed[k]})
		}
	}
	if total.h != nil {
		all = append(all, named{totalName, total})
	}
	slices.SortFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return all
}

// add merges without taking from's histogram over.
func (s *series) add(from series) {
	if s.h == nil {
		s.h, s.first = hist.New(), from.first
	}
	s.merge(from)
}

// fine are the series of the report of nanoseconds.
func (m *meter) fine(t *totals) []named {
	var all []named
	var service, due series
	for k := range kinds {
		if t.done[k].h != nil {
			all = append(all, named{kindNames[k] + "/service", t.done[k]})
		}
		if t.due[k].h != nil {
			all = append(all, named{kindNames[k] + "/intended", t.due[k]})
		}
		if m.inTotal(k) && t.done[k].h != nil {
			service.add(t.done[k])
			if t.due[k].h != nil {
				due.add(t.due[k])
			}
		}
	}
	if service.h != nil {
		all = append(all, named{totalName + "/service", service})
	}
	if due.h != nil {
		all = append(all, named{totalName + "/intended", due})
	}
	slices.SortStableFunc(all, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return all
}

// row is a line of the report, with latencies as format shows microseconds.
func (n *named) row(now time.Time, format func(us float64) string) []string {
	took := max(now.Sub(n.first).Seconds(), 1e-9)
	count := n.h.Count()
	row := []string{n.name, fmt.Sprintf("%.1f", took), fmt.Sprint(count), fmt.Sprintf("%.1f", float64(count)/took), format(n.h.MeanUs())}
	for _, q := range []float64{0, 1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999} {
		row = append(row, format(n.h.QuantileUs(q)))
	}
	return row
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

// writeLines writes go-ycsb's lines of what was measured so far.
func (m *meter) writeLines(w io.Writer, style string, now time.Time) {
	m.collect(func(t *totals) {
		var rows [][]string
		for _, n := range m.lines(t) {
			rows = append(rows, n.row(now, wholeUs))
		}
		render(w, style, rows)
	})
}

// WriteFine writes the latencies in nanoseconds' resolution, in the form of
// go-ycsb's report: NAME/service since the operation began, and under a
// target rate NAME/intended since it was due.
func (r *Result) WriteFine(w io.Writer) {
	if !r.plan.report || r.plan.raw {
		return
	}
	r.meter.collect(func(t *totals) {
		var rows [][]string
		for _, n := range r.meter.fine(t) {
			rows = append(rows, n.row(r.ended, fineUs))
		}
		render(w, r.plan.style, rows)
	})
}

// Write writes go-ycsb's report: to the file that the properties name, else
// to w.
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
		r.meter.collect(func(t *totals) { r.meter.writeRaw(b, t) })
	} else {
		r.meter.writeLines(b, r.plan.style, r.ended)
	}
	return b.Flush()
}

// writeRaw writes every latency, as go-ycsb's measurementtype=raw does.
func (m *meter) writeRaw(w io.Writer, t *totals) {
	fmt.Fprintln(w, "operation,timestamp_us,latency_us")
	for _, s := range t.raw {
		name := kindNames[s.kind]
		if s.failed {
			name += "_ERROR"
		}
		fmt.Fprintf(w, "%s,%d,%d\n", name, s.start.UnixMicro(), s.took.Microseconds())
		if !s.failed && m.inTotal(s.kind) {
			fmt.Fprintf(w, "%s,%d,%d\n", totalName, s.start.UnixMicro(), s.took.Microseconds())
		}
	}
}

// Operations is the number of measured operations that did not fail.
func (r *Result) Operations() (n int64) {
	r.meter.collect(func(t *totals) {
		for k := range kinds {
			if t.done[k].h != nil && r.meter.inTotal(k) {
				n += t.done[k].h.Count()
			}
		}
	})
	return n
}
