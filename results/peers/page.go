package main

import (
	"fmt"
	"io"
	"strings"
)

// system describes how a system was run.
type system struct {
	name, title string
	version     string // name of the fact that has it
	place       string
	durability  string
	isolation   string
}

var systems = []system{
	{
		ours, "drtmx", "commit", "ordered index; two data servers, child processes of the client; clients read the servers' shared memory, writes are messages",
		"none: in memory, a commit is in the memory of one server", "strictly serializable; read-modify-write is one transaction",
	},
	{oursHash, "drtmx, hash", "commit", "as drtmx, with a hash index, which has no scans", "none", "as drtmx"},
	{
		"redis", "Redis", "redis", "one server, Unix socket", "none: no AOF, no RDB",
		"single commands; read-modify-write is two",
	},
	{
		"redis-aof", "Redis, AOF", "redis", "one server, Unix socket", "appendonly yes, appendfsync everysec: a crash loses up to a second or two",
		"as Redis",
	},
	{
		"postgres", "PostgreSQL, async", "postgres", "one server, Unix socket, logged tables", "synchronous_commit=off, fsync=on: a crash loses up to three times wal_writer_delay (200 ms), nothing is torn",
		"read committed; read-modify-write is two transactions",
	},
	{
		"postgres-sync", "PostgreSQL, sync", "postgres", "as above", "synchronous_commit=on, fsync=on: a commit is on disk",
		"read committed",
	},
	{
		"badger", "badger", "badger", "library in the client, files", "SyncWrites=false: a crash of the machine loses what the kernel had not written",
		"serializable transactions; read-modify-write is two",
	},
	{"badger-sync", "badger, sync", "badger", "library in the client, files", "SyncWrites=true: a commit is on disk", "as badger"},
	{
		"bbolt", "bbolt", "bbolt", "library in the client, one file", "NoSync=true: a crash of the machine may lose the file",
		"serializable, one writer at a time; read-modify-write is two transactions",
	},
	{"bbolt-sync", "bbolt, sync", "bbolt", "library in the client, one file", "NoSync=false: a commit is on disk", "as bbolt"},
}

var workloadTitles = map[string]string{
	"a": "A: 50 % reads, 50 % updates, zipfian", "b": "B: 95 % reads, 5 % updates, zipfian", "c": "C: reads, zipfian",
	"d": "D: 95 % reads of the latest, 5 % inserts", "e": "E: 95 % scans of 1 to 100 records, 5 % inserts, zipfian",
	"f": "F: 50 % reads, 50 % read-modify-writes, zipfian",
}

// notScored gives the reason why a system has no run in a workload.
var notScored = map[string]string{
	"e " + oursHash: "not run: a hash index has no scans",
	"e redis":       "not scored: go-ycsb cannot scan Redis",
}

