package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"drtmx/internal/plot"
	"drtmx/results/figures"
)

const (
	pageFile   = "results/papers.md"
	chartsFile = "results/papers.html"
)

// page is what is written.
type page struct {
	quick   bool
	started time.Time
	commit  string
	rows    map[string]row     // of this run and of earlier ones, by title
	points  map[string]measure // of this run, for curves
}

// row is a line of the table: what was measured, and when.
type row struct{ here, when string }

// measure has a run's median ratios.
type measure map[string]float64

// measured is the outcome of a run.
type measured struct {
	Commit, Date string
	Quick        bool
	Ratios       map[string][]float64
	Failed       string
}

// title names a ratio in the table.
func title(f *figure, r *run, ratio string) string {
	return fmt.Sprintf("%s %s | %s: %s", f.paper, f.name, r.what, ratio)
}

// tableLine is a line of the table.
var tableLine = regexp.MustCompile(`^\| (.+? \| .+?) \| [^|]* \| ([^|]+) \| ([^|]+) \|$`)

// load takes the figures of an earlier page.
func (p *page) load() error {
	p.rows, p.points = map[string]row{}, map[string]measure{}
	file, err := os.Open(pageFile)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if m := tableLine.FindStringSubmatch(s.Text()); m != nil {
			p.rows[m[1]] = row{m[2], m[3]}
		}
	}
	return nil
}

// took takes in the outcome of a run.
func (p *page) took(f *figure, r *run, m measured) {
	when := m.Commit + ", " + m.Date
	if m.Quick {
		when += ", one short repetition"
	}
	at := measure{}
	for i := range r.ratios {
		name := r.ratios[i].name
		if m.Failed != "" {
			p.rows[title(f, r, name)] = row{"failed: " + strings.ReplaceAll(m.Failed, "|", "¦"), time.Now().UTC().Format(time.DateOnly)}
			continue
		}
		p.rows[title(f, r, name)] = row{figures.Spread(m.Ratios[name], "%.2f"), when}
		at[name] = figures.Median(m.Ratios[name])
	}
	p.points[title(f, r, "")] = at
}

// list prints the figures and their commands.
func (p *page) list(w io.Writer, pattern *regexp.Regexp) {
	for i := range manifest {
		f := &manifest[i]
		if !pattern.MatchString(f.paper + " " + f.name) {
			continue
		}
		fmt.Fprintf(w, "%s %s: %s\n", f.paper, f.name, f.says)
		if f.missing != "" {
			fmt.Fprintf(w, "    nothing: %s\n", f.missing)
		}
		for j := range f.runs {
			fmt.Fprintf(w, "    %s\n        %s\n", f.runs[j].what, shell(f.runs[j].command(p.quick)))
		}
	}
}

