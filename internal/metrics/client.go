package metrics

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/txn"
)

var clientIndexLabels = []string{"partition", "table", "index"}

var (
	clientConnections = gauge("drtmx_client_connections", "Connections of this process to data servers.", "provider")

	clientLookups   = counter("drtmx_client_index_lookups_total", "Lookups and scans by one-sided READs.", clientIndexLabels...)
	clientRounds    = counter("drtmx_client_index_rounds_total", "Rounds of lookups and scans.", clientIndexLabels...)
	clientReads     = counter("drtmx_client_index_reads_total", "READs posted for lookups and scans.", clientIndexLabels...)
	clientChases    = counter("drtmx_client_index_chases_total", "Links followed: right links from a leaf that is too far left, or overflow buckets.", clientIndexLabels...)
	clientFallbacks = counter("drtmx_client_index_fallbacks_total", "Lookups and scans that the client abandoned and sent to the server.", clientIndexLabels...)
	clientRetries   = counter("drtmx_client_index_retries_total", "Blocks read again because they were torn or locked.", clientIndexLabels...)
	clientRefreshes = counter("drtmx_client_index_refreshes_total", "Cached parts that were stale and fetched again.", clientIndexLabels...)
	clientCache     = gauge("drtmx_client_index_cache_bytes", "Bytes of the client half's cache: directory and locations, or models and translation tables.", clientIndexLabels...)
	clientModels    = gauge("drtmx_client_index_model_bytes", "Of the cache: models and router.", clientIndexLabels...)
	clientTT        = gauge("drtmx_client_index_translation_table_bytes", "Of the cache: translation tables.", clientIndexLabels...)

	txnCommits   = counter("drtmx_txn_commits_total", "Transactions that committed within the measured interval.", "type")
	txnRollbacks = counter("drtmx_txn_rollbacks_total", "Transactions that rolled back by the rules of the workload.", "type")
	txnGaveUp    = counter("drtmx_txn_gave_up_total", "Transactions that met conflicts in every allowed attempt.", "type")
	txnDeferred  = counter("drtmx_txn_deferred_total", "Transactions accepted for later execution; once executed they count as commits.", "type")
	txnAborts    = counter("drtmx_txn_aborts_total", "Attempts that were aborted and retried, by cause.", "type", "cause")
	txnRounds    = counter("drtmx_txn_rounds_total", "Network rounds; concurrent batches to several servers count once.", "type")
	txnReads     = counter("drtmx_txn_reads_total", "One-sided READs.", "type")
	txnReadBytes = counter("drtmx_txn_read_bytes_total", "Bytes of one-sided READs.", "type")
	txnRPCs      = counter("drtmx_txn_rpcs_total", "RPCs.", "type")
	txnLatency   = histogram("drtmx_txn_latency_seconds", "Latency of committed transactions, all attempts included; with a rate, since they were due.", "type")
)

// clientSide has the families of Client, as opposed to those of Servers.
var clientSide = func() map[*Family]bool {
	m := map[*Family]bool{
		clientConnections: true, clientLookups: true, clientRounds: true, clientReads: true, clientChases: true,
		clientFallbacks: true, clientRetries: true, clientRefreshes: true, clientCache: true, clientModels: true, clientTT: true,
		txnCommits: true, txnRollbacks: true, txnGaveUp: true, txnDeferred: true, txnAborts: true,
		txnRounds: true, txnReads: true, txnReadBytes: true, txnRPCs: true, txnLatency: true, buildInfo: true,
	}
	for _, f := range clientVerbs.all() {
		m[f] = true
	}
	return m
}()

// Client exports the activity of a client of the cluster. It is a
// prometheus.Collector.
type Client struct {
	// Provider is the name of the fabric.
	Provider string
	// Meter counts the connections; nil exports none.
	Meter *Meter
	// DB returns the client's database, nil while it has none.
	DB func() *txn.DB
	// Transactions are those of the load loop; nil exports none.
	Transactions *Transactions
}

// Describe implements prometheus.Collector.
func (c *Client) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		if clientSide[f] && f != buildInfo {
			ch <- f.desc
		}
	}
}

// Collect implements prometheus.Collector.
func (c *Client) Collect(ch chan<- prometheus.Metric) {
	if c.Meter != nil {
		n, open := c.Meter.Counters()
		clientVerbs.send(ch, &n, c.Provider)
		send(ch, clientConnections, open, c.Provider)
	}
	if c.Transactions != nil {
		c.Transactions.collect(ch)
	}
	db := c.DB()
	if db == nil {
		return
	}
	for _, ix := range db.IndexStats() {
		labels := []string{strconv.Itoa(ix.Partition), ix.Table, ix.Index}
		send(ch, clientLookups, ix.Lookups, labels...)
		send(ch, clientRounds, ix.Rounds, labels...)
		send(ch, clientReads, ix.Reads, labels...)
		send(ch, clientChases, ix.Chases, labels...)
		send(ch, clientFallbacks, ix.Fallbacks, labels...)
		send(ch, clientRetries, ix.Retries, labels...)
		send(ch, clientRefreshes, ix.Refreshes, labels...)
		send(ch, clientCache, ix.CacheBytes, labels...)
		send(ch, clientModels, ix.ModelBytes, labels...)
		send(ch, clientTT, ix.TTBytes, labels...)
	}
}

// Transactions sums the intervals of a run. Its sums equal those of the report
// up to the last complete interval. The zero value is empty. Methods are safe
// for concurrent use.
type Transactions struct {
	mu    sync.Mutex
	types []load.TypeRecord
}

// Add adds an interval.
func (t *Transactions) Add(i load.Interval) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range i.Types {
		if k == len(t.types) {
			t.types = append(t.types, load.TypeRecord{Name: i.Types[k].Name, Latency: hist.New()})
		}
		t.types[k].Merge(&i.Types[k])
	}
}

func (t *Transactions) collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.types {
		r := &t.types[i]
		send(ch, txnCommits, r.Committed, r.Name)
		send(ch, txnRollbacks, r.RolledBack, r.Name)
		send(ch, txnGaveUp, r.GaveUp, r.Name)
		send(ch, txnDeferred, r.Deferred, r.Name)
		for c := range txn.CauseCount {
			send(ch, txnAborts, r.Aborts[c], r.Name, c.String())
		}
		send(ch, txnRounds, r.Rounds, r.Name)
		send(ch, txnReads, r.Fabric.Reads, r.Name)
		send(ch, txnReadBytes, r.Fabric.ReadBytes, r.Name)
		send(ch, txnRPCs, r.Fabric.RPCs, r.Name)
		lat := r.Response()
		ch <- prometheus.MustNewConstHistogram(txnLatency.desc, uint64(lat.Count()), lat.SumSeconds(), buckets(lat), r.Name)
	}
}

// latencyBounds are the upper ends of buckets, in seconds: 1, 2 and 5 times
// every power of ten from a microsecond to the longest latency there is.
var latencyBounds = func() (bounds []float64) {
	for exp := -6; exp <= 1; exp++ {
		for _, n := range []string{"1", "2", "5"} {
			bound, _ := strconv.ParseFloat(n+"e"+strconv.Itoa(exp), 64) // a product would not be as short
			bounds = append(bounds, bound)
		}
	}
	return bounds
}()

// buckets are cumulative counts by upper bound.
func buckets(h *hist.Histogram) map[float64]uint64 {
	out := make(map[float64]uint64, len(latencyBounds))
	for i, n := range h.AtMost(latencyBounds) {
		out[latencyBounds[i]] = n
	}
	return out
}
