package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"drtmx/internal/cli"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
)

// ladder reports whether several numbers of clients run, one after the other.
func (p *runPlan) ladder() bool { return len(p.pace.clients) > 1 }

// listed are numbers as the command line has them.
func listed(values []int) string {
	var all []string
	for _, v := range values {
		all = append(all, strconv.Itoa(v))
	}
	return strings.Join(all, ",")
}

// climb runs and checks with each number of clients in turn. It returns the
// reports of those that began, also if one of them failed.
func (a *app) climb(ctx, watched context.Context, s *session, p *runPlan, out *outputs, loaded *tpcc.LoadReport) (reports []*bench.Report, err error) {
	if p.ladder() {
		a.Say("%d runs %s; the consistency checks come on top", len(p.pace.clients), p.pace.takes(len(p.pace.clients)))
	}
	for i, n := range p.pace.clients {
		run, err := a.newRun(watched, s, p, out, loaded, n)
		if err != nil {
			return reports, s.cause(err)
		}
		reports = append(reports, run.Report)
		out.hdr.begin(p, n)
		err = a.measure(ctx, watched, s, run)
		out.bar.done()
		err = errors.Join(err, out.hdr.write(p.output.hdr, hdrMark(p, n), run.Report))
		if err == nil {
			err = a.verify(ctx, s, run)
		}
		out.html.add(fmt.Sprintf("%d clients", n), run.Report)
		if err != nil {
			return reports, err
		}
		if p.ladder() {
			a.Say("%d clients: %s per second%s", n, cli.Number(run.Report.Throughput), p.pace.left(len(p.pace.clients)-i-1))
		}
	}
	return reports, nil
}

// printLadder writes a line for each number of clients.
func printLadder(w io.Writer, reports []*bench.Report) {
	r := reports[0]
	fmt.Fprintf(w, "\nTPC-C, design %s over %s: %d warehouses, %d data servers, %s, %.1f s for each number of clients\n\n",
		r.Design, r.Fabric, r.Warehouses, r.Servers, r.Mix, r.DurationS)
	rows := [][]string{{"clients", "per second", "p50 µs", "p95 µs", "p99 µs"}}
	for _, name := range r.Order() {
		rows[0] = append(rows[0], "p99 "+name)
	}
	rows[0] = append(rows[0], "µs CPU of clients", "of data servers", "rounds", "READs", "RPCs", "retries", "gave up")
	for _, r := range reports {
		all := r.Overall()
		row := []string{strconv.Itoa(r.Clients), cli.Number(r.Throughput), cli.Number(all.P50), cli.Number(all.P95), cli.Number(all.P99)}
		for _, name := range r.Order() {
			row = append(row, cli.Number(r.Types[name].P99))
		}
		rows = append(rows, append(row,
			cli.Number(1e6*bench.Ratio(r.ClientCPUS, r.Finished())), cli.Number(1e6*bench.Ratio(r.ServerCPUS, r.Finished())),
			fmt.Sprintf("%.2f", r.Each(r.Rounds)), fmt.Sprintf("%.2f", r.Each(r.Reads)), fmt.Sprintf("%.2f", r.Each(r.RPCs)),
			fmt.Sprintf("%.3f", r.Each(r.Retries)), count(all.GaveUp)))
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
	for _, r := range reports {
		if err := r.Consistency.Err(); err != nil {
			printVerdicts(w, r.Consistency)
		}
	}
	checked := 0
	for _, r := range reports {
		if len(r.Consistency) > 0 && r.Consistency.Err() == nil {
			checked++
		}
	}
	fmt.Fprintf(w, "consistency  all conditions hold after %d of %d runs\n", checked, len(reports))
}
