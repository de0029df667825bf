package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"drtmx/internal/cli"
	"drtmx/internal/load"
	"drtmx/ycsb"
	"drtmx/ycsb/bench"
)

// comparison is the JSON object of compare.
type comparison struct {
	Fabric  string        `json:"fabric"`
	Records int64         `json:"records"`
	Node    *ycsb.Node    `json:"node,omitempty"` // the model of the data servers' machines
	Runs    []*engineRun  `json:"runs"`           // in the order they were made
	Ratios  []engineRatio `json:"ratios"`
	Error   string        `json:"error,omitempty"` // why it ended early
}

// engineRun has the figures of a run.
type engineRun struct {
	Engine     string              `json:"engine"`
	Clients    int                 `json:"clients"`
	Repetition int                 `json:"repetition"`
	Seconds    float64             `json:"seconds"`
	Operations uint64              `json:"operations"`
	Throughput float64             `json:"throughput_ops"`
	Kinds      map[string]kindCost `json:"kinds"`
	ClientCPU  float64             `json:"client_cpu_s"` // of servers too, if not separable
	ServerCPU  float64             `json:"server_cpu_s"`
	AgentTime  float64             `json:"agent_s"` // of ServerCPU: for verbs that a device would perform
	Separable  bool                `json:"cpu_separable"`
	Fallbacks  uint64              `json:"fallbacks"`
	Chases     uint64              `json:"chases"`
	HashChases uint64              `json:"hash_chases"`
	CacheBytes uint64              `json:"cache_bytes"`
	Bound      *bound              `json:"bound,omitempty"` // of a modelled run
	Failed     int64               `json:"failed,omitempty"`
	First      string              `json:"first_failure,omitempty"`
}

