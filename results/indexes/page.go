package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"drtmx/results/figures"
)

// measured are the figures of an index with one key set, by their names, a value for
// each turn: <what>:<state>:<threads>. The state is that of the index: loaded, or grown
// by the inserts.
type measured map[string]map[int]float64

// tables are the figures of all indexes, by key set and index.
type tables struct {
	*options
	got    map[string]map[string]measured
	failed map[string]string // why figures are missing, by what is missing
}

// benchmarkLine is a result: the name below that of the benchmark, without the number
// of processors; the number of runs; pairs of a value and its name.
var benchmarkLine = regexp.MustCompile(`(?m)^BenchmarkPeers?/(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// add keeps the figures that a program printed, and reports whether there were any.
func (t *tables) add(set string, turn int, printed string) (any bool) {
	for _, line := range benchmarkLine.FindAllStringSubmatch(printed, -1) {
		name := line[1]
		if t.got[set][name] == nil {
			t.got[set][name] = measured{}
		}
		f := strings.Fields(line[2])
		for i := 0; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil || strings.Count(f[i+1], ":") != 2 {
				continue
			}
			if t.got[set][name][f[i+1]] == nil {
				t.got[set][name][f[i+1]] = map[int]float64{}
			}
			t.got[set][name][f[i+1]][turn] = v
			any = true
		}
	}
	return any
}

// columns are the figures of the first table.
var columns = []struct{ title, what string }{
	{"GET", "get:grown:1"},
	{"GET, 2 threads", "get:grown:2"},
	{"scan", "scan:grown:1"},
	{"scan, 2 threads", "scan:grown:2"},
	{"insert", "insert::1"},
	{"insert, 2 threads", "insert::2"},
	{"GET, loaded", "get:loaded:1"},
	{"scan, loaded", "scan:loaded:1"},
	{"load", "load::1"},
	{"bytes/key", "memory::1"},
}

// ratios are those of the second table: a side of drtmx and a figure.
var ratios = []struct{ title, side, what string }{
	{"server, GET", "server", "get:grown:1"},
	{"server, GET, 2 threads", "server", "get:grown:2"},
	{"server, scan", "server", "scan:grown:1"},
	{"server, scan, 2 threads", "server", "scan:grown:2"},
	{"server, insert", "server", "insert::1"},
	{"server, insert, 2 threads", "server", "insert::2"},
	{"partitions, insert, 2 threads", "partitions", "insert::2"},
	{"client, GET", "client", "get:grown:1"},
	{"client, scan", "client", "scan:grown:1"},
	{"model, GET", "model", "get:grown:1"},
}

// print prints the tables, and what each index is.
func (t *tables) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Sets of %d keys, %d GETs and %d scans, %d turns. ", t.keys, t.gets, t.scans, t.turns)
	fmt.Fprintf(&b, "C++ programs are compiled by g++ with `%s`.\n\n", strings.Join(compileFlags, " "))
	for _, set := range t.sets {
		fmt.Fprintf(&b, "## Keys: %s\n\n", set.Name)
		t.printTimes(&b, set.Name)
		t.printRatios(&b, set.Name)
	}
	b.WriteString("## What was compared\n\n")
	for _, s := range sides {
		fmt.Fprintf(&b, "- **drtmx, %s**: %s\n", s.name, s.what)
	}
	for _, p := range peers {
		fmt.Fprintf(&b, "- **%s** (%s, commit %s, licence: %s): %s\n", p.name, strings.TrimSuffix(p.url, ".git"), p.commit[:12], p.licence, p.what)
	}
	b.WriteString("- None of the peers keeps rows apart from the index, headers or older versions of rows, or proofs, and none has readers in other processes.\n")
	b.WriteString("- Not measured: ALEX+, ALEX for several threads, which needs TBB 2020; PGM. The trees of google and tidwall, in Go, are beside drtmx's in `results/engine.md`.\n")
	t.printMissing(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *tables) printTimes(b *strings.Builder, set string) {
	b.WriteString("Nanoseconds for an operation, medians:\n\n| index |")
	for _, c := range columns {
		fmt.Fprintf(b, " %s |", c.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, name := range t.names() {
		title := name
		if slices.ContainsFunc(sides, func(s side) bool { return s.name == name }) {
			title = "**drtmx, " + name + "**"
		}
		fmt.Fprintf(b, "| %s |", title)
		for _, c := range columns {
			fmt.Fprintf(b, " %s |", t.cell(set, name, c.what))
		}
		b.WriteString("\n")
	}
	server := t.got[set]["server"]
	fmt.Fprintf(b, "\nTraining all models takes the server %s ns a key after the load, and %s ns for an inserted key after the inserts.\n\n",
		number(server["trainload::1"]), number(server["train::1"]))
}

// printRatios prints drtmx ÷ peer. The ratios are those of a turn.
func (t *tables) printRatios(b *strings.Builder, set string) {
	b.WriteString("drtmx ÷ peer, below 1 if drtmx is faster; medians of the turns (least to greatest):\n\n| peer |")
	for _, r := range ratios {
		fmt.Fprintf(b, " %s |", r.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(ratios)) + "\n")
	for _, p := range peers {
		fmt.Fprintf(b, "| %s |", p.name)
		for _, r := range ratios {
			text := "–"
			if v := t.ratiosOf(set, r.side, p.name, r.what); len(v) > 0 {
				text = figures.Spread(v, "%.2f")
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// ratiosOf returns side ÷ peer for the turns that have both.
func (t *tables) ratiosOf(set, side, peer, what string) (v []float64) {
	if t.wrong(set, peer, what) > 0 {
		return nil
	}
	ours, theirs := t.got[set][side][what], t.got[set][peer][what]
	for turn := range t.turns {
		if a, b := ours[turn], theirs[turn]; a > 0 && b > 0 {
			v = append(v, a/b)
		}
	}
	return v
}

// wrong returns the share of scans with wrong answers, in per cent, if a figure is that
// of scans.
func (t *tables) wrong(set, name, what string) float64 {
	state, ok := strings.CutPrefix(what, "scan:")
	if !ok {
		return 0
	}
	state, _, _ = strings.Cut(state, ":")
	return figures.Median(slices.Collect(maps.Values(t.got[set][name]["wrong:"+state+":1"])))
}

func (t *tables) cell(set, name, what string) string {
	if share := t.wrong(set, name, what); share > 0 {
		return fmt.Sprintf("%s %% wrong", figures.Number(share))
	}
	return number(t.got[set][name][what])
}

// number prints the median of the turns, a dash if there are none.
func number(turns map[int]float64) string {
	if len(turns) == 0 {
		return "–"
	}
	return figures.Number(figures.Median(slices.Collect(maps.Values(turns))))
}

// names are drtmx's sides and the peers.
func (t *tables) names() (all []string) {
	for _, s := range sides {
		all = append(all, s.name)
	}
	for _, p := range peers {
		all = append(all, p.name)
	}
	return all
}

func (t *tables) printMissing(b *strings.Builder) {
	if len(t.failed) == 0 {
		return
	}
	b.WriteString("\n## What is missing\n\n")
	for _, what := range slices.Sorted(maps.Keys(t.failed)) {
		fmt.Fprintf(b, "- %s: not measured: %s\n", what, strings.Join(strings.Fields(t.failed[what]), " "))
	}
}
