package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"drtmx/results/figures"
)

// aims are ratios of throughput, disk ÷ memory, with many clients.
var aims = map[string]float64{"A": 0.85, "B": 0.97, "C": 0.99, "D": 0.97, "E": 0.98, "F": 0.9, orderMix: 0.9, "full": 0.75}

// orderMix has 10 % NEW-ORDERs and 90 % ORDER-STATUS.
const orderMix = "new-order=10,order-status=90"

// printRates prints the table of disk ÷ memory.
func printRates(out io.Writer, cells []*cell) {
	fmt.Fprint(out, "| workload | clients | memory/s | disk/s | disk ÷ memory | aim | records for each sync | log ÷ row bytes | aim |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, c := range cells {
		l := c.logged()
		group, ratio, aim := "", "", ""
		if l.syncs > 0 && l.rows > 0 {
			group, ratio, aim = fmt.Sprintf("%.1f", l.records/l.syncs), fmt.Sprintf("**%.2f**", l.log/l.rows), "≤ 1.3"
		}
		fmt.Fprintf(out, "| %s | %d | %.0f | %.0f | **%s** | ≥ %.2f | %s | %s | %s |\n", c.name, c.clients,
			figures.Median(c.of(memory, rateOf)), figures.Median(c.of(disk, rateOf)), figures.Spread(c.ratios(rateOf), "%.2f"), aims[c.name], group, ratio, aim)
	}
}

// ycsb measures A to F. D and E insert, so they come last.
func (o *options) ycsb(ctx context.Context, out io.Writer) (err error) {
	p, err := o.startPair(ctx, "ycsb", "--workload", "ycsb", "--servers", "2")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, s := range p {
		if _, err := o.goYCSB(ctx, "load", s, "A", 8, o.records); err != nil {
			return err
		}
	}
	var cells []*cell
	for _, w := range []string{"A", "B", "C", "F", "D", "E"} {
		for _, clients := range o.clients {
			c, err := o.inTurns(ctx, p, w, clients, func(s *served, n int) (outcome, error) {
				_, rows, err := s.usage(ctx)
				if err != nil {
					return outcome{}, err
				}
				return o.goYCSB(ctx, "run", s, w, clients, int(rows), "-p", "operationcount=0", "-p", fmt.Sprint("maxexecutiontime=", o.seconds),
					"-p", "warmuptime=1", "-p", fmt.Sprint("drtmx.seed=", n+1))
			})
			if err != nil {
				return err
			}
			cells = append(cells, c)
		}
	}
	fmt.Fprintf(out, "## YCSB\n\n    drtmx serve --workload ycsb --servers 2 --runtime-dir DIR [--data-dir DATA]\n    go-ycsb run drtmx -P ycsb/workloads/workloada -p drtmx.addr=DIR -p recordcount=%d -p operationcount=0 -p maxexecutiontime=%d -p warmuptime=1 --threads 8\n\n", o.records, o.seconds)
	fmt.Fprintf(out, "%d records of 1 KB, an ordered index. Each run of D and E inserts behind the records of the runs before.\n\n", o.records)
	printRates(out, cells)
	fmt.Fprintln(out)
	return nil
}

func (o *options) goYCSB(ctx context.Context, verb string, s *served, workload string, clients, records int, args ...string) (r outcome, err error) {
	out, err := command(ctx, nil, filepath.Join(o.bin, "go-ycsb"), append([]string{
		verb, "drtmx", "-P", "ycsb/workloads/workload" + strings.ToLower(workload),
		"-p", "drtmx.addr=" + s.runtime, "-p", fmt.Sprint("recordcount=", records), "-p", "outputstyle=json", "--threads", fmt.Sprint(clients),
	}, args...)...)
	if err != nil {
		return r, err
	}
	var lines []struct{ Operation, Count, OPS string }
	if err := lastJSON(out, &lines); err != nil {
		return r, err
	}
	for _, l := range lines {
		switch {
		case strings.HasSuffix(l.Operation, "_ERROR"):
			return r, fmt.Errorf("YCSB %s, %d clients: %s %s", workload, clients, l.Count, l.Operation)
		case l.Operation == "TOTAL":
			r.rate, err = strconv.ParseFloat(l.OPS, 64)
		}
	}
	if err == nil && r.rate == 0 {
		err = fmt.Errorf("YCSB %s, %d clients: no operations in %s", workload, clients, out)
	}
	return r, err
}

