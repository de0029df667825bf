#!/usr/bin/env bash
# Takes the measurements of results/engine.md, results/tpcc.md, results/fairness.md,
# results/fabrics.md and results/engines.md and writes those pages. Every figure comes with
# the command that printed it, the commit, the machine and the date. Takes about half an
# hour; the machine should be idle.
#
#   results/measure.sh [section ...]      without names: all sections
set -euo pipefail
cd "$(dirname "$0")/.."
make -s build
raw=results/raw
mkdir -p "$raw"

# Pages and their sections: name | title | command
tpcc=(
"full|The whole TPC-C for a minute: shares, response times, retries, consistency|bin/drtmx tpcc run --mix full --duration 60s"
"fulldesigns|The whole TPC-C with each design, in turn on one cluster|bin/drtmx tpcc compare --mix full --repeat 3 --duration 5s"
"fullpaced|The whole TPC-C with keying and think times: ten terminals for each warehouse|bin/drtmx tpcc run --mix full --clients 40 --keying-think --warmup 1m --duration 3m --output plain --series-interval 1m"
)
engine=(
"designs|TPC-C with each design, in turn on one cluster: throughput, CPU, rounds, RPCs, and ratios|bin/drtmx tpcc compare --repeat 5 --duration 5s"
"clients8|The mix with 8 clients|bin/drtmx tpcc compare --clients 8 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"clients32|The mix with 32 clients|bin/drtmx tpcc compare --clients 32 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"clients64|The mix with 64 clients|bin/drtmx tpcc compare --clients 64 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"warehouse|Loading one warehouse: seconds, bytes per row, memory|bin/drtmx tpcc run --warehouses 1 --servers 1 --clients 4 --duration 2s"
"rpc|READ and RPC over shared memory, compared with memcpy and bare ping-pong|go test -run ^\$ -bench Read\$|RoundTrip|Throughput -benchtime 1s ./rdma/shm"
"hash|GET on the hash index: rounds and allocations, with and without location cache|go test -run ^\$ -bench Get/ -benchmem ./index/hash"
"learned|GET and SCAN on the learned index under the cache budgets: rounds, bytes, allocations|env LEARNED_KEYS=1000000 go test -run ^\$ -bench Client -benchmem ./index/learned/read"
"predict|Prediction and translation at 10 million keys, compared with a descent of the tree's inner nodes; accuracy; bytes|go test -run ^\$ -bench Predict -timeout 30m ./index/learned/read"
"models|Models alone at 10 million keys, leaves in key order: accuracy, bytes, ns per lookup|go test -run ^\$ -bench Model/.*/.*/leaves=512 -timeout 30m ./index/learned/model"
"training|Training: ns per key, and one sub-model of 200 keys|go test -run ^\$ -bench Train|Retrain ./index/learned/model"
"latest|Reads of the latest keys during inserts at the end: chases and fallbacks per million|go test -run ^\$ -bench Latest\$ ./index/learned/read"
"expansion|GETs while all models are rebuilt, compared with before|go test -run ^\$ -bench Expansion ./index/learned/read"
"tree|The server's tree compared with tidwall/btree and google/btree, one and two goroutines|go test -run ^\$ -bench Server ./index/learned/tree"
"checker|Checking a history of a million transactions|go test -run ^\$ -bench Check -benchtime 3x -cpu 1 ./internal/history"
"view|One View and one commit, in one process|go test -run ^\$ -bench View ./server"
"hashstrings|Hash index: native keys with small fixed rows, and string keys of several kinds with rows of variable size|go test -run ^\$ -bench Kinds -cpu 1 -benchtime 30000x ./index/hash"
"strings|Ordered index: native keys with rows inline and apart, and string keys of several kinds with rows of 104 bytes|go test -run ^\$ -bench ^BenchmarkStrings\$ -timeout 20m ./index/learned/read"
)
fairness=(
"crowd|5,000 goroutines that update 1,000 rows, one or two in a transaction, compared with 64: rates, those given up after 10 s, latencies|go test -run ^\$ -bench Contention -benchtime 1x -timeout 60m ./server"
"hothome|Procedures that all write one row of their home, and some a row elsewhere|go test -run ^\$ -bench HotHome ./server"
"terminals|256 terminals on two warehouses: PAYMENT|bin/drtmx tpcc run --warehouses 2 --servers 2 --clients 256 --mix full --duration 20s"
"scans|YCSB E with 32 threads: INSERT beside SCAN|bin/go-ycsb loadrun drtmx -P ycsb/workloads/workloade --threads 32 -p drtmx.fabric=shm -p recordcount=100000 -p operationcount=100000000 -p maxexecutiontime=10"
)
fabrics=(
"fabrics|READs of 64 bytes, single and in batches of 16, on every fabric, compared with its bound; many callers over TCP, compared with pipelined GETs of Redis for scale|go test -run ^\$ -bench Fabrics|ManyCallers -benchtime 300x ./rdma/rdmatest"
"tls|READs of 64 bytes over TCP with TLS, compared with a bare echo with TLS, in one process|go test -run ^\$ -bench Read/ -benchtime 100x ./rdma/tcp"
"verbs|READs of 64 bytes over libibverbs, compared with perftest's, on Soft-RoCE (rdma_rxe) in a guest under software emulation: only the ratios are meaningful|make -s bench-verbs"
)

