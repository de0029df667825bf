package bench

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/tpcc"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// Report is the JSON object of a run. Its names are stable: see docs/operations.md.
// Latencies are in microseconds, CPU and other times in seconds.
type Report struct {
	Workload     string                `json:"workload"`
	Design       string                `json:"design"`
	Fabric       string                `json:"fabric"`
	Warehouses   int                   `json:"warehouses"`
	Servers      int                   `json:"servers"`
	Clients      int                   `json:"clients"`
	DurationS    float64               `json:"duration_s"`
	Throughput   float64               `json:"throughput_tps"`
	NewOrders    float64               `json:"new_order_per_min"`
	Types        map[string]TypeReport `json:"types"`
	ServerCPUS   float64               `json:"server_cpu_s"`
	ClientCPUS   float64               `json:"client_cpu_s"`
	Rounds       map[string]float64    `json:"rounds_per_txn"`
	Reads        map[string]float64    `json:"reads_per_txn"`
	RPCs         map[string]float64    `json:"rpcs_per_txn"`
	ReadBytes    map[string]float64    `json:"read_bytes_per_txn"`
	Fallbacks    uint64                `json:"fallbacks"`
	Chases       uint64                `json:"chases"`
	HashChases   uint64                `json:"hash_chases"`
	Model        ModelReport           `json:"model"`
	Consistency  tpcc.Consistency      `json:"consistency"`
	CPUSeparable bool                  `json:"cpu_separable"` // false: servers share the client's process, server_cpu_s is 0
	Durability   string                `json:"durability"`    // memory or disk
	Copies       int                   `json:"copies"`        // of each data server's data at other servers
	LogBytes     float64               `json:"log_bytes_per_txn"`
	CopyBytes    float64               `json:"copy_bytes_per_txn"` // sent to copies: log and checkpoints
	Mix          string                `json:"mix"`
	NewOrderAt   string                `json:"new_order"`
	PaymentAt    string                `json:"payment"`
	ReadPath     string                `json:"read_path"`
	Cache        string                `json:"cache"`            // which part of the models the client caches
	Models       string                `json:"models,omitempty"` // their family; "" if the run did not start the data servers
	Partitions   int                   `json:"partitions"`
	Items        int64                 `json:"items"`
	Customers    int64                 `json:"customers_per_district"`
	Seed         uint64                `json:"seed"`
	WarmupS      float64               `json:"warmup_s"`
	LoadS        float64               `json:"load_s"` // 0: the cluster was loaded before
	LoadRows     int64                 `json:"load_rows"`
	LoadRowBytes float64               `json:"load_bytes_per_row"` // encoded rows, without indexes
	RegionBytes  uint64                `json:"region_bytes"`       // memory in use at all data servers
	RegionPerRow float64               `json:"region_bytes_per_row"`
	CacheBytes   uint64                `json:"client_cache_bytes"`
	CheckS       float64               `json:"check_s"`
	Between      BetweenReport         `json:"between_txns"`
	Version      string                `json:"version"`
	Commit       string                `json:"commit"`
	Go           string                `json:"go"`
	Machine      string                `json:"machine"`
	CPUs         int                   `json:"cpus"`
	Started      time.Time             `json:"started"`
	Retries      map[string]float64    `json:"retries_per_txn"`
	Rate         float64               `json:"rate_tps,omitempty"` // transactions due per second
	Arrivals     string                `json:"arrivals,omitempty"` // when they were due
	BehindS      float64               `json:"behind_s,omitempty"` // for how long the next one had been due at the end
	KeyingThink  bool                  `json:"keying_think"`
	TimeScale    float64               `json:"time_scale"`
	Homes        string                `json:"homes"`              // of terminals: fixed or random
	Skipped      uint64                `json:"skipped_deliveries"` // districts that had nothing to deliver
	Delivery     DeliveryReport        `json:"delivery"`
	Escalated    uint64                `json:"escalated_stock_levels"` // STOCK-LEVELs whose Views were all invalidated; they went on as snapshots
	Compliance   ComplianceReport      `json:"compliance"`
	WarmupOnly   bool                  `json:"warmup_only,omitempty"`
	Interrupted  bool                  `json:"interrupted,omitempty"`
	Error        string                `json:"error,omitempty"`

	Record *load.Record `json:"-"` // the measurements; nil if nothing was measured
}

