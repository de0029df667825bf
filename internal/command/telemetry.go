package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/metrics"
	"drtmx/rdma"
	"drtmx/txn"
)

// telemetryFlags say where a command shows what it does while it runs.
type telemetryFlags struct{ metrics, pprof string }

func (t *telemetryFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&t.metrics, "metrics", "", "serve Prometheus metrics, /healthz and /readyz at this host:port")
	c.Flags().StringVar(&t.pprof, "pprof", "", "serve profiles of this process and of its data servers at this loopback host:port")
}

// telemetry is what telemetryFlags have opened. The zero value shows nothing.
type telemetry struct {
	metrics, pprof *metrics.Endpoint
	// debug are the sockets on which data servers that this command starts
	// serve their profiles; nil without --pprof.
	debug []string
	meter *metrics.Meter // nil without metrics
	ran   metrics.Transactions
	db    atomic.Pointer[txn.DB]
	stop  context.CancelFunc

	recoveries recoveries // of data servers that this command starts
}

// open listens, so that a bad address costs nobody a start.
func (t *telemetryFlags) open() (*telemetry, error) {
	o := &telemetry{stop: func() {}}
	var errs []error
	var err error
	if t.metrics != "" {
		o.meter = &metrics.Meter{}
		if o.metrics, err = metrics.Listen(t.metrics, false); err != nil {
			errs = append(errs, fmt.Errorf("--metrics: %w", err))
		}
	}
	if t.pprof != "" {
		if o.pprof, err = metrics.Listen(t.pprof, true); err != nil {
			errs = append(errs, fmt.Errorf("--pprof: %w", err))
		}
	}
	if len(errs) > 0 {
		return nil, cli.Usage(errors.Join(append(errs, o.close())...))
	}
	return o, nil
}

// expect makes sockets for the profiles of data servers that are to be started.
func (t *telemetry) expect(servers int) {
	if t.pprof != nil {
		t.debug = cluster.AbstractAddrs(servers)
	}
}

// serve answers from now on. addrs are the data servers, none while they start;
// say tells the user where things are.
func (t *telemetry) serve(fabric string, dial func(context.Context, string) (rdma.Conn, error), addrs func() []string, client bool, say func(what, url string)) error {
	if t.metrics != nil {
		ctx, cancel := context.WithCancel(context.Background())
		t.stop = cancel
		servers := metrics.NewServers(ctx, dial, addrs)
		servers.Recovering = t.recoveries.list
		own := []prometheus.Collector{servers}
		if client {
			own = append(own, &metrics.Client{Provider: fabric, Meter: t.meter, DB: t.db.Load, Transactions: &t.ran})
		}
		r, err := metrics.NewRegistry(metrics.Build{Version: cli.Version, Commit: commit, Go: runtime.Version()}, own...)
		if err != nil {
			return err
		}
		t.metrics.Serve(r, servers.Ready)
		say("metrics", "http://"+t.metrics.Addr()+"/metrics")
	}
	if t.pprof != nil {
		t.pprof.ServePprof(t.debug)
		say("profiles", "http://"+t.pprof.Addr()+"/")
	}
	return nil
}

// close ends questions under way, and lets answers be read. It may be called again.
func (t *telemetry) close() error {
	t.stop()
	var errs []error
	for _, e := range []**metrics.Endpoint{&t.metrics, &t.pprof} {
		if *e != nil {
			errs = append(errs, (*e).Close())
			*e = nil
		}
	}
	return errors.Join(errs...)
}

// Formats of --log-format.
const (
	logText = "text"
	logJSON = "json"
)

var (
	logFormats = []string{logText, logJSON}
	logLevels  = []string{"debug", "info", "warn", "error"}
)

// logFlags say what is logged to standard error.
type logFlags struct{ level, format string }

func (l *logFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&l.level, "log-level", "info", "lowest level to log: debug (connections of clients, too), info, warn or error")
	c.Flags().StringVar(&l.format, "log-format", logText, "log format: text or json, one record per line")
}

func (l *logFlags) check() error {
	var errs []error
	if !slices.Contains(logLevels, l.level) {
		errs = append(errs, fmt.Errorf("--log-level %q: want %s", l.level, oneOf(logLevels)))
	}
	if !slices.Contains(logFormats, l.format) {
		errs = append(errs, fmt.Errorf("--log-format %q: want %s", l.format, oneOf(logFormats)))
	}
	return errors.Join(errs...)
}

// log is where to log; data servers write to the same file.
func (l *logFlags) log(a *app) cluster.Log {
	f, _ := a.stderr.(*os.File)
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.level)) // checked
	return cluster.Log{File: f, Level: level, JSON: l.format == logJSON}
}