engines=(
"enginesa|YCSB A with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloada -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 3 --duration 3s"
"enginesb|YCSB B with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadb -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 3 --duration 3s"
"enginesc|YCSB C with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadc -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 3 --duration 3s"
"enginesd|YCSB D with 64 clients, keys spread|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadd -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 3 --duration 3s"
"enginese|YCSB E with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloade -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 1 --warmup 4s --duration 4s"
"enginesf|YCSB F with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadf -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 64 --repeat 3 --duration 3s"
"enginescurve|YCSB C with 1 to 128 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadc -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node weak --clients 1,4,16,32,128 --repeat 1 --duration 3s"
"engines4|YCSB C with 64 clients and 4 cores|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadc -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node cores=4 --clients 64 --repeat 1 --duration 3s"
"engines16|YCSB C with 64 clients and 16 cores|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadc -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines xstore,rpc,treecache,fullcache --node cores=16 --clients 64 --repeat 1 --duration 3s"
"rolexa|ROLEX and XStore: YCSB A with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloada -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --duration 3s"
"rolexb|ROLEX and XStore: YCSB B with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadb -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --duration 3s"
"rolexd|ROLEX and XStore: YCSB D with 64 clients, keys spread|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadd -p recordcount=200000 -p drtmx.keys=spread -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --warmup 20s --duration 10s"
"rolexinserts|ROLEX and XStore: inserts alone with 64 clients, keys spread|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadd -p readproportion=0 -p insertproportion=1 -p recordcount=200000 -p drtmx.keys=spread -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --warmup 20s --duration 10s"
"rolexclustered|ROLEX and XStore: inserts alone with 64 clients, keys close together|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadd -p readproportion=0 -p insertproportion=1 -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --warmup 20s --duration 10s"
"rolexupdates|ROLEX and XStore: updates alone, of evenly chosen rows, with 64 clients|bin/go-ycsb compare drtmx -P ycsb/workloads/workloada -p readproportion=0 -p updateproportion=1 -p requestdistribution=uniform -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node weak --clients 64 --repeat 3 --duration 3s"
"rolex4|ROLEX and XStore: YCSB A with 64 clients and 4 cores|bin/go-ycsb compare drtmx -P ycsb/workloads/workloada -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node cores=4 --clients 64 --repeat 3 --duration 3s"
"rolex16|ROLEX and XStore: YCSB A with 64 clients and 16 cores|bin/go-ycsb compare drtmx -P ycsb/workloads/workloada -p recordcount=200000 -p drtmx.keys=number -p drtmx.servers=1 --engines rolex,xstore --node cores=16 --clients 64 --repeat 3 --duration 3s"
"hstorec|HStore and XStore: YCSB C, two data servers|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadc -p recordcount=200000 -p drtmx.keys=spread -p drtmx.servers=2 --engines hstore,hash+twin=sync,xstore --node weak --clients 64 --repeat 3 --duration 3s"
"hstoree|HStore and XStore: YCSB E, two data servers|bin/go-ycsb compare drtmx -P ycsb/workloads/workloade -p recordcount=200000 -p drtmx.keys=spread -p drtmx.servers=2 --engines hstore,hash+twin=sync,xstore --node weak --clients 64 --repeat 3 --duration 4s"
"hstoreinserts|HStore and XStore: inserts alone, two data servers|bin/go-ycsb compare drtmx -P ycsb/workloads/workloadd -p readproportion=0 -p insertproportion=1 -p recordcount=200000 -p drtmx.keys=spread -p drtmx.servers=2 --engines hstore,hash+twin=sync,xstore --node weak --clients 64 --repeat 3 --warmup 8s --duration 6s"
)

