// Package metrics exports an embedded database to Prometheus, under the names of
// drtmx itself (docs/operations.md lists them):
//
//	var traffic metrics.Meter
//	db, err := txn.Open(ctx, txn.Config{Servers: addrs, Dial: traffic.Dial(provider.Dial)})
//	...
//	registry.MustRegister(metrics.Client("tcp", db, &traffic), metrics.Servers(ctx, db))
//
// Collectors own no counters and add no work to a transaction. They read
// snapshots at a scrape.
package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/internal/metrics"
	"drtmx/rdma"
	"drtmx/txn"
)

// Meter counts the connections that are dialled through it, at no cost to them.
// The zero value is ready. Methods are safe for concurrent use.
type Meter struct{ m metrics.Meter }

// Dial returns a dial function whose connections the meter counts, for
// txn.Config.
func (m *Meter) Dial(dial func(context.Context, string) (rdma.Conn, error)) func(context.Context, string) (rdma.Conn, error) {
	return m.m.Dial(dial)
}

// Counters returns the sum over all connections ever made, and the number of
// open ones.
func (m *Meter) Counters() (sum rdma.Counters, open int) { return m.m.Counters() }

// Client collects the client side of a database: the client halves of its
// indexes, and with a meter its connections and their verbs. fabric is the label
// of these. The metrics of transactions by type are those of drtmx's own load
// loop, and are not collected.
func Client(fabric string, db *txn.DB, m *Meter) prometheus.Collector {
	c := &metrics.Client{Provider: fabric, DB: func() *txn.DB { return db }}
	if m != nil {
		c.Meter = &m.m
	}
	return c
}

// ServerCollector collects what data servers report of themselves.
type ServerCollector struct{ *metrics.Servers }

// Servers collects the statistics of all data servers of a database. It asks
// them by RPC, over its own connections, at most ten times a second however
// often it is scraped; questions end with ctx.
func Servers(ctx context.Context, db *txn.DB) ServerCollector {
	return ServerCollector{metrics.ServersOf(ctx, db)}
}

// Ready returns nil if every data server answers and all its partitions are
// loaded and served. Otherwise its error is one line that names the first server
// that is not ready.
func (c ServerCollector) Ready() error { return c.Servers.Ready() }
