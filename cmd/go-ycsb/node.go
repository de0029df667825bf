package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/magiconair/properties"

	"drtmx/internal/cli"
	"drtmx/server"
	"drtmx/ycsb"
	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
)

// A modelled run: its clients and data servers are machines of a model (--node), and the run
// emulates them in stretched time. What a client computes for an operation, and what a data
// server does for a request, is measured first, with one client and data servers as fast as
// this machine: in stretched time all that would take several times as long, because nothing
// is in the processor's caches after the sleep before it.

// Bounds of calibration.
const (
	calibrateWindows = 5
	calibrateWarmup  = 50 * time.Millisecond
	calibrateFor     = 200 * time.Millisecond
	// busyMost is the greatest share of this machine's processors that a modelled run may use.
	// Beyond it what the clients and handlers wait for would not be the model.
	busyMost = 0.5
)

// Bounds of each window of a workload that inserts, so that its windows have the same numbers of
// inserts, and the store is not much larger at the end.
const (
	insertsOfWindow    = 4_000
	operationsOfWindow = 20_000
)

// windowOf returns the operations of a window of a workload with a share of inserts.
func windowOf(inserts float64) int64 {
	return int64(min(insertsOfWindow/inserts, operationsOfWindow))
}

// calibrate measures the processor time that an operation of the workload takes at a client, and
// a request at a data server, with each engine. It does so anew for each repetition, so that the
// spread of the runs has that of the calibration, and takes the least of several windows:
// whatever disturbs one makes it longer. The engines have their windows in turn, for some
// disturbances last longer than the windows of one engine, and would count against it alone.
func calibrate(ctx context.Context, name string, all []*contender) error {
	if err := windows(ctx, name, all); err != nil {
		return err
	}
	var own, served []*contender
	for _, c := range all {
		if c.handler == 0 && c.writes {
			s, err := c.served()
			if err != nil {
				return err
			}
			own, served = append(own, c), append(served, s)
		}
	}
	err := windows(ctx, name, served)
	for i, s := range served {
		own[i].handler = s.handler
		err = errors.Join(err, s.close())
	}
	return err
}

// windows makes the measurements of a calibration. Stores into which it inserts are closed then.
func windows(ctx context.Context, name string, all []*contender) error {
	plans := make([]*bench.Plan, len(all))
	of := func(c *contender, err error) error { return fmt.Errorf("engine %s: calibrate: %w", c.label, err) }
	for i, c := range all {
		c.compute, c.handler, c.writes = 0, 0, false
		err := c.fill(ctx, name)
		if err == nil {
			plans[i], err = bench.NewPlan(c.p, bench.Run)
		}
		if err != nil {
			return of(c, err)
		}
	}
	for w := range calibrateWindows {
		for k := range all {
			i := (k + w) % len(all)
			var err error
			if plan := plans[i]; plan.Inserts() { // each window goes on with the records after those of the one before
				err = plan.For(1, 0, 0, windowOf(plan.InsertShare()))
			} else {
				err = plan.For(1, calibrateWarmup, calibrateFor, 0)
			}
			if err == nil {
				err = all[i].window(ctx, plans[i])
			}
			if err != nil {
				return of(all[i], err)
			}
		}
	}
	for i, c := range all {
		if plans[i].Inserts() {
			if err := c.close(); err != nil {
				return of(c, err)
			}
		}
	}
	return nil
}

// requestsOfCalibration is how many requests an average over them needs. With fewer, what a client
// asks once, when it begins, would count for all.
const requestsOfCalibration = 100

// served closes the store of an engine whose clients send too few requests, and returns it with
// another one: a request at a data server is then that of a commit which the clients would make
// themselves.
func (c *contender) served() (*contender, error) {
	s := &contender{label: c.label, p: properties.NewProperties(), records: c.records}
	s.p.Merge(c.p)
	_, _, err := s.p.Set(props.Writes, "server")
	return s, errors.Join(err, c.close())
}

// stretch makes the patience of the data servers with clients fit a model, unless the workload says
// what it is.
func (c *contender) stretch(dilation float64) error {
	if _, ok := c.p.Get(props.WriterLease); ok {
		return nil
	}
	ms := min(float64(server.DefaultWriterLease.Milliseconds())*dilation, props.WriterLeaseMax)
	_, _, err := c.p.Set(props.WriterLease, strconv.FormatInt(int64(ms), 10))
	return err
}

