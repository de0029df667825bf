package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"

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
	{"hstore", "the hash index, and its twin in the next partition for scans, of HStore", [][2]string{{props.Primary, "hash"}, {props.Twin, "next"}, {props.Design, "drtmx"}}},
	{"rolex", "leaves that are proved as a whole, of the engine ROLEX, which clients read and write one-sided; with drtmx.keys=number", [][2]string{{props.Primary, "rolex"}, {props.Design, "drtmx"}}},
	{"finestore", "models over arrays of trained keys, and bins for those that come later, of FineStore; with drtmx.keys=number", [][2]string{{props.Primary, "finestore"}, {props.Design, "drtmx"}}},
	{"treecache", "the tree of the learned index, with one-sided READs of inner nodes, of which clients keep 128 KiB; with drtmx.keys=number", [][2]string{{props.Primary, "ordered"}, {props.Design, "drtmx"}, {props.Cache, "tree=131072"}}},
	{"fullcache", "the same, with all inner nodes kept", [][2]string{{props.Primary, "ordered"}, {props.Design, "drtmx"}, {props.Cache, "tree"}}},
}

// contender is an engine in a comparison, with its store.
type contender struct {
	label   string
	p       *properties.Properties
	records int64
	db      goycsb.DB     // nil: to be opened
	empty   bool          // db has no records yet
	compute time.Duration // of an operation at a client: see calibrate
	handler time.Duration // of a request at a data server
	writes  bool          // the calibration had operations that write
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

// measure runs the workload once; of a modelled run, after calibrate.
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
	var compute time.Duration
	var model *ycsb.Node
	if f.model != nil {
		own := *f.model
		own.Handler = c.handler
		model, compute = &own, time.Duration(float64(c.compute)*own.Dilation)
	}
	r, e, err := c.run(ctx, plan, model, compute)
	if err != nil {
		return nil, err
	}
	run := newEngineRun(c.label, clients, r, &e.gauges)
	if f.model != nil {
		if err := run.rescale(model, len(ycsb.Client(c.db).Servers()), c.compute); err != nil {
			return nil, err
		}
	}
	if plan.Inserts() { // the next run begins with the same records
		return run, c.close()
	}
	return run, nil
}

// edges are figures at the edges of a measured interval.
type edges struct {
	gauges   [2]load.Gauges
	requests [2]uint64        // that modelled data servers have handled
	handled  [2]time.Duration // and for how long
}

// run makes one run of a plan, with data servers that are modelled unless model is nil. compute
// is processor time that each operation takes besides.
func (c *contender) run(ctx context.Context, plan *bench.Plan, model *ycsb.Node, compute time.Duration) (r *bench.Result, e *edges, err error) {
	client := ycsb.Client(c.db)
	e = &edges{}
	if model != nil {
		if err := ycsb.Model(c.db, model); err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, ycsb.Model(c.db, nil)) }()
	}
	edge := func(i int) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			if model != nil { // servers' own figures would wait in the queues of the model
				e.gauges[i] = load.ReadClient(client)
				e.requests[i], e.handled[i] = ycsb.Handled(c.db)
				return nil
			}
			e.gauges[i], err = load.ReadGauges(ctx, client)
			return err
		}
	}
	r, err = bench.Start(ctx, bench.Config{
		Plan: plan, DB: c.db, Out: io.Discard, Fatal: ycsb.Fatal, Stats: ycsb.SessionStats, Compute: compute, Begin: edge(0), End: edge(1),
	})
	switch {
	case err != nil:
		return nil, nil, ended(c.db, err)
	case r.Interrupted:
		return nil, nil, cli.ErrInterrupted
	}
	return r, e, measured(r)
}

// measured returns an error if a run has measured nothing.
func measured(r *bench.Result) error {
	switch {
	case r.Operations() > 0:
		return nil
	case r.Failed > 0:
		return fmt.Errorf("all %d operations failed, the first with: %w", r.Failed, r.First)
	}
	return fmt.Errorf("no operation ended in the %v that were measured: want a longer --duration", r.Elapsed())
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
