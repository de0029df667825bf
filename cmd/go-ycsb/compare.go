package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/load"
	"drtmx/ycsb"
	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
)

// An engine is a way to store and read the table, as properties.
type engine struct {
	name, what string
	props      [][2]string
}

// engines can be compared. The first two are the default.
var engines = []engine{
	{"xstore", "the learned index, with one-sided READs", [][2]string{{props.Primary, "ordered"}, {props.Design, "drtmx"}}},
	{"rpc", "the same index, with an RPC for each lookup and scan", [][2]string{{props.Primary, "ordered"}, {props.Design, "drtmh"}}},
	{"hash", "the hash index, with one-sided READs; it has no scans", [][2]string{{props.Primary, "hash"}, {props.Design, "drtmx"}}},
}

// Bounds of a comparison.
const (
	repeatMax   = 1000
	lengthMax   = 24 * time.Hour
	loadThreads = 8
)

// compareFlags are the flags of compare.
type compareFlags struct {
	engines          []string
	clients          []int
	repeat           int
	warmup, duration time.Duration
	count            int64
	json             string
}

func (a *app) compareCommand() *cobra.Command {
	var in input
	var f compareFlags
	var all []string
	for _, e := range engines {
		all = append(all, "  "+e.name+strings.Repeat(" ", max(8-len(e.name), 1))+e.what)
	}
	c := &cobra.Command{
		Use:   "compare drtmx -P FILE",
		Short: "Run a workload with several engines, in turn, and report counts and ratios",
		Long: `Starts an embedded store for each engine, loads it, and runs the workload on all in
turn, repeatedly, with each number of clients. Reports throughput and processor time
with their spread, what each kind of operation costs in rounds, READs, bytes and RPCs,
and the ratios of the first engine to each other one, within a repetition.

Engines:
` + strings.Join(all, "\n") + `
A + and a property without "drtmx." makes another one: xstore+cache=models.

Flags say how many clients there are and how long runs are, not properties. With -p drtmx.fabric=shm the data
servers are processes, and their processor time is apart from that of clients. Stores whose records a run inserts are made anew for the
next run.`,
		Args: database,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := in.properties(c)
			if err != nil {
				return err
			}
			return a.compare(c.Context(), args[0], p, &f)
		},
	}
	in.add(c, false)
	c.Flags().StringSliceVar(&f.engines, "engines", []string{engines[0].name, engines[1].name}, "engines to compare; ratios are of the first to each other one")
	c.Flags().IntSliceVar(&f.clients, "clients", []int{1, 4, 16}, "numbers of clients")
	c.Flags().IntVar(&f.repeat, "repeat", 3, "repetitions")
	c.Flags().DurationVar(&f.warmup, "warmup", time.Second, "time before each measurement")
	c.Flags().DurationVar(&f.duration, "duration", 5*time.Second, "length of each measurement; 0: until --count")
	c.Flags().Int64Var(&f.count, "count", 0, "operations of each measurement; 0: as many as --duration allows")
	c.Flags().StringVar(&f.json, "json", "", "write all figures as JSON to this file; - for standard output")
	return c
}

// check checks the flags.
func (f *compareFlags) check() error {
	for i, n := range f.clients {
		if slices.Contains(f.clients[:i], n) {
			return cli.Usagef("--clients %d: named twice", n)
		}
		if n < 1 || n > bench.MaxThreads {
			return cli.Usagef("--clients %d: want 1 to %d", n, bench.MaxThreads)
		}
		if f.count > 0 && f.count < int64(n) {
			return cli.Usagef("--count %d: want at least one operation for each of %d clients", f.count, n)
		}
	}
	switch {
	case len(f.clients) == 0:
		return cli.Usagef("--clients: want at least one number")
	case f.repeat < 1 || f.repeat > repeatMax:
		return cli.Usagef("--repeat %d: want 1 to %d", f.repeat, repeatMax)
	case f.warmup < 0 || f.warmup > lengthMax:
		return cli.Usagef("--warmup %v: want 0 to %v", f.warmup, lengthMax)
	case f.duration < 0 || f.duration > lengthMax:
		return cli.Usagef("--duration %v: want 0 to %v", f.duration, lengthMax)
	case f.count < 0:
		return cli.Usagef("--count %d: want a number of operations, or 0", f.count)
	case f.count == 0 && f.duration == 0:
		return cli.Usagef("--duration 0 with --count 0: want one of them")
	}
	return nil
}

