package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"drtmx/results/figures"
)

// Shares of go-tpc, and the same for drtmx.
const (
	goTPCWeight = "45,43,4,4,4"
	goTPCMix    = "new-order=45,payment=43,order-status=4,delivery=4,stock-level=4"
)

// postgres compares the whole TPC-C on disk with PostgreSQL, in turns.
// results/durability.sh has loaded its data.
func (o *options) postgres(ctx context.Context, out io.Writer) (err error) {
	fmt.Fprintf(out, "## The whole TPC-C beside PostgreSQL\n\n")
	if o.goTPC == "" || o.socket == "" {
		fmt.Fprintf(out, "Not measured: no PostgreSQL, or no go-tpc.\n\n")
		return nil
	}
	s, err := o.serve(ctx, "peer-disk", true, []string{"--servers", fmt.Sprint(o.warehouses)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := o.prepare(ctx, s); err != nil {
		return err
	}
	fmt.Fprintf(out, "    drtmx tpcc run --runtime-dir DIR --mix %s --delivery now --clients 16 --duration %v\n    go-tpc tpcc run -d postgres -T 16 --time %v --weight %s --warehouses %d\n\n",
		goTPCMix, o.peerRun, o.peerRun, goTPCWeight, o.warehouses)
	fmt.Fprint(out, "go-tpc sends prepared statements one by one, as a program without stored procedures does. `synchronous_commit=on`, `fsync=on`; PostgreSQL's files are on the same file system.\n\n")
	fmt.Fprint(out, "| clients | drtmx, disk/s | PostgreSQL/s | drtmx ÷ PostgreSQL | aim |\n|--:|--:|--:|--:|--:|\n")
	for _, clients := range o.clients[len(o.clients)-min(2, len(o.clients)):] {
		var ours, theirs, ratios []float64
		for n := range o.pairs {
			r, err := o.runTPCC(ctx, s, clients, n, o.peerRun, "--mix", goTPCMix, "--delivery", "now")
			if err != nil {
				return err
			}
			rate, err := o.runGoTPC(ctx, clients)
			if err != nil {
				return err
			}
			o.say("the whole TPC-C, %d clients: drtmx on disk %.0f/s, PostgreSQL %.0f/s", clients, r.rate, rate)
			ours, theirs, ratios = append(ours, r.rate), append(theirs, rate), append(ratios, r.rate/rate)
		}
		fmt.Fprintf(out, "| %d | %.0f | %.0f | **%s** | ≥ 15 |\n", clients, figures.Median(ours), figures.Median(theirs), figures.Spread(ratios, "%.1f"))
	}
	fmt.Fprintln(out)
	return nil
}

// summary is a line of go-tpc at the end of a run.
var summary = regexp.MustCompile(`(?m)^\[Summary\] (\w+) +- .*Count: (\d+), TPM: ([0-9.]+)`)

// runGoTPC returns the transactions a second of a run on PostgreSQL whose commits
// wait for the disk.
func (o *options) runGoTPC(ctx context.Context, clients int) (rate float64, err error) {
	out, err := command(ctx, nil, o.goTPC, "tpcc", "run", "-d", "postgres", "-U", "sync", "-p", "x", "-H", ".", "-P", "5432", "-D", "tpcc",
		"--conn-params", "sslmode=disable&host="+o.socket, "--warehouses", fmt.Sprint(o.warehouses), "-T", fmt.Sprint(clients),
		"--time", fmt.Sprint(o.peerRun), "--weight", goTPCWeight)
	if err != nil {
		return 0, err
	}
	for _, m := range summary.FindAllStringSubmatch(string(out), -1) {
		if strings.HasSuffix(m[1], "_ERR") {
			return 0, fmt.Errorf("go-tpc: %s of %s", m[2], m[1])
		}
		perMinute, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return 0, err
		}
		rate += perMinute / 60
	}
	if rate == 0 {
		return 0, fmt.Errorf("go-tpc: no summary in %q", out)
	}
	return rate, nil
}