// tpcc measures both mixes.
func (o *options) tpcc(ctx context.Context, out io.Writer) (err error) {
	p, err := o.startPair(ctx, "tpcc", "--servers", fmt.Sprint(o.warehouses))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, s := range p {
		if err := o.prepare(ctx, s); err != nil {
			return err
		}
	}
	var cells []*cell
	for _, mix := range []string{orderMix, "full"} {
		for _, clients := range o.clients {
			c, err := o.inTurns(ctx, p, mix, clients, func(s *served, n int) (outcome, error) {
				return o.runTPCC(ctx, s, clients, n, o.run, "--mix", mix)
			})
			if err != nil {
				return err
			}
			cells = append(cells, c)
		}
	}
	fmt.Fprintf(out, "## TPC-C\n\n    drtmx serve --servers %d --runtime-dir DIR [--data-dir DATA]\n    drtmx tpcc run --runtime-dir DIR --mix full --clients 8 --duration %v --warmup %v\n\n", o.warehouses, o.run, o.run/4)
	fmt.Fprintf(out, "%d warehouses; the consistency conditions held after each run.\n\n", o.warehouses)
	printRates(out, cells)
	fmt.Fprint(out, "\n### ORDER-STATUS beside writers\n\n| mix | clients | p50 µs, memory | p50 µs, disk | disk ÷ memory | aim |\n|---|--:|--:|--:|--:|--:|\n")
	p50 := func(r outcome) float64 { return r.p50["ORDER_STATUS"] }
	for _, c := range cells {
		fmt.Fprintf(out, "| %s | %d | %.1f | %.1f | **%s** | ≤ 1.2 |\n", c.name, c.clients, figures.Median(c.of(memory, p50)), figures.Median(c.of(disk, p50)), figures.Spread(c.ratios(p50), "%.2f"))
	}
	fmt.Fprintln(out)
	return nil
}

func (o *options) prepare(ctx context.Context, s *served) error {
	_, err := command(ctx, nil, filepath.Join(o.bin, "drtmx"), append([]string{"tpcc", "prepare", "--runtime-dir", s.runtime, "--warehouses", fmt.Sprint(o.warehouses)}, o.scale()...)...)
	return err
}

// scale are the cardinalities of a quick run.
func (o *options) scale() []string {
	if o.quick {
		return []string{"--items", "1000", "--customers", "60"}
	}
	return nil
}

func (o *options) runTPCC(ctx context.Context, s *served, clients, n int, long time.Duration, args ...string) (r outcome, err error) {
	raw, err := command(ctx, nil, filepath.Join(o.bin, "drtmx"), append(append([]string{
		"tpcc", "run", "--runtime-dir", s.runtime, "--warehouses", fmt.Sprint(o.warehouses), "--clients", fmt.Sprint(clients), "--seed", fmt.Sprint(n + 1),
		"--duration", fmt.Sprint(long), "--warmup", fmt.Sprint(long / 4), "--output", "json",
	}, o.scale()...), args...)...)
	if err != nil {
		return r, err
	}
	var report struct {
		Throughput float64 `json:"throughput_tps"`
		Types      map[string]struct {
			P50 float64 `json:"p50_us"`
		} `json:"types"`
	}
	if err := json.Unmarshal(raw, &report); err != nil {
		return r, err
	}
	r.rate, r.p50 = report.Throughput, map[string]float64{}
	for name, t := range report.Types {
		r.p50[name] = t.P50
	}
	return r, nil
}
