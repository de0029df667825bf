// Command durability measures what durability costs and what recovery takes:
// throughput with --durability disk divided by that with memory, the bytes of the
// log for each byte of rows, latencies beside checkpoints, recovery by phase, and
// the whole TPC-C beside PostgreSQL. It prints tables; results/durability.sh runs
// it with everything that it needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drtmx/results/figures"
)

// options are the flags, and how much is measured.
type options struct {
	bin, dir      string // where the programs are, where data is kept
	goTPC, socket string // go-tpc, and the directory of PostgreSQL's socket
	sections      []string
	quick         bool

	clients    []int
	pairs      int
	warehouses int           // and data servers of TPC-C
	records    int           // of YCSB
	seconds    int           // of a run of YCSB
	run        time.Duration // of a run of TPC-C
	peerRun    time.Duration // of one beside PostgreSQL
	rows       int           // recovered
	beside     time.Duration // of commits beside checkpoints
	stored     int           // rows of their table
	progress   io.Writer
}

// section is a part of the page.
type section struct {
	name string
	run  func(*options, context.Context, io.Writer) error
}

var all = []section{
	{"ycsb", (*options).ycsb},
	{"tpcc", (*options).tpcc},
	{"postgres", (*options).postgres},
	{"checkpoints", (*options).besideCheckpoints},
	{"recovery", (*options).recovery},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		err = child(ctx, os.Args[2:], os.Stdout)
	} else if o, perr := parse(os.Args[1:]); perr != nil {
		err = perr
	} else {
		err = o.measure(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "durability:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*options, error) {
	o := &options{progress: os.Stderr}
	f := flag.NewFlagSet("durability", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "directory of the programs drtmx and go-ycsb")
	f.StringVar(&o.dir, "dir", "", "an empty directory for data, on the file system to measure")
	f.StringVar(&o.goTPC, "go-tpc", "", "go-tpc; without it PostgreSQL is left out")
	f.StringVar(&o.socket, "postgres", "", "directory of PostgreSQL's socket")
	f.BoolVar(&o.quick, "quick", false, "a small run, to try the program")
	var names []string
	for _, s := range all {
		names = append(names, s.name)
	}
	sections := f.String("sections", strings.Join(names, ","), "what to measure")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if o.dir == "" || f.NArg() > 0 {
		return nil, errors.New("want -dir and no arguments")
	}
	var err error
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(*sections, ",") {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("-sections %s: want some of %s", name, strings.Join(names, ", "))
		}
		o.sections = append(o.sections, name)
	}
	o.clients, o.pairs, o.warehouses, o.records, o.seconds = []int{1, 8, 64}, 3, 4, 100_000, 2
	o.run, o.peerRun, o.rows, o.beside, o.stored = 2*time.Second, 5*time.Second, 10_000_000, 15*time.Second, 300_000
	if o.quick {
		o.clients, o.pairs, o.warehouses, o.records, o.seconds = []int{8}, 1, 1, 2000, 1
		o.run, o.peerRun, o.rows, o.beside, o.stored = 300*time.Millisecond, time.Second, 100_000, time.Second, 20_000
	}
	return o, nil
}

// measure runs the sections and prints them. The bare sync rate of the file
// system is taken before each of them and at the end.
func (o *options) measure(ctx context.Context, out io.Writer) error {
	var rates []float64
	for _, s := range all {
		if !slices.Contains(o.sections, s.name) {
			continue
		}
		rate, err := syncRate(o.dir, o.syncTime())
		if err != nil {
			return err
		}
		rates = append(rates, rate)
		o.say("%s: %.0f syncs a second before it", s.name, rate)
		start := time.Now()
		if err := s.run(o, ctx, out); err != nil {
			if ctx.Err() != nil {
				return err
			}
			o.say("%s failed: %v", s.name, err)
			fmt.Fprintf(out, "\n**Section %s failed**: %v\n\n", s.name, err)
		}
		o.say("%s took %.0f s", s.name, time.Since(start).Seconds())
	}
	rate, err := syncRate(o.dir, o.syncTime())
	if err != nil {
		return err
	}
	rates = append(rates, rate)
	fmt.Fprintf(out, "## The file system\n\n")
	fmt.Fprintf(out, "One thread that writes 4 KiB to a file of known size and calls fdatasync, in the directory of the data, before each of the sections and at the end: %s syncs a second.\n", figures.Spread(rates, "%.0f"))
	return nil
}

func (o *options) syncTime() time.Duration {
	if o.quick {
		return 100 * time.Millisecond
	}
	return time.Second
}

func (o *options) say(format string, args ...any) {
	fmt.Fprintf(o.progress, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// syncRate is how often a thread can write and sync in a second.
func syncRate(dir string, long time.Duration) (rate float64, err error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4096)
	const blocks = 1 << 12
	for range blocks {
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	start, n := time.Now(), 0
	for ; time.Since(start) < long; n++ {
		if _, err := f.WriteAt(block, int64(n%blocks)*int64(len(block))); err != nil {
			return 0, err
		}
		if err := dataSync(f); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}
