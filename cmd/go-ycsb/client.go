package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/prop"
	goycsb "github.com/pingcap/go-ycsb/pkg/ycsb"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/ycsb"
	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
)

func (a *app) loadCommand() *cobra.Command {
	return a.clientCommand("load", "Load the records of a workload", bench.Load)
}

func (a *app) runCommand() *cobra.Command {
	return a.clientCommand("run", "Run a workload on a running, loaded cluster", bench.Run)
}

func (a *app) loadRunCommand() *cobra.Command {
	return a.clientCommand("loadrun", "Load and run in one process, as an embedded store needs", bench.Load, bench.Run)
}

func (a *app) clientCommand(name, short string, phases ...bench.Phase) *cobra.Command {
	var in input
	c := &cobra.Command{
		Use:   name + " drtmx -P FILE",
		Short: short,
		Args:  database,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := in.properties(c)
			if err != nil {
				return err
			}
			return a.client(c.Context(), args[0], p, phases)
		},
	}
	in.add(c, true)
	return c
}

// client runs phases on one database.
func (a *app) client(ctx context.Context, name string, p *properties.Properties, phases []bench.Phase) (err error) {
	var plans []*bench.Plan
	faults := props.NewReader(p)
	for _, phase := range phases {
		plan, err := bench.NewPlan(p, phase)
		faults.Join(err)
		if err == nil && phase == bench.Load && len(phases) > 1 {
			plan.Unbounded()
		}
		plans = append(plans, plan)
	}
	embedded := name == "drtmx" && ycsb.Embedded(p)
	if embedded && slices.Equal(phases, []bench.Phase{bench.Run}) {
		faults.Fault("%s is missing: an embedded store is empty; want a running cluster that is loaded, or loadrun", props.Addr)
	}
	if err := faults.Err(); err != nil {
		return err
	}
	stop, err := a.servePprof(p)
	if err != nil {
		return err
	}
	defer stop()
	db, err := open(name, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := showDurability(ctx, db, p); err != nil {
		return err
	}
	if slices.Contains(phases, bench.Load) {
		if err := ycsb.FitsMemory(ctx, db); err != nil {
			return err
		}
	}
	for i, plan := range plans {
		if err := a.phase(ctx, db, p, phases[i], plan); err != nil {
			return err
		}
	}
	if embedded && len(phases) == 1 {
		a.Say("the records were in the memory of this command and are gone: use loadrun, or a running cluster (%s)", props.Addr)
	}
	return nil
}

// showDurability adds the durability of a drtmx cluster to the properties of the report,
// also if it is the default, or that of a running cluster.
func showDurability(ctx context.Context, db goycsb.DB, p *properties.Properties) error {
	policy, err := ycsb.Durability(ctx, db)
	if err != nil {
		return fmt.Errorf("the durability of the cluster: %w", err)
	}
	if policy != "" {
		_, _, err = p.Set(props.Durability, policy)
	}
	return err
}

const stars = "**********************************************"

// phase runs one phase and prints the lines that go-ycsb prints.
func (a *app) phase(ctx context.Context, db goycsb.DB, p *properties.Properties, phase bench.Phase, plan *bench.Plan) error {
	for name, value := range map[string]string{
		prop.DoTransactions: fmt.Sprint(phase == bench.Run), prop.Command: string(phase),
	} {
		if _, _, err := p.Set(name, value); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.stdout, plan.Workload().Describe())
	fmt.Fprintln(a.stdout, "***************** properties *****************")
	keys := p.Keys()
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprintf(a.stdout, "\"%s\"=\"%s\"\n", key, p.GetString(key, ""))
	}
	fmt.Fprintln(a.stdout, stars)
	r, err := bench.Start(ctx, bench.Config{Plan: plan, DB: db, Out: a.stdout, Fatal: ycsb.Fatal})
	r.WriteFine(a.stdout)
	fmt.Fprintln(a.stdout, stars)
	fmt.Fprintf(a.stdout, "Run finished, takes %s\n", r.Took)
	if failed := r.Write(a.stdout); failed != nil {
		err = errors.Join(err, failed)
	}
	if lost := ycsb.Lost(db, err); lost != nil {
		err = lost // it explains the failures that it caused
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s ended early: %w", phase, err)
	case r.Interrupted:
		return cli.ErrInterrupted
	case r.Failed > 0 && r.Operations() == 0:
		return fmt.Errorf("%s: all %d operations failed, the first with: %w", phase, r.Failed, r.First)
	case r.Failed > 0:
		a.Say("%s: %d operations failed, the first with: %v", phase, r.Failed, r.First)
	}
	return nil
}

// servePprof serves profiles if the properties set an address, on the loopback
// interface unless they name a host. (go-ycsb always serves them, on all interfaces.)
func (a *app) servePprof(p *properties.Properties) (stop func(), err error) {
	addr, ok := p.Get(prop.DebugPprof)
	if !ok {
		return func() {}, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, cli.Usagef("%s %q: want host:port or :port", prop.DebugPprof, addr)
	}
	if host == "" {
		host = "localhost"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, cli.Usagef("%s %q: %w", prop.DebugPprof, addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until Close
	}()
	a.Say("profiles at http://%s/debug/pprof/", l.Addr())
	return func() {
		s.Close()
		<-done
	}, nil
}
