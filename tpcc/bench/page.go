package bench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/plot"
)

// Entry is a line of a page: one run, or its repetitions.
type Entry struct {
	Label    string
	Runs     []*Report
	Timeline *Timeline // of the first of them
}

// Section is a part of a page that compares runs of one mix.
type Section struct {
	Title   string
	Entries []Entry
}

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// page is the data of the template.
type page struct {
	Title    string
	Faults   []string
	Settings [][2]string
	Sections []pageSection
	Notes    []string
}

type pageSection struct {
	Title  string
	Tables []pageTable
	Charts []template.HTML
}

type pageTable struct {
	Head []string
	Rows [][]string
}

// WritePage writes a self-contained page of HTML with tables and plots of runs. It
// needs no scripts and no network. The reports must have their Record.
func WritePage(w io.Writer, title string, sections []Section) error {
	p := page{Title: title}
	for _, s := range sections {
		s.Entries = slices.DeleteFunc(slices.Clone(s.Entries), func(e Entry) bool { return len(e.Runs) == 0 || e.Runs[0].Record == nil })
		if len(s.Entries) == 0 {
			continue // it ended before its measured interval
		}
		r := s.Entries[0].Runs[0]
		if p.Settings == nil {
			p.Settings = r.settings()
			p.Notes = []string{r.NotTPCC() + ".", pageNote}
		}
		for _, e := range s.Entries {
			group := Group{Runs: e.Runs}
			p.Faults = append(p.Faults, group.notes(e.Label)...)
		}
		p.Sections = append(p.Sections, s.page())
	}
	return pageTemplate.Execute(w, &p)
}

const pageNote = "Rounds, READs and RPCs are exact and the same on any machine. Times over shm are those of memory copies " +
	"between processes that share processors with the clients; they are not RDMA times."

// settings returns names and values of the settings that all runs of a page share.
func (r *Report) settings() [][2]string {
	load := "closed: a terminal begins a transaction when its previous one has ended"
	switch {
	case r.Rate > 0:
		load = fmt.Sprintf("open: %g transactions a second (%s); latencies are since each was due", r.Rate, r.Arrivals)
	case r.KeyingThink:
		load = fmt.Sprintf("keying and think times × %g", r.TimeScale)
	}
	return [][2]string{
		{"fabric", r.Fabric},
		{"data servers", fmt.Sprintf("%d, %d partitions", r.Servers, r.Partitions)},
		{"data", fmt.Sprintf("%d warehouses, %d items, %d customers a district; durability %s", r.Warehouses, r.Items, r.Customers, r.Durability)},
		{"load", load},
		{"measured", fmt.Sprintf("%.1f s after %.1f s of warm-up, seed %d", r.DurationS, r.WarmupS, r.Seed)},
		{"began", r.Started.UTC().Format(time.RFC3339)},
		{"program", fmt.Sprintf("drtmx %s, commit %s, %s, %s, %d processors", r.Version, r.Commit, r.Go, r.Machine, r.CPUs)},
	}
}

func (s *Section) page() pageSection {
	p := pageSection{Title: s.Title, Tables: []pageTable{s.rates(), s.latencies()}}
	charts := []string{s.throughput()}
	switch {
	case len(s.Entries) == 1:
		charts = append(charts, s.tail())
	case s.ladder():
		charts = append(charts, s.rateByClients(), s.latencyByClients())
	default:
		charts = append(charts, s.rateBars())
	}
	charts = append(charts, s.percentiles()...)
	charts = append(charts, s.cpu())
	charts = append(charts, s.costs()...)
	for _, c := range charts {
		p.Charts = append(p.Charts, template.HTML(c)) // the charts escape their texts
	}
	return p
}

// names returns the transaction types that ran.
func (s *Section) names() []string { return s.Entries[0].Runs[0].Order() }

func (s *Section) labels() (all []string) {
	for _, e := range s.Entries {
		all = append(all, e.Label)
	}
	return all
}

// ladder reports whether the entries differ in their numbers of clients.
func (s *Section) ladder() bool {
	return len(s.Entries) > 1 && s.Entries[0].Runs[0].Clients != s.Entries[1].Runs[0].Clients
}

// median returns the median of a figure over the runs of an entry.
func (e *Entry) median(figure func(*Report) float64) float64 {
	return (&Group{Runs: e.Runs}).median(figure)
}

// Latency returns the latencies of a type over all runs of an entry, or of all types
// if name is "". The reports must have their Record.
func (e *Entry) Latency(name string) *hist.Histogram {
	all := hist.New()
	for _, r := range e.Runs {
		for i := range r.Record.Types {
			if t := &r.Record.Types[i]; name == "" || t.Name == name {
				all.Merge(t.Response())
			}
		}
	}
	return all
}