// TypeReport has the figures of one transaction type. With a rate, latencies count
// from when each transaction was due.
type TypeReport struct {
	Committed  uint64            `json:"committed"`
	Aborted    uint64            `json:"aborted"` // abandoned attempts; each transaction may have several
	RolledBack uint64            `json:"rolled_back"`
	P50        float64           `json:"p50_us"`
	P90        float64           `json:"p90_us"`
	P95        float64           `json:"p95_us"`
	P99        float64           `json:"p99_us"`
	P999       float64           `json:"p999_us"`
	Mean       float64           `json:"mean_us"`
	Max        float64           `json:"max_us"`
	GaveUp     uint64            `json:"gave_up"` // met conflicts in every attempt
	Causes     map[string]uint64 `json:"aborts"`
	Service    *ServiceReport    `json:"service,omitempty"` // with a rate only
}

// ServiceReport has the latency from when transactions began, without their wait for
// a free terminal.
type ServiceReport struct {
	P50  float64 `json:"p50_us"`
	P95  float64 `json:"p95_us"`
	P99  float64 `json:"p99_us"`
	Mean float64 `json:"mean_us"`
	Max  float64 `json:"max_us"`
}

// DeliveryReport has figures on how DELIVERYs were deferred. Those of executed
// DELIVERYs are in the entry DELIVERY of Report.Types.
type DeliveryReport struct {
	Mode      string  `json:"mode"` // deferred or now
	Submitted uint64  `json:"submitted"`
	Waited    uint64  `json:"waited"`        // found their queue full
	AcceptP90 float64 `json:"accept_p90_us"` // response time of the terminal
	WithSkips uint64  `json:"with_skips"`    // DELIVERYs that skipped some district
}

// ModelReport describes the learned models of all ordered indexes. Its errors are in
// leaves.
type ModelReport struct {
	Keys       uint64  `json:"keys"`
	Submodels  uint64  `json:"submodels"`
	ModelBytes uint64  `json:"model_bytes"`
	TTBytes    uint64  `json:"tt_bytes"`
	MeanError  float64 `json:"mean_error"`
	MaxError   uint64  `json:"max_error"`
	InnerBytes uint64  `json:"inner_node_bytes"`
	Retrains   uint64  `json:"retrains"`
}

// BetweenReport has the work of sessions between transactions: refreshing caches.
type BetweenReport struct {
	Rounds    uint64 `json:"rounds"`
	Reads     uint64 `json:"reads"`
	RPCs      uint64 `json:"rpcs"`
	ReadBytes uint64 `json:"read_bytes"`
}

// durabilityDisk is the policy under which a commit is on disk before it is confirmed
// to its client.
const durabilityDisk = "disk"

func newReport(cfg *Config, db *txn.DB, info tpcc.LoadInfo, durability string) *Report {
	arrivals := ""
	if cfg.Rate > 0 {
		arrivals = arrivalNames[cfg.Arrivals]
	}
	return &Report{
		Rate: cfg.Rate, Arrivals: arrivals,
		Workload: "tpcc", Design: cfg.Design.Name, Fabric: cfg.Fabric, Servers: cfg.Servers, Partitions: db.Partitions(),
		Warehouses: int(info.Warehouses), Items: info.Scale.Items, Customers: info.Scale.Customers,
		Clients: cfg.Clients, Seed: cfg.Seed, Mix: cfg.Mix.String(), NewOrderAt: cfg.NewOrder.String(), PaymentAt: cfg.Payment.String(),
		ReadPath: readPaths[cfg.Design.Reads], Cache: cfg.Cache.String(), Models: cfg.Models, Durability: durability,
		Types: map[string]TypeReport{}, Rounds: map[string]float64{}, Reads: map[string]float64{},
		RPCs: map[string]float64{}, ReadBytes: map[string]float64{}, Retries: map[string]float64{},
		Consistency: tpcc.Consistency{}, Compliance: ComplianceReport{Terms: map[string]TermReport{}},
		Homes: cfg.Homes, Delivery: DeliveryReport{Mode: cfg.Delivery}, KeyingThink: cfg.KeyingThink, TimeScale: cfg.TimeScale,
		Version: cfg.Version, Commit: cfg.Commit, Go: runtime.Version(), Machine: runtime.GOOS + "/" + runtime.GOARCH,
		CPUs: runtime.NumCPU(), Started: time.Now(),
	}
}