// contender is an engine in a comparison, with its store.
type contender struct {
	label   string
	p       *properties.Properties
	records int64
	db      goycsb.DB // nil: to be opened
	empty   bool
}

// newContender applies an engine's properties, and those behind +, to the workload's.
func newContender(label string, workload *properties.Properties) (*contender, error) {
	name, rest, _ := strings.Cut(label, "+")
	at := slices.IndexFunc(engines, func(e engine) bool { return e.name == name })
	if at < 0 {
		var names []string
		for _, e := range engines {
			names = append(names, e.name)
		}
		return nil, cli.Usagef("--engines %q: want some of %s", label, props.Choices(names))
	}
	p, r := properties.NewProperties(), props.NewReader(workload)
	p.Merge(workload)
	set := engines[at].props
	if rest != "" {
		for word := range strings.SplitSeq(rest, "+") {
			key, value, ok := strings.Cut(word, "=")
			if !ok || key == "" {
				return nil, cli.Usagef("--engines %q: want property=value after each +", label)
			}
			set = append(slices.Clone(set), [2]string{props.Prefix + key, value})
		}
	}
	has := func(name string) bool {
		return r.Has(name) || slices.ContainsFunc(set[len(engines[at].props):], func(kv [2]string) bool { return kv[0] == name })
	}
	for _, kv := range engines[at].props {
		if has(kv[0]) {
			return nil, cli.Usagef("%s with compare: want none, for it is what the engines differ in", kv[0])
		}
	}
	for _, name := range []string{props.Addr, props.DataDir} { // records would be inserted there
		if has(name) {
			return nil, cli.Usagef("%s with compare: want none, for each engine has a store of its own", name)
		}
	}
	for _, kv := range append(set, [2]string{prop.Silence, "true"}, [2]string{prop.ThreadCount, "1"},
		[2]string{prop.OperationCount, "0"}, [2]string{prop.MaxExecutiontime, "1"}) {
		if _, _, err := p.Set(kv[0], kv[1]); err != nil {
			return nil, cli.Usagef("--engines %q: %w", label, err)
		}
	}
	c := &contender{label: label, p: p}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("engine %s: %w", label, err)
	}
	return c, nil
}

// check checks all properties.
func (c *contender) check() error {
	if err := ycsb.Check(c.p); err != nil {
		return err
	}
	plan, err := bench.NewPlan(c.p, bench.Load)
	if err != nil {
		return err
	}
	c.records = plan.Operations()
	_, err = bench.NewPlan(c.p, bench.Run)
	return err
}

// fill opens and loads the store, unless it is.
func (c *contender) fill(ctx context.Context, name string) (err error) {
	if c.db == nil {
		if c.db, err = open(name, c.p); err != nil {
			return err
		}
		c.empty = true
	}
	if !c.empty {
		return nil
	}
	if err := ycsb.FitsMemory(ctx, c.db); err != nil {
		return err
	}
	plan, err := bench.NewPlan(c.p, bench.Load)
	if err != nil {
		return err
	}
	if err := plan.For(int(min(loadThreads, max(c.records, 1))), 0, 0, c.records); err != nil {
		return err
	}
	r, err := bench.Start(ctx, bench.Config{Plan: plan, DB: c.db, Out: io.Discard, Fatal: ycsb.Fatal})
	switch {
	case err != nil:
		return ended(c.db, err)
	case r.Interrupted:
		return cli.ErrInterrupted
	case r.Failed > 0:
		return fmt.Errorf("load: %d operations failed, the first with: %w", r.Failed, r.First)
	}
	c.empty = false
	return nil
}

// ended returns why a run ended early.
func ended(db goycsb.DB, err error) error {
	if lost := ycsb.Lost(db, err); lost != nil {
		return lost
	}
	return err
}