func throughput(r *Report) float64 { return r.Throughput }
func clientCPU(r *Report) float64  { return 1e6 * Ratio(r.ClientCPUS, r.Finished()) }
func serverCPU(r *Report) float64  { return 1e6 * Ratio(r.ServerCPUS, r.Finished()) }

func (s *Section) rates() pageTable {
	t := pageTable{Head: []string{"", "clients", "per second", "µs CPU of clients", "of data servers", "rounds", "READs", "RPCs", "retries"}}
	for i := range s.Entries {
		e := &s.Entries[i]
		r := e.Runs[0]
		row := []string{e.Label, fmt.Sprint(r.Clients), fmt.Sprintf("%.0f", e.median(throughput)), fmt.Sprintf("%.1f", e.median(clientCPU)), fmt.Sprintf("%.1f", e.median(serverCPU))}
		for _, of := range []map[string]float64{r.Rounds, r.Reads, r.RPCs} {
			row = append(row, fmt.Sprintf("%.2f", r.Each(of)))
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.3f", r.Each(r.Retries))))
	}
	return t
}

func (s *Section) latencies() pageTable {
	t := pageTable{Head: []string{"latency, µs", "", "transactions", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"}}
	for _, name := range s.names() {
		for i := range s.Entries {
			e := &s.Entries[i]
			l := e.Latency(name).Snapshot()
			row := []string{name, e.Label, fmt.Sprint(l.Count)}
			for _, v := range []float64{l.MeanUs, l.P50Us, l.P90Us, l.P95Us, l.P99Us, l.P999Us, l.MaxUs} {
				row = append(row, fmt.Sprintf("%.1f", v))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// throughput charts the throughput over time: of each type if there is one entry,
// else of each entry.
func (s *Section) throughput() string {
	c := plot.LineChart{Title: "Throughput over time", XLabel: "s", YLabel: "transactions per second"}
	if len(s.Entries) == 1 {
		t := s.Entries[0].Timeline
		for k, name := range t.names {
			c.Lines = append(c.Lines, t.line(name, func(p *timelinePoint) float64 { return p.rate(k) }))
		}
		return c.HTML()
	}
	for _, e := range s.Entries {
		c.Lines = append(c.Lines, e.Timeline.line(e.Label, func(p *timelinePoint) float64 { return p.rate(-1) }))
	}
	return c.HTML()
}

func (t *Timeline) line(name string, of func(*timelinePoint) float64) plot.Line {
	l := plot.Line{Name: name}
	for i := range t.points {
		l.X, l.Y = append(l.X, t.points[i].middle()), append(l.Y, of(&t.points[i]))
	}
	return l
}

// tail charts the 99th percentile of each type over time.
func (s *Section) tail() string {
	c := plot.LineChart{Title: "99th percentile of latency over time", XLabel: "s", YLabel: "µs", LogY: true}
	t := s.Entries[0].Timeline
	for k, name := range t.names {
		c.Lines = append(c.Lines, t.line(name, func(p *timelinePoint) float64 { return p.p99Us[k] }))
	}
	return c.HTML()
}

func (s *Section) rateBars() string {
	b := plot.Bars{Name: "per second"}
	for i := range s.Entries {
		var all []float64
		for _, r := range s.Entries[i].Runs {
			all = append(all, r.Throughput)
		}
		b.Values = append(b.Values, s.Entries[i].median(throughput))
		b.Low, b.High = append(b.Low, slices.Min(all)), append(b.High, slices.Max(all))
	}
	c := plot.BarChart{Title: "Throughput", YLabel: "transactions per second", Groups: s.labels(), Bars: []plot.Bars{b}}
	return c.HTML()
}

func (s *Section) rateByClients() string {
	line := plot.Line{Name: "per second"}
	for i := range s.Entries {
		e := &s.Entries[i]
		line.X, line.Y = append(line.X, float64(i)), append(line.Y, e.median(throughput))
	}
	c := plot.LineChart{Title: "Throughput by clients", XLabel: "clients", YLabel: "transactions per second", XTicks: s.clientTicks(), Lines: []plot.Line{line}}
	return c.HTML()
}

func (s *Section) latencyByClients() string {
	c := plot.LineChart{Title: "Latency of all transactions by clients", XLabel: "clients", YLabel: "µs", LogY: true, XTicks: s.clientTicks()}
	for _, q := range []struct {
		name string
		of   float64
	}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}} {
		line := plot.Line{Name: q.name}
		for i := range s.Entries {
			line.X, line.Y = append(line.X, float64(i)), append(line.Y, s.Entries[i].Latency("").QuantileUs(q.of))
		}
		c.Lines = append(c.Lines, line)
	}
	return c.HTML()
}

func (s *Section) clientTicks() (all []plot.Tick) {
	for i := range s.Entries {
		all = append(all, plot.Tick{At: float64(i), Label: fmt.Sprint(s.Entries[i].Runs[0].Clients)})
	}
	return all
}

// percentiles returns one chart of all types if there is one entry, else a chart per
// type with all entries.
func (s *Section) percentiles() (charts []string) {
	chart := func(of string) *plot.LineChart {
		return &plot.LineChart{Title: "Latency by percentile" + of, XLabel: "percentile", YLabel: "µs", LogY: true}
	}
	if len(s.Entries) == 1 {
		c := chart("")
		for _, name := range s.names() {
			c.Lines = append(c.Lines, percentileLine(name, s.Entries[0].Latency(name)))
		}
		return []string{drawPercentiles(c)}
	}
	for _, name := range s.names() {
		c := chart(": " + name)
		for i := range s.Entries {
			c.Lines = append(c.Lines, percentileLine(s.Entries[i].Label, s.Entries[i].Latency(name)))
		}
		charts = append(charts, drawPercentiles(c))
	}
	return charts
}

// percentileSteps is the number of points of a curve for each nine: between 90 % and
// 99 %, between 99 % and 99.9 %, and so on.
const percentileSteps = 20

// percentileLine returns a distribution over the number of nines, as far as there are
// values.
func percentileLine(name string, h *hist.Histogram) plot.Line {
	l := plot.Line{Name: name}
	if h.Count() == 0 {
		return l
	}
	last := math.Log10(float64(h.Count()))
	for i := 0; ; i++ {
		nines := math.Min(float64(i)/percentileSteps, last)
		l.X, l.Y = append(l.X, nines), append(l.Y, h.QuantileUs(1-math.Pow(10, -nines)))
		if nines == last {
			return l
		}
	}
}

// drawPercentiles draws a chart of percentileLines.
func drawPercentiles(c *plot.LineChart) string {
	for nines := range 10 {
		label := "0"
		if nines > 0 {
			label = strings.TrimSuffix("99."+strings.Repeat("9", max(nines-2, 0)), ".")
		}
		if nines == 1 {
			label = "90"
		}
		c.XTicks = append(c.XTicks, plot.Tick{At: float64(nines), Label: label + " %"})
	}
	return c.HTML()
}

func (s *Section) cpu() string {
	clients, servers := plot.Bars{Name: "clients"}, plot.Bars{Name: "data servers"}
	for i := range s.Entries {
		e := &s.Entries[i]
		clients.Values, servers.Values = append(clients.Values, e.median(clientCPU)), append(servers.Values, e.median(serverCPU))
	}
	c := plot.BarChart{Title: "CPU time of a transaction", YLabel: "µs", Groups: s.labels(), Bars: []plot.Bars{clients, servers}}
	if !s.Entries[0].Runs[0].CPUSeparable {
		c.Title += " (one process)"
		c.Bars = []plot.Bars{{Name: "clients and data servers", Values: clients.Values}}
	}
	return c.HTML()
}

// costs charts rounds, READs and RPCs by type: in one chart if there is one entry,
// else in one chart each, by entry too.
func (s *Section) costs() (charts []string) {
	figures := []struct {
		name string
		of   func(*Report) map[string]float64
	}{
		{"rounds", func(r *Report) map[string]float64 { return r.Rounds }},
		{"READs", func(r *Report) map[string]float64 { return r.Reads }},
		{"RPCs", func(r *Report) map[string]float64 { return r.RPCs }},
	}
	names := s.names()
	one := plot.BarChart{Title: "Rounds, READs and RPCs of a transaction", YLabel: "per transaction", Groups: names}
	for _, f := range figures {
		each := plot.BarChart{Title: f.name + " of a transaction", YLabel: f.name, Groups: names}
		for i := range s.Entries {
			e := &s.Entries[i]
			b := plot.Bars{Name: e.Label}
			for _, name := range names {
				b.Values = append(b.Values, e.median(func(r *Report) float64 { return f.of(r)[name] }))
			}
			each.Bars = append(each.Bars, b)
		}
		only := each.Bars[0]
		only.Name = f.name
		one.Bars = append(one.Bars, only)
		charts = append(charts, each.HTML())
	}
	if len(s.Entries) == 1 {
		return []string{one.HTML()}
	}
	return charts
}
