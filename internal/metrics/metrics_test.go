package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"drtmx/internal/hist"
	"drtmx/internal/load"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/txn/stats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a small cluster in this process with a client that is measured.
type rig struct {
	t       *testing.T
	cluster *server.Cluster
	client  *txn.DB
	meter   *Meter
	ran     Transactions
	servers *Servers
	table   *tables.Table
	rows    *tables.Table
}

func newRig(t *testing.T) *rig {
	t.Helper()
	cat, err := tables.NewCatalog(
		tables.Def{
			Name: "account", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits},
			Columns: []tables.Column{{Name: "balance", Type: tables.Int64}},
		},
		tables.Def{
			Name: "entry", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByBits, Shift: 8},
			Columns: []tables.Column{{Name: "amount", Type: tables.Int64}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	net := inproc.New(inproc.Options{})
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Catalog: cat, Servers: 2, Network: net})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, cluster: cl, meter: &Meter{}, table: cat.MustTable("account"), rows: cat.MustTable("entry")}
	addrs := []string{cl.Servers[0].Addr(), cl.Servers[1].Addr()}
	if r.client, err = txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: r.meter.Dial(net.Dial)}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.servers = NewServers(ctx, net.Dial, func() []string { return addrs })
	t.Cleanup(func() {
		cancel()
		_ = r.client.Close()
		_ = cl.Close()
	})
	return r
}

// work writes n rows of each table and reads them.
func (r *rig) work(n uint64) {
	r.t.Helper()
	for k := range n {
		err := r.client.Update(r.t.Context(), func(x *txn.Txn) error {
			if err := x.Insert(r.table, tables.Num(k), r.table.NewRow()); err != nil {
				return err
			}
			return x.Insert(r.rows, tables.Num(k), r.rows.NewRow())
		})
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.client.View(r.t.Context(), func(x *txn.Txn) error { _, err := x.Get(r.rows, tables.Num(k)); return err }); err != nil {
			r.t.Fatal(err)
		}
	}
}

// latencies are nanoseconds: 1.5 µs to 3 s, and beyond the last bucket.
var latencies = []time.Duration{1500, 15000, 150e3, 1500e3, 15e6, 3e9, 60e9}

// run adds an interval in which one transaction took each of the latencies.
func (r *rig) run() {
	rec := load.TypeRecord{Name: "NEW_ORDER", Committed: uint64(len(latencies)), RolledBack: 1, GaveUp: 2, Deferred: 3, Latency: hist.New()}
	rec.Aborts[txn.CauseRow] = 4
	rec.Rounds, rec.Fabric = 50, rdma.Counters{Reads: 60, ReadBytes: 700, RPCs: 8}
	for _, d := range latencies {
		rec.Latency.Record(d)
	}
	r.ran.Add(load.Interval{Types: []load.TypeRecord{rec}})
}

func (r *rig) collectors() []prometheus.Collector {
	client := &Client{Provider: "inproc", Meter: r.meter, DB: func() *txn.DB { return r.client }, Transactions: &r.ran}
	return []prometheus.Collector{r.servers, client, Build{Version: "1", Commit: "abc", Go: "go1"}}
}

