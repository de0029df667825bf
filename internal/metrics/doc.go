// Package metrics exposes a running process to monitoring: Prometheus metrics,
// health, readiness and profiles.
//
// It owns no counters of the engine. At every scrape it reads snapshots of the
// data servers ([Servers]), of client halves and connections ([Client],
// [Meter]) and of the load loop ([Transactions]), and turns them into metrics.
// It registers nothing globally and adds no work to a transaction. It asks
// servers by RPC, over its own connections, at most once every [SampleInterval]
// however often it is scraped.
//
// Names follow the Prometheus conventions: base units (seconds, bytes), _total
// for counters, one meaning for each label. [Families] lists all metrics;
// docs/operations.md says how to read them.
package metrics
