package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/rdma"
	"drtmx/tpcc/bench"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// statusFlags are the flags of cluster status.
type statusFlags struct {
	where    whereFlags
	interval time.Duration
	json     bool
}

// askTimeout bounds the wait for one data server.
const askTimeout = 2 * time.Second

func (a *app) statusCommand() *cobra.Command {
	f := &statusFlags{}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the data servers of a running cluster, what they hold and what they do",
		Long: `Shows data servers, partitions, fabrics, memory, models and rates of a running
cluster: that of drtmx cluster up, or another one by --runtime-dir or --connect.
The exit status is 1 if a data server does not answer.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !f.where.given() {
				f.where.runtimeDir = cluster.DefaultDir()
			}
			if err := f.check(); err != nil {
				return cli.Usage(err)
			}
			return a.clusterStatus(c.Context(), f)
		},
	}
	f.where.add(c)
	c.Flags().DurationVar(&f.interval, "interval", time.Second, "interval over which rates are measured")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON instead of tables")
	return c
}

func (f *statusFlags) check() error {
	if f.interval <= 0 || f.interval > time.Hour {
		return fmt.Errorf("--interval %v: want more than 0s and at most 1h", f.interval)
	}
	return f.where.check()
}

// clusterStatus is the JSON object of cluster status.
type clusterStatus struct {
	Cluster    string            `json:"cluster"` // where it was found
	Workload   string            `json:"workload,omitempty"`
	Supervisor int               `json:"supervisor,omitempty"` // process that started the data servers
	Generation int               `json:"generation,omitempty"` // grows whenever the cluster is emptied
	IntervalS  float64           `json:"interval_s"`           // of rates
	Hosts      []hostStatus      `json:"hosts,omitempty"`
	Servers    []serverStatus    `json:"servers"`
	Partitions []partitionStatus `json:"partitions"`
	Models     []modelStatus     `json:"models"` // of ordered indexes, over all partitions
}

// serverStatus is one data server.
type serverStatus struct {
	Server        int     `json:"server"`
	Address       string  `json:"address"`
	State         string  `json:"state"` // see stateReady and the others
	Error         string  `json:"error,omitempty"`
	Fabrics       string  `json:"fabrics,omitempty"` // offered
	Route         string  `json:"route,omitempty"`   // taken by this command, if there was a choice
	PID           int     `json:"pid,omitempty"`
	Incarnation   uint64  `json:"incarnation,string,omitempty"`
	Epoch         uint32  `json:"epoch,omitempty"`
	UptimeS       float64 `json:"uptime_s,omitempty"`
	Partitions    []int   `json:"partitions"`
	ResidentBytes uint64  `json:"resident_bytes"` // of the process, regions included
	UsedBytes     uint64  `json:"used_bytes"`     // of regions
	LimitBytes    uint64  `json:"limit_bytes"`    // to which they may grow
	CPUs          float64 `json:"cpus"`           // processors in use
	RPCs          float64 `json:"rpcs_per_s"`
	Commits       float64 `json:"commits_per_s"` // one of several partitions counts in each
	Conflicts     float64 `json:"conflicts_per_s"`
	Reads         float64 `json:"reads_per_s"` // lookups and scans answered by RPC
	Prepared      int     `json:"prepared"`    // transactions in doubt

	Members *memberStatus `json:"members,omitempty"` // nil without a store of members
	Copies  []stats.Copy  `json:"copies,omitempty"`  // of its log, elsewhere
	// LeaseLeftS is for how long it certainly has its place; nil if it needs no lease.
	LeaseLeftS *float64 `json:"lease_left_s,omitempty"`
}

// States of data servers and partitions.
const (
	stateReady     = "ready"
	stateLoading   = "loading"
	stateStopping  = "stopping"
	stateFenced    = "fenced"
	stateNoAnswer  = "no answer"
	stateRestarted = "restarted"
)

// partitionStatus is one partition.
type partitionStatus struct {
	Partition  int     `json:"partition"`
	Server     int     `json:"server"`
	State      string  `json:"state"`
	Rows       uint64  `json:"rows"` // of primary and secondary indexes
	UsedBytes  uint64  `json:"used_bytes"`
	LimitBytes uint64  `json:"limit_bytes"`
	Commits    float64 `json:"commits_per_s"`
	Conflicts  float64 `json:"conflicts_per_s"`
	Prepared   int     `json:"prepared"`
}

// modelStatus is one ordered index.
type modelStatus struct {
	Index         string  `json:"index"`
	Rows          uint64  `json:"rows"`
	Leaves        uint64  `json:"leaves"`
	Submodels     uint64  `json:"submodels"`
	ModelBytes    uint64  `json:"model_bytes"`
	TTBytes       uint64  `json:"tt_bytes"`
	MeanError     float64 `json:"mean_error"` // leaves
	MaxError      uint64  `json:"max_error"`
	Queue         uint64  `json:"retrain_queue"`
	Retrains      float64 `json:"retrains_per_s"`
	Fallbacks     uint64  `json:"fallbacks"` // reads that clients gave up and sent to the server
	FallbackRate  float64 `json:"fallbacks_per_s"`
	TrainFailures uint64  `json:"training_failures"`
}

// clusterStatus prints the status.
func (a *app) clusterStatus(ctx context.Context, f *statusFlags) (err error) {
	found, err := f.where.connectRunning(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	st, err := watchCluster(ctx, found, f.interval)
	if err != nil {
		return err
	}
	if f.json {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		err = e.Encode(st)
	} else {
		st.print(a.stdout)
	}
	return errors.Join(err, st.failure())
}

// failure names the data servers that do not answer.
func (st *clusterStatus) failure() error {
	var errs []string
	for i := range st.Servers {
		if s := &st.Servers[i]; s.State == stateNoAnswer {
			errs = append(errs, fmt.Sprintf("data server %d does not answer: %s", s.Server, s.Error))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return errors.New(strings.Join(errs, "; "))
}

// answer is what a data server said at one moment.
type answer struct {
	stats *stats.Server
	err   error
	at    time.Time
}

// watchCluster asks all data servers twice.
func watchCluster(ctx context.Context, c *cluster.Cluster, interval time.Duration) (*clusterStatus, error) {
	before := askAll(ctx, c)
	select {
	case <-ctx.Done():
		return nil, cli.ErrInterrupted
	case <-time.After(interval):
	}
	after := askAll(ctx, c)
	if interrupted(ctx) != nil {
		return nil, cli.ErrInterrupted
	}
	st := &clusterStatus{Cluster: c.Where(), IntervalS: interval.Seconds(), Partitions: []partitionStatus{}, Models: []modelStatus{}}
	if i := c.Info(); i != nil {
		st.Workload, st.Supervisor, st.Generation = workloadTitle(i.Workload), i.Supervisor, i.Generation
	}
	routes := c.Routes()
	for i, addr := range c.Addrs() {
		st.Servers = append(st.Servers, serverStatus{Server: i, Address: addr, Route: routes[i], Partitions: []int{}})
		st.add(&st.Servers[i], &before[i], &after[i])
	}
	if err := st.addMembers(ctx, c); err != nil {
		return nil, err
	}
	slices.SortFunc(st.Partitions, func(a, b partitionStatus) int { return a.Partition - b.Partition })
	slices.SortFunc(st.Models, func(a, b modelStatus) int { return cmp.Compare(a.Index, b.Index) })
	return st, nil
}

// askAll asks the data servers side by side, each over a connection of its own.
func askAll(ctx context.Context, c *cluster.Cluster) []answer {
	all := make([]answer, len(c.Addrs()))
	dial := c.Config().Dial
	var wg sync.WaitGroup
	for i, addr := range c.Addrs() {
		wg.Go(func() { all[i] = askServer(ctx, dial, addr) })
	}
	wg.Wait()
	return all
}

func askServer(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) answer {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("server %s: no answer within %v", addr, askTimeout))
	defer cancel()
	st, err := txn.AskStats(ctx, dial, addr)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer{st, err, time.Now()}
}

// add fills in what a data server said.
func (st *clusterStatus) add(s *serverStatus, before, after *answer) {
	if after.err != nil {
		s.State, s.Error = stateNoAnswer, after.err.Error()
		return
	}
	now, then := after.stats, before.stats
	rate := func(now, then uint64) float64 {
		return bench.Ratio(float64(now-then), after.at.Sub(before.at).Seconds())
	}
	s.State = stateReady
	switch {
	case now.Stopping:
		s.State = stateStopping
	case then != nil && then.Incarnation != now.Incarnation:
		s.State = stateRestarted
	}
	if then == nil || s.State == stateRestarted {
		then = now
	}
	if now.Log != nil {
		s.Copies = now.Log.CopyList
	}
	s.LeaseLeftS = now.LeaseLeft
	s.Fabrics, s.PID, s.Incarnation, s.Epoch = now.Fabric, now.PID, now.Incarnation, now.Epoch
	s.UptimeS = max(0, float64(after.at.UnixMilli())/1e3-now.StartUnix)
	s.ResidentBytes, s.UsedBytes, s.Prepared = now.Process.ResidentBytes, now.RegionBytes, now.Prepared
	s.CPUs = bench.Ratio(now.CPUSeconds-then.CPUSeconds, after.at.Sub(before.at).Seconds())
	s.RPCs, s.Commits, s.Conflicts = rate(now.Verbs.RPCs, then.Verbs.RPCs), rate(now.Commits, then.Commits), rate(now.Conflicts, then.Conflicts)
	s.Reads = rate(now.Lookups+now.Scans, then.Lookups+then.Scans)
	for i := range now.Partitions {
		p, was := &now.Partitions[i], &now.Partitions[i]
		if i < len(then.Partitions) && then.Partitions[i].Partition == p.Partition {
			was = &then.Partitions[i]
		}
		s.Partitions = append(s.Partitions, p.Partition)
		s.LimitBytes += p.LimitBytes
		ps := partitionStatus{
			Partition: p.Partition, Server: s.Server, State: stateReady, UsedBytes: p.UsedBytes, LimitBytes: p.LimitBytes,
			Commits: rate(p.Commits, was.Commits), Conflicts: rate(p.Conflicts, was.Conflicts), Prepared: p.Prepared,
		}
		switch {
		case p.Fenced:
			ps.State = stateFenced
		case !p.Loaded:
			ps.State = stateLoading
		}
		if s.State == stateReady {
			s.State = ps.State
		}
		st.Partitions = append(st.Partitions, ps)
	}
	st.addIndexes(now, then, rate)
}

// addIndexes sums indexes over partitions.
func (st *clusterStatus) addIndexes(now, then *stats.Server, rate func(now, then uint64) float64) {
	for i := range now.Indexes {
		x, was := &now.Indexes[i], &now.Indexes[i]
		if i < len(then.Indexes) && then.Indexes[i].Index == x.Index && then.Indexes[i].Partition == x.Partition {
			was = &then.Indexes[i]
		}
		if k := slices.IndexFunc(st.Partitions, func(p partitionStatus) bool { return p.Partition == x.Partition }); k >= 0 {
			st.Partitions[k].Rows += x.Rows
		}
		if !x.Ordered {
			continue
		}
		k := slices.IndexFunc(st.Models, func(m modelStatus) bool { return m.Index == x.Name })
		if k < 0 {
			k = len(st.Models)
			st.Models = append(st.Models, modelStatus{Index: x.Name})
		}
		m := &st.Models[k]
		m.MeanError = bench.Ratio(m.MeanError*float64(m.Rows)+x.MeanError*float64(x.Rows), float64(m.Rows+x.Rows))
		m.MaxError = max(m.MaxError, x.MaxError)
		m.Rows, m.Leaves, m.Submodels = m.Rows+x.Rows, m.Leaves+x.Leaves, m.Submodels+x.SubModels
		m.ModelBytes, m.TTBytes, m.Queue = m.ModelBytes+x.ModelBytes, m.TTBytes+x.TTBytes, m.Queue+x.Pending
		m.Retrains += rate(x.Retrains, was.Retrains)
		m.Fallbacks, m.FallbackRate = m.Fallbacks+x.GaveUp, m.FallbackRate+rate(x.GaveUp, was.GaveUp)
		m.TrainFailures += x.TrainFailures
	}
}
