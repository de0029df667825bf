// Command longreads measures what long reads cost writers: a table is read as a
// whole, again and again, while transactions change it. It compares drtmx with
// badger and PostgreSQL, if it is compiled with the tag peers, and drtmx with
// versions of rows to drtmx without.
//
// results/longreads.sh runs it with everything it needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"drtmx/internal/cluster"
)

// peers are the stores to compare with, by name.
var peers = map[string]func(ctx context.Context, where string, rows int) (store, error){}

type options struct {
	rows, servers, writers []int
	systems                []string
	postgres               string
	short                  bool
	retainRounds           int
	seed                   uint64
	medians                string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if len(os.Args) == 2 && os.Args[1] == childCommand {
		err = runChild(ctx)
	} else if o, perr := parse(os.Args[1:]); perr != nil {
		err = perr
	} else if o.medians != "" {
		err = mediansOf(o.medians, os.Stdout)
	} else {
		err = measure(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "longreads:", err)
		os.Exit(1)
	}
}

func mediansOf(page string, out io.Writer) (err error) {
	f, err := os.Open(page)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return printMedians(f, out)
}

func parse(args []string) (*options, error) {
	f := flag.NewFlagSet("longreads", flag.ContinueOnError)
	rows := f.String("rows", "30000,1000000", "rows of each table")
	servers := f.String("servers", "1,2,4", "data servers of drtmx")
	writers := f.String("writers", "1,8,32", "goroutines that write")
	systems := f.String("systems", "drtmx,badger,postgres", "stores")
	o := &options{}
	f.StringVar(&o.postgres, "postgres", "", "where PostgreSQL is, for lib/pq")
	f.BoolVar(&o.short, "short", false, "one short window of each kind, for tests of this program")
	f.IntVar(&o.retainRounds, "updates", 20, "rounds of updates with and without versions, 0: none")
	f.Uint64Var(&o.seed, "seed", 1, "of the writers")
	f.StringVar(&o.medians, "medians", "", "print medians of the cells of this page, and measure nothing")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		name, text string
		to         *[]int
	}{{"rows", *rows, &o.rows}, {"servers", *servers, &o.servers}, {"writers", *writers, &o.writers}} {
		for s := range strings.SplitSeq(l.text, ",") {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || l.name == "rows" && n < 2 {
				return nil, fmt.Errorf("-%s %s: want whole numbers, and 2 rows or more", l.name, l.text)
			}
			*l.to = append(*l.to, n)
		}
	}
	o.systems = strings.Split(*systems, ",")
	return o, nil
}

// measure runs all cells and prints them. If ctx ends it prints what has run.
func measure(ctx context.Context, o *options, out, progress io.Writer) error {
	var updates strings.Builder
	if o.retainRounds > 0 {
		if err := o.updates(ctx, &updates, progress); err != nil {
			return err
		}
	}
	var all []*result
	for _, rows := range o.rows {
		for _, system := range o.systems {
			counts := o.servers
			if system != "drtmx" {
				counts = []int{1}
			}
			for _, servers := range counts {
				fmt.Fprintf(progress, "%s %s, %d rows, %d servers: loading\n", time.Now().Format(time.TimeOnly), system, rows, servers)
				some, err := o.store(ctx, system, rows, servers, progress)
				all = append(all, some...)
				switch {
				case ctx.Err() != nil:
					fmt.Fprint(out, "Interrupted: the cells that follow in the order of the tables are missing.\n\n")
					return printPage(out, all, updates.String())
				case err != nil && system == "drtmx":
					return err
				case err != nil: // a peer that is missing
					fmt.Fprintf(progress, "%s failed: %v\n", system, err)
					fmt.Fprintf(out, "%s, %d rows: failed: %v\n\n", system, rows, err)
				}
			}
		}
	}
	return printPage(out, all, updates.String())
}

// store runs the cells of one store.
func (o *options) store(ctx context.Context, system string, rows, servers int, progress io.Writer) (all []*result, err error) {
	var st store
	if open := peers[system]; open != nil {
		st, err = open(ctx, o.postgres, rows)
	} else if system == "drtmx" {
		st, err = openDrtmx(ctx, servers, rows, cluster.DefaultRetain)
	} else {
		err = fmt.Errorf("no store %q in this program (build it with -tags peers)", system)
	}
	if err != nil {
		return nil, err
	}
	defer st.Close()
	for _, writers := range o.writers {
		for _, how := range st.hows() {
			if err := st.rebuild(ctx); err != nil {
				return all, err
			}
			c := &cell{store: st, rows: rows, writers: writers, how: how, plan: o.plan(rows), seed: o.seed}
			begun := time.Now()
			r, err := c.run(ctx)
			if err != nil {
				return all, fmt.Errorf("%s, %d rows, %d servers, %d writers, %s: %w", system, rows, servers, writers, how, err)
			}
			fmt.Fprintf(progress, "%s %s, %d rows, %d servers, %d writers, %s: %.0f s, %.3f kept, paced %.3f\n", time.Now().Format(time.TimeOnly),
				system, rows, servers, writers, how, time.Since(begun).Seconds(), r.beside[1].rate()/r.beside[0].rate(), r.paced[1].kept())
			r.name, r.servers = system, servers
			all = append(all, r)
		}
	}
	return all, nil
}

func (o *options) plan(rows int) plan {
	switch {
	case o.short:
		return plan{window: 50 * time.Millisecond, pairs: 1, paced: 1}
	case rows >= 300_000:
		return plan{window: 500 * time.Millisecond, pairs: 2, paced: 1}
	}
	return plan{window: 250 * time.Millisecond, pairs: 8, paced: 4}
}
