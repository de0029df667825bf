// Package metrics shows what runs to people and monitoring: Prometheus metrics,
// whether the process is alive and its data servers are ready, and profiles.
//
// It owns no counters of the engine. At every scrape it takes the snapshots
// that data servers ([Servers]), client halves and connections ([Client],
// [Meter]) and the load loop ([Transactions]) give, and turns them into
// metrics; nothing is registered globally, and nothing on the way of a
// transaction is touched but counters that are there anyway. Servers are asked
// by RPC, over connections of the exporter's own, at most every
// [SampleInterval] however often somebody scrapes.
//
// Names follow the Prometheus conventions: base units (seconds, bytes), _total
// for what only grows, one meaning for each label. [Families] lists them all;
// docs/operations.md says how to read them.
package metrics
