package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/tpcc"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"drtmx": main,
		// A machine without memory files.
		"drtmx-nomemfd": func() {
			shmAvailable = func() error { return fmt.Errorf("%w: %w", rdma.ErrUnsupported, mem.ErrNoMemfd) }
			main()
		},
	})
}

// haveShm reports whether data servers can be processes here. Under the race
// tag regions live on the Go heap, which no other process can map.
func haveShm() bool { return !raceEnabled && shmAvailable() == nil }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Condition: func(name string) (bool, error) {
			if name == "shm" {
				return haveShm(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"report":    checkReport,
			"await":     awaitFile,
			"emptytemp": emptyTemp,
			"oneline":   oneLine,
		},
	})
}

// await FILE waits until a file exists.
func awaitFile(ts *testscript.TestScript, neg bool, args []string) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); (err == nil) != neg {
			return
		}
	}
	ts.Fatalf("%s: still %s after 20 s", args[0], map[bool]string{false: "absent", true: "there"}[neg])
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

// oneline checks that standard error is one line, as every bad input gets.
func oneLine(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "drtmx: ") {
		ts.Fatalf("want one line that begins with drtmx:, got %q", text)
	}
}

// The names that scripts rely on.
var contract = []string{
	"workload", "design", "fabric", "warehouses", "servers", "clients", "duration_s", "throughput_tps",
	"new_order_per_min", "types", "server_cpu_s", "client_cpu_s", "rounds_per_txn", "reads_per_txn",
	"rpcs_per_txn", "read_bytes_per_txn", "fallbacks", "chases", "model", "consistency",
	"durability", "seed", "version", "commit", "go", "load_s", "load_bytes_per_row",
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
	var r report
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
	for _, of := range []string{"types", "rounds_per_txn", "reads_per_txn", "rpcs_per_txn", "read_bytes_per_txn"} {
		sub(of, types...)
	}
	if len(r.Types) != len(types) || r.Workload != "tpcc" || r.Durability != "in-memory" || r.Throughput <= 0 || r.DurationS <= 0 {
		ts.Fatalf("report: %s", text)
	}
	for _, name := range types {
		t := r.Types[name]
		if t.Committed == 0 || t.P50 <= 0 || t.P50 > t.P95 || t.P95 > t.P99 || r.Rounds[name]+r.RPCs[name] <= 0 {
			ts.Fatalf("%s: %+v, %v rounds, %v RPCs", name, t, r.Rounds[name], r.RPCs[name])
		}
	}
	for i := 1; i <= 12; i++ {
		if v := r.Consistency[fmt.Sprintf("3.3.2.%d", i)]; v != "ok" && (i != 11 || !tpcc.Passes(v)) {
			ts.Fatalf("condition 3.3.2.%d: %q", i, v)
		}
	}
	if !slices.Equal([]bool{r.CPUSeparable, r.ServerCPUS > 0}, []bool{r.Fabric == fabricShm, r.Fabric == fabricShm}) {
		ts.Fatalf("fabric %s: CPU separable %v, %v s of servers", r.Fabric, r.CPUSeparable, r.ServerCPUS)
	}
}

func TestJSONFileIsReplacedAsAWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(path, []byte(strings.Repeat("old ", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := openJSON(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(path); len(b) != 40000 {
		t.Error("opening the report has changed the file")
	}
	if err := j.write(&report{Workload: "tpcc"}); err != nil {
		t.Fatal(err)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	var r report
	if err := json.Unmarshal(b, &r); err != nil || r.Workload != "tpcc" {
		t.Errorf("%v in %q", err, b)
	}
}

func TestNumbersForPeople(t *testing.T) {
	for v, want := range map[float64]string{0: "0.00", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 30: "5.0 GiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("bytesText(%d) = %s, want %s", n, got, want)
		}
	}
}