wanted=("$@")

# want SECTION reports whether the section was requested.
want() { [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]]; }

# The section fabrics compares with Redis.
if want fabrics && ! command -v redis-server >/dev/null; then
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	go_on() { "$@"; }
	source results/unpack.sh
	unpack redis-server && export PATH="$work/root/usr/bin:$PATH"
fi

# measure NAME COMMAND runs one section.
measure() {
	echo "== $1: $2" >&2
	{
		echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), load average before: $(cut -d' ' -f1-3 /proc/loadavg)"
		# Progress goes to standard error and is not part of the record.
		$2 2>/dev/null | grep -v -e '^PASS' -e '^goos:' -e '^goarch:' -e '^pkg:' -e '^cpu:' || echo "failed: $2"
	} >"$raw/$1.txt"
}

# about FILE prints what its figures are.
about() {
	case $1 in
	*/engines.md)
		echo "Written by \`results/measure.sh\`. The ordered index with one-sided READs and models (\`xstore\`), the same with an RPC for each lookup and scan (\`rpc\`), and the same tree with one-sided READs and inner nodes cached instead of models, 128 KiB of them for each index (\`treecache\`) or all (\`fullcache\`); leaves that clients write, too (\`rolex\`, docs/rolex.md); and a hash index with an ordered twin in the next partition, which gets keys by shipping (\`hstore\`, docs/hstore.md) or takes part in each insert (\`hash+twin=sync\`). One data server, unless a command says otherwise, whose machine is modelled: one core, unless a command says otherwise, behind a fast network (docs/ycsb.md). Rates and latencies are emulated with that model, which is a choice; they are not measurements of RDMA. Rounds, READs, bytes and RPCs are exact. The *bound* is what these counts allow on the modelled machine."
		;;
	*)
		echo "Written by \`results/measure.sh\`. Times are those of emulated fabrics (shared memory of one host, or one process) on a small shared machine. Ratios within one run are more meaningful than times."
		;;
	esac
}

# page FILE TITLE SECTION... runs the requested sections and, if there are any,
# writes the page. The other sections keep their older figures.
page() {
	local file=$1 title=$2 ran= s name what command
	shift 2
	for s in "$@"; do
		IFS='|' read -r name _ <<<"$s"
		want "$name" || continue
		command=${s#*|}
		measure "$name" "${command#*|}"
		ran=yes
	done
	[ "$ran" ] || return 0
	# Copy the figures that were not measured now from the old page.
	for s in "$@"; do
		IFS='|' read -r name what _ <<<"$s"
		if [ ! -f "$raw/$name.txt" ] && grep -qxF "## $what" "$file" 2>/dev/null; then
			awk -v heading="## $what" '$0 == heading { on = 1; next } on && /^```$/ { if (++fences == 2) exit; next } on && fences' \
				"$file" >"$raw/$name.txt"
		fi
	done
	{
		echo "# $title"
		echo
		about "$file"
		echo
		echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go version | cut -d' ' -f3)."
		for s in "$@"; do
			IFS='|' read -r name what _ <<<"$s"
			[ -f "$raw/$name.txt" ] || continue
			command=${s#*|}
			echo
			echo "## $what"
			echo
			echo "    ${command#*|}"
			echo
			echo '```'
			cat "$raw/$name.txt"
			echo '```'
		done
	} >"$file"
	echo "wrote $file" >&2
}

page results/tpcc.md "The whole TPC-C" "${tpcc[@]}"
page results/engine.md "The engine, measured" "${engine[@]}"
page results/fairness.md "Many clients on few rows" "${fairness[@]}"
page results/fabrics.md "The fabrics, measured" "${fabrics[@]}"
page results/engines.md "Engines beside weak data servers, modelled" "${engines[@]}"