// gather is all series: value by name and labels in order.
func (r *rig) gather() map[string]float64 {
	r.t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range r.collectors() {
		if err := reg.Register(c); err != nil {
			r.t.Fatal(err)
		}
	}
	all, err := reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, mf := range all {
		for _, m := range mf.GetMetric() {
			labels := []string{}
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				v = float64(h.GetSampleCount())
				for _, b := range h.GetBucket() {
					out[fmt.Sprintf("%s_bucket{%s,le=%g}", mf.GetName(), strings.Join(labels, ","), b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
			}
			out[mf.GetName()+"{"+strings.Join(labels, ",")+"}"] = v
		}
	}
	return out
}

// Everything that is declared is exported, with the labels declared, and keeps
// the conventions.
func TestNamesAndLabels(t *testing.T) {
	r := newRig(t)
	r.work(16)
	r.run()
	// The in-process fabric does not count what it has refused, and these servers
	// have no log and no lease.
	r.servers.ask = func(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*stats.Server, error) {
		st, err := txn.AskStats(ctx, dial, addr)
		if err == nil {
			st.Refusals = []rdma.Refusal{{Reason: "no_room", Count: 1}, {Reason: "bounds"}}
			st.Log, st.Recovery = &stats.Log{}, &stats.Recovery{Phases: []stats.Phase{{Name: "log"}}}
			st.LeaseLeft = new(float64)
		}
		return st, err
	}
	r.servers.Recovering = func() []Recovering { return []Recovering{{}} }
	reg := prometheus.NewPedanticRegistry()
	for _, c := range r.collectors() {
		reg.MustRegister(c)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, mf := range all {
		seen[mf.GetName()] = true
		i := slices.IndexFunc(families, func(f *Family) bool { return f.Name == mf.GetName() })
		if i < 0 {
			t.Errorf("%s is not declared", mf.GetName())
			continue
		}
		f := families[i]
		if f.Help == "" || !strings.HasSuffix(f.Help, ".") || strings.ToUpper(string(f.Kind)) != mf.GetType().String() {
			t.Errorf("%s: kind %v, help %q", f.Name, mf.GetType(), f.Help)
		}
		for _, m := range mf.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			if want := slices.Sorted(slices.Values(f.Labels)); !slices.Equal(labels, want) {
				t.Errorf("%s has labels %v, want %v", f.Name, labels, want)
			}
		}
	}
	for _, f := range families {
		if !seen[f.Name] {
			t.Errorf("%s is declared and not exported", f.Name)
		}
	}
}

// trainedRig is a rig whose rows some model was trained for. The trainer may have
// looked at an index just before its few rows came, and then has no reason to
// look again: such a rig is of no use here.
func trainedRig(t *testing.T) *rig {
	for begun := time.Now(); time.Since(begun) < testseed.Patience(); {
		r := newRig(t)
		r.work(32)
		r.run()
		r.run()
		if err := r.client.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if trainedKeys(r) > 0 {
				return r
			}
		}
	}
	t.Fatal("no model is trained")
	return nil
}

func TestValues(t *testing.T) {
	r := trainedRig(t)
	got := r.gather()
	st := []stats.Server{r.cluster.Servers[0].Stats(), r.cluster.Servers[1].Stats()}
	want := map[string]float64{
		`drtmx_server_up{server=0}`: 1, `drtmx_server_ready{server=1}`: 1,
		`drtmx_partition_loaded{partition=1,server=1}`: 1, `drtmx_partition_fenced{partition=0,server=0}`: 0,
		`drtmx_partition_commits_total{partition=0,server=0}`:             float64(st[0].Commits),
		`drtmx_region_used_bytes{partition=1,server=1}`:                   float64(st[1].RegionBytes),
		`drtmx_region_limit_bytes{partition=1,server=1}`:                  16 << 30,
		`drtmx_server_distributed_transactions_total{server=1}`:           float64(st[1].Distributed),
		`drtmx_server_handovers_total{server=0}`:                          float64(st[0].Handovers),
		`drtmx_build_info{commit=abc,go=go1,version=1}`:                   1,
		`drtmx_txn_commits_total{type=NEW_ORDER}`:                         float64(2 * len(latencies)),
		`drtmx_txn_rollbacks_total{type=NEW_ORDER}`:                       2,
		`drtmx_txn_gave_up_total{type=NEW_ORDER}`:                         4,
		`drtmx_txn_deferred_total{type=NEW_ORDER}`:                        6,
		`drtmx_txn_aborts_total{cause=row_changed,type=NEW_ORDER}`:        8,
		`drtmx_txn_aborts_total{cause=locked,type=NEW_ORDER}`:             0,
		`drtmx_txn_rounds_total{type=NEW_ORDER}`:                          100,
		`drtmx_txn_reads_total{type=NEW_ORDER}`:                           120,
		`drtmx_txn_read_bytes_total{type=NEW_ORDER}`:                      1400,
		`drtmx_txn_rpcs_total{type=NEW_ORDER}`:                            16,
		`drtmx_txn_latency_seconds{type=NEW_ORDER}`:                       float64(2 * len(latencies)),
		`drtmx_txn_latency_seconds_bucket{type=NEW_ORDER,le=1e-06}`:       0,
		`drtmx_txn_latency_seconds_bucket{type=NEW_ORDER,le=2e-06}`:       2,
		`drtmx_txn_latency_seconds_bucket{type=NEW_ORDER,le=0.002}`:       8,
		`drtmx_txn_latency_seconds_bucket{type=NEW_ORDER,le=50}`:          12,
		`drtmx_client_fabric_errors_total{provider=inproc,status=access}`: 0,
	}
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s is %v (there: %v), want %v", name, g, ok, v)
		}
	}
	rows, keys, trained := 0.0, 0.0, 0.0
	for name, v := range got {
		switch {
		case strings.HasPrefix(name, "drtmx_index_rows{index=entry,"):
			rows += v
		case strings.HasPrefix(name, "drtmx_model_error_keys{index=entry,"):
			keys += v
		case strings.HasPrefix(name, "drtmx_model_trained_keys{index=entry,"):
			trained += v
		}
	}
	if rows != 32 || keys != trained || keys == 0 {
		t.Errorf("%v rows of entry, want 32; %v keys by error, want the %v trained", rows, keys, trained)
	}
	n, open := r.meter.Counters()
	if n.RPCs == 0 || n.Reads == 0 || open == 0 || got[`drtmx_client_fabric_verbs_total{op=read,provider=inproc}`] > float64(n.Reads) {
		t.Errorf("the meter counts %+v on %d connections, the metrics say %v", n, open, got)
	}
}

