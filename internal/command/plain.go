package command

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/tpcc/bench"
)

// tpmcMax is the most NEW-ORDERs a minute that ten terminals of a warehouse
// can enter at TPC-C's keying and think times; go-tpc's efficiency is relative
// to it.
const tpmcMax = 12.86

// printPlain writes the report in the lines of go-tpc; if it is one of several,
// after a line with its number of clients.
func printPlain(w io.Writer, r *bench.Report, several bool) {
	if r.Record == nil {
		return
	}
	if several {
		fmt.Fprintf(w, "clients: %d\n", r.Clients)
	}
	printLines(w, "[Summary] ", r.Record.Elapsed, r.Record.Types)
	perMinute := 60 * r.Throughput
	fmt.Fprintf(w, "tpmC: %.1f, tpmTotal: %.1f, efficiency: %.1f%%\n",
		r.NewOrders, perMinute, 100*bench.Ratio(r.NewOrders, tpmcMax*float64(r.Warehouses)))
	fmt.Fprintln(w, r.NotTPCC())
	printChecked(w, r)
}

// printLines writes a line for each type that ran, in alphabetical order, and
// one with _ERR for its transactions that gave up.
func printLines(w io.Writer, prefix string, took time.Duration, types []load.TypeRecord) {
	var lines []string
	add := func(name string, h *hist.Histogram) {
		if h == nil || h.Count() == 0 {
			return
		}
		s := h.Snapshot()
		line := fmt.Sprintf("%s%-6s - Takes(s): %.1f, Count: %d, TPM: %.1f", prefix, name, took.Seconds(), s.Count, bench.Ratio(float64(s.Count), took.Minutes()))
		for _, v := range []struct {
			name string
			us   float64
		}{
			{"Sum", s.SumUs},
			{"Avg", s.MeanUs},
			{"50th", s.P50Us},
			{"90th", s.P90Us},
			{"95th", s.P95Us},
			{"99th", s.P99Us},
			{"99.9th", s.P999Us},
			{"Max", s.MaxUs},
		} {
			line += fmt.Sprintf(", %s(ms): %.1f", v.name, v.us/1e3)
		}
		lines = append(lines, line+"\n")
	}
	for i := range types {
		add(types[i].Name, types[i].Response())
		add(types[i].Name+"_ERR", types[i].Lost)
	}
	slices.Sort(lines)
	fmt.Fprint(w, strings.Join(lines, ""))
}