// shell prints a command so that a shell takes it.
func shell(args []string) string {
	quoted := slices.Clone(args)
	for i, a := range quoted {
		if strings.ContainsAny(a, "^$|*() ") || a == "" {
			quoted[i] = "'" + a + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// write writes the page and the curves.
func (p *page) write() error {
	var w strings.Builder
	fmt.Fprintf(&w, "# The papers' figures, and what stands for them here\n\nWritten by `make results`.\n")
	w.WriteString(wrapped(`Each line is a ratio of two throughputs, unless it says something else, with its
median, and the least and the greatest of the repetitions. *Modelled*: the data servers' machines are
modelled, with one core behind a fast network ([docs/ycsb.md](../docs/ycsb.md)); then rates are
emulated, and no measurements of RDMA. The other lines are of this machine. The papers' ratios are of
other machines, data sets and rivals: they show a direction.`))
	fmt.Fprintf(&w, "\nMachine: %s.\n\n| figure | ratio | the paper | here | commit, date |\n|---|---|---|---|---|\n", machine())
	for i := range manifest {
		f := &manifest[i]
		for j := range f.runs {
			r := &f.runs[j]
			for k := range r.ratios {
				t := title(f, r, r.ratios[k].name)
				x, ok := p.rows[t]
				if !ok {
					x = row{"not run", "-"}
				}
				paper := r.ratios[k].paper
				if paper == "" {
					paper = "-"
				}
				fmt.Fprintf(&w, "| %s | %s | %s | %s |\n", t, paper, x.here, x.when)
			}
		}
	}
	p.writeDifferences(&w)
	w.WriteString("\n## What the figures are, and their commands\n")
	for i := range manifest {
		f := &manifest[i]
		about := fmt.Sprintf("**%s %s**: %s.", f.paper, f.name, f.says)
		if f.missing != "" {
			about += fmt.Sprintf(" Nothing stands for it: %s.", f.missing)
		}
		if f.differs != "" {
			about += " " + f.differs
		}
		fmt.Fprintf(&w, "\n%s", wrapped(about))
		for j := range f.runs {
			r, kind := &f.runs[j], ""
			if r.modelled() {
				kind = ", modelled"
			}
			fmt.Fprintf(&w, "\n%s%s:\n\n    %s\n", r.what, kind, shell(r.args))
		}
	}
	if err := os.WriteFile(pageFile, []byte(w.String()), 0o644); err != nil {
		return err
	}
	return p.writeCharts()
}

// difference is a measured ratio that is not the paper's.
type difference struct {
	f      *figure
	title  string
	paper  string
	factor float64 // here ÷ the paper, or the reverse, above 1
}

// differencesShown is how many of the greatest differences the page explains.
const differencesShown = 5

// writeDifferences writes which figures differ most from a paper's, each once, and why.
func (p *page) writeDifferences(w *strings.Builder) {
	var all []difference
	for i := range manifest {
		f := &manifest[i]
		most := difference{f: f}
		for j := range f.runs {
			r := &f.runs[j]
			for k := range r.ratios {
				x := &r.ratios[k]
				t := title(f, r, x.name)
				if factor, ok := apart(p.rows[t].here, x.paper); ok && x.den != "" && factor > most.factor {
					most.title, most.paper, most.factor = t, x.paper, factor
				}
			}
		}
		if most.factor > 1 {
			all = append(all, most)
		}
	}
	slices.SortStableFunc(all, func(a, b difference) int { return cmp.Compare(b.factor, a.factor) })
	if len(all) == 0 {
		return
	}
	w.WriteString("\n## Where the ratios differ most from a paper's\n")
	for _, d := range all[:min(differencesShown, len(all))] {
		why := cmp.Or(d.f.differs, "Nobody has looked for the reason.")
		fmt.Fprintf(w, "\n%s", wrapped(fmt.Sprintf("%s: %s here, %s in the paper, so %.1f times apart. %s",
			strings.Replace(d.title, " | ", ", ", 1), p.rows[d.title].here, d.paper, d.factor, why)))
	}
}

// number is a number in a ratio.
var number = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)?`)

// apart returns by which factor a ratio, as the page has it, is apart from a paper's, such as 1.3, 1.04
// to 1.23, or ≤ 1.8. It is not ok if one of them is no number, or the paper has only a direction.
func apart(here, paper string) (factor float64, ok bool) {
	got, err := strconv.ParseFloat(number.FindString(here), 64)
	said := number.FindAllString(paper, 2)
	if err != nil || got <= 0 || len(said) == 0 || strings.HasPrefix(here, "failed") || strings.Contains(paper, "above") {
		return 0, false
	}
	lo, err := strconv.ParseFloat(said[0], 64)
	hi := lo
	if len(said) == 2 && err == nil {
		hi, err = strconv.ParseFloat(said[1], 64)
	}
	if err != nil || lo <= 0 || hi <= 0 {
		return 0, false
	}
	if strings.HasPrefix(paper, "≤") {
		lo = 0
	}
	switch {
	case got < lo:
		return lo / got, true
	case got > hi:
		return got / hi, true
	}
	return 1, true
}

// wrapped breaks a paragraph into lines.
func wrapped(s string) string {
	const most = 98
	var b strings.Builder
	n := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case n+1+len(word) > most:
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}

// writeCharts writes the curves of this run, as a page that needs nothing else.
func (p *page) writeCharts() error {
	var w strings.Builder
	for i := range manifest {
		f := &manifest[i]
		if f.x == "" {
			continue
		}
		lines := map[string]*plot.Line{}
		for j := range f.runs {
			r := &f.runs[j]
			for name, v := range p.points[title(f, r, "")] {
				if lines[name] == nil {
					lines[name] = &plot.Line{Name: name}
				}
				lines[name].X, lines[name].Y = append(lines[name].X, r.at), append(lines[name].Y, v)
			}
		}
		if len(lines) == 0 {
			continue
		}
		c := plot.LineChart{Title: f.paper + " " + f.name + ": " + f.says, XLabel: f.x, YLabel: "ratio"}
		for _, name := range slices.Sorted(maps.Keys(lines)) {
			byX(lines[name])
			c.Lines = append(c.Lines, *lines[name])
		}
		w.WriteString(c.HTML())
	}
	if w.Len() == 0 {
		return nil
	}
	head := fmt.Sprintf("<!doctype html><meta charset=utf-8><title>Figures</title><style>body{font:14px sans-serif;max-width:800px;margin:2em auto}</style><p>%s, %s, modelled machines</p>\n",
		machine(), p.started.UTC().Format(time.DateOnly))
	return os.WriteFile(chartsFile, []byte(head+w.String()), 0o644)
}

// byX sorts the points of a line.
func byX(l *plot.Line) {
	order := make([]int, len(l.X))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		if l.X[i] < l.X[j] {
			return -1
		}
		return 1
	})
	x, y := slices.Clone(l.X), slices.Clone(l.Y)
	for i, at := range order {
		l.X[i], l.Y[i] = x[at], y[at]
	}
}

// machine describes where the figures are from.
func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel, _ := exec.Command("uname", "-r").Output()
	return fmt.Sprintf("%s, %d processors, Linux %s, %s", model, runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version())
}