// trainedKeys is how many keys models know: training follows in the background.
func trainedKeys(r *rig) (n uint64) {
	for _, s := range r.cluster.Servers {
		for _, ix := range s.Stats().Indexes {
			n += ix.TrainedKeys
		}
	}
	return n
}

// Counters only grow, whatever happens between scrapes, and no scrape sees half
// of a transaction's counters.
func TestScrapesBesideTransactions(t *testing.T) {
	r := newRig(t)
	r.work(8)
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for k := uint64(0); !done.Load(); k = (k + 1) % 8 {
			if err := r.client.Update(t.Context(), func(x *txn.Txn) error { return x.Update(r.table, tables.Num(k), r.table.NewRow()) }); err != nil {
				t.Error(err)
				return
			}
			if k == 0 {
				r.run()
			}
		}
	})
	counters := map[string]bool{}
	for _, f := range families {
		counters[f.Name] = f.Kind == Counter
	}
	last := map[string]float64{}
	const commits = `drtmx_partition_commits_total{partition=0,server=0}`
	for n, begun := 0, time.Now(); n < 4 || last[commits] == 0 && time.Since(begun) < testseed.Patience(); n++ {
		now := r.gather()
		for name, v := range now {
			family, _, _ := strings.Cut(name, "{")
			if counters[family] && (v < last[name] || math.IsNaN(v)) {
				t.Errorf("%s went from %v to %v", name, last[name], v)
			}
		}
		last = now
		time.Sleep(SampleInterval)
	}
	done.Store(true)
	wg.Wait()
	if last[commits] == 0 {
		t.Error("nothing committed")
	}
}

// A meter agrees with its connections, before and after they are closed.
func TestMeterIsExact(t *testing.T) {
	net := inproc.New(inproc.Options{})
	e, err := net.Listen("a", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Serve(func(q *rdma.Request) { _ = q.Reply(q.Body) }); err != nil {
		t.Fatal(err)
	}
	var m Meter
	dial := m.Dial(net.Dial)
	if _, err := dial(t.Context(), "nobody"); err == nil {
		t.Fatal("dialled nobody")
	}
	var sum rdma.Counters
	var conns []rdma.Conn
	for i := range 3 {
		c, err := dial(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for range i + 1 {
			if _, err := rdma.Call(t.Context(), c, []byte("hello"), nil); err != nil {
				t.Fatal(err)
			}
		}
		var b rdma.Batch
		b.Read(7, 0, make([]uint64, 1)) // no such region
		_ = rdma.Do(t.Context(), c, &b)
		conns = append(conns, c)
		sum = sum.Add(c.Counters())
	}
	check := func(when string, open int) {
		t.Helper()
		if got, n := m.Counters(); got != sum || n != open {
			t.Errorf("%s: %+v on %d connections, want %+v on %d", when, got, n, sum, open)
		}
	}
	check("open", 3)
	if sum.Denied != 3 || sum.Faults != 3 || sum.RPCs != 6 {
		t.Errorf("connections count %+v", sum)
	}
	conns[0].Close()
	conns[0].Close()
	check("one closed", 2)
	for _, c := range conns {
		c.Close()
	}
	check("all closed", 0)
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestEndpoint(t *testing.T) {
	r := newRig(t)
	e, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	reg, err := NewRegistry(Build{Version: "1"}, r.collectors()[:2]...)
	if err != nil {
		t.Fatal(err)
	}
	e.Serve(reg, r.servers.Ready)
	base := "http://" + e.Addr()
	settle := func() { time.Sleep(SampleInterval + 10*time.Millisecond) }
	expect := func(path string, status int, text string) {
		t.Helper()
		if code, body := get(t, base+path); code != status || body != text+"\n" {
			t.Errorf("%s: %d %q, want %d %q", path, code, body, status, text)
		}
	}
	expect("/healthz", 200, "ok")
	expect("/readyz", 503, "not ready: data server 0: partition 0 is not loaded")
	if err := r.client.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle()
	expect("/readyz", 200, "ok")
	if code, body := get(t, base+"/metrics"); code != 200 ||
		!strings.Contains(body, `drtmx_server_ready{server="1"} 1`) || !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_cpu_seconds_total ") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	if code, _ := get(t, base+"/debug/pprof/"); code != 404 {
		t.Errorf("profiles beside metrics: status %d", code)
	}
	r.cluster.Servers[1].Close()
	settle()
	if code, body := get(t, base+"/readyz"); code != 503 || strings.Count(body, "\n") != 1 || !strings.HasPrefix(body, "not ready: data server 1: ") {
		t.Errorf("with a server gone: %d %q", code, body)
	}
	if _, body := get(t, base+"/metrics"); !strings.Contains(body, `drtmx_server_up{server="1"} 0`) ||
		strings.Contains(body, `drtmx_server_info{address="`+r.cluster.Servers[1].Addr()) {
		t.Error("a server that is gone still has metrics")
	}
	expect("/healthz", 200, "ok")
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get(base + "/healthz"); err == nil {
		t.Error("answers after Close")
	}
}

func TestReady(t *testing.T) {
	loaded := stats.Partition{Partition: 3, Loaded: true}
	fenced, empty := loaded, loaded
	fenced.Fenced, empty.Loaded = true, false
	for want, a := range map[string]sample{
		"":                          {stats: &stats.Server{Partitions: []stats.Partition{loaded, loaded}}},
		"partition 3 is fenced":     {stats: &stats.Server{Partitions: []stats.Partition{loaded, fenced}}},
		"partition 3 is not loaded": {stats: &stats.Server{Partitions: []stats.Partition{empty}}},
		"is stopping":               {stats: &stats.Server{Stopping: true, Partitions: []stats.Partition{loaded}}},
		context.Canceled.Error():    {err: context.Canceled},
	} {
		switch err := a.ready(); {
		case err == nil && want == "":
		case err == nil || err.Error() != want:
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Errors of several lines come in one.
func TestOneLine(t *testing.T) {
	w := httptest.NewRecorder()
	line(w, http.StatusServiceUnavailable, "a\nb\r\nc\n")
	if got := w.Body.String(); got != "a; b; c\n" || w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %q", w.Code, got)
	}
}

func TestNotReadyWhileStarting(t *testing.T) {
	s := NewServers(t.Context(), nil, func() []string { return nil })
	if err := s.Ready(); err == nil || err.Error() != "not ready: the data servers are starting" {
		t.Errorf("%v", err)
	}
	s.Recovering = func() []Recovering {
		return []Recovering{{Server: 1, Recovering: stats.Recovering{Phase: "log", Done: 2, Total: 5}}}
	}
	if err := s.Ready(); err == nil || err.Error() != "not ready: data server 1 recovers: log, 40 %" {
		t.Errorf("a server that recovers: %v", err)
	}
	if got := testutil.CollectAndCount(s, "drtmx_recovering_ratio"); got != 1 {
		t.Errorf("%d progresses of recoveries, want 1", got)
	}
}

// A silent server costs a scrape AskTimeout and is named.
func TestSilentServer(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	dial := func(asked context.Context, addr string) (rdma.Conn, error) {
		cancel()
		<-asked.Done()
		if err := asked.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("the end of the context was not heard: %v", err)
		}
		return nil, asked.Err()
	}
	s := NewServers(ctx, dial, func() []string { return []string{r.cluster.Servers[0].Addr()} })
	if err := s.Ready(); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

func TestBadAddresses(t *testing.T) {
	taken, err := Listen("127.0.0.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for addr, want := range map[string]string{
		"": "want host:port", "9464": "want host:port", "127.0.0.1": "want host:port", "127.0.0.1:": "want host:port",
		"127.0.0.1:http": "want host:port", "127.0.0.1:99999": "want host:port", "127.0.0.1:-1": "want host:port",
		"192.0.2.1:9464": "that is free", taken.Addr(): "that is free", "no.such.host.invalid:1": "that is free",
	} {
		if _, err := Listen(addr, false); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", addr)) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	for _, addr := range []string{":6060", "0.0.0.0:6060", "[::]:6060", "192.168.1.1:6060", "example.com:6060"} {
		if _, err := Listen(addr, true); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%q for profiles: %v", addr, err)
		}
	}
}

func TestProfiles(t *testing.T) {
	socket := fmt.Sprintf("@drtmx-test-%d", time.Now().UnixNano())
	l := listenUnix(t, socket)
	served := make(chan struct{})
	go func() { defer close(served); ServeProfiles(l) }()
	e, err := Listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	e.ServePprof([]string{socket, socket + "-nobody"})
	base := "http://" + e.Addr()
	for path, want := range map[string]int{
		"/debug/pprof/": 200, "/debug/pprof/goroutine?debug=1": 200, "/servers/0/debug/pprof/goroutine?debug=1": 200,
		"/servers/1/debug/pprof/heap": 502, "/servers/2/debug/pprof/heap": 404, "/": 200, "/metrics": 404,
	} {
		if code, body := get(t, base+path); code != want {
			t.Errorf("%s: status %d, want %d: %s", path, code, want, body)
		}
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/debug/pprof/", nil)
	req.Host = "elsewhere.example"
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a request that names another host: status %d", resp.StatusCode)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	l.Close()
	<-served
}

// Connections are bounded: those above the bound wait.
func TestConnectionsAreBounded(t *testing.T) {
	l := newLimited(listenUnix(t, fmt.Sprintf("@drtmx-test-%d", time.Now().UnixNano())), 1)
	dial := func() io.Closer { return dialUnix(t, l.Addr().String()) }
	a, b := dial(), dial()
	defer a.Close()
	defer b.Close()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			c.Close()
		}
		second <- err
	}()
	select {
	case <-second:
		t.Error("a second connection was accepted beside the first")
	case <-time.After(20 * time.Millisecond):
	}
	first.Close()
	first.Close() // gives back one slot, not two
	if err := <-second; err != nil {
		t.Error(err)
	}
	l.Close()
	if _, err := l.Accept(); err == nil {
		t.Error("accepted after Close")
	}
}

func TestBucketsAgreeWithTheHistogram(t *testing.T) {
	h := hist.New()
	for _, d := range latencies {
		h.Record(d)
	}
	all := buckets(h)
	bounds := slices.Sorted(maps.Keys(all))
	for _, b := range bounds {
		want := uint64(0)
		for _, d := range latencies {
			if d.Seconds() <= b {
				want++
			}
		}
		if all[b] != want {
			t.Errorf("%v s: %d, want %d", b, all[b], want)
		}
	}
	if len(bounds) != 24 || bounds[0] != 1e-6 || bounds[23] != 50 {
		t.Errorf("bounds %v", bounds)
	}
}

// TestBoundsAreShort: the bounds of buckets print as 5e-06, not as
// 4.9999999999999996e-06.
func TestBoundsAreShort(t *testing.T) {
	for _, b := range latencyBounds {
		if text := strconv.FormatFloat(b, 'g', -1, 64); len(text) > 6 {
			t.Errorf("bound %s", text)
		}
	}
}
