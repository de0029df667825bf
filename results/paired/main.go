// Command paired compares two commits: it builds both, runs the same commands of each in
// turn on this machine, and prints the ratios after ÷ before, of pairs of runs that are
// neighbours in time. It also counts what is exact: lines, exported names, methods.
//
//	go run ./results/paired -before 247628b >results/paired.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	commits [2]string // before, after
	turns   int
	run     time.Duration
	records int
	only    *regexp.Regexp
	args    string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = o.compare(ctx, os.Stdout, os.Stderr)
	}
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "paired:", err)
		os.Exit(1)
	}
}

func parse(args []string, usage io.Writer) (*options, error) {
	o := &options{args: strings.Join(args, " ")}
	f := flag.NewFlagSet("paired", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.commits[0], "before", "", "commit to compare with")
	f.StringVar(&o.commits[1], "after", "HEAD", "commit to compare")
	f.IntVar(&o.turns, "turns", 10, "runs of each command of each commit")
	f.DurationVar(&o.run, "run", 3*time.Second, "length of a run")
	f.IntVar(&o.records, "records", 100_000, "records of the YCSB workloads")
	only := f.String("only", "", "regular expression that chooses commands by their names")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("argument %q: want flags only", f.Arg(0))
	case o.commits[0] == "":
		return nil, errors.New("-before is missing: want a commit to compare with")
	case o.turns < 1 || o.run < time.Second || o.records < 1:
		return nil, fmt.Errorf("-turns %d -run %v -records %d: want at least 1, 1s and 1", o.turns, o.run, o.records)
	}
	return o, nil
}

// compare builds both commits, measures and prints the page.
func (o *options) compare(ctx context.Context, page, progress io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "paired")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var all []*cell
	for _, c := range cells(o) {
		if o.only.MatchString(c.name) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("-only %v chooses none of the commands", o.only)
	}
	for i, commit := range o.commits {
		if _, err := output(ctx, ".", "git", "rev-parse", "--quiet", "--verify", commit+"^{commit}"); err != nil {
			return fmt.Errorf("%s %q: want a commit of this repository", [2]string{"-before", "-after"}[i], commit)
		}
	}
	var sides [2]side
	for i, commit := range o.commits {
		fmt.Fprintf(progress, "building %s\n", commit)
		if sides[i], err = build(ctx, commit, filepath.Join(dir, [2]string{"before", "after"}[i])); err != nil {
			return err
		}
		defer sides[i].remove()
	}
	began, load := time.Now(), loadAverage()
	for turn := range o.turns {
		for _, c := range all {
			for i := range 2 {
				at := (turn + i) & 1 // which goes first alternates
				fmt.Fprintf(progress, "\rturn %d of %d: %-20s %-7s", turn+1, o.turns, c.name, [2]string{"before", "after"}[at])
				if err := c.measure(ctx, at, sides[at].dir, filepath.Join(dir, "run")); err != nil {
					return fmt.Errorf("%s of %s: %w", c.name, sides[at].commit, err)
				}
			}
		}
	}
	fmt.Fprintln(progress)
	return o.print(page, sides, all, began, load)
}

// side is a commit that is measured.
type side struct {
	commit, dir string
	source      source
}

// build checks a commit out and builds its programs.
func build(ctx context.Context, commit, dir string) (s side, err error) {
	out, err := output(ctx, ".", "git", "rev-parse", "--short", "--verify", commit+"^{commit}")
	if err != nil {
		return s, err
	}
	s = side{commit: strings.TrimSpace(out), dir: dir}
	if _, err := output(ctx, ".", "git", "worktree", "add", "--detach", dir, s.commit); err != nil {
		return s, err
	}
	if s.source, err = count(dir); err == nil {
		_, err = output(ctx, dir, "make", "build")
	}
	if err != nil {
		s.remove()
	}
	return s, err
}

func (s *side) remove() {
	_ = exec.Command("git", "worktree", "remove", "--force", s.dir).Run()
}

// output runs a program, and returns what it printed.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, failed.String())
	}
	return string(out), nil
}

func loadAverage() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}
