package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"drtmx/internal/cli"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
	"drtmx/txn"
)

// printReport writes the report for people.
func printReport(w io.Writer, r *bench.Report) {
	what := "measured"
	if r.WarmupOnly {
		what = "of the warm-up, nothing measured"
	}
	fmt.Fprintf(w, "\nTPC-C, design %s over %s: %d warehouses, %d data servers, %d clients, %.1f s %s\n\n",
		r.Design, r.Fabric, r.Warehouses, r.Servers, r.Clients, r.DurationS, what)
	printTypes(w, r)
	printCosts(w, r)
	printTerms(w, r)
	printTotals(w, r)
	printChecked(w, r)
}

func printChecked(w io.Writer, r *bench.Report) {
	if len(r.Consistency) > 0 {
		printVerdicts(w, r.Consistency)
	} else {
		fmt.Fprintln(w, "consistency: not checked")
	}
}

func printTypes(w io.Writer, r *bench.Report) {
	rows := [][]string{{"transaction", "committed", "per second", "p50 µs", "p90 µs", "p95 µs", "p99 µs", "max µs", "rolled back", "gave up"}}
	head := []string{"abandoned attempts", "for each"}
	for c := range txn.CauseCount {
		head = append(head, c.String())
	}
	aborts := [][]string{head}
	if r.Rate > 0 {
		rows[0] = append(rows[0], "p50 since begun", "p99")
	}
	for _, name := range r.Order() {
		t := r.Types[name]
		rows = append(rows, []string{
			name, count(t.Committed), cli.Number(bench.Ratio(float64(t.Committed), r.DurationS)),
			cli.Number(t.P50), cli.Number(t.P90), cli.Number(t.P95), cli.Number(t.P99), cli.Number(t.Max), count(t.RolledBack), count(t.GaveUp),
		})
		if s := t.Service; s != nil {
			rows[len(rows)-1] = append(rows[len(rows)-1], cli.Number(s.P50), cli.Number(s.P99))
		}
		row := []string{name, fmt.Sprintf("%.3f", r.Retries[name])}
		for c := range txn.CauseCount {
			row = append(row, count(t.Causes[c.String()]))
		}
		aborts = append(aborts, row)
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
	cli.Table(w, aborts)
	fmt.Fprintln(w)
}

func printCosts(w io.Writer, r *bench.Report) {
	rows := [][]string{{"each transaction", "rounds", "READs", "RPCs", "bytes read"}}
	for _, name := range r.Order() {
		rows = append(rows, []string{
			name, fmt.Sprintf("%.2f", r.Rounds[name]), fmt.Sprintf("%.2f", r.Reads[name]),
			fmt.Sprintf("%.2f", r.RPCs[name]), cli.Number(r.ReadBytes[name]),
		})
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

// printTerms compares each type with the specification, if the whole workload ran.
func printTerms(w io.Writer, r *bench.Report) {
	c := &r.Compliance
	if len(c.Terms) < len(tpcc.Types) {
		return
	}
	verdict := map[bool]string{true: "ok", false: "FAILED"}
	rows := [][]string{{"clauses 5.2.3, 5.2.5.3", "share %", "at least", "", "p90 s", "at most", ""}}
	for _, name := range r.Order() {
		t := c.Terms[name]
		rows = append(rows, []string{
			name, fmt.Sprintf("%.2f", t.Percent), fmt.Sprintf("%g", t.MinPercent), verdict[t.MixOK],
			fmt.Sprintf("%.4f", t.P90S), fmt.Sprintf("%g", t.LimitS), verdict[t.ResponseOK],
		})
		if t.DeferredLimitS > 0 {
			rows = append(rows, []string{
				name + ", deferred", "", "", "", fmt.Sprintf("%.4f", t.DeferredP90S), fmt.Sprintf("%g", t.DeferredLimitS), verdict[t.DeferredOK],
			})
		}
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

func printTotals(w io.Writer, r *bench.Report) {
	total := uint64(0)
	for _, t := range r.Types {
		total += t.Committed
	}
	fmt.Fprintf(w, "total        %d transactions, %s per second, %s NEW-ORDER per minute\n",
		total, cli.Number(r.Throughput), cli.Number(r.NewOrders))
	if r.Rate > 0 {
		fmt.Fprintf(w, "offered      %s per second (%s); latencies are since each transaction was due", cli.Number(r.Rate), r.Arrivals)
		if r.BehindS > 0 {
			fmt.Fprintf(w, "; at the end the next one had been due for %.2f s", r.BehindS)
		}
		fmt.Fprintln(w)
	}
	if _, ok := r.Types[tpcc.NewOrder.String()]; ok {
		fmt.Fprintf(w, "tpmC         %s, %s\n", cli.Number(r.NewOrders), r.NotTPCC())
	}
	if t, ok := r.Types[tpcc.Delivery.String()]; ok {
		fmt.Fprintf(w, "deliveries   %d executed (%s), %d of them skipped districts without undelivered orders, %d districts in all",
			t.Committed, r.Delivery.Mode, r.Delivery.WithSkips, r.Skipped)
		if r.Delivery.Mode == bench.DeliveryDeferred {
			fmt.Fprintf(w, "; %d found their queue full", r.Delivery.Waited)
		}
		fmt.Fprintln(w)
	}
	if _, ok := r.Types[tpcc.StockLevel.String()]; ok {
		fmt.Fprintf(w, "stock levels %d were invalidated by writers in each attempt and went on as snapshots\n", r.Escalated)
	}
	if r.WarmupOnly {
		return // clocks and counters are read at the edges of the measured interval
	}
	cpu := "of servers and clients together (one process)"
	if r.CPUSeparable {
		cpu = fmt.Sprintf("of clients, %.2f s of data servers", r.ServerCPUS)
	}
	if r.ClientCPUS > 0 { // else a server did not answer at an edge
		fmt.Fprintf(w, "CPU          %.2f s %s\n", r.ClientCPUS, cpu)
	}
	m := r.Model
	fmt.Fprintf(w, "models       %d sub-models of %d keys: %s, translation tables %s, error mean %.2f, at most %d leaves\n",
		m.Submodels, m.Keys, cli.BytesText(m.ModelBytes), cli.BytesText(m.TTBytes), m.MeanError, m.MaxError)
	fmt.Fprintf(w, "lookups      %d fell back to the server, %d right links and %d links of hash indexes followed\n", r.Fallbacks, r.Chases, r.HashChases)
	copies := ""
	if r.Copies > 0 {
		copies = fmt.Sprintf(", copies of each server's data at other servers: %d, %.0f bytes a transaction sent to them", r.Copies, r.CopyBytes)
	}
	fmt.Fprintf(w, "memory       %s at data servers, %s cached by the client (--cache %s); durability: %s%s\n",
		cli.BytesText(r.RegionBytes), cli.BytesText(r.CacheBytes), r.Cache, r.Durability, copies)
}

// printVerdicts lists conditions: those that hold in one line, each other in
// one of its own, and of those that were evaluated how many hold.
func printVerdicts(w io.Writer, v tpcc.Consistency) {
	var good []string
	evaluated := len(v)
	for _, name := range v.Conditions() {
		switch {
		case v[name] == tpcc.OK:
			good = append(good, name)
		case tpcc.Passes(v[name]):
			evaluated--
			fmt.Fprintf(w, "consistency  %s %s\n", name, v[name])
		default:
			fmt.Fprintf(w, "consistency  %s FAILED: %s\n", name, v[name])
		}
	}
	fmt.Fprintf(w, "consistency  %d of %d conditions hold: %s\n", len(good), evaluated, strings.Join(good, ", "))
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }
