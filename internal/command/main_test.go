package command

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cli"
	"drtmx/internal/mem"
	"drtmx/internal/member/etcd"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/rdma/shm"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
)

func drtmx() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) }

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"drtmx": drtmx,
		// A small machine.
		"drtmx-small": func() {
			machineBytes = func() uint64 { return 1 << 30 }
			drtmx()
		},
		// A machine without memory files.
		"drtmx-nomemfd": func() {
			newProvider = func(multi.Options, ...string) (rdma.Provider, error) {
				return nil, fmt.Errorf("%w: %w", rdma.ErrUnsupported, mem.ErrNoMemfd)
			}
			drtmx()
		},
	})
}

// haveShm reports whether data servers can be processes here. Under the race
// tag regions live on the Go heap, which no other process can map.
func haveShm() bool { return !testseed.Race && shm.Available() == nil }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOST", testaddr.Host()) // of the addresses of freeaddr
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "shm":
				return haveShm(), nil
			case "hosts":
				return haveHosts(), nil
			case "verbs":
				return haveVerbs(), nil
			case "soak":
				return testseed.Soaking(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"report":      checkReport,
			"full":        checkFull,
			"paced":       checkPaced,
			"series":      checkSeries,
			"open":        checkOpen,
			"ladder":      checkLadder,
			"hgrm":        checkPercentiles,
			"page":        checkPage,
			"hlog":        checkLog,
			"await":       awaitFile,
			"emptytemp":   emptyTemp,
			"oneline":     oneLine,
			"freeaddr":    freeAddr,
			"etcdanswers": etcdAnswers,
			"scrape":      scrape,

			"verbsdevice": verbsDevice,
			"freeports":   freePorts,
			"mode600":     mode600,

			"hosts":        hosts,
			"hoststate":    hostState,
			"says":         says,
			"grown":        grown,
			"signalserver": signalServer,
			"status":       checkStatus,
			"synced":       copiesInSync,
			"home":         allAtHome,
			"moved":        checkMoved,
			"mode700":      mode700,
			"substitute":   substitute,
		},
	})
}

// await PATH waits until a file or directory exists, or with ! until it does not. The
// process that a file of a process number names must be alive.
func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(2 * patience()); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		path := ts.MkAbs(args[0])
		if _, err := os.Lstat(path); (err == nil) != neg && (neg || runs(path)) {
			return
		}
	}
	ts.Fatalf("%s: still %s after %v", args[0], map[bool]string{false: "absent", true: "there"}[neg], 2*patience())
}

// runs reports whether the process that a file names is alive, if the file is one of
// process numbers: a process that was killed leaves its file to the next one.
func runs(path string) bool {
	if filepath.Ext(path) != ".pid" {
		return true
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return err == nil && syscall.Kill(pid, 0) == nil
}

// emptytemp checks that nothing was left in the directory for temporary files.
func emptyTemp(ts *testscript.TestScript, _ bool, _ []string) {
	left, err := os.ReadDir(ts.Getenv("TMPDIR"))
	if err != nil && !os.IsNotExist(err) {
		ts.Fatalf("%v", err)
	}
	for _, e := range left {
		ts.Fatalf("left behind: %s", e.Name())
	}
}

// freeaddr NAME sets an environment variable to an address of the loopback
// interface that nobody listens on and no other script is given.
func freeAddr(ts *testscript.TestScript, _ bool, args []string) {
	addrs, err := testaddr.New(1)
	ts.Check(err)
	ts.Setenv(args[0], addrs[0])
}

// etcdanswers ADDR waits until etcd answers there.
func etcdAnswers(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience())
	defer cancel()
	for {
		s, err := etcd.Open(ctx, etcd.Options{Endpoints: args, Name: "nobody"})
		if err == nil {
			ts.Check(s.Close())
			return
		}
		if ctx.Err() != nil {
			ts.Fatalf("%v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// substitute FILE replaces the names of environment variables in a file.
func substitute(ts *testscript.TestScript, _ bool, args []string) {
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// scrape URL STATUS FILE [PATTERN...] asks until the answer has the status, and lines
// that match the patterns, for a while, and writes its body to a file.
func scrape(ts *testscript.TestScript, _ bool, args []string) {
	var body []byte
	lacks := func() string {
		for _, p := range args[3:] {
			if !regexp.MustCompile("(?m)" + p).Match(body) {
				return p
			}
		}
		return ""
	}
	var status string
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(patience()); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		resp, err := client.Get(args[0])
		if err != nil {
			status = err.Error()
			continue
		}
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		ts.Check(err)
		if status = strconv.Itoa(resp.StatusCode); status == args[1] && lacks() == "" {
			ts.Check(os.WriteFile(ts.MkAbs(args[2]), body, 0o600))
			return
		}
	}
	ts.Fatalf("%s: %s after %v, want %s and %q: %s", args[0], status, patience(), args[1], lacks(), body)
}

// oneline checks that standard error is one line, as every bad input gets, and
// names the program once.
func oneLine(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "drtmx: ") || strings.HasPrefix(text, "drtmx: drtmx") {
		ts.Fatalf("want one line that begins with drtmx:, once, got %q", text)
	}
}

// The names that scripts rely on.
var contract = []string{
	"workload", "design", "fabric", "warehouses", "servers", "clients", "duration_s", "throughput_tps",
	"new_order_per_min", "types", "server_cpu_s", "client_cpu_s", "rounds_per_txn", "reads_per_txn",
	"rpcs_per_txn", "read_bytes_per_txn", "fallbacks", "chases", "hash_chases", "model", "consistency",
	"durability", "seed", "version", "commit", "go", "load_s", "load_bytes_per_row",
	"mix", "warmup_s", "retries_per_txn", "skipped_deliveries", "delivery", "escalated_stock_levels", "compliance",
	"keying_think", "time_scale", "homes",
}

// report FILE [TYPE...] checks a JSON report: all names are there, and the
// figures of the named types (both by default) make sense.
func checkReport(ts *testscript.TestScript, _ bool, args []string) {
	types := args[1:]
	if len(types) == 0 {
		types = []string{"NEW_ORDER", "ORDER_STATUS"}
	}
	text := ts.ReadFile(args[0])
	var all map[string]json.RawMessage
	ts.Check(json.Unmarshal([]byte(text), &all))
	for _, name := range contract {
		if _, ok := all[name]; !ok {
			ts.Fatalf("the report has no %q", name)
		}
	}
	var r bench.Report
	ts.Check(json.Unmarshal([]byte(text), &r))
	sub := func(name string, want ...string) {
		var m map[string]json.RawMessage
		ts.Check(json.Unmarshal(all[name], &m))
		for _, w := range want {
			if _, ok := m[w]; !ok {
				ts.Fatalf("%s has no %q", name, w)
			}
		}
	}
	sub("model", "keys", "submodels", "model_bytes", "tt_bytes", "mean_error", "max_error")
	sub("compliance", "tpc_c", "why_not", "types")
	for _, of := range []string{"types", "retries_per_txn", "rounds_per_txn", "reads_per_txn", "rpcs_per_txn", "read_bytes_per_txn"} {
		sub(of, types...)
	}
	if len(r.Types) != len(types) || r.Workload != "tpcc" || r.Durability != "memory" || r.Throughput <= 0 || r.DurationS <= 0 {
		ts.Fatalf("report: %s", text)
	}
	for _, name := range types {
		t := r.Types[name]
		if t.Committed == 0 || t.P50 <= 0 || t.P50 > t.P90 || t.P90 > t.P95 || t.P95 > t.P99 || t.P99 > t.Max || r.Rounds[name]+r.RPCs[name] <= 0 {
			ts.Fatalf("%s: %+v, %v rounds, %v RPCs", name, t, r.Rounds[name], r.RPCs[name])
		}
	}
	for i := 1; i <= 12; i++ {
		if v := r.Consistency[fmt.Sprintf("3.3.2.%d", i)]; v != "ok" && (i != 11 || !tpcc.Passes(v)) {
			ts.Fatalf("condition 3.3.2.%d: %q", i, v)
		}
	}
	if !slices.Equal([]bool{r.CPUSeparable, r.ServerCPUS > 0}, []bool{r.Fabric != fabricInproc, r.Fabric != fabricInproc}) {
		ts.Fatalf("fabric %s: CPU separable %v, %v s of servers", r.Fabric, r.CPUSeparable, r.ServerCPUS)
	}
}

// readReport reads a JSON report.
func readReport(ts *testscript.TestScript, name string) (r bench.Report) {
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(name)), &r))
	return r
}

// full FILE checks what a report of the full mix says of the specification.
func checkFull(ts *testscript.TestScript, _ bool, args []string) {
	r := readReport(ts, args[0])
	if r.Mix != tpcc.MixFull || r.Compliance.TPCC || len(r.Compliance.Why) == 0 {
		ts.Fatalf("mix %q, compliance %+v", r.Mix, r.Compliance)
	}
	total := 0.0
	for _, ty := range tpcc.Types {
		t := r.Compliance.Terms[ty.String()]
		total += t.Percent
		// A short run on a busy machine may end within the first decks.
		of, all := tpcc.FullMix().Cards(ty)
		if want := 100 * float64(of) / float64(all); t.Percent < want-2 || t.Percent > want+2 || t.MixOK != (t.Percent >= ty.Terms().MinShare) {
			ts.Fatalf("%v: %+v, want %.2f %%", ty, t, want)
		}
		if !t.ResponseOK || t.MinPercent != ty.Terms().MinShare || t.P90S <= 0 || t.P90S > t.LimitS {
			ts.Fatalf("%v: %+v", ty, t)
		}
		sum := uint64(0)
		for _, n := range r.Types[ty.String()].Causes {
			sum += n
		}
		if sum != r.Types[ty.String()].Aborted {
			ts.Fatalf("%v: causes add up to %d, %d aborted", ty, sum, r.Types[ty.String()].Aborted)
		}
	}
	if total < 99.99 || total > 100.01 {
		ts.Fatalf("shares add up to %v", total)
	}
	d := r.Compliance.Terms["DELIVERY"]
	if deferred := r.Delivery.Mode == bench.DeliveryDeferred; deferred != (r.Delivery.Submitted > 0) || deferred != (d.DeferredP90S > 0) || deferred != d.DeferredOK {
		ts.Fatalf("delivery %+v, %+v", r.Delivery, d)
	}
}

