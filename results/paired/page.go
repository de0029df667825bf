package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"drtmx/results/figures"
)

// print writes the page.
func (o *options) print(w io.Writer, sides [2]side, all []*cell, began time.Time, load string) error {
	var b strings.Builder
	fmt.Fprintf(&b, `# Two commits, in turn

Written by `+"`go run ./results/paired %s`"+`, %s, in %.0f s.
Before is commit %s, after is %s.

Machine: %s, %d processors, %s.
Load average before: %s, after: %s.

Both commits are built and run in turn, %d times, and which goes first alternates. A ratio is after
÷ before of two neighbouring runs: the median, the least and the greatest of all turns. The values
are medians. Runs take %v, and their servers are processes over shared memory; Go benchmarks run in
one process.

`, o.args, began.UTC().Format(time.DateOnly), time.Since(began).Seconds(), sides[0].commit, sides[1].commit, processor(), runtime.NumCPU(), runtime.Version(), load, loadAverage(), o.turns, o.run)
	b.WriteString("| run | what | before | after | after ÷ before | least to greatest |\n|---|---|---|---|---|---|\n")
	for _, c := range all {
		for _, m := range c.metrics {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.name, m, row(c.values[0][m], c.values[1][m]))
		}
	}
	b.WriteString("\nThe commands; of TPC-C and YCSB each loads servers of its own:\n\n")
	for _, c := range all {
		fmt.Fprintf(&b, "    %s\n", quoted(c.args))
	}
	fmt.Fprintf(&b, "\nAn idle data server has settled for %v, and is watched for %v.\n", settles, watched)
	b.WriteString("\n## Source\n\n| | before | after |\n|---|---|---|\n")
	x, y := sides[0].source, sides[1].source
	for _, r := range []struct {
		what          string
		before, after int
	}{
		{"packages", x.packages, y.packages},
		{"files without tests", x.files, y.files},
		{"lines of them", x.lines, y.lines},
		{"lines of tests", x.testLines, y.testLines},
		{"exported names, with methods and fields", x.exported, y.exported},
	} {
		fmt.Fprintf(&b, "| %s | %d | %d |\n", r.what, r.before, r.after)
	}
	for _, p := range publicPackages {
		fmt.Fprintf(&b, "| of package `%s` | %d | %d |\n", p, x.public[p], y.public[p])
	}
	b.WriteString("\nThe types with the most methods:\n\n| type | methods before | after | fields before | after |\n|---|---|---|---|---|\n")
	for _, name := range largest(sides, 12) {
		p, q := x.types[name], y.types[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", name, p.methods, q.methods, p.fields, q.fields)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// quoted returns a command as a shell reads it.
func quoted(args []string) string {
	line := make([]string, len(args))
	for i, a := range args {
		if line[i] = a; strings.ContainsAny(a, "^$()|*") {
			line[i] = "'" + a + "'"
		}
	}
	return strings.Join(line, " ")
}

// row returns medians, and the ratios of pairs.
func row(before, after []float64) string {
	var ratios []float64
	for i := range min(len(before), len(after)) {
		if before[i] > 0 {
			ratios = append(ratios, after[i]/before[i])
		}
	}
	if len(ratios) == 0 {
		return fmt.Sprintf("%s | %s | – | –", figures.Number(figures.Median(before)), figures.Number(figures.Median(after)))
	}
	return fmt.Sprintf("%s | %s | **%.3f** | %.2f to %.2f", figures.Number(figures.Median(before)), figures.Number(figures.Median(after)), figures.Median(ratios), slices.Min(ratios), slices.Max(ratios))
}

func processor() string {
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
