package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/member/etcd"
	"drtmx/internal/metrics"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/multi"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
	"drtmx/txn"
	"drtmx/ycsb/usertable"
)

// workloadTPCC is the name of TPC-C's workload, for which data servers are started. With another
// storage than the default its name has that behind a plus sign.
const workloadTPCC = "tpcc"

// workloadOf is the name of TPC-C's workload with a storage.
func workloadOf(s tpcc.Storage) string {
	if s == "" || s == tpcc.StoredXStore {
		return workloadTPCC
	}
	return workloadTPCC + "+" + string(s)
}

func lookupWorkload(name string) (cluster.Workload, error) {
	if usertable.IsWorkload(name) {
		c, err := usertable.ParseWorkload(name)
		if err != nil {
			return cluster.Workload{}, err
		}
		return cluster.Workload{Catalog: c, Procedures: usertable.Procedures(c)}, nil
	}
	for _, s := range tpcc.Storages {
		if name == workloadOf(s) {
			return cluster.Workload{Catalog: s.Catalog(), Procedures: s.Procedures()}, nil
		}
	}
	return cluster.Workload{}, fmt.Errorf("unknown workload %q", name)
}

// childCommand is the argument list of a data server's process.
func childCommand() ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program to start data servers: %w", err)
	}
	return []string{exe, "serve", "--child"}, nil
}

// session is a cluster with a database open on it.
type session struct {
	*cluster.Cluster
	db       *txn.DB
	own      bool             // this process started the cluster
	started  *cluster.Cluster // of hosts that this process started, and then found; nil else
	found    bool             // by an address, which leaves the choice of fabrics open
	separate bool             // servers are other processes, so their CPU time can be told apart
	meter    *metrics.Meter   // counts the verbs of the database's connections; nil without metrics
}

// start starts a cluster of this command's own. Where there is no shared
// memory, the data servers run in this process, unless the flags name a fabric.
func (a *app) start(ctx context.Context, p *runPlan, debug []string) (*session, error) {
	size := p.size.size()
	size.Models, size.PublishInner, size.DataDir = p.models.family(), p.models.inner, p.data.dir
	if p.fabric != fabricInproc {
		o, err := processes([]string{p.fabric}, &p.where.tls, "", size)
		o.Debug, o.Workload.Name = debug, workloadOf(p.config.Design.Storage)
		if p.data.asHosts(p.size.replicas) {
			o.Dir, o.Hosts = filepath.Join(p.data.dir, runDir), a.hosts(cluster.Log{}, 0)
		}
		switch {
		case err == nil:
			return a.startRecovering(ctx, o, p.where.tls.options())
		case !p.fallback || !errors.Is(err, rdma.ErrUnsupported):
			return nil, fmt.Errorf("--fabric %s: %w", p.fabric, err)
		}
		a.Say("no shared memory between processes here (%v): the data servers run in this process (--fabric inproc)", err)
	}
	w, err := lookupWorkload(workloadOf(p.config.Design.Storage))
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, cluster.StartOptions{Size: size, Provider: inproc.New(inproc.Options{}), Workload: w, Recovered: a.sayRecovered})
	if err != nil {
		return nil, err
	}
	return &session{Cluster: c, own: true}, nil
}

// startProcesses starts data servers as processes. fabrics are those of clients of
// hosts.
func (a *app) startProcesses(ctx context.Context, o cluster.StartOptions, fabrics multi.Options) (*session, error) {
	c, err := cluster.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	a.AtKill(c.Kill)
	if o.Hosts == nil {
		return &session{Cluster: c, own: true, separate: true}, nil
	}
	found, err := cluster.Connect(ctx, cluster.ConnectOptions{Dir: o.Dir, Fabrics: fabrics, Members: etcd.OpenExisting})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &session{Cluster: found, own: true, started: c, separate: true}, nil
}

// attach finds a running cluster of TPC-C.
func (a *app) attach(ctx context.Context, w *whereFlags) (*session, error) {
	c, err := w.connectRunning(ctx)
	if err != nil {
		return nil, err
	}
	if err := servesTPCC(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	catalog, err := c.Tables()
	return &session{Cluster: c, separate: true, found: catalog != nil}, err
}

// routes says over which fabrics the data servers are reached.
func (s *session) routes() string {
	by := map[string][]string{}
	for i, name := range s.Routes() {
		by[name] = append(by[name], strconv.Itoa(i))
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, strings.ReplaceAll(oneOf(by[name]), " or ", " and ")+" over "+name)
	}
	return fmt.Sprintf("%d data servers: %s", len(s.Addrs()), strings.Join(parts, ", "))
}

// open opens the database of the cluster, for a benchmark.
func (s *session) open(ctx context.Context, c *bench.Config) (err error) {
	s.db, err = s.Open(ctx, func(cfg *txn.Config) {
		cfg.Reads, cfg.Cache, cfg.Seed = c.Design.Reads, c.Cache, c.Seed
		if s.meter != nil {
			cfg.Dial = s.meter.Dial(cfg.Dial)
		}
	})
	return err
}

// close leaves the cluster, and ends it if it is this command's own.
func (s *session) close() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	errs = append(errs, s.Close())
	if s.started != nil {
		errs = append(errs, s.started.Close())
	}
	return errors.Join(errs...)
}

// lostGrace is how long to wait for the news of a server's end after a
// connection to it broke: the kernel closes sockets before it tells the parent.
const lostGrace = time.Second

// cause replaces an error that a lost server has caused by the news of the loss.
func (s *session) cause(err error) error {
	if err == nil {
		return s.Err()
	}
	if isLoss(err) {
		select {
		case <-s.Lost():
		case <-time.After(lostGrace):
		}
	}
	if lost := s.Err(); lost != nil {
		return lost
	}
	return err
}

func isLoss(err error) bool {
	for _, e := range []error{rdma.ErrPeerDown, txn.ErrUnavailable, txn.ErrOutcomeUnknown, rdma.ErrAddress} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// watch ends the context when a server is lost.
func (s *session) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		select {
		case <-s.Lost():
			cancel(s.Err())
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}

// interrupted is cli.ErrInterrupted if a signal ended ctx, else nil.
func interrupted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		return cli.ErrInterrupted
	}
	return nil
}
