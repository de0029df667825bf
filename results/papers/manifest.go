package main

import (
	"fmt"
	"strings"
)

// figure is a figure or a table of a paper's evaluation.
type figure struct {
	paper, name string
	says        string // the paper's headline
	x           string // if the runs are points of curves: what they differ in
	slow        bool   // left out if quick
	runs        []run
	// missing says why there is no counterpart, if there is none.
	missing string
	// differs explains by counts what is different here, if much is.
	differs string
}

// run is a command whose ratios stand for a figure's.
type run struct {
	what    string
	at      float64 // on the axis x
	args    []string
	read    func(out []byte) (values, error)
	ratios  []ratio
	quickly []string // arguments that replace those of the same name if quick
}

// ratio is one measured value through another, or the value itself if den is empty, and what the
// paper has for it.
type ratio struct {
	name, num, den string
	paper          string
}

const records = 200000

// y is a comparison of engines with a workload of YCSB on modelled machines with 64 clients. Further
// arguments are those of go-ycsb compare; keys are spread, so that inserts do not all meet.
func y(what, workload, engines string, ratios []ratio, more ...string) run {
	args := []string{
		"bin/go-ycsb", "compare", "drtmx", "-P", "ycsb/workloads/workload" + workload, "-p", fmt.Sprintf("recordcount=%d", records),
		"-p", "drtmx.keys=spread", "-p", "drtmx.servers=1", "--engines", engines, "--node", "weak", "--clients", "64",
		"--repeat", "3", "--warmup", "1s", "--duration", "3s", "--json", "-",
	}
	return run{
		what: what, args: override(args, more), read: compared, ratios: ratios,
		quickly: []string{"--repeat", "1", "--duration", "1s", "-p", "recordcount=50000"},
	}
}

// override replaces flags, and properties by name, and appends what is new.
func override(args, more []string) []string {
	args = append([]string(nil), args...)
	name := func(flag, value string) string {
		if flag == "-p" {
			value, _, _ = strings.Cut(value, "=")
			return flag + value
		}
		return flag
	}
next:
	for i := 0; i+1 < len(more); i += 2 {
		for j := 0; j+1 < len(args); j++ {
			if args[j] == more[i] && name(args[j], args[j+1]) == name(more[i], more[i+1]) {
				args[j+1] = more[i+1]
				continue next
			}
		}
		args = append(args, more[i], more[i+1])
	}
	return args
}

// command returns the command of a run.
func (r *run) command(quick bool) []string {
	if quick {
		return override(r.args, r.quickly)
	}
	return r.args
}

// modelled reports whether the run's rates are those of modelled machines.
func (r *run) modelled() bool { return strings.Contains(strings.Join(r.args, " "), "--node ") }

// rate is the ratio of two engines' throughputs.
func rate(engine, rival, paper string) ratio { return rateAt(engine, rival, 64, paper) }

func rateAt(engine, rival string, clients int, paper string) ratio {
	return ratio{engine + " ÷ " + rival, fmt.Sprintf("%s@%d ops", engine, clients), fmt.Sprintf("%s@%d ops", rival, clients), paper}
}

// latency is the ratio of two engines' medians for one kind of operation.
func latency(kind, engine, rival string, clients int, paper string) ratio {
	return ratio{
		fmt.Sprintf("%s ÷ %s, p50 of %s", engine, rival, kind),
		fmt.Sprintf("%s@%d %s p50", engine, clients, kind), fmt.Sprintf("%s@%d %s p50", rival, clients, kind), paper,
	}
}

// b is a Go benchmark.
func b(what, pkg, pattern string, ratios []ratio, more ...string) run {
	args := append([]string{"go", "test", "-run", "^$", "-bench", pattern, "-timeout", "30m"}, more...)
	return run{what: what, args: append(args, pkg), read: benchmarked, ratios: ratios}
}

