// Command indexes compares drtmx's ordered index with indexes by others. It fetches
// them at pinned commits, compiles the programs of results/indexes/peers against them,
// runs these and drtmx's benchmark in turn with the same keys, and prints the tables of
// results/indexes.md.
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
	"strings"
	"syscall"
	"time"

	"drtmx/internal/keysets"
)

// options are the flags.
type options struct {
	keys, turns, gets, scans int
	sets                     []keysets.Set
	sources, cache, dir      string
	progress                 io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = o.compare(ctx, os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "indexes:", err)
		os.Exit(1)
	}
}

func parse(args []string, progress io.Writer) (*options, error) {
	o := &options{progress: progress}
	f := flag.NewFlagSet("indexes", flag.ContinueOnError)
	f.SetOutput(progress)
	quick := f.Bool("quick", false, "200,000 keys and three turns, to try the program")
	f.IntVar(&o.keys, "keys", 0, "keys of a set; 0 means 10 million, with -quick 200,000")
	f.IntVar(&o.turns, "turns", 0, "how often each index is measured; 0 means 5, with -quick 3")
	names := f.String("sets", "", "key sets, with commas; none means all: uniform, lognormal, clustered, tpcc")
	f.StringVar(&o.sources, "sources", "results/indexes/peers", "the C++ programs")
	f.StringVar(&o.cache, "cache", "", "where checkouts of the peers are and stay; none means in -dir")
	f.StringVar(&o.dir, "dir", "", "an empty directory for programs and keys")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	whole := func(v *int, usual, short int) {
		if *v == 0 {
			if *v = usual; *quick {
				*v = short
			}
		}
	}
	whole(&o.keys, 10_000_000, 200_000)
	whole(&o.turns, 5, 3)
	o.gets = min(o.keys, 1_000_000)
	o.scans = o.gets / 20
	switch {
	case o.keys < 10_000:
		return nil, fmt.Errorf("-keys %d: want at least 10000", o.keys)
	case o.turns < 1:
		return nil, fmt.Errorf("-turns %d: want at least 1", o.turns)
	case o.dir == "":
		return nil, errors.New("-dir is missing: want an empty directory for programs and keys")
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q: want flags only", f.Arg(0))
	}
	for _, s := range keysets.All {
		if *names == "" || strings.Contains(","+*names+",", ","+s.Name+",") {
			o.sets = append(o.sets, s)
		}
	}
	if *names != "" && len(o.sets) != strings.Count(*names, ",")+1 {
		return nil, fmt.Errorf("-sets %s: want some of uniform, lognormal, clustered, tpcc, with commas", *names)
	}
	var err error
	if o.cache == "" {
		o.cache = filepath.Join(o.dir, "peers")
	}
	for _, dir := range []*string{&o.sources, &o.cache, &o.dir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// runner is a program that is measured.
type runner struct {
	name string
	run  func(ctx context.Context, keys string) (string, error) // returns what it printed
	none string                                                 // why there is no such program
}

// longestRun is when a program is taken to hang.
const longestRun = 15 * time.Minute

func (o *options) compare(ctx context.Context, out io.Writer) error {
	runners, err := o.runners(ctx)
	if err != nil {
		return err
	}
	t := &tables{options: o, got: map[string]map[string]measured{}, failed: map[string]string{}}
	for _, r := range runners {
		if r.none != "" {
			t.failed[r.name] = r.none
		}
	}
	path := filepath.Join(o.dir, "keys")
	for _, set := range o.sets {
		s, err := sections(set, o.keys, o.gets, o.scans)
		if err == nil {
			err = writeKeys(path, s)
		}
		if err != nil {
			return err
		}
		t.got[set.Name] = map[string]measured{}
		for turn := range o.turns {
			for i := range runners {
				r := runners[(turn+i)%len(runners)] // another one goes first each time
				if r.none != "" {
					continue
				}
				o.say("%s, turn %d of %d: %s", set.Name, turn+1, o.turns, r.name)
				if err := t.measure(ctx, set.Name, turn, r, path); err != nil {
					return err
				}
			}
		}
	}
	return t.print(out)
}

// measure runs a program once and keeps its figures. A program that fails is missing
// from the page, with the reason; only the end of the context is an error.
func (t *tables) measure(ctx context.Context, set string, turn int, r *runner, path string) error {
	limited, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	printed, err := r.run(limited, path)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && !t.add(set, turn, printed) {
		err = errors.New("it printed no figures")
	}
	if err != nil {
		t.say("%s failed with the keys %s: %v", r.name, set, err)
		t.failed[r.name+" with the keys "+set] = err.Error()
	}
	return nil
}

// runners builds all programs, drtmx's first.
func (o *options) runners(ctx context.Context) ([]*runner, error) {
	bin := filepath.Join(o.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, err
	}
	ours := filepath.Join(bin, "drtmx.test")
	if _, err := output(ctx, ".", nil, "go", "test", "-c", "-o", ours, "./index/learned/read"); err != nil {
		return nil, err
	}
	all := []*runner{{name: "drtmx", run: func(ctx context.Context, keys string) (string, error) {
		return output(ctx, o.dir, []string{"PEERS_KEYS=" + keys}, ours, "-test.run", "^$", "-test.bench", "^BenchmarkPeers$", "-test.benchtime", "1x", "-test.timeout", longestRun.String())
	}}}
	for _, p := range peers {
		o.say("building %s", p.name)
		r := &runner{name: p.name}
		program, err := p.build(ctx, o.sources, o.cache, bin)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			r.none = err.Error()
			o.say("%s is not measured: %v", p.name, err)
		}
		r.run = func(ctx context.Context, keys string) (string, error) {
			// drtmx asks for huge pages, and so does Masstree: malloc does it for the others.
			return output(ctx, o.dir, []string{"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}, program, keys)
		}
		all = append(all, r)
	}
	return all, nil
}

func (o *options) say(format string, args ...any) {
	fmt.Fprintf(o.progress, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
