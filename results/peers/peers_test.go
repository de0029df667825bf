package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files writes a directory of raw output.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const (
	header = "***************** properties *****************\n"
	// A load and a run of F with its read-modify-writes made of two operations.
	outputF = header + `INSERT - Takes(s): 0.1, Count: 1000, OPS: 24098.3, Avg(us): 232, 99th(us): 7372
TOTAL  - Takes(s): 0.1, Count: 1000, OPS: 24098.3, Avg(us): 232, 99th(us): 7372
` + header + `READ/service - Takes(s): 1.0, Count: 300, OPS: 300.0, Avg(us): 2.5, 99th(us): 8.123
READ_MODIFY_WRITE/service - Takes(s): 1.0, Count: 100, OPS: 100.0, Avg(us): 2.5, 99th(us): 9.5
Run finished, takes 1s
READ   - Takes(s): 1.0, Count: 300, OPS: 300.0, Avg(us): 2, 99th(us): 8
READ_MODIFY_WRITE - Takes(s): 1.0, Count: 100, OPS: 100.0, Avg(us): 2, 99th(us): 9
TOTAL  - Takes(s): 1.0, Count: 400, OPS: 401.0, Avg(us): 2, 99th(us): 9
UPDATE - Takes(s): 1.0, Count: 100, OPS: 100.0, Avg(us): 2, 99th(us): 9
`
)

func TestMeasureCountsAReadModifyWriteOnce(t *testing.T) {
	dir := files(t, map[string]string{"f.out": outputF})
	m := measure(dir, entry{kind: "ycsb", workload: "f", system: ours, serverOps: -1, file: "f"}, 1000)
	if m.failed != "" || m.operations != 300 || m.perSecond != 401.0*300/400 {
		t.Errorf("got %+v, want 300 operations at 300.75 a second", m)
	}
	if m.p99Us["READ"] != 8.123 || m.p99Us["READ_MODIFY_WRITE"] != 9.5 {
		t.Errorf("p99 %v, want those of the fine report", m.p99Us)
	}
}

func TestMeasureReadsTPCC(t *testing.T) {
	var out strings.Builder
	for _, name := range kindsOf["full"] {
		out.WriteString("[Current] " + name + " - Takes(s): 1.0, Count: 1, TPM: 60.0, 99th(ms): 1.0\n")
		out.WriteString("[Summary] " + name + " - Takes(s): 2.0, Count: 100, TPM: 3000.0, Sum(ms): 1.0, 99th(ms): 1.5\n")
	}
	out.WriteString("tpmC: 3000.0, tpmTotal: 15000.0, efficiency: 1%\n")
	dir := files(t, map[string]string{"t.out": out.String()})
	e := entry{kind: "tpcc", workload: "full", system: "postgres", serverOps: 199, file: "t"}
	m := measure(dir, e, 1000)
	if m.failed != "" || m.operations != 500 || m.perSecond != 250 || m.p99Us["NEW_ORDER"] != 1500 {
		t.Errorf("got %+v, want 500 transactions at 250 a second, p99 1500 µs", m)
	}
	e.serverOps = 150
	if m := measure(dir, e, 1000); !strings.Contains(m.failed, "the server counted 150") {
		t.Errorf("orders and payments are missing: %q", m.failed)
	}
}

// TestMeasureFindsWhatWasNotDone breaks a good run in each way.
func TestMeasureFindsWhatWasNotDone(t *testing.T) {
	for _, c := range []struct {
		name, want string
		out, err   string
		change     func(*entry)
	}{
		{name: "exit status", want: "exit status 1: go-ycsb: no server", err: "go-ycsb: no server\n", change: func(e *entry) { e.status = 1 }},
		{name: "not run", want: "no package", err: "no package\n", change: func(e *entry) { e.status = -1 }},
		{name: "a long reason", want: "xx…", err: strings.Repeat("x", 500), change: func(e *entry) { e.status = -1 }},
		{name: "no output", want: "no READ took place", out: header},
		{name: "only reads", want: "no READ_MODIFY_WRITE took place", out: header + "READ - Takes(s): 1.0, Count: 3, OPS: 3.0\n"},
		{
			name: "failures", want: "2 operations failed: no route", err: "no route\n",
			out: outputF + "READ_ERROR - Takes(s): 1.0, Count: 2, OPS: 2.0\n",
		},
		{name: "conflicts of others", want: "2 operations failed", err: badgerConflict, out: outputF + "READ_ERROR - Takes(s): 1.0, Count: 2, OPS: 2.0\n"},
		{name: "too few at the server", want: "the server counted 299 operations, the client 300", change: func(e *entry) { e.serverOps = 299 }},
		{name: "errors at the server", want: "the server counted 1 errors", change: func(e *entry) { e.serverOps, e.serverErrors = 300, 1 }},
		{name: "records not loaded", want: "not all of 1001 records", change: func(e *entry) { e.threads = 1001 }},
		{name: "garbage", want: "is no number", out: "READ - Takes(s): x, Count: 1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.out == "" {
				c.out = outputF
			}
			dir := files(t, map[string]string{"f.out": c.out, "f.err": c.err})
			e := entry{kind: "ycsb", workload: "f", system: ours, threads: 1000, serverOps: -1, file: "f"}
			if c.change != nil {
				c.change(&e)
			}
			if m := measure(dir, e, int64(e.threads)); !strings.Contains(m.failed, c.want) {
				t.Errorf("failed %q, want %q in it", m.failed, c.want)
			}
		})
	}
}