// kindCost has the costs of one operation of a kind: means, but for the percentiles.
type kindCost struct {
	Count     uint64  `json:"count"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Rounds    float64 `json:"rounds"`         // without those of validation
	Proving   float64 `json:"proving_rounds"` // of validation alone
	Reads     float64 `json:"reads"`
	ReadBytes float64 `json:"read_bytes"`
	Writes    float64 `json:"writes"`
	Atomics   float64 `json:"atomics"`
	RPCs      float64 `json:"rpcs"`
	RPCBytes  float64 `json:"rpc_bytes"`
}

func newEngineRun(label string, clients int, r *bench.Result, edges *[2]load.Gauges) *engineRun {
	from, to := &edges[0], &edges[1]
	run := &engineRun{
		Engine: label, Clients: clients, Seconds: r.Elapsed().Seconds(), Kinds: map[string]kindCost{},
		ClientCPU: to.ClientCPU - from.ClientCPU, Separable: from.Separable(to),
		Fallbacks: to.Fallbacks - from.Fallbacks, Chases: to.Chases - from.Chases, HashChases: to.HashChases - from.HashChases, CacheBytes: to.CacheBytes,
		Failed: r.Failed,
	}
	if r.First != nil {
		run.First = r.First.Error()
	}
	if run.Separable {
		run.ServerCPU, run.AgentTime = from.ServerCPU(to), from.AgentTime(to)
	}
	for _, k := range r.Kinds() {
		if k.InTotal {
			run.Operations += k.Committed
		}
		n := float64(max(k.Finished(), 1))
		c := kindCost{
			Count: k.Committed, Rounds: float64(k.Rounds-k.Proving) / n, Proving: float64(k.Proving) / n,
			Reads: float64(k.Fabric.Reads) / n, ReadBytes: float64(k.Fabric.ReadBytes) / n,
			Writes: float64(k.Fabric.Writes) / n, Atomics: float64(k.Fabric.Atomics) / n,
			RPCs: float64(k.Fabric.RPCs) / n, RPCBytes: float64(k.Fabric.RPCBytes) / n,
		}
		if k.Latency != nil {
			s := k.Latency.Snapshot()
			c.P50, c.P99 = s.P50Us, s.P99Us
		}
		run.Kinds[k.Name] = c
	}
	run.Throughput = cli.Ratio(float64(run.Operations), run.Seconds)
	return run
}

// perOperation returns microseconds of processor time for an operation.
func (r *engineRun) perOperation(seconds float64) float64 {
	return 1e6 * cli.Ratio(seconds, float64(r.Operations))
}

// engineRatio compares the first engine with another, within each repetition.
type engineRatio struct {
	Engine  string `json:"engine"`
	Rival   string `json:"rival"`
	Clients int    `json:"clients"`
	cli.Ratios
}

// of lists the runs of an engine, by repetition.
func (c *comparison) of(label string, clients int) (all []*engineRun) {
	for _, r := range c.Runs {
		if r.Engine == label && r.Clients == clients {
			all = append(all, r)
		}
	}
	return all
}

// addRatios computes the ratios from the repetitions that both engines have.
func (c *comparison) addRatios(f *compareFlags) {
	for _, clients := range f.clients {
		ours := c.of(f.engines[0], clients)
		for _, rival := range f.engines[1:] {
			if r, ok := cli.RatiosOf(costs(ours), costs(c.of(rival, clients))); ok {
				c.Ratios = append(c.Ratios, engineRatio{f.engines[0], rival, clients, r})
			}
		}
	}
}

// costs are what each run achieved and took.
func costs(rs []*engineRun) (all []cli.Cost) {
	for _, r := range rs {
		all = append(all, cli.Cost{Throughput: r.Throughput, CPU: r.perOperation(r.ClientCPU + r.ServerCPU), ServerCPU: r.perOperation(r.ServerCPU)})
	}
	return all
}

// print writes the tables: for each number of clients the throughputs, the costs of
// each kind of operation, and the ratios.
func (c *comparison) print(w io.Writer, f *compareFlags, workload string) {
	fmt.Fprintf(w, "\n%s\n%d records over %s; %d repetitions; median (least to greatest)\n", workload, c.Records, c.Fabric, f.repeat)
	if m := c.Node; m != nil {
		fmt.Fprintf(w, "modelled data servers: round trip %v, verb %v, atomic %v, %v ns a byte, %d cores, request %v; emulated %v times slower\n",
			m.RTT, m.Verb, m.Atomic, m.Byte, m.Cores, m.RPC, m.Dilation)
	}
	for _, clients := range f.clients {
		rows := [][]string{{fmt.Sprintf("%d clients", clients), "per second", "µs CPU of clients", "of data servers", "of it verbs", "cached", "fallbacks", "right links"}}
		if c.Node != nil {
			rows[0] = append(rows[0], "bound", "by", "µs computed by client", "by handlers")
		}
		for _, label := range f.engines {
			if rs := c.of(label, clients); len(rs) > 0 {
				rows = append(rows, throughputRow(label, rs))
			}
		}
		if len(rows) == 1 {
			continue // it ended before
		}
		fmt.Fprintln(w)
		cli.Table(w, rows)
		fmt.Fprintln(w)
		cli.Table(w, c.costRows(f, clients))
		rows = [][]string{cli.RatioTitles("operation")}
		for _, x := range c.Ratios {
			if x.Clients == clients {
				rows = append(rows, x.Row(x.Engine, x.Rival))
			}
		}
		if len(rows) > 1 {
			fmt.Fprintln(w)
			cli.Table(w, rows)
		}
	}
	fmt.Fprintln(w)
}

// spreadOf is the spread of a figure of some runs.
func spreadOf(rs []*engineRun, v func(*engineRun) float64) cli.Spread {
	var all []float64
	for _, r := range rs {
		all = append(all, v(r))
	}
	return cli.SpreadOf(all)
}

func throughputRow(label string, rs []*engineRun) []string {
	client := spreadOf(rs, func(r *engineRun) float64 { return r.perOperation(r.ClientCPU) }).String()
	server, verbs := "with clients", "with clients"
	if !slices.ContainsFunc(rs, func(r *engineRun) bool { return !r.Separable }) {
		server = spreadOf(rs, func(r *engineRun) float64 { return r.perOperation(r.ServerCPU) }).String()
		verbs = spreadOf(rs, func(r *engineRun) float64 { return r.perOperation(r.AgentTime) }).String()
	}
	middle := func(v func(*engineRun) float64) float64 { return spreadOf(rs, v).Median }
	row := []string{
		label, spreadOf(rs, func(r *engineRun) float64 { return r.Throughput }).String(), client, server, verbs,
		cli.BytesText(uint64(middle(func(r *engineRun) float64 { return float64(r.CacheBytes) }))),
		strconv.Itoa(int(middle(func(r *engineRun) float64 { return float64(r.Fallbacks) }))),
		strconv.Itoa(int(middle(func(r *engineRun) float64 { return float64(r.Chases) }))),
	}
	if b := rs[0].Bound; b != nil {
		row = append(row, cli.Number(middle(func(r *engineRun) float64 { return r.Bound.Throughput })), b.By,
			cli.Number(b.ComputeUs), cli.Number(middle(func(r *engineRun) float64 { return r.Bound.HandlerUs })))
	}
	return row
}

// costRows are the costs of each kind of operation with each engine: medians.
func (c *comparison) costRows(f *compareFlags, clients int) [][]string {
	columns := []struct {
		title string
		of    func(k *kindCost) float64
	}{
		{"p50 µs", func(k *kindCost) float64 { return k.P50 }},
		{"p99 µs", func(k *kindCost) float64 { return k.P99 }},
		{"rounds", func(k *kindCost) float64 { return k.Rounds }},
		{"of validation", func(k *kindCost) float64 { return k.Proving }},
		{"READs", func(k *kindCost) float64 { return k.Reads }},
		{"bytes read", func(k *kindCost) float64 { return k.ReadBytes }},
		{"WRITEs", func(k *kindCost) float64 { return k.Writes }},
		{"CAS, FAA", func(k *kindCost) float64 { return k.Atomics }},
		{"RPCs", func(k *kindCost) float64 { return k.RPCs }},
		{"their bytes", func(k *kindCost) float64 { return k.RPCBytes }},
	}
	rows := [][]string{{"each operation", ""}}
	for _, col := range columns {
		rows[0] = append(rows[0], col.title)
	}
	kinds := map[string]bool{}
	for _, r := range c.Runs {
		for k := range r.Kinds {
			kinds[k] = true
		}
	}
	for _, kind := range bench.KindNames() {
		for _, label := range f.engines {
			rs := c.of(label, clients)
			if !kinds[kind] || len(rs) == 0 {
				continue
			}
			row := []string{kind, label}
			for _, col := range columns {
				row = append(row, cli.Number(spreadOf(rs, func(r *engineRun) float64 {
					k := r.Kinds[kind]
					return col.of(&k)
				}).Median))
			}
			rows = append(rows, row)
		}
	}
	return rows
}