// predicted is the time and memory of predictions of leaves, beside the inner nodes of the same tree.
func predicted(what, keys string) run {
	at := func(metric string) string { return keys + "/rmi " + metric }
	r := b(what, "./index/learned/read", "Predict", []ratio{
		{"inner nodes ÷ models, time to find a leaf", at("ns/descend"), at("ns/predict"), "6.1"},
		{"translation tables, % of the bytes of inner nodes", at("TT-%inner"), "", "15"},
		{"models, % of the bytes of inner nodes", at("models-%inner"), "", "1"},
	}, "-benchtime", "20x")
	r.args = append([]string{"env", "LEARNED_KEYS=1000000"}, r.args...)
	return r
}

// inserts makes a workload one of inserts alone.
var inserts = []string{"-p", "readproportion=0", "-p", "insertproportion=1", "--warmup", "10s", "--duration", "6s"}

// writes is a run with a share of updates, in percent.
func writes(percent int, engines string, ratios []ratio) run {
	r := y(fmt.Sprintf("%d %% updates, evenly chosen", percent), "a", engines, ratios, "-p", fmt.Sprintf("readproportion=%.2f", 1-float64(percent)/100),
		"-p", fmt.Sprintf("updateproportion=%.2f", float64(percent)/100), "-p", "requestdistribution=uniform")
	r.at = float64(percent)
	return r
}

// hotspot is a run of updates of which nearly all go to a share of the records.
func hotspot(share string, at float64, engines string, ratios []ratio) run {
	r := y("updates of "+share+" of the records", "a", engines, ratios, "-p", "readproportion=0", "-p", "updateproportion=1", "-p", "requestdistribution=hotspot",
		"-p", "hotspotdatafraction="+share, "-p", "hotspotopnfraction=0.99")
	r.at = at
	return r
}

// cores is YCSB A with other machines.
func cores(n int, engines string, ratios []ratio) run {
	r := y(fmt.Sprintf("A, %d cores", n), "a", engines, ratios, "--node", fmt.Sprintf("cores=%d", n))
	r.at = float64(n)
	return r
}