// paced FILE SCALE checks that the rate is what keying and think times allow.
func checkPaced(ts *testscript.TestScript, _ bool, args []string) {
	r := readReport(ts, args[0])
	scale, err := strconv.ParseFloat(args[1], 64)
	ts.Check(err)
	cards, cycle := 0, 0.0
	for _, ty := range tpcc.Types {
		n, all := tpcc.FullMix().Cards(ty)
		cards = all
		cycle += float64(n) * (ty.Terms().Keying + ty.Terms().ThinkMean).Seconds()
	}
	// Transactions take time themselves, so less is right, too; more is not,
	// but for the think times being random.
	most := float64(r.Clients) * float64(cards) / (cycle * scale)
	if r.Throughput > 1.2*most || r.Throughput < 0.02*most {
		ts.Fatalf("%v per second, want up to %v", r.Throughput, most)
	}
}

// open FILE RATE checks the report of an open load without a warm-up: what ran, and
// what was due and did not run, are what the rate says.
func checkOpen(ts *testscript.TestScript, _ bool, args []string) {
	r := readReport(ts, args[0])
	rate, err := strconv.ParseFloat(args[1], 64)
	ts.Check(err)
	// The number of random arrivals varies, and each client may have begun one more.
	ran, due := r.Finished(), rate*(r.DurationS-r.BehindS)
	if r.Rate != rate || math.Abs(ran-due) > 0.5*ran+float64(r.Clients) {
		ts.Fatalf("rate %v: %v in %v s, of which the last %v s were not begun; want %v", r.Rate, ran, r.DurationS, r.BehindS, due)
	}
	for name, t := range r.Types {
		if s := t.Service; s == nil || s.P50 <= 0 || s.P50 > t.P50 || s.Mean > t.Mean || s.Max > t.Max {
			ts.Fatalf("%s: %+v since due, %+v since begun", name, t, t.Service)
		}
	}
}

// series FILE REPORT checks that a time series adds up to the report.
func checkSeries(ts *testscript.TestScript, _ bool, args []string) {
	r := readReport(ts, args[1])
	text := ts.ReadFile(args[0])
	committed, points, lasted := map[string]uint64{}, 0, map[string]float64{}
	if strings.HasSuffix(args[0], ".csv") {
		rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
		ts.Check(err)
		for _, row := range rows[1:] {
			n, err := strconv.ParseUint(row[3], 10, 64)
			ts.Check(err)
			committed[row[2]] += n
			s, err := strconv.ParseFloat(row[1], 64)
			ts.Check(err)
			lasted[row[2]] += s
			points++
		}
		points /= len(committed)
	} else {
		for line := range strings.Lines(text) {
			var p struct {
				Interval float64 `json:"interval_s"`
				Types    map[string]struct {
					Committed uint64 `json:"committed"`
				} `json:"types"`
			}
			ts.Check(json.Unmarshal([]byte(line), &p))
			for name, t := range p.Types {
				committed[name] += t.Committed
				lasted[name] += p.Interval
			}
			points++
		}
	}
	for name, t := range r.Types {
		if committed[name] != t.Committed {
			ts.Fatalf("%s: the series adds up to %d, the report has %d", name, committed[name], t.Committed)
		}
		if math.Abs(lasted[name]-r.DurationS) > 0.001*float64(points+1) {
			ts.Fatalf("%s: the intervals add up to %v s, the run took %v", name, lasted[name], r.DurationS)
		}
	}
	if points < 2 {
		ts.Fatalf("%d points", points)
	}
}

func TestJSONFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(path, []byte(strings.Repeat("old ", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := cli.OpenJSON(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); len(b) != 40000 {
		t.Error("opening the report has changed the file")
	}
	if err := j.Put(&bench.Report{Workload: "tpcc"}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	var r bench.Report
	if err := json.Unmarshal(b, &r); err != nil || r.Workload != "tpcc" {
		t.Errorf("%v in %q", err, b)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234"} {
		if got := cli.Number(v); got != want {
			t.Errorf("cli.Number(%v) = %s, want %s", v, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 30: "5.0 GiB"} {
		if got := cli.BytesText(n); got != want {
			t.Errorf("cli.BytesText(%d) = %s, want %s", n, got, want)
		}
	}
}