// window makes one measurement of a calibration.
func (c *contender) window(ctx context.Context, plan *bench.Plan) error {
	still := ycsb.Node{Cores: 1, Dilation: 1} // adds nothing, and measures handlers
	r, e, err := c.run(ctx, plan, &still, 0)
	if err != nil {
		return err
	}
	handled := e.handled[1] - e.handled[0]
	least := func(d *time.Duration, total time.Duration, n uint64) {
		if each := max(total/time.Duration(max(n, 1)), 1); n > 0 && (*d == 0 || each < *d) {
			*d = each
		}
	}
	least(&c.compute, r.Elapsed()-handled, uint64(r.Operations()))
	if n := e.requests[1] - e.requests[0]; n >= requestsOfCalibration {
		least(&c.handler, handled, n)
	}
	for _, k := range r.Kinds() {
		c.writes = c.writes || k.Finished() > 0 && k.Name != "READ" && k.Name != "SCAN"
	}
	return nil
}

// bound is the throughput that exact counts allow on a modelled machine, and what limits it.
type bound struct {
	Throughput float64 `json:"throughput_ops"`
	By         string  `json:"by"`
	ComputeUs  float64 `json:"client_compute_us"` // of an operation
	HandlerUs  float64 `json:"handler_us"`        // likewise, at data servers
}

// rescale turns the figures of a run that took so long into those of the modelled machines.
func (r *engineRun) rescale(m *ycsb.Node, servers int, compute time.Duration) error {
	if busy := r.ClientCPU / (r.Seconds * float64(runtime.NumCPU())); busy > busyMost {
		return fmt.Errorf("the processors of this machine are %.0f %% busy, and would distort the model: want at most %.0f %%; --node with a dilation above %v",
			busy*100, busyMost*100, m.Dilation)
	}
	r.Separable = false // clients and data servers are one process
	r.Seconds /= m.Dilation
	r.Throughput *= m.Dilation
	for name, k := range r.Kinds {
		k.P50, k.P99 = k.P50/m.Dilation, k.P99/m.Dilation
		r.Kinds[name] = k
	}
	r.Bound = r.boundOf(m, servers, compute)
	return nil
}

// boundOf computes the bound from what an operation costs on average. Without queues an
// operation takes its rounds, what the client computes, and all services one after the other.
func (r *engineRun) boundOf(m *ycsb.Node, servers int, compute time.Duration) *bound {
	var all float64
	var c kindCost
	for _, k := range r.Kinds {
		n := float64(k.Count)
		all += n
		c.Rounds += n * (k.Rounds + k.Proving)
		c.Reads += n * (k.Reads + k.Writes + k.Atomics)
		c.Atomics += n * k.Atomics
		c.RPCs += n * k.RPCs
		c.ReadBytes += n * (k.ReadBytes + k.RPCBytes)
	}
	each := func(x float64) float64 { return cli.Ratio(x, all) }
	seconds := func(d time.Duration, n float64) float64 { return d.Seconds() * n }
	h := seconds(m.Handler, each(c.RPCs))
	nic := seconds(m.Verb, each(c.Reads+2*c.RPCs)) + each(c.ReadBytes)*m.Byte/1e9
	atomics := seconds(m.Atomic, each(c.Atomics))
	core := seconds(m.RPC, each(c.RPCs)) + h
	alone := seconds(m.RTT, each(c.Rounds)) + compute.Seconds() + nic + atomics + core
	b := &bound{ComputeUs: 1e6 * compute.Seconds(), HandlerUs: 1e6 * h}
	n := float64(servers)
	for _, limit := range []struct {
		by string
		x  float64
	}{
		{"clients", cli.Ratio(float64(r.Clients), alone)},
		{"NIC", cli.Ratio(n, nic)},
		{"atomics", cli.Ratio(n, atomics)},
		{"cores", cli.Ratio(n*float64(m.Cores), core)},
	} {
		if limit.x > 0 && (b.By == "" || limit.x < b.Throughput) {
			b.Throughput, b.By = limit.x, limit.by
		}
	}
	return b
}