// arrivalNames are the names of kinds of arrivals.
var arrivalNames = map[load.Arrivals]string{load.Poisson: "poisson", load.Even: "even"}

// ParseArrivals returns the kind of arrivals with a name. Its error lists the valid
// names.
func ParseArrivals(name string) (load.Arrivals, error) {
	for a, n := range arrivalNames {
		if n == name {
			return a, nil
		}
	}
	return 0, fmt.Errorf("want %s or %s", arrivalNames[load.Poisson], arrivalNames[load.Even])
}

// readPaths are the names of read paths.
var readPaths = map[txn.ReadPath]string{txn.OneSided: "one-sided", txn.OrderedByRPC: "ordered by RPC"}

// AddLoad adds the time and memory that loading the database took.
func (r *Report) AddLoad(l *tpcc.LoadReport) {
	r.LoadS, r.LoadRows = l.Elapsed.Seconds(), l.Rows
	r.LoadRowBytes = Ratio(float64(l.Bytes), float64(l.Rows))
}

// Order lists the transaction types that ran, in the order of the
// specification.
func (r *Report) Order() (names []string) {
	for _, name := range Names(tpcc.Types[:]) {
		if _, ran := r.Types[name]; ran {
			names = append(names, name)
		}
	}
	return names
}

// MedianLatency returns, for one type, the median of each latency percentile over
// several runs.
func MedianLatency(runs []*Report, name string) (t TypeReport) {
	for _, f := range []func(*TypeReport) *float64{
		func(t *TypeReport) *float64 { return &t.P50 },
		func(t *TypeReport) *float64 { return &t.P95 },
		func(t *TypeReport) *float64 { return &t.P99 },
	} {
		var all []float64
		for _, r := range runs {
			of := r.Types[name]
			all = append(all, *f(&of))
		}
		slices.Sort(all)
		*f(&t) = all[len(all)/2]
	}
	return t
}

// Overall returns the figures of all types together, without the causes of aborts.
func (r *Report) Overall() TypeReport {
	all := load.TypeRecord{Latency: hist.New()}
	if r.Record != nil {
		for i := range r.Record.Types {
			t := r.Record.Types[i]
			t.Latency, t.Due = t.Response(), nil
			all.Merge(&t)
		}
	}
	return newTypeReport(&all)
}

// Each returns the mean over all transactions of a figure that the report has by
// type.
func (r *Report) Each(of map[string]float64) float64 {
	sum, n := 0.0, 0.0
	for name, t := range r.Types {
		finished := float64(t.Committed + t.RolledBack + t.GaveUp)
		sum += of[name] * finished
		n += finished
	}
	return Ratio(sum, n)
}

// Finished returns how many transactions committed or were rolled back.
func (r *Report) Finished() (n float64) {
	for _, t := range r.Types {
		n += float64(t.Committed + t.RolledBack)
	}
	return n
}

