package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drtmx/ycsb/bench"
)

// compared runs a comparison in this process and returns its JSON.
func compared(t *testing.T, args ...string) comparison {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out.json")
	var stdout, stderr bytes.Buffer
	args = append([]string{"compare", "drtmx", "--warmup", "0s", "--duration", "0s", "--json", path, "-p", "workload=core"}, args...)
	if status := Main(args, nil, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d: %s", status, &stderr)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var c comparison
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestComparedCostsAreExact: what an operation costs with each engine is what its
// protocol says, whatever the number of clients. A record is a leaf and the row behind
// it: two rounds, and one in which the View validates them.
func TestComparedCostsAreExact(t *testing.T) {
	engines := []string{"xstore", "xstore+cache=decoded", "xstore+cache=models", "rpc", "hash+locationcache=-1"}
	c := compared(t, "--engines", strings.Join(engines, ","), "--clients", "1,3", "--repeat", "2", "--count", "900",
		"-p", "recordcount=2000", "-p", "readproportion=1", "-p", "updateproportion=0", "-p", "requestdistribution=uniform")
	want := map[string]kindCost{
		"xstore":                {Rounds: 2, Reads: 4}, // of the row, its leaf's gap and the partition's control words too
		"xstore+cache=decoded":  {Rounds: 2, Reads: 4},
		"xstore+cache=models":   {Rounds: 2.3}, // 3, but for leaves of which the client has learnt
		"rpc":                   {Rounds: 1, RPCs: 1},
		"hash+locationcache=-1": {Rounds: 2},
	}
	if len(c.Runs) != 2*2*len(engines) || len(c.Ratios) != 2*(len(engines)-1) || c.Records != 2000 {
		t.Fatalf("%d runs, %d ratios, %d records", len(c.Runs), len(c.Ratios), c.Records)
	}
	// A predicted leaf may be the neighbour, most of all before the models are trained.
	const slack = 0.5
	slackOf := map[string]float64{"xstore+cache=models": 0.7 + slack}
	for _, r := range c.Runs {
		k, w := r.Kinds["READ"], want[r.Engine]
		if r.Operations != 900 || k.Count != 900 || len(r.Kinds) != 1 || r.Failed > 0 {
			t.Errorf("%s: %d operations, %d READs, kinds %v", r.Engine, r.Operations, k.Count, r.Kinds)
		}
		if k.Rounds < w.Rounds || k.Rounds > w.Rounds+max(slack, slackOf[r.Engine]) || k.Proving != 1 || k.RPCs < w.RPCs || k.RPCs > w.RPCs+slack ||
			w.Reads > 0 && (k.Reads < w.Reads || k.Reads > w.Reads+slack) || k.Writes+k.Atomics > 0 {
			t.Errorf("%s, %d clients: %+v, want %+v", r.Engine, r.Clients, k, w)
		}
	}
}

// TestComparedTreesCountLevels: with all inner nodes cached a lookup costs the rounds of the
// learned cache; with none, one more for each level of the tree.
func TestComparedTreesCountLevels(t *testing.T) {
	c := compared(t, "--engines", "xstore,fullcache,treecache,xstore+cache=tree=1", "--clients", "2", "--repeat", "1", "--count", "900",
		"-p", "recordcount=20000", "-p", "readproportion=1", "-p", "updateproportion=0", "-p", "drtmx.keys=number", "-p", "requestdistribution=uniform")
	rounds := map[string]float64{}
	for _, r := range c.Runs {
		k := r.Kinds["READ"]
		rounds[r.Engine] = k.Rounds
		if k.Count != 900 || k.RPCs > 0.1 || k.Proving != 1 || r.Failed > 0 {
			t.Errorf("%s: %+v, %d failed", r.Engine, k, r.Failed)
		}
		if some := r.CacheBytes > 0; some != (r.Engine != "xstore+cache=tree=1") {
			t.Errorf("%s: %d bytes cached", r.Engine, r.CacheBytes)
		}
	}
	// A record of 1,000 bytes is apart from its leaf. Twenty thousand in two partitions have two
	// levels of inner nodes.
	for engine, want := range map[string]float64{"fullcache": 2, "treecache": 2, "xstore+cache=tree=1": 4} {
		if got := rounds[engine]; got < want || got > want+0.1 {
			t.Errorf("%s: %.2f rounds, want %.0f", engine, got, want)
		}
	}
}

// TestComparedInsertsLookFirst: an insert is one RPC, and drtmx.insert=client READs before it, or asks
// the server while models are not trained.
func TestComparedInsertsLookFirst(t *testing.T) {
	c := compared(t, "--engines", "finestore,finestore+insert=client,hash,hash+insert=client", "--clients", "2", "--repeat", "1", "--count", "200",
		"-p", "recordcount=2000", "-p", "readproportion=0", "-p", "updateproportion=0", "-p", "insertproportion=1", "-p", "drtmx.keys=number")
	for _, r := range c.Runs {
		k, looks := r.Kinds["INSERT"], strings.HasSuffix(r.Engine, "insert=client")
		if k.Count != 200 || k.RPCs < 1 || k.RPCs > 1.5 || looks != (k.Reads >= 1) || !looks && k.Reads > 0 {
			t.Errorf("%s: %+v", r.Engine, k)
		}
	}
}

// TestComparedScansAreValidated: a View that has read several leaves validates them, in a
// round that is counted apart.
func TestComparedScansAreValidated(t *testing.T) {
	c := compared(t, "--engines", "xstore,rpc", "--clients", "2", "--repeat", "1", "--count", "200",
		"-p", "recordcount=2000", "-p", "readproportion=0", "-p", "updateproportion=0", "-p", "scanproportion=1", "-p", "insertorder=ordered")
	for _, r := range c.Runs {
		k := r.Kinds["SCAN"]
		if k.Count != 200 || k.Proving < 0.5 || k.Proving > 1.5 || k.Rounds < 0.5 {
			t.Errorf("%s: %+v", r.Engine, k)
		}
	}
}

// TestComparedRunsBeginEqual: each run of a workload that inserts begins with the loaded
// records, so none inserts a key that is there.
func TestComparedRunsBeginEqual(t *testing.T) {
	c := compared(t, "--engines", "xstore,hash", "--clients", "1,4", "--repeat", "2", "--count", "400",
		"-p", "recordcount=500", "-p", "readproportion=0.5", "-p", "updateproportion=0", "-p", "insertproportion=0.5", "-p", "requestdistribution=latest")
	if len(c.Runs) != 8 {
		t.Fatalf("%d runs", len(c.Runs))
	}
	for _, r := range c.Runs {
		if r.Failed > 0 || r.Operations != 400 || r.Kinds["INSERT"].RPCs < 1 {
			t.Errorf("%s: %d failed with %s, %d operations, INSERT %+v", r.Engine, r.Failed, r.First, r.Operations, r.Kinds["INSERT"])
		}
	}
}

// A run in which no operation ended says so.
func TestComparedRunsMeasureSomething(t *testing.T) {
	if err := measured(&bench.Result{}); err == nil || !strings.Contains(err.Error(), "want a longer --duration") {
		t.Errorf("%v, want that no operation ended", err)
	}
}

func TestWindowOfInserts(t *testing.T) {
	for share, want := range map[float64]int64{1: insertsOfWindow, 0.5: 2 * insertsOfWindow, 0.05: operationsOfWindow, 1e-300: operationsOfWindow} {
		if n := windowOf(share); n != want {
			t.Errorf("%d operations with %v inserts, want %d", n, share, want)
		}
	}
}