func (c *contender) close() error {
	if c.db == nil {
		return nil
	}
	err := c.db.Close()
	c.db = nil
	return err
}

// measure runs the workload once.
func (c *contender) measure(ctx context.Context, name string, f *compareFlags, clients int) (*engineRun, error) {
	if err := c.fill(ctx, name); err != nil {
		return nil, err
	}
	plan, err := bench.NewPlan(c.p, bench.Run) // which keys were inserted is part of a plan
	if err != nil {
		return nil, err
	}
	if err := plan.For(clients, f.warmup, f.duration, f.count); err != nil {
		return nil, err
	}
	client := ycsb.Client(c.db)
	var edges [2]load.Gauges
	edge := func(i int) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			edges[i], err = load.ReadGauges(ctx, client)
			return err
		}
	}
	r, err := bench.Start(ctx, bench.Config{
		Plan: plan, DB: c.db, Out: io.Discard, Fatal: ycsb.Fatal, Stats: ycsb.SessionStats, Begin: edge(0), End: edge(1),
	})
	switch {
	case err != nil:
		return nil, ended(c.db, err)
	case r.Interrupted:
		return nil, cli.ErrInterrupted
	case r.Failed > 0 && r.Operations() == 0:
		return nil, fmt.Errorf("all %d operations failed, the first with: %w", r.Failed, r.First)
	}
	run := newEngineRun(c.label, clients, r, &edges)
	if plan.Inserts() { // the next run begins with the same records
		return run, c.close()
	}
	return run, nil
}

// compare runs all engines in turn.
func (a *app) compare(ctx context.Context, name string, p *properties.Properties, f *compareFlags) (err error) {
	if name != "drtmx" {
		return cli.Usagef("compare %s: want drtmx", name)
	}
	if err := f.check(); err != nil {
		return err
	}
	var all []*contender
	for _, label := range f.engines {
		if slices.ContainsFunc(all, func(c *contender) bool { return c.label == label }) {
			return cli.Usagef("--engines %s: named twice", label)
		}
		c, err := newContender(label, p)
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return cli.Usagef("--engines: want at least one")
	}
	out, err := cli.OpenJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.close())
		}
	}()
	result := &comparison{Fabric: fabrics(all), Records: all[0].records}
	if err = a.runAll(ctx, name, f, all, result); err != nil {
		if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
			err = cli.ErrInterrupted
		}
		result.Error = err.Error()
	}
	if len(result.Runs) == 0 {
		return err
	}
	result.addRatios(f)
	w := a.stdout
	if out.ToStdout {
		w = a.stderr
	}
	plan, planErr := bench.NewPlan(all[0].p, bench.Run)
	if planErr != nil {
		return errors.Join(err, planErr)
	}
	result.print(w, f, plan.Workload().Describe())
	return errors.Join(err, out.Put(result))
}