var manifest = []figure{
	{
		paper: "XStore", name: "2a-c", says: "RPC 24, traversal by READs 14.5 with the upper levels cached, the whole index cached 78 M lookups a second",
		runs:    []run{y("C", "c", "fullcache,rpc,treecache", []ratio{rate("fullcache", "rpc", "3.3"), rate("treecache", "rpc", "0.60")})},
		differs: "A modelled server of one core is sooner the bound of RPCs than the paper's.",
	},
	{
		paper: "XStore", name: "2d", says: "with the whole index cached, a lookup by one client takes 80 % more than an RPC",
		runs:    []run{y("C, one client", "c", "fullcache,rpc", []ratio{latency("READ", "fullcache", "rpc", 1, "1.8")}, "--clients", "1")},
		differs: "Here a lookup of the whole index has two rounds for the row and one that proves it; the RPC is proved by a READ, too.",
	},
	{
		paper: "XStore", name: "2e, 11", says: "with 5 % inserts, 53 M operations a second, where the whole index cached has 25",
		runs: []run{y("D", "d", "xstore,fullcache", []ratio{rate("xstore", "fullcache", "2.1")})},
	},
	{
		paper: "XStore", name: "10", says: "C 3.9, 3.7 and 5.9 times EMT, DrTM-Tree and Cell; A up to 2.3, B 5.3, D 3.5, E 1.8 times EMT",
		runs: []run{
			y("C", "c", "xstore,rpc,treecache", []ratio{rate("xstore", "rpc", "3.9"), rate("xstore", "treecache", "5.9")}),
			y("A", "a", "xstore,rpc", []ratio{rate("xstore", "rpc", "≤ 2.3")}),
			y("B", "b", "xstore,rpc", []ratio{rate("xstore", "rpc", "≤ 5.3")}),
			y("D", "d", "xstore,rpc", []ratio{rate("xstore", "rpc", "≤ 3.5")}),
			y("E", "e", "xstore,rpc", []ratio{rate("xstore", "rpc", "≤ 1.8")}, "--duration", "4s", "--warmup", "4s"),
		},
	},
	{
		paper: "XStore", name: "12, 15a", slow: true,
		says: "a lookup takes 0.35 µs by models, 2.14 by inner nodes; of the bytes of inner nodes tables take 15 %, models 1 %",
		runs: []run{predicted("1,000,000 evenly drawn keys", "uniform"), predicted("1,000,000 clustered keys", "clustered")},
	},
	{
		paper: "XStore", name: "13a", says: "a mix of 57 % reads, 41 % updates and 2 % inserts, rows of 64 bytes: 1.4 to 1.6 times others",
		runs: []run{y("57:41:2, rows of 64 bytes", "a", "xstore,rpc", []ratio{rate("xstore", "rpc", "1.44")},
			"-p", "readproportion=0.57", "-p", "updateproportion=0.41", "-p", "insertproportion=0.02", "-p", "fieldcount=1", "-p", "fieldlength=64")},
	},
	{
		paper: "XStore", name: "15b-c", says: "with models alone 74 to 87 % of the throughput; with the router alone 40 M/s of 82",
		runs: []run{y("C", "c", "xstore,xstore+cache=models,xstore+cache=router", []ratio{rate("xstore+cache=models", "xstore", "0.74 to 0.87"), rate("xstore+cache=router", "xstore", "0.49")})},
	},
	{
		paper: "XStore", name: "16b", says: "TPC-C 2.27 times DrTM+H's",
		runs: []run{{
			what: "NEW-ORDER 10 %, ORDER-STATUS 90 %", read: transacted,
			args:    []string{"bin/drtmx", "tpcc", "compare", "--designs", "drtmx,drtmh", "--mix", "new-order=10,order-status=90", "--repeat", "3", "--duration", "3s", "--json", "-"},
			ratios:  []ratio{{"drtmx ÷ drtmh", "drtmx tps", "drtmh tps", "2.27"}},
			quickly: []string{"--repeat", "1", "--duration", "1s", "--warehouses", "2", "--servers", "2"},
		}},
	},
	{paper: "XStore", name: "13b", says: "two NICs 1.97, three 2.81", missing: "a modelled machine has one NIC"},
	{
		paper: "ROLEX", name: "14", says: "A 1.3, D 1.5 times XStore-D",
		runs: []run{
			y("A", "a", "rolex,xstore", []ratio{rate("rolex", "xstore", "1.3")}),
			y("B", "b", "rolex,xstore", []ratio{rate("rolex", "xstore", "above 1")}),
			y("D", "d", "rolex,xstore", []ratio{rate("rolex", "xstore", "1.5")}, "--warmup", "10s", "--duration", "6s"),
		},
		differs: "Rows of 1 KB are in the leaves, so a lookup READs 8.7 KB where the other READs 1.7; the paper's leaves have pointers.",
	},
	{
		paper: "ROLEX", name: "15", says: "inserts 4.3 times XStore-D's",
		runs: []run{y("inserts", "d", "rolex,xstore", []ratio{rate("rolex", "xstore", "4.3")}, inserts...)},
	},
	{
		paper: "ROLEX", name: "16", says: "the gain grows with the share of writes", x: "% updates",
		runs: []run{
			writes(0, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}), writes(50, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}),
			writes(100, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}),
		},
	},
	{
		paper: "ROLEX", name: "18", says: "writes of a few hot records collapse", x: "share of hot records, as 10^-x", slow: true,
		runs: []run{
			hotspot("0.0001", 4, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}), hotspot("0.01", 2, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}),
			hotspot("1", 0, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}),
		},
	},
	{
		paper: "ROLEX", name: "19", says: "a server wins from 20 memory cores on", x: "cores",
		runs: []run{
			cores(1, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}), cores(4, "rolex,xstore", []ratio{rate("rolex", "xstore", "")}),
			cores(16, "rolex,xstore", []ratio{rate("rolex", "xstore", "above 1")}),
		},
	},
	{paper: "ROLEX", name: "22", says: "coroutines 2.3 times, best with 8", missing: "a session batches the reads of a transaction instead; operations of several sessions share no thread"},
	{
		paper: "HStore", name: "2b", says: "lookups by RPC in a sorted index take three times as long as in a hash index",
		runs: []run{y("C, 32 clients", "c", "rpc,hash", []ratio{latency("READ", "rpc", "hash", 32, "3")}, "--clients", "32")},
	},
	{
		paper: "HStore", name: "7, 8", says: "writes 1.04 to 1.23 times those with a synchronous list; scans equal",
		runs: []run{
			y("inserts, two data servers", "d", "hstore,hash+twin=sync", []ratio{rate("hstore", "hash+twin=sync", "1.04 to 1.23")}, append(inserts, "-p", "drtmx.servers=2")...),
			y("E, two data servers", "e", "hstore,xstore", []ratio{rate("hstore", "xstore", "1.0")}, "-p", "drtmx.servers=2", "--duration", "4s"),
		},
		differs: "The synchronous twin here is a distributed transaction, which costs two partitions their prepare and decide.",
	},
	{
		paper: "HStore", name: "10", says: "lookups 1.4 to 1.6 times a sorted index's",
		runs: []run{y("C, two data servers", "c", "hstore,xstore", []ratio{rate("hstore", "xstore", "1.37 to 1.55")}, "-p", "drtmx.servers=2")},
	},
	{
		paper: "HStore", name: "11", says: "the list is built again in 1.7 times the time of the hash index", slow: true,
		runs: []run{b("200,000 rows, two data servers in one process", "./server", "Twins", []ratio{
			{"a local twin built beside writers ÷ the rows loaded", "build=local ns/row", "load=none ns/row", "1.7"},
			{"a twin of the next partition ÷ the rows loaded", "build=next ns/row", "load=none ns/row", ""},
			{"rows and local twin loaded ÷ the rows loaded", "load=local ns/row", "load=none ns/row", "2.6"},
		}, "-benchtime", "3x")},
		differs: "The twin is built by transactions of 64 keys, so that others may write meanwhile; the paper blocks them. A hash index is not built from its twin: it cannot be lost alone.",
	},
	{
		paper: "FineStore", name: "17", says: "C 2.4 times, writes up to 1.7 times the trees of others",
		runs: []run{
			y("C", "c", "finestore,rpc", []ratio{rate("finestore", "rpc", "2.4")}),
			y("A", "a", "finestore,rpc", []ratio{rate("finestore", "rpc", "≤ 1.7")}),
		},
	},
	{
		paper: "FineStore", name: "18, 19", says: "inserts 1.4 times XStore's, D 1.3",
		runs: []run{
			y("inserts", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "1.4")}, inserts...),
			y("D", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "1.3")}, "--warmup", "10s", "--duration", "6s"),
			y("C", "c", "finestore,xstore", []ratio{rate("finestore", "xstore", "")}),
		},
		differs: "An insert is one RPC in both, and its handler takes longer with a bin to make. Training, of which there is less, is in the background, and the model leaves it out: see 8, 9.",
	},
	{
		paper: "FineStore", name: "8, 9", says: "inserts 1.5 to 1.6 times a learned index with one buffer", slow: true,
		runs: []run{b("in one process, beside XStore's tree", "./index/finestore", "Engines", []ratio{
			{"time of a random insert, xstore ÷ finestore", "xstore/insert=random ns/op", "finestore/insert=random ns/op", ""},
			{"time of an ascending insert, xstore ÷ finestore", "xstore/insert=ascending ns/op", "finestore/insert=ascending ns/op", ""},
			{"time of training for a random insert, xstore ÷ finestore", "xstore/insert=random ns-training/op", "finestore/insert=random ns-training/op", ""},
			{"time of a lookup at the server, xstore ÷ finestore", "xstore/get=server ns/op", "finestore/get=server ns/op", ""},
			{"rounds of a lookup of a loaded key, xstore ÷ finestore", "xstore/get=loaded rounds/op", "finestore/get=loaded rounds/op", ""},
			{"rounds of a lookup of a later key, xstore ÷ finestore", "xstore/get=later rounds/op", "finestore/get=later rounds/op", ""},
			{"bytes of a scan of 100, xstore ÷ finestore", "xstore/scan=100 bytes/op", "finestore/scan=100 bytes/op", ""},
		}, "-benchtime", "200000x")},
		differs: "There is no index with one buffer here; the rival is XStore's tree.",
	},
	{paper: "FineStore", name: "20", says: "a barrier of read-copy-update beats remote locks", missing: "merges are made in place, so there is no barrier: docs/finestore.md"},
}