// page writes the page.
type page struct {
	w     io.Writer
	facts map[string]string
	cells *cells
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

func (p *page) row(cells ...string) { p.printf("| %s |\n", strings.Join(cells, " | ")) }

func (p *page) head(cells ...string) {
	p.row(cells...)
	p.printf("|%s\n", strings.Repeat("---|", len(cells)))
}

// fact returns the text of a fact, or that it is unknown.
func (p *page) fact(name string) string {
	if v := p.facts[name]; v != "" {
		return v
	}
	return "unknown"
}

func (p *page) write() {
	p.printf("# drtmx and its peers\n\nWritten by `results/peers.sh`. ")
	p.printf("Commit %s, %s; load average before: %s; %s s in all.\n\n", p.fact("commit"), p.fact("date"), p.fact("load"), p.fact("took"))
	p.printf("    %s\n\n", p.fact("command"))
	p.printf("Machine: %s; files on %s. Clients and servers share the processors.\n\n", p.fact("machine"), p.fact("filesystem"))
	p.systems()
	p.printf("%s\n", notComparable)
	p.aims()
	p.matrices()
	for _, place := range p.cells.places {
		p.place(place)
	}
	p.commands()
}

func (p *page) systems() {
	p.printf("## Systems\n\n")
	p.head("system", "version", "where it runs", "durability", "isolation")
	for _, s := range systems {
		v := p.fact(s.version)
		if s.version == "commit" {
			v = "commit " + v
		}
		p.row(s.title, v, s.place, s.durability, s.isolation)
	}
	p.printf("\nThe client of all systems is one go-ycsb binary, with the drivers of go-ycsb %s (%s) and drtmx's own; the driver of bolt is compiled with bbolt.",
		p.fact("go-ycsb"), p.fact("drivers"))
	if v := p.facts["go-tpc"]; v != "" {
		p.printf(" TPC-C on PostgreSQL: go-tpc %s.", v)
	}
	p.printf("\n\n")
}

const notComparable = `## What is not comparable

- drtmx keeps its data in memory only. The systems that write logs or files do more work for a
  commit; the table above has the details.
- Embedded libraries (badger, bbolt) answer in the caller's process. Redis and PostgreSQL are
  reached through a socket, with a system call and a wake-up on each side for each operation. drtmx
  is in between: its servers are separate processes, but its clients read their memory directly. The
  equivalent between machines is RDMA, which is not measured here.
- go-ycsb has one connection for each thread and one operation in flight on it. It uses no system's
  pipelining or batching.
- Isolation and atomicity differ as listed: only drtmx runs F's read-modify-write as one
  transaction.
- go-ycsb stores records in Redis as hashes and reads their fields. It cannot scan Redis, so Redis
  has no score in E.
- Modes that differ only in how writes become durable are not run in C, which has no writes.
- PostgreSQL checkpoints outside the measured intervals (checkpoint_timeout=1h, max_wal_size=16GB;
  shared_buffers=1GB), which is in its favour. Its tables are logged.
- badger is the version of 2018 for which go-ycsb's driver was written. The driver reuses its
  buffers for the next operation before they are committed, so several writing threads overwrite one
  another's records; this costs badger no time. (Reading the loaded records back shows it; records
  are therefore loaded with one thread.) The driver does not retry a transaction that conflicts with
  another. Such operations are counted separately and are not in the throughput.

`

// matrices are the ratios of throughput in one view for each thread count and
// index of drtmx.
func (p *page) matrices() {
	for _, base := range systems {
		for _, t := range p.threads() {
			if base.version == systems[0].version && p.ran(base.name, t) {
				p.matrix(base, t)
			}
		}
	}
}

// ran reports whether a system ran a workload of YCSB, failed or not.
func (p *page) ran(system string, threads int) bool {
	for w := range workloadTitles {
		if p.cells.at(key{kind: "ycsb", workload: w, threads: threads}, system) != nil {
			return true
		}
	}
	return false
}

func (p *page) matrix(base system, threads int) {
	p.printf("## YCSB, %s: throughput, %s ÷ the other\n\n", threadsText(threads), base.title)
	head := []string{"workload"}
	var others []system
	for _, s := range systems {
		if s.version != base.version {
			others, head = append(others, s), append(head, s.title)
		}
	}
	p.head(head...)
	for _, w := range strings.Split("abcdef", "") {
		place := key{kind: "ycsb", workload: w, threads: threads}
		over := p.cells.at(place, base.name)
		if over == nil {
			continue
		}
		row := []string{strings.ToUpper(w)}
		for _, s := range others {
			row = append(row, ratioText(over, p.cells.at(place, s.name), base))
		}
		p.row(row...)
	}
	p.printf("\nMedian of the repetitions (least to greatest); each repetition is compared with its neighbours in time.\n\n")
}

// ratioText returns the ratio of throughput, or the reason why there is none.
func ratioText(over, under *cell, base system) string {
	switch {
	case under == nil:
		return "–"
	case under.failed != "":
		return "failed"
	}
	if r, ok := ratio(over, under, throughput); ok {
		return r.String()
	}
	return base.title + " failed"
}

// threads are the thread counts of YCSB.
func (p *page) threads() (all []int) {
	seen := map[int]bool{}
	for _, place := range p.cells.places {
		if place.kind == "ycsb" && !seen[place.threads] {
			seen[place.threads] = true
			all = append(all, place.threads)
		}
	}
	return all
}

func threadsText(t int) string {
	if t == 1 {
		return "1 thread"
	}
	return fmt.Sprintf("%d threads", t)
}

// place is the table of one workload.
func (p *page) place(place key) {
	kinds, unit := kindsOf[place.workload], "operations"
	if place.kind == "tpcc" {
		kinds, unit = []string{"NEW_ORDER", "PAYMENT", "DELIVERY"}, "transactions"
		p.printf("## TPC-C, all five transactions: %s warehouses, %s terminals\n\n", p.fact("warehouses"), fmt.Sprint(place.threads))
		p.printf("%s s each, %s repetitions, no keying or think times. Shares: drtmx `%s`, go-tpc `%s`. In both systems the terminal executes a DELIVERY. drtmx is strictly serializable and in memory; PostgreSQL has go-tpc's default, read committed. drtmx loads again for each repetition and has one second of warm-up; PostgreSQL continues with the rows of the earlier repetitions. drtmx checks all consistency conditions after each repetition; in PostgreSQL conditions 3.3.2.1 to 3.3.2.4 are checked after the last one: %s. If the number of rows that a run adds in PostgreSQL differs from the orders and payments that go-tpc counted, the run is marked as failed. go-tpc counts the 1 %% of NEW-ORDERs that roll back by the rules, drtmx does not.\n\n",
			p.fact("tpcc-seconds"), p.fact("reps"), p.fact("tpcc-mix"), p.fact("tpcc-weight"), p.fact("tpcc-check"))
	} else {
		p.printf("## YCSB %s; %s\n\n", workloadTitles[place.workload], threadsText(place.threads))
	}
	base := titleOf(p.cells.base(place)) + " ÷ it"
	head := []string{"system", unit + " a second", base}
	for _, k := range kinds {
		head = append(head, "p99 µs "+k, base)
	}
	p.head(append(head, unit+" counted")...)
	for _, s := range systems {
		c := p.cells.at(place, s.name)
		if c == nil {
			if reason := notScored[place.workload+" "+s.name]; reason != "" {
				p.row(s.title, reason)
			}
			continue
		}
		p.systemRow(place, s, c, kinds)
	}
	p.printf("\n")
}

func titleOf(name string) string {
	for _, s := range systems {
		if s.name == name {
			return s.title
		}
	}
	return name
}

func (p *page) systemRow(place key, s system, c *cell, kinds []string) {
	if c.failed != "" {
		p.row(s.title, "**failed**: "+c.failed)
		return
	}
	row := []string{s.title}
	base := p.cells.base(place)
	for _, f := range append([]figure{throughput}, figuresOf(kinds)...) {
		v, _ := c.of(f)
		row = append(row, v.String())
		if s.name == base {
			row = append(row, "")
		} else if r, ok := ratio(p.cells.at(place, base), c, f); ok {
			row = append(row, r.String())
		} else {
			row = append(row, titleOf(base)+" failed")
		}
	}
	p.row(append(row, c.operations())...)
}

func figuresOf(kinds []string) (all []figure) {
	for _, k := range kinds {
		all = append(all, p99(k))
	}
	return all
}

func (p *page) commands() {
	limit := ""
	if n := p.fact("operations"); n != "0" {
		limit = fmt.Sprintf(" or %s operations", n)
	}
	p.printf(`## How it was run

%s records of 10 fields of 100 bytes. Each run: %s s of warm-up, then %s s%s; %s repetitions. Within a workload and a repetition the systems run one after the other, so that a slow minute of the machine affects them alike. Each run begins with the same records: drtmx loads them in the process of the run, Redis starts from its dump, badger and bbolt start from a copy of their files, and inserted rows are deleted from PostgreSQL's table.

Before the runs the script reads the records back from each system and compares them, 5000 reads
each. A run counts only if its client exited with status 0, no operation failed, every kind of
operation of the workload took place, and the server counted as many operations as the client
(Redis: HMGET and HSET, no failed call, no key missed; PostgreSQL: transactions, none rolled back).
Otherwise the system is marked as failed.

    go-ycsb loadrun drtmx -p drtmx.fabric=shm -P ycsb/workloads/workloada -p recordcount=%[1]s -p threadcount=8 -p maxexecutiontime=%[3]s -p warmuptime=%[2]s -p drtmx.seed=1
    go-ycsb run redis -p redis.network=unix -p redis.addr=… -P … (and so on, the same)
    redis-server --port 0 --unixsocket … --save "" --appendonly no|yes --appendfsync everysec
    drtmx tpcc run --warehouses %[6]s --clients N --mix %[7]s --delivery now --output plain --duration %[8]ss
    go-tpc tpcc run -d postgres --warehouses %[6]s -T N --weight %[9]s --time %[8]ss
`, p.fact("records"), p.fact("warmup"), p.fact("seconds"), limit, p.fact("reps"),
		p.fact("warehouses"), p.fact("tpcc-mix"), p.fact("tpcc-seconds"), p.fact("tpcc-weight"))
}
