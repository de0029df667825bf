package main

import (
	"fmt"
	"slices"
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

// here is the same on this machine, which is not modelled.
func here(what, workload, engines string, ratios []ratio, more ...string) run {
	r := y(what, workload, engines, ratios, more...)
	at := slices.Index(r.args, "--node")
	r.args = slices.Delete(r.args, at, at+2)
	return r
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

// predictions compares predictions of leaves with the inner nodes of the same tree: time and bytes,
// for keys of several distributions, which one run of the benchmark measures.
func predictions(n int, ratios func(keys string) []ratio, keys ...string) run {
	var all []ratio
	for _, k := range keys {
		all = append(all, ratios(k)...)
	}
	r := b(fmt.Sprintf("%d,000,000 keys", n/1_000_000), "./index/learned/read", "Predict", all, "-benchtime", "20x")
	r.args = append([]string{"env", fmt.Sprintf("LEARNED_KEYS=%d", n)}, r.args...)
	return r
}

// predicted are the ratios of predictions of one distribution.
func predicted(keys string) []ratio {
	at := func(metric string) string { return keys + "/rmi " + metric }
	return []ratio{
		{keys + " keys, inner nodes ÷ models, time to find a leaf", at("ns/descend"), at("ns/predict"), "6.1"},
		{keys + " keys, translation tables, % of the bytes of inner nodes", at("TT-%inner"), "", "15"},
		{keys + " keys, models, % of the bytes of inner nodes", at("models-%inner"), "", "1"},
	}
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

// rowsOf is YCSB C with rows of one field, apart from leaves and in them.
func rowsOf(bytes int) run {
	r := y(fmt.Sprintf("C, rows of %d bytes", bytes), "c", "xstore,rolex", []ratio{rate("xstore", "rolex", "")}, "-p", "fieldcount=1", "-p", fmt.Sprintf("fieldlength=%d", bytes))
	r.at = float64(bytes)
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
		runs: []run{
			y("C", "c", "fullcache,rpc,treecache", []ratio{rate("fullcache", "rpc", "3.3"), rate("treecache", "rpc", "0.60")}),
			y("C, 16 cores", "c", "fullcache,rpc,treecache", []ratio{rate("fullcache", "rpc", "3.3"), rate("treecache", "rpc", "0.60")}, "--node", "cores=16"),
		},
		differs: "One core serves an RPC in about 4 µs (engines.md), of which 1 is the model's and the rest its handler's; the paper's server has 24 cores for two NICs, and with 16 the order is the paper's here, too, but for the whole index.",
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
		differs: "What goes by RPC is bound by one core, and counts show how long it has it (engines.md): a lookup for 4 µs, a scan for 43, where a one-sided scan has the network for 58 KB. The paper's server has 24 cores for two NICs; of scans it says that their rows dominate.",
	},
	{
		paper: "XStore", name: "12, 15a", slow: true,
		says:    "a lookup takes 0.35 µs by models, 2.14 by inner nodes; of the bytes of inner nodes tables take 15 %, models 1 %",
		runs:    []run{predictions(10_000_000, predicted, "uniform", "clustered")},
		differs: "Inner nodes are packed, and are searched in this process's own memory. The more of them the processor's caches hold, the less models gain; the paper has ten times the keys.",
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
	{
		paper: "XStore", name: "13b", says: "two NICs 1.97, three 2.81 times one, with evenly chosen keys", slow: true,
		runs: []run{y("C, 192 clients, evenly chosen", "c", "xstore+servers=2,xstore+servers=3,xstore",
			[]ratio{rateAt("xstore+servers=2", "xstore", 192, "1.97"), rateAt("xstore+servers=3", "xstore", 192, "2.81")},
			"--clients", "192", "-p", "requestdistribution=uniform", "--node", "dilation=1500")},
	},
	{
		paper: "XStore", name: "14a", says: "a sub-model of 200 keys is trained in 8 µs", slow: true,
		runs: []run{b("200 evenly drawn keys", "./index/learned/model", "Retrain200", []ratio{
			{"ns for a sub-model, as the paper's models", "rmi ns/op", "", "8000"}, {"ns for a sub-model, as the default's", "plr ns/op", "", ""},
		}, "-benchtime", "20000x")},
	},
	{paper: "XStore", name: "14b", says: "at most inserts one thread that trains costs reads 40 %, two cost 13 %", missing: "the model of machines leaves training out, and this machine has two cores for everything"},
	{
		paper: "XStore", name: "14c", says: "an expansion of all models takes 4 s; 2 s later the throughput is back", slow: true,
		runs: []run{b("lookups by one client in one process", "./index/learned/read", "Expansion", []ratio{
			{"rate while all models are trained ÷ the rate before", "Expansion rate-during/before", "", ""},
			{"trainings of all models that ended meanwhile", "Expansion generations", "", ""},
		}, "-benchtime", "1000x")},
		differs: "The driver gives training at most a fifth of a core.",
	},
	{
		paper: "XStore", name: "15d-e", says: "OSM takes 20 M sub-models, where YCSB C takes 0.5 M; the latency at a low load stays", slow: true,
		runs: []run{
			predictions(1_000_000, func(keys string) []ratio {
				return []ratio{{keys + " keys in the first leaf, %", keys + "/rmi first-leaf-%", "", ""}}
			}, "uniform", "lognormal", "clustered"),
			y("C, one client: close keys and spread ones", "c", "xstore+keys=number,xstore",
				[]ratio{latency("READ", "xstore+keys=number", "xstore", 1, "1")}, "--clients", "1"),
		},
		differs: "A sub-model has the same number of leaves whatever its keys; its tables correct what lines miss.",
	},
	{paper: "XStore", name: "Table 3", says: "with a log A has 76 %, C all of the throughput", missing: "logs are written to real disks, and are compared in durability.md"},
	{
		paper: "XStore", name: "16a", says: "values apart from leaves cost 8 to 43 %, the less the larger they are", x: "bytes of a row",
		runs:    []run{rowsOf(8), rowsOf(64), rowsOf(1000)},
		differs: "Rows are always apart from the leaves of xstore; those of rolex have them, and lookups READ a whole leaf.",
	},
	{
		paper: "ROLEX", name: "1, 2", says: "with one core at the data servers learned models win reads, and writes by RPC lose to one-sided ones",
		runs: []run{
			y("C", "c", "rolex,rpc,xstore", []ratio{rate("rolex", "rpc", "above 1"), rate("rolex", "xstore", "")}),
			y("updates", "a", "rolex,rpc", []ratio{rate("rolex", "rpc", "above 1")}, "-p", "readproportion=0", "-p", "updateproportion=1"),
		},
	},
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
		paper: "ROLEX", name: "17", says: "reads above XStore-D's with every distribution of keys", slow: true,
		runs: []run{
			y("C, close keys", "c", "rolex,xstore", []ratio{rate("rolex", "xstore", "above 1")}, "-p", "drtmx.keys=number"),
			y("C, spread keys", "c", "rolex,xstore", []ratio{rate("rolex", "xstore", "above 1")}),
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
	{paper: "ROLEX", name: "20, 21a", says: "the bytes of an operation rise with the size of leaves and with the error of models", missing: "the slots of a leaf follow from the size of a row, and readers take the leaf that a table names, whatever the error of its line"},
	{
		paper: "ROLEX", name: "21b, 23", says: "a key is trained in 280 ns, and trained again in 190", slow: true,
		runs: []run{{
			what: "1,000,000 keys", read: benchmarked,
			args: []string{"env", "XMODEL_KEYS=1000000", "go", "test", "-run", "^$", "-bench", "Train$", "-benchtime", "3x", "-timeout", "30m", "./index/learned/model"},
			ratios: []ratio{
				{"ns for an evenly drawn key", "uniform/plr ns/key", "", "280"}, {"ns for a clustered key", "clustered/plr ns/key", "", "280"},
			},
		}},
		differs: "Training again is the same work for one sub-model: nothing of the old model is used.",
	},
	{
		paper: "ROLEX", name: "24, Table 1", says: "models have 1.6 % of the bytes of leaf tables", slow: true,
		runs: []run{predictions(1_000_000, func(keys string) []ratio {
			return []ratio{{keys + " keys, bytes of models ÷ of translation tables", keys + "/plr models-%inner", keys + "/plr TT-%inner", "0.016"}}
		}, "uniform", "lognormal")},
		differs: "Tables are packed, in about two bytes for a leaf.",
	},
	{paper: "ROLEX", name: "22", says: "coroutines 2.3 times, best with 8", missing: "a session batches the reads of a transaction instead; operations of several sessions share no thread"},
	{
		paper: "HStore", name: "2a", says: "a lookup by READs takes 3 to 10 accesses of a sorted index, about one of a hash index",
		runs: []run{y("C, one client that caches nothing", "c", "xstore+cache=tree=1,hash+locationcache=-1", []ratio{
			{"rounds of a lookup in a tree, its row and its proof among them", "xstore+cache=tree=1@1 READ rounds", "", ""},
			{"rounds of a lookup in a hash index, likewise", "hash+locationcache=-1@1 READ rounds", "", ""},
			{"tree ÷ hash, rounds", "xstore+cache=tree=1@1 READ rounds", "hash+locationcache=-1@1 READ rounds", "3 to 10"},
		}, "--clients", "1")},
	},
	{
		paper: "HStore", name: "2b", says: "lookups by RPC in a sorted index take three times as long as in a hash index",
		runs:    []run{y("C, 32 clients", "c", "rpc,hash", []ratio{latency("READ", "rpc", "hash", 32, "3")}, "--clients", "32")},
		differs: "Of 32 clients whose lookups are RPCs to one core, most wait in its queue.",
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
		paper: "HStore", name: "11a", says: "the list is built again in 1.7 times the time of the hash index", slow: true,
		runs: []run{b("200,000 rows, two data servers in one process", "./server", "Twins", []ratio{
			{"a local twin built ÷ the rows loaded", "build=local ns/row", "load=none ns/row", "1.7"},
			{"a twin of the next partition built ÷ the rows loaded", "build=next ns/row", "load=none ns/row", ""},
			{"rows and local twin loaded ÷ the rows loaded", "load=local ns/row", "load=none ns/row", "2.6"},
		}, "-benchtime", "3x")},
		differs: "The twin is built by transactions of 64 keys, so that others may write meanwhile; the paper blocks them. A hash index is not built from its twin: it cannot be lost alone.",
	},
	{
		paper: "HStore", name: "11b-c", says: "without its hash index a server has 8 to 46 % less throughput",
		runs: []run{
			y("inserts, without a twin and with one, two data servers", "d", "hash,hstore", []ratio{rate("hash", "hstore", "")}, append(inserts, "-p", "drtmx.servers=2")...),
			y("C, without a twin and with one, two data servers", "c", "hash,hstore", []ratio{rate("hash", "hstore", "")}, "-p", "drtmx.servers=2"),
		},
		differs: "A hash index cannot be lost alone, for the rows are with it. What can be missing is the twin: ranges are refused then. A table without one is partitioned by hashes of its keys, with one by ranges, so that the two differ in that, too.",
	},
	{
		paper: "HStore", name: "9", says: "half to two thirds of a write are spent in queues, a quarter in shipping; 96 % of a scan in reading values",
		runs: []run{b("inserts of 32 clients, two data servers in one process", "./server", "ShippedInserts", []ratio{
			{"% of an insert until its keys are in a message to the twin", "clients=32 wait-%", "", "50 to 66"},
			{"% of an insert until that is answered", "clients=32 shipping-%", "", "24"},
			{"likewise, of a single client, before", "clients=1 wait-%", "", ""},
			{"and until", "clients=1 shipping-%", "", ""},
		}, "-benchtime", "100000x")},
		differs: "The queues are not the same: the paper's is the one of the threads that process all writes, here it is the one of the keys for the twin, and waiting for the executor is in the rest. One measurement of each. Scans are not timed in parts.",
	},
	{
		paper: "FineStore", name: "3, Table 2", says: "a bound of 4 keys instead of 128 takes over 100 times the models", slow: true,
		runs: []run{{
			what: "1,000,000 keys", read: benchmarked,
			args: []string{"env", "XMODEL_KEYS=1000000", "go", "test", "-run", "^$", "-bench", "ErrorBound", "-benchtime", "1x", "-timeout", "30m", "./index/learned/model"},
			ratios: []ratio{
				{"lognormal keys, lines with errors up to 1 leaf ÷ 16 leaves", "lognormal/leaves=1 lines", "lognormal/leaves=16 lines", ""},
				{"clustered keys, lines with errors up to 1 leaf ÷ 16 leaves", "clustered/leaves=1 lines", "clustered/leaves=16 lines", ""},
			},
		}},
		differs: "Errors are counted in leaves, of 16 to 31 keys each, and a sub-model has one line at least.",
	},
	{
		paper: "FineStore", name: "17", says: "C 2.4 times, writes up to 1.7 times the trees of others",
		runs: []run{
			y("C", "c", "finestore,rpc", []ratio{rate("finestore", "rpc", "2.4")}),
			y("A", "a", "finestore,rpc", []ratio{rate("finestore", "rpc", "≤ 1.7")}),
		},
		differs: "As in XStore 2a-c, lookups by RPC are bound by one core.",
	},
	{
		paper: "FineStore", name: "18, 19", says: "inserts 1.4 times XStore's, D 1.3",
		runs: []run{
			y("inserts", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "1.4")}, inserts...),
			y("D", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "1.3")}, "--warmup", "10s", "--duration", "6s"),
			here("D, not modelled", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "")}, "--duration", "6s"),
			y("C", "c", "finestore,xstore", []ratio{rate("finestore", "xstore", "")}),
		},
		differs: "An insert is one RPC in both, and its handler takes longer with a bin to make. Training, of which there is less, is in the background, and the model leaves it out: see 8, 9. The model stretches time, so that its node performs some hundred inserts in a run of D, and between two of them the clients use the same processors for milliseconds. What handlers take for such an insert varies from run to run, and the ratio of D with it: the ranges above show how much less it does without the model.",
	},
	{
		paper: "FineStore", name: "4, 8, 9, 12b-d", slow: true,
		says: "inserts 1.6 times LI+Δ's and 1.3 times XIndex's; bins have 1.8 times the inserts, 2.1 the lookups and 3.2 the scans of a buffer",
		runs: []run{b("in one process", "./index/finestore", "Engines", []ratio{
			{"time of a random insert, LI+Δ ÷ finestore", "delta-model/insert=random ns/op", "finestore/insert=random ns/op", "1.6"},
			{"time of a random insert, XIndex ÷ finestore", "xindex-model/insert=random ns/op", "finestore/insert=random ns/op", "1.3"},
			{"time of a random insert, xstore ÷ finestore", "xstore/insert=random ns/op", "finestore/insert=random ns/op", ""},
			{"time of an ascending insert, LI+Δ ÷ finestore", "delta-model/insert=ascending ns/op", "finestore/insert=ascending ns/op", ""},
			{"time of an ascending insert, XIndex ÷ finestore", "xindex-model/insert=ascending ns/op", "finestore/insert=ascending ns/op", ""},
			{"time of an ascending insert, xstore ÷ finestore", "xstore/insert=ascending ns/op", "finestore/insert=ascending ns/op", ""},
			{"rows copied by merges for a random insert, LI+Δ ÷ finestore", "delta-model/insert=random copied/op", "finestore/insert=random copied/op", ""},
			{"time of training for a random insert, xstore ÷ finestore", "xstore/insert=random ns-training/op", "finestore/insert=random ns-training/op", ""},
			{"time of a random insert, one buffer ÷ finestore", "delta-one/insert=random ns/op", "finestore/insert=random ns/op", "1.8"},
			{"time of a lookup of a later key, one buffer ÷ finestore", "delta-one/get=server-later ns/op", "finestore/get=server-later ns/op", "2.1"},
			{"time of a scan, one buffer ÷ finestore", "delta-one/scan=server ns/op", "finestore/scan=server ns/op", "3.2"},
			{"time of a lookup at the server, LI+Δ ÷ finestore", "delta-model/get=server ns/op", "finestore/get=server ns/op", ""},
			{"time of a lookup at the server, xstore ÷ finestore", "xstore/get=server ns/op", "finestore/get=server ns/op", ""},
			{"time of a scan at the server, LI+Δ ÷ finestore", "delta-model/scan=server ns/op", "finestore/scan=server ns/op", ""},
			{"rounds of a lookup of a loaded key, xstore ÷ finestore", "xstore/get=loaded rounds/op", "finestore/get=loaded rounds/op", ""},
			{"rounds of a lookup of a later key, xstore ÷ finestore", "xstore/get=later rounds/op", "finestore/get=later rounds/op", ""},
			{"bytes of a scan of 100, xstore ÷ finestore", "xstore/scan=100 bytes/op", "finestore/scan=100 bytes/op", ""},
		}, "-benchtime", "200000x")},
		differs: "LI+Δ and XIndex are written after the paper, for this comparison: rows, arrays and trainer are FineStore's; 64 arrays share an ordered buffer of 256 rows. Nobody can READ them, so they write no gap words and no headers. Their merges copy ten rows for an insert. Here most inserts of random keys make the first bin of an interval, and a scan goes through as many bins as there are later keys; one goroutine writes, so that the paper's collisions of threads are left out.",
	},
	{
		paper: "FineStore", name: "10", says: "the most inserts and lookups with every distribution of keys", slow: true,
		runs: []run{
			y("inserts, close keys", "d", "finestore,xstore", []ratio{rate("finestore", "xstore", "above 1")}, append(inserts, "-p", "drtmx.keys=number")...),
			y("C, close keys", "c", "finestore,xstore", []ratio{rate("finestore", "xstore", "above 1")}, "-p", "drtmx.keys=number"),
		},
	},
	{
		paper: "FineStore", name: "11", says: "with small hot spots FineStore and XIndex are slow", slow: true,
		runs: []run{y("lookups of 0.01 of the records", "c", "finestore,xstore", []ratio{rate("finestore", "xstore", "")},
			"-p", "requestdistribution=hotspot", "-p", "hotspotdatafraction=0.01", "-p", "hotspotopnfraction=0.99")},
		differs: "Lookups alone: inserts of YCSB have no hot spot.",
	},
	{paper: "FineStore", name: "Table 1", says: "which systems have which properties", missing: "docs/finestore.md says in words what the engine has"},
	{paper: "FineStore", name: "12a, 12e", says: "without inserts its models are no faster than others; it trains less often", missing: "all engines here train the same models, and what training costs is in 4, 8, 9"},
	{paper: "FineStore", name: "13, 14", says: "it stays first with every share of reads; models are trained up to 8.9 times as fast as those of rivals", missing: "shares of reads are figures 17 to 19; all engines here train the same models, so that there are no two ways to compare"},
	{
		paper: "FineStore", name: "15, 16", says: "models have up to two orders of magnitude fewer bytes than inner nodes",
		runs:    []run{y("C", "c", "finestore,fullcache", []ratio{{"bytes that clients keep, fullcache ÷ finestore", "fullcache@64 cached", "finestore@64 cached", "≤ 100"}})},
		differs: "Models and tables are counted, as readers keep both.",
	},
	{
		paper: "FineStore", name: "21", says: "writes with an address that the client has READ beat those of clients alone and of servers alone",
		runs: []run{
			y("inserts", "d", "finestore+insert=client,finestore", []ratio{rate("finestore+insert=client", "finestore", "above 1")}, inserts...),
			y("updates", "a", "finestore+update=client,finestore", []ratio{rate("finestore+update=client", "finestore", "above 1")}, "-p", "readproportion=0", "-p", "updateproportion=1"),
		},
		differs: "The core of the data server is the bound of both, as the comparison prints. Updates by servers alone are procedures, which read and write at the data server. Writes by clients alone are left out: data servers apply all writes of this engine.",
	},
	{paper: "FineStore", name: "20", says: "a barrier of read-copy-update beats remote locks", missing: "merges are made in place, so there is no barrier: docs/finestore.md"},
}
