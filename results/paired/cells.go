package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// cell is a command that is measured in both commits.
type cell struct {
	name    string
	args    []string // the program first, for the page
	read    func(ctx context.Context, c *cell, bin, work string) (map[string]float64, error)
	metrics []string
	values  [2]map[string][]float64 // by metric
}

// measure runs the command of a side once.
func (c *cell) measure(ctx context.Context, at int, dir, work string) error {
	if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	got, err := c.read(ctx, c, filepath.Join(dir, "bin"), work)
	if err != nil {
		return err
	}
	if c.values[at] == nil {
		c.values[at] = map[string][]float64{}
	}
	for _, m := range c.metrics {
		v, ok := got[m]
		if !ok {
			return fmt.Errorf("no %s in what it printed", m)
		}
		c.values[at][m] = append(c.values[at][m], v)
	}
	return nil
}

// cells are all that is measured.
func cells(o *options) []*cell {
	run := o.run.String()
	all := []*cell{
		{
			name: "mix", read: tpcc, args: []string{"drtmx", "tpcc", "run", "--mix", "new-order=10,order-status=90", "--duration", run},
			metrics: []string{
				"transactions/s", "servers' CPU µs/transaction", "clients' CPU µs/transaction",
				"rounds/ORDER_STATUS", "READs/ORDER_STATUS", "READ bytes/ORDER_STATUS", "RPCs/ORDER_STATUS", "RPCs/NEW_ORDER",
			},
		},
		{
			name: "full mix", read: tpcc, args: []string{"drtmx", "tpcc", "run", "--mix", "full", "--duration", run},
			metrics: []string{"transactions/s", "servers' CPU µs/transaction", "clients' CPU µs/transaction", "rounds/STOCK_LEVEL"},
		},
	}
	for _, w := range "abcdef" {
		c := &cell{
			name: "YCSB " + strings.ToUpper(string(w)), read: ycsb,
			args: []string{
				"go-ycsb", "loadrun", "drtmx", "-P", "ycsb/workloads/workload" + string(w), "--threads", "8", "-p", "drtmx.fabric=shm",
				"-p", fmt.Sprintf("recordcount=%d", o.records), "-p", "operationcount=1000000000", "-p", fmt.Sprintf("maxexecutiontime=%.0f", o.run.Seconds()),
			},
			metrics: []string{"operations/s"},
		}
		if w == 'a' {
			c.metrics = append(c.metrics, "loaded rows/s")
		}
		all = append(all, c)
	}
	all = append(all, benchmarkCells()...)
	return append(all, &cell{
		name: "idle", read: idle, args: []string{"drtmx", "serve", "--workload", "ycsb", "--servers", "2"}, metrics: []string{"% of a core, of a data server"},
	})
}

// tpcc reads the report of a run.
func tpcc(ctx context.Context, c *cell, bin, work string) (map[string]float64, error) {
	file := filepath.Join(work, "report.json")
	if _, err := output(ctx, filepath.Dir(bin), filepath.Join(bin, c.args[0]), append(c.args[1:], "--json", file)...); err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var r struct {
		Rate      float64            `json:"throughput_tps"`
		Duration  float64            `json:"duration_s"`
		ServerCPU float64            `json:"server_cpu_s"`
		ClientCPU float64            `json:"client_cpu_s"`
		Rounds    map[string]float64 `json:"rounds_per_txn"`
		Reads     map[string]float64 `json:"reads_per_txn"`
		RPCs      map[string]float64 `json:"rpcs_per_txn"`
		Bytes     map[string]float64 `json:"read_bytes_per_txn"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, err
	}
	n := r.Rate * r.Duration
	got := map[string]float64{"transactions/s": r.Rate, "servers' CPU µs/transaction": r.ServerCPU / n * 1e6, "clients' CPU µs/transaction": r.ClientCPU / n * 1e6}
	for what, each := range map[string]map[string]float64{"rounds/": r.Rounds, "READs/": r.Reads, "RPCs/": r.RPCs, "READ bytes/": r.Bytes} {
		for txn, v := range each {
			got[what+txn] = v
		}
	}
	return got, nil
}

var (
	rateOf  = regexp.MustCompile(`(?m)^TOTAL +- .*OPS: ([0-9.]+)`)
	loadsOf = regexp.MustCompile(`(?m)^INSERT +- .*OPS: ([0-9.]+)`)
)

// ycsb reads the result lines: first those of the load.
func ycsb(ctx context.Context, c *cell, bin, _ string) (map[string]float64, error) {
	out, err := output(ctx, filepath.Dir(bin), filepath.Join(bin, c.args[0]), c.args[1:]...)
	if err != nil {
		return nil, err
	}
	return ratesIn(out), nil
}

func ratesIn(out string) map[string]float64 {
	got := map[string]float64{}
	if all := rateOf.FindAllStringSubmatch(out, -1); all != nil {
		got["operations/s"], _ = strconv.ParseFloat(all[len(all)-1][1], 64)
	}
	if m := loadsOf.FindStringSubmatch(out); m != nil {
		got["loaded rows/s"], _ = strconv.ParseFloat(m[1], 64)
	}
	return got
}

// How long servers settle before they count as idle, and how long they are watched.
const (
	settles = 5 * time.Second
	watched = 10 * time.Second
)

// idle reads the processor time of data servers that nobody asks for anything.
func idle(ctx context.Context, c *cell, bin, work string) (map[string]float64, error) {
	program := filepath.Join(bin, c.args[0])
	help, err := output(ctx, work, program, "serve", "--help")
	if err != nil {
		return nil, err
	}
	where := "--runtime-dir"
	if !strings.Contains(help, where) { // its name in early commits
		where = "--data-dir"
	}
	cmd := exec.CommandContext(ctx, program, append(c.args[1:], where, filepath.Join(work, "servers"))...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	if err := sleep(ctx, settles); err != nil {
		return nil, err
	}
	servers, err := childrenOf(cmd.Process.Pid)
	if err != nil || len(servers) == 0 {
		return nil, fmt.Errorf("no data server runs after %v (%v)", settles, err)
	}
	before, err := ticksOf(servers)
	if err == nil {
		err = sleep(ctx, watched)
	}
	if err != nil {
		return nil, err
	}
	after, err := ticksOf(servers)
	const ticks = 100 // a second, on Linux
	return map[string]float64{c.metrics[0]: float64(after-before) / ticks / watched.Seconds() / float64(len(servers)) * 100}, err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// childrenOf returns the processes that a process has started.
func childrenOf(pid int) ([]string, error) {
	var found []string
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range all {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		found = append(found, strings.Fields(string(raw))...)
	}
	return found, err
}

// ticksOf returns the processor time of processes, in ticks of the kernel.
func ticksOf(pids []string) (sum int, err error) {
	for _, pid := range pids {
		raw, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(raw), ") ") // the name may have spaces
		for _, f := range strings.Fields(rest)[11:13] {
			n, err := strconv.Atoi(f)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}
