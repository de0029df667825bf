package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"drtmx/results/figures"
)

// Columns of the table of writers that medians are made of.
const (
	columnStore, columnHow    = 0, 4
	columnKept                = 8 // hot ÷ cold
	columnCPU                 = 12
	columnPacedC, columnPaced = 16, 17
	columnsOfWriters          = 20
)

// printMedians prints medians over all cells of a store and a way to read, of the
// figures in the table of writers that in has.
func printMedians(in io.Reader, out io.Writer) error {
	type group struct{ kept, cpu, pacedCold, paced []float64 }
	groups := map[string]*group{}
	var names []string
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		cells := strings.Split(strings.Trim(lines.Text(), "| "), " | ")
		if len(cells) != columnsOfWriters {
			continue
		}
		figures := make([]float64, len(cells))
		numbers := 0
		for i, c := range cells {
			if v, err := strconv.ParseFloat(strings.Trim(c, "* %"), 64); err == nil {
				figures[i] = v
				numbers++
			}
		}
		if numbers < columnsOfWriters-3 { // the head
			continue
		}
		name := cells[columnStore] + " | " + cells[columnHow]
		g := groups[name]
		if g == nil {
			g = &group{}
			groups[name], names = g, append(names, name)
		}
		g.kept, g.cpu = append(g.kept, figures[columnKept]), append(g.cpu, figures[columnCPU])
		g.pacedCold, g.paced = append(g.pacedCold, figures[columnPacedC]), append(g.paced, figures[columnPaced])
	}
	if err := lines.Err(); err != nil {
		return err
	}
	fmt.Fprintln(out, `## Medians of all cells

Of the cells of the tables below, by `+"`results/longreads -medians`"+`. *Below*: cells below 0.95 or 95 %.

| store | read as | cells | hot ÷ cold | least | greatest | below | CPU hot ÷ cold | kept, cold | below | kept, hot | below |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|`)
	below := func(v []float64, least float64) (n int) {
		for _, x := range v {
			if x < least {
				n++
			}
		}
		return n
	}
	for _, name := range names {
		g := groups[name]
		fmt.Fprintf(out, "| %s | %d | **%.3f** | %.2f | %.2f | %d | %.3f | %.1f %% | %d | **%.1f %%** | %d |\n", name, len(g.kept),
			figures.Median(g.kept), slices.Min(g.kept), slices.Max(g.kept), below(g.kept, 0.95), figures.Median(g.cpu),
			figures.Median(g.pacedCold), below(g.pacedCold, 95), figures.Median(g.paced), below(g.paced, 95))
	}
	fmt.Fprintln(out)
	return nil
}