// addRecord adds the measurements of the load loop.
func (r *Report) addRecord(rec *load.Record) {
	r.Record, r.WarmupOnly = rec, rec.WarmupOnly
	r.DurationS, r.WarmupS, r.Throughput = rec.Elapsed.Seconds(), rec.Warmup.Seconds(), rec.Throughput()
	r.BehindS = rec.Behind.Seconds()
	for i := range rec.Types {
		t := &rec.Types[i]
		r.Types[t.Name] = newTypeReport(t)
		n := float64(t.Finished())
		r.Rounds[t.Name] = Ratio(float64(t.Rounds), n)
		r.Reads[t.Name] = Ratio(float64(t.Fabric.Reads), n)
		r.RPCs[t.Name] = Ratio(float64(t.Fabric.RPCs), n)
		r.ReadBytes[t.Name] = Ratio(float64(t.Fabric.ReadBytes), n)
		r.Retries[t.Name] = Ratio(float64(t.Aborted()), n)
		switch t.Name {
		case tpcc.NewOrder.String():
			r.NewOrders = Ratio(float64(t.Committed), rec.Elapsed.Minutes())
		case tpcc.Delivery.String():
			r.Skipped, r.Delivery.Submitted = t.Count, t.Deferred
			if t.Accepted != nil {
				r.Delivery.AcceptP90 = t.Accepted.QuantileUs(0.9)
			}
		case tpcc.StockLevel.String():
			r.Escalated = t.Count
		}
	}
	b := rec.Between
	r.Between = BetweenReport{b.Rounds, b.Fabric.Reads, b.Fabric.RPCs, b.Fabric.ReadBytes}
}

func newTypeReport(t *load.TypeRecord) TypeReport {
	lat := t.Response().Snapshot()
	r := TypeReport{
		Committed: t.Committed, Aborted: t.Aborted(), RolledBack: t.RolledBack, GaveUp: t.GaveUp,
		P50: lat.P50Us, P90: lat.P90Us, P95: lat.P95Us, P99: lat.P99Us, P999: lat.P999Us, Mean: lat.MeanUs, Max: lat.MaxUs,
		Causes: map[string]uint64{},
	}
	for c, n := range t.Aborts {
		r.Causes[txn.Cause(c).String()] = n
	}
	if t.Due != nil {
		s := t.Latency.Snapshot()
		r.Service = &ServiceReport{s.P50Us, s.P95Us, s.P99Us, s.MeanUs, s.MaxUs}
	}
	return r
}

// addGauges adds the changes of clocks and counters within the measured interval.
func (r *Report) addGauges(g *gauges) {
	if g.from.taken && g.to.taken {
		r.Fallbacks = g.to.Fallbacks - g.from.Fallbacks
		r.Chases = g.to.Chases - g.from.Chases
		r.HashChases = g.to.HashChases - g.from.HashChases
		r.CacheBytes = g.to.CacheBytes
		r.Delivery.Waited = uint64(g.to.waited - g.from.waited)
		r.Delivery.WithSkips = g.to.skipping - g.from.skipping
		r.ClientCPUS = g.to.ClientCPU - g.from.ClientCPU
		if r.CPUSeparable = g.from.Separable(&g.to.Gauges); r.CPUSeparable {
			r.ServerCPUS = g.from.ServerCPU(&g.to.Gauges)
		}
		logged, sent := g.logged()
		if n := r.Finished(); n > 0 {
			r.LogBytes, r.CopyBytes = float64(logged)/n, float64(sent)/n
		}
	}
	last := g.to.Servers
	if !g.to.taken {
		last = g.from.Servers
	}
	r.addModels(last)
}

// addModels adds the sums of the statistics of ordered indexes, the only ones with
// models.
func (r *Report) addModels(servers []stats.Server) {
	rows, leaves := uint64(0), uint64(0)
	for _, s := range servers {
		r.RegionBytes += s.RegionBytes
		for _, ix := range s.Indexes {
			rows += ix.Rows
			if ix.Leaves == 0 {
				continue
			}
			m := &r.Model
			m.Keys += ix.Rows
			m.Submodels += ix.SubModels
			m.ModelBytes += ix.ModelBytes
			m.TTBytes += ix.TTBytes
			m.InnerBytes += ix.InnerBytes
			m.Retrains += ix.Retrains
			m.MaxError = max(m.MaxError, ix.MaxError)
			m.MeanError += ix.MeanError * float64(ix.Leaves)
			leaves += ix.Leaves
		}
	}
	r.Model.MeanError = Ratio(r.Model.MeanError, float64(leaves))
	r.RegionPerRow = Ratio(float64(r.RegionBytes), float64(rows))
}

// Ratio returns a/b, or 0 if b is 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