// fabrics names the fabrics of all engines.
func fabrics(all []*contender) string {
	var names []string
	for _, c := range all {
		if name := c.p.GetString(props.Fabric, "inproc"); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

func (a *app) runAll(ctx context.Context, name string, f *compareFlags, all []*contender, result *comparison) error {
	runs := f.repeat * len(f.clients) * len(all)
	for rep := range f.repeat {
		for _, clients := range f.clients {
			for i := range all {
				c := all[(i+rep)%len(all)] // every repetition starts at another one
				run, err := c.measure(ctx, name, f, clients)
				if err != nil {
					return fmt.Errorf("engine %s, %d clients: %w", c.label, clients, err)
				}
				run.Repetition = rep + 1
				result.Runs = append(result.Runs, run)
				a.Say("%d of %d  %-20s %4d clients  %s operations per second", len(result.Runs), runs, c.label, clients, cli.Number(run.Throughput))
				if run.Failed > 0 {
					a.Say("engine %s, %d clients: %d operations failed, the first with: %s", c.label, clients, run.Failed, run.First)
				}
			}
		}
	}
	return nil
}

// comparison is the JSON object of compare.
type comparison struct {
	Fabric  string        `json:"fabric"`
	Records int64         `json:"records"`
	Runs    []*engineRun  `json:"runs"` // in the order they were made
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
	Separable  bool                `json:"cpu_separable"`
	Fallbacks  uint64              `json:"fallbacks"`
	Chases     uint64              `json:"chases"`
	CacheBytes uint64              `json:"cache_bytes"`
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
		Fallbacks: to.Fallbacks - from.Fallbacks, Chases: to.Chases - from.Chases, CacheBytes: to.CacheBytes,
		Failed: r.Failed,
	}
	if r.First != nil {
		run.First = r.First.Error()
	}
	if run.Separable {
		run.ServerCPU = from.ServerCPU(to)
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
	run.Throughput = ratio(float64(run.Operations), run.Seconds)
	return run
}

// perOperation returns microseconds of processor time for an operation.
func (r *engineRun) perOperation(seconds float64) float64 {
	return 1e6 * ratio(seconds, float64(r.Operations))
}

// engineRatio compares the first engine with another, within each repetition.
type engineRatio struct {
	Engine  string     `json:"engine"`
	Rival   string     `json:"rival"`
	Clients int        `json:"clients"`
	Through cli.Spread `json:"throughput_ratio"`
	// CPU is of clients and data servers together, ServerCPU of the data servers
	// alone; both for an operation.
	CPU       cli.Spread `json:"cpu_ratio"`
	ServerCPU cli.Spread `json:"server_cpu_ratio"`
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
			theirs := c.of(rival, clients)
			var through, cpu, server []float64
			for i := range min(len(ours), len(theirs)) {
				x, y := ours[i], theirs[i]
				through = append(through, ratio(x.Throughput, y.Throughput))
				cpu = append(cpu, ratio(x.perOperation(x.ClientCPU+x.ServerCPU), y.perOperation(y.ClientCPU+y.ServerCPU)))
				server = append(server, ratio(x.perOperation(x.ServerCPU), y.perOperation(y.ServerCPU)))
			}
			if len(through) > 0 {
				c.Ratios = append(c.Ratios, engineRatio{
					f.engines[0], rival, clients, cli.SpreadOf(through), cli.SpreadOf(cpu), cli.SpreadOf(server),
				})
			}
		}
	}
}

// ratio is x ÷ y, 0 without y.
func ratio(x, y float64) float64 {
	if y == 0 {
		return 0
	}
	return x / y
}

// print writes the tables: for each number of clients the throughputs, the costs of
// each kind of operation, and the ratios.
func (c *comparison) print(w io.Writer, f *compareFlags, workload string) {
	fmt.Fprintf(w, "\n%s\n%d records over %s; %d repetitions; median (least to greatest)\n", workload, c.Records, c.Fabric, f.repeat)
	for _, clients := range f.clients {
		rows := [][]string{{fmt.Sprintf("%d clients", clients), "per second", "µs CPU of clients", "of data servers", "cached", "fallbacks", "links"}}
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
		rows = [][]string{{"ratio", "throughput", "CPU per operation", "data-server CPU per operation"}}
		for _, x := range c.Ratios {
			if x.Clients == clients {
				server := "not apart"
				if x.ServerCPU.Max > 0 {
					server = x.ServerCPU.String()
				}
				rows = append(rows, []string{x.Engine + " ÷ " + x.Rival, x.Through.String(), x.CPU.String(), server})
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
	server := "with clients"
	if !slices.ContainsFunc(rs, func(r *engineRun) bool { return !r.Separable }) {
		server = spreadOf(rs, func(r *engineRun) float64 { return r.perOperation(r.ServerCPU) }).String()
	}
	middle := func(v func(*engineRun) float64) float64 { return spreadOf(rs, v).Median }
	return []string{
		label, spreadOf(rs, func(r *engineRun) float64 { return r.Throughput }).String(), client, server,
		cli.BytesText(uint64(middle(func(r *engineRun) float64 { return float64(r.CacheBytes) }))),
		strconv.Itoa(int(middle(func(r *engineRun) float64 { return float64(r.Fallbacks) }))),
		strconv.Itoa(int(middle(func(r *engineRun) float64 { return float64(r.Chases) }))),
	}
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
