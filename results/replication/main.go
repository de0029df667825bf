// Command replication measures what copies of the data servers' data cost: the
// throughput of the whole TPC-C with none, one and two copies, beside data in
// memory, and what is sent to them. It prints a table; results/replication.sh runs
// it with everything that it needs.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drtmx/results/figures"
)

// options are the flags, and how much is measured.
type options struct {
	bin, dir string // where the program is, where data is kept
	clients  []string
	rounds   int
	servers  int // and warehouses
	run      time.Duration
	scale    []string
	progress io.Writer
}

// mode is a way to keep data.
type mode struct {
	name     string
	replicas int // 0: in memory
}

var modes = []mode{{"memory", 0}, {"disk", 1}, {"disk, one copy", 2}, {"disk, two copies", 3}}

// outcome is one run.
type outcome struct {
	Clients   int     `json:"clients"`
	Rate      float64 `json:"throughput_tps"`
	ServerCPU float64 `json:"server_cpu_s"`
	ClientCPU float64 `json:"client_cpu_s"`
	Duration  float64 `json:"duration_s"`
	LogBytes  float64 `json:"log_bytes_per_txn"`
	CopyBytes float64 `json:"copy_bytes_per_txn"`
	Types     map[string]struct {
		P50 float64 `json:"p50_us"`
		P99 float64 `json:"p99_us"`
	} `json:"types"`
	Consistency map[string]string `json:"consistency"`
}

// cpu is the processor time of a transaction, in microseconds.
func (o *outcome) cpu() float64 {
	if o.Rate == 0 || o.Duration == 0 {
		return 0
	}
	return (o.ServerCPU + o.ClientCPU) / (o.Rate * o.Duration) * 1e6
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parse(os.Args[1:])
	if err == nil {
		err = o.measure(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "replication:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{clients: []string{"8", "64"}, rounds: 3, servers: 3, run: 4 * time.Second, progress: os.Stderr}
	f := flag.NewFlagSet("replication", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "directory of the program drtmx")
	f.StringVar(&o.dir, "dir", "", "an empty directory for data, on the file system to measure")
	quick := f.Bool("quick", false, "a small run, to try the program")
	f.IntVar(&o.rounds, "rounds", o.rounds, "runs of each mode, in turns")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.dir == "" || f.NArg() > 0 {
		return nil, errors.New("want -dir and no arguments")
	}
	if o.rounds < 1 {
		return nil, fmt.Errorf("-rounds %d: want at least 1", o.rounds)
	}
	if *quick {
		o.clients, o.rounds, o.run, o.scale = []string{"8"}, 1, 300*time.Millisecond, []string{"--items", "1000", "--customers", "60"}
	}
	return o, nil
}

// measure runs all modes in turns, which is first changes from round to round.
func (o *options) measure(ctx context.Context, out io.Writer) error {
	all := map[string][][]outcome{} // by mode and round, one for each number of clients
	for round := range o.rounds {
		for i := range modes {
			m := modes[(i+round)%len(modes)]
			r, err := o.one(ctx, m, round)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			all[m.name] = append(all[m.name], r)
			fmt.Fprintf(o.progress, "%s %s: %.0f a second\n", time.Now().Format(time.TimeOnly), m.name, r[0].Rate)
		}
	}
	printTable(out, o.clients, all)
	return nil
}

// one loads a cluster and runs the mix with each number of clients.
func (o *options) one(ctx context.Context, m mode, round int) (all []outcome, err error) {
	args := []string{
		"tpcc", "run", "--mix", "full", "--servers", fmt.Sprint(o.servers), "--warehouses", fmt.Sprint(o.servers), "--clients", strings.Join(o.clients, ","),
		"--duration", fmt.Sprint(o.run), "--warmup", fmt.Sprint(o.run / 4), "--seed", fmt.Sprint(round + 1), "--output", "json",
	}
	if m.replicas > 0 {
		dir := filepath.Join(o.dir, "data")
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		args = append(args, "--data-dir", dir, "--replicas", fmt.Sprint(m.replicas))
	}
	c := exec.CommandContext(ctx, filepath.Join(o.bin, "drtmx"), append(args, o.scale...)...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	raw, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if len(o.clients) == 1 {
		all = make([]outcome, 1)
		err = json.Unmarshal(raw, &all[0])
	} else {
		err = json.Unmarshal(raw, &all)
	}
	if err == nil && len(all) != len(o.clients) {
		err = fmt.Errorf("%d reports for %d numbers of clients", len(all), len(o.clients))
	}
	for _, r := range all {
		for condition, verdict := range r.Consistency {
			if verdict != "ok" && !strings.HasPrefix(verdict, "not applicable") {
				err = errors.Join(err, fmt.Errorf("condition %s: %s", condition, verdict))
			}
		}
	}
	return all, err
}

// printTable prints the table: medians, and ratios to the memory of the same round.
func printTable(out io.Writer, clients []string, all map[string][][]outcome) {
	fmt.Fprintln(out, "| clients | data | transactions/s | ÷ memory | CPU µs a transaction | ÷ memory | NEW-ORDER p50 µs | p99 µs | log bytes a transaction | sent to copies |")
	fmt.Fprintln(out, "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for i, n := range clients {
		for _, m := range modes {
			of := func(name string, f func(o *outcome) float64) (v []float64) {
				for _, round := range all[name] {
					v = append(v, f(&round[i]))
				}
				return v
			}
			rate, cpu := func(o *outcome) float64 { return o.Rate }, (*outcome).cpu
			fmt.Fprintf(out, "| %s | %s | %.0f | %s | %.1f | %s | %.0f | %.0f | %.0f | %.0f |\n", n, m.name,
				figures.Median(of(m.name, rate)), ratios(of(m.name, rate), of(modes[0].name, rate)),
				figures.Median(of(m.name, cpu)), ratios(of(m.name, cpu), of(modes[0].name, cpu)),
				figures.Median(of(m.name, func(o *outcome) float64 { return o.Types["NEW_ORDER"].P50 })),
				figures.Median(of(m.name, func(o *outcome) float64 { return o.Types["NEW_ORDER"].P99 })),
				figures.Median(of(m.name, func(o *outcome) float64 { return o.LogBytes })),
				figures.Median(of(m.name, func(o *outcome) float64 { return o.CopyBytes })))
		}
	}
}

// ratios is the median of ratios, with the least and the greatest.
func ratios(a, b []float64) string {
	var v []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			v = append(v, a[i]/b[i])
		}
	}
	if len(v) == 0 {
		return "none"
	}
	return fmt.Sprintf("**%.2f** (%.2f to %.2f)", figures.Median(v), slices.Min(v), slices.Max(v))
}
