package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/cluster"
	"drtmx/txn"
)

func dataSync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// The two ways to keep data, in the order of the tables.
const (
	memory = iota
	disk
)

var modes = [2]string{memory: "memory", disk: "disk"}

// pair is one cluster of each mode, with the same servers.
type pair [2]*served

// served is drtmx serve, and a DB on it for statistics.
type served struct {
	runtime, data string
	process       *exec.Cmd
	cluster       *cluster.Cluster
	db            *txn.DB
}

func (o *options) startPair(ctx context.Context, name string, args ...string) (p pair, err error) {
	for mode := range p {
		if p[mode], err = o.serve(ctx, name+"-"+modes[mode], mode == disk, args); err != nil {
			return p, errors.Join(err, p.close())
		}
	}
	return p, nil
}

func (p pair) close() error {
	var errs []error
	for _, s := range p {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	return errors.Join(errs...)
}

func (o *options) serve(ctx context.Context, name string, durable bool, args []string) (*served, error) {
	s := &served{runtime: filepath.Join(o.dir, name)}
	args = append([]string{"serve", "--runtime-dir", s.runtime, "--log-level", "warn"}, args...)
	if durable {
		s.data = s.runtime + "-data"
		args = append(args, "--data-dir", s.data)
	}
	s.process = exec.Command(filepath.Join(o.bin, "drtmx"), args...)
	s.process.Stderr = os.Stderr
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := s.process.Start(); err != nil {
		return nil, err
	}
	const patience = time.Minute
	var err error
	for start := time.Now(); time.Since(start) < patience && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if s.cluster, err = cluster.Connect(ctx, cluster.ConnectOptions{Dir: s.runtime}); err != nil {
			continue
		}
		if s.db, err = s.cluster.Open(ctx, nil); err == nil {
			return s, nil
		}
		err = errors.Join(err, s.cluster.Close())
		s.cluster = nil
	}
	return nil, errors.Join(fmt.Errorf("drtmx %s does not serve: %w", strings.Join(args, " "), errors.Join(err, ctx.Err())), s.close())
}

func (s *served) close() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Close())
	}
	errs = append(errs, s.process.Process.Signal(os.Interrupt))
	_ = s.process.Wait() // it was interrupted
	if s.data != "" {
		errs = append(errs, os.RemoveAll(s.data))
	}
	return errors.Join(errs...)
}

// logged are counters of the logs of all servers.
type logged struct{ log, rows, records, syncs float64 }

func (l logged) sub(m logged) logged {
	return logged{l.log - m.log, l.rows - m.rows, l.records - m.records, l.syncs - m.syncs}
}

func (l *logged) add(m logged) {
	l.log, l.rows, l.records, l.syncs = l.log+m.log, l.rows+m.rows, l.records+m.records, l.syncs+m.syncs
}

// usage returns the counters of the logs, and the rows of the index with most.
func (s *served) usage(ctx context.Context) (l logged, rows uint64, err error) {
	servers, err := s.db.ServerStats(ctx)
	if err != nil {
		return l, 0, err
	}
	byIndex := map[int]uint64{}
	for _, st := range servers {
		if st.Log != nil {
			l.add(logged{float64(st.Log.Bytes), float64(st.Log.RowBytes), float64(st.Log.Records), float64(st.Log.Syncs)})
		}
		for _, ix := range st.Indexes {
			byIndex[ix.Index] += ix.Rows
			rows = max(rows, byIndex[ix.Index])
		}
	}
	return l, rows, nil
}

// outcome is what a run has measured.
type outcome struct {
	rate   float64
	p50    map[string]float64 // by transaction, in µs
	logged                    // meanwhile
}

// ownCPU is the processor time of this process.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// command runs a program and returns what it prints. An error has the last line
// of standard error.
func command(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, lines[len(lines)-1])
	}
	return out, err
}

// lastJSON decodes the last line that a program has printed.
func lastJSON(out []byte, to any) error {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), to); err != nil {
		return fmt.Errorf("%q: %w", lines[len(lines)-1], err)
	}
	return nil
}

// cell has the runs of one workload with one number of clients, in pairs.
type cell struct {
	name    string
	clients int
	runs    [2][]outcome
}

// inTurns runs a cell: both modes in turn, and which is first changes.
func (o *options) inTurns(ctx context.Context, p pair, name string, clients int, one func(s *served, n int) (outcome, error)) (*cell, error) {
	c := &cell{name: name, clients: clients}
	for n := range o.pairs {
		for j := range p {
			mode := (n + j) % 2
			before, _, err := p[mode].usage(ctx)
			if err != nil {
				return nil, err
			}
			r, err := one(p[mode], n)
			if err != nil {
				return nil, err
			}
			after, _, err := p[mode].usage(ctx)
			if err != nil {
				return nil, err
			}
			r.logged = after.sub(before)
			c.runs[mode] = append(c.runs[mode], r)
			o.say("%s, %d clients, %s: %.0f/s", name, clients, modes[mode], r.rate)
		}
	}
	return c, nil
}

func rateOf(r outcome) float64 { return r.rate }

// of is a figure of all runs of a mode.
func (c *cell) of(mode int, f func(outcome) float64) (v []float64) {
	for _, r := range c.runs[mode] {
		v = append(v, f(r))
	}
	return v
}

// ratios are disk ÷ memory of a figure, pair by pair.
func (c *cell) ratios(f func(outcome) float64) (v []float64) {
	for i, d := range c.of(disk, f) {
		if m := f(c.runs[memory][i]); m > 0 {
			v = append(v, d/m)
		}
	}
	return v
}

// logged is the sum of the runs with a log.
func (c *cell) logged() (l logged) {
	for _, r := range c.runs[disk] {
		l.add(r.logged)
	}
	return l
}
