// Command papers runs what stands here for the figures of the papers' evaluations, and writes
// results/papers.md, in which each ratio is beside the paper's, and results/papers.html with curves.
//
//	go run ./results/papers [-quick] [-only PATTERN] [-list]
//
// Rates of commands with --node are those of modelled machines (docs/ycsb.md). The other ones are of
// this machine, whose fabrics are emulated. Ratios are within one run, so that both sides saw the same
// machine.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

func main() {
	quick := flag.Bool("quick", os.Getenv("RESULTS") == "quick", "one short repetition of each, without the slowest: a check, not a measurement")
	only := flag.String("only", "", "run the figures whose paper and name match this pattern; the page keeps the others")
	list := flag.Bool("list", false, "print the figures and their commands, and run nothing")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "papers: -only %q %v: want a pattern, and no arguments\n", *only, flag.Args())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := &page{quick: *quick, started: time.Now()}
	if *list {
		p.list(os.Stdout, pattern)
		return
	}
	if err := p.run(ctx, pattern); err != nil {
		fmt.Fprintf(os.Stderr, "papers: %v\n", err)
		os.Exit(1)
	}
}

// run measures the figures that match, and writes the page after each, so that what was measured is
// kept whatever happens.
func (p *page) run(ctx context.Context, pattern *regexp.Regexp) error {
	if err := p.load(); err != nil {
		return err
	}
	p.commit = revision(ctx) // before the page is written, which would be a change
	if out, err := exec.CommandContext(ctx, "make", "-s", "build").CombinedOutput(); err != nil {
		return fmt.Errorf("make build: %w\n%s", err, out)
	}
	failed := 0
	for i := range manifest {
		f := &manifest[i]
		if !pattern.MatchString(f.paper+" "+f.name) || p.quick && f.slow {
			continue
		}
		for j := range f.runs {
			r := &f.runs[j]
			start := time.Now()
			m, err := p.measure(ctx, r)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				failed++
				m = measured{Failed: err.Error()}
			}
			p.took(f, r, m)
			fmt.Fprintf(os.Stderr, "%-10s %-14s %-50s %v\n", f.paper, f.name, r.what, time.Since(start).Round(time.Second))
		}
		if err := p.write(); err != nil {
			return err
		}
	}
	if err := p.write(); err != nil { // also if nothing matches, and so nothing was run
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d runs failed; the page says why", failed)
	}
	return nil
}

// measure runs one command.
func (p *page) measure(ctx context.Context, r *run) (m measured, err error) {
	args := r.command(p.quick)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return m, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, lastLine(problems.String()))
	}
	v, err := r.read(out.Bytes())
	if err != nil {
		return m, err
	}
	m = measured{Commit: p.commit, Date: time.Now().UTC().Format(time.DateOnly), Quick: p.quick, Ratios: map[string][]float64{}}
	for i := range r.ratios {
		if m.Ratios[r.ratios[i].name], err = v.of(&r.ratios[i]); err != nil {
			return m, err
		}
	}
	return m, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// revision is the commit, with a mark if the tree has changed since.
func revision(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=+", "--abbrev=7", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