func TestConflictsOfBadgerAreCountedBeside(t *testing.T) {
	dir := files(t, map[string]string{
		"f.out": outputF + "UPDATE_ERROR - Takes(s): 1.0, Count: 2, OPS: 2.0\n",
		"f.err": "go-ycsb: run: 2 operations failed, the first with: Transaction Conflict. Please retry\n",
	})
	m := measure(dir, entry{kind: "ycsb", workload: "f", system: "badger", serverOps: -1, file: "f"}, 1000)
	if m.failed != "" || m.operations != 300 || m.conflicts != 2 {
		t.Errorf("got %+v, want 300 operations and 2 conflicts", m)
	}
}

func TestReadIndexNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"ycsb\ta\t8\n": "index.tsv:1: 3 columns",
		"ycsb\ta\t8\t1\tdrtmx\tzero\t-1\t0\tycsb-a\n": "index.tsv:1: column 6 is \"zero\"",
	} {
		if _, err := readIndex(files(t, map[string]string{"index.tsv": text})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestTheHashIndexStandsInForTheOrderedOne(t *testing.T) {
	place := key{kind: "ycsb", workload: "a", threads: 8}
	c := &cells{m: map[key]*cell{}}
	if c.base(place) != ours {
		t.Error("without figures the base is not", ours)
	}
	set := func(system, failed string) { c.m[key{"ycsb", "a", 8, system}] = &cell{failed: failed} }
	set(oursHash, "")
	if c.base(place) != oursHash {
		t.Error("with figures of the hash index alone the base is", c.base(place))
	}
	set(ours, "")
	if c.base(place) != ours {
		t.Error("with figures of both the base is", c.base(place))
	}
	set(ours, "gone")
	if c.base(place) != oursHash {
		t.Error("with a failed ordered index the base is", c.base(place))
	}
}

func TestRatiosAreOfNeighbours(t *testing.T) {
	a := &cell{runs: map[int]measured{1: {perSecond: 10}, 2: {perSecond: 40}, 3: {perSecond: 90}}}
	b := &cell{runs: map[int]measured{1: {perSecond: 1}, 2: {perSecond: 2}, 3: {perSecond: 3}}}
	if r, ok := ratio(a, b, throughput); !ok || r != (spread{20, 10, 30}) {
		t.Errorf("got %v, want 20 (10 to 30)", r)
	}
	b.failed = "no server"
	if _, ok := ratio(a, b, throughput); ok {
		t.Error("a failed system has a ratio")
	}
}

// TestPage lays out a run in which one system reaches its aim, one misses it,
// and one failed.
func TestPage(t *testing.T) {
	rate := map[string]float64{ours: 100, "redis": 10, "badger": 200}
	var index []entry
	for rep := 1; rep <= 3; rep++ {
		for _, s := range []string{ours, "redis", "badger", "postgres"} {
			index = append(index, entry{kind: "ycsb", workload: "c", threads: 8, rep: rep, system: s})
		}
	}
	c := collect(index, func(e entry) measured {
		if e.system == "postgres" && e.rep == 2 {
			return measured{failed: "gone"}
		}
		return measured{operations: 5, perSecond: rate[e.system] * float64(e.rep), p99Us: map[string]float64{"READ": 1000 / (rate[e.system] + 1)}}
	})
	var b bytes.Buffer
	(&page{w: &b, facts: map[string]string{"redis": "Redis 7"}, cells: c}).write()
	for _, want := range []string{
		"| YCSB A, B, C, D, F at 8 threads ÷ Redis | ≥ 5 | C 10.0 | reached |",
		"| YCSB A to F at 8 threads ÷ badger | ≥ 1 | C 0.5 | **missed** C |",
		"| C | 10.0 | – | failed | – | 0.5 | – | – | – |",
		"| PostgreSQL, async | **failed**: gone |",
		"| Redis | 20.0 (10.0 to 30.0) | 10.0 | 90.9 | 0.11 | 15 |",
		"| drtmx | 200 (100 to 300) |  | 9.90 |  | 15 |",
		"| Redis | Redis 7 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %s in\n%s", want, b.String())
		}
	}
}
