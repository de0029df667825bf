#!/usr/bin/env bash
# Runs the measurements that results/engine.md records and writes that page:
# every figure with the command that printed it, the commit, the machine and
# the date. Takes about a quarter of an hour; the machine should be idle.
#
#   results/measure.sh [section ...]      without names: all sections
set -euo pipefail
cd "$(dirname "$0")/.."
make -s build
page=results/engine.md
raw=results/raw
mkdir -p "$raw"

# name | what it shows | command
sections=(
"designs|TPC-C with each design, in turn on one cluster: throughput, CPU, rounds, RPCs, and ratios|bin/drtmx tpcc compare --repeat 3 --duration 5s"
"clients8|The mix with 8 clients|bin/drtmx tpcc compare --clients 8 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"clients32|The mix with 32 clients|bin/drtmx tpcc compare --clients 32 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"clients64|The mix with 64 clients|bin/drtmx tpcc compare --clients 64 --repeat 3 --duration 3s --designs drtmx,drtmh --mix new-order=10,order-status=90"
"warehouse|Loading one warehouse: seconds, bytes per row, memory|bin/drtmx tpcc run --warehouses 1 --servers 1 --clients 4 --duration 2s"
"rpc|READ and RPC over shared memory beside memcpy and bare ping-pong|go test -run ^\$ -bench Read\$|RoundTrip|Throughput -benchtime 1s ./rdma/shm"
"hash|GET on the hash index: rounds and allocations, with and without location cache|go test -run ^\$ -bench Get/ -benchmem ./index/hash"
"learned|GET and SCAN on the learned index under the cache budgets: rounds, bytes, allocations|env LEARNED_KEYS=1000000 go test -run ^\$ -bench Client -benchmem ./index/learned"
"predict|Prediction and translation at 10 million keys against descending the tree's inner nodes; accuracy; bytes|go test -run ^\$ -bench Predict -timeout 30m ./index/learned"
"models|Models alone at 10 million keys, leaves in key order: accuracy, bytes, ns per lookup|go test -run ^\$ -bench Model/.*/.*/leaves=512 -timeout 30m ./index/learned/xmodel"
"training|Training: ns per key, and one sub-model of 200 keys|go test -run ^\$ -bench Train|Retrain ./index/learned/xmodel"
"latest|Reads of the latest keys beside inserts at the end: chases and fallbacks per million|go test -run ^\$ -bench Latest ./index/learned"
"expansion|GETs while all models are rebuilt, against before|go test -run ^\$ -bench Expansion ./index/learned"
"tree|The server's tree against tidwall/btree and google/btree, one and two goroutines|go test -run ^\$ -bench Server ./index/learned/xtree"
"checker|Checking a history of a million transactions|go test -run ^\$ -bench Check -benchtime 3x -cpu 1 ./txn/history"
"view|One View and one commit, in one process|go test -run ^\$ -bench View ./server"
)

wanted=("$@")
for s in "${sections[@]}"; do
	IFS='|' read -r name _ <<<"$s"
	if [ ${#wanted[@]} -gt 0 ] && [[ ! " ${wanted[*]} " == *" $name "* ]]; then
		continue
	fi
	command=${s#*|}
	command=${command#*|}
	echo "== $name: $command" >&2
	{
		echo "commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), load average before: $(cut -d' ' -f1-3 /proc/loadavg)"
		# Progress goes to standard error and is not part of the record.
		$command 2>/dev/null | grep -v -e '^PASS' -e '^goos:' -e '^goarch:' -e '^pkg:' -e '^cpu:' || echo "failed: $command"
	} >"$raw/$name.txt"
done

{
	echo "# The engine, measured"
	echo
	echo "Written by \`results/measure.sh\`. Times are of emulated fabrics (shared memory of one host, or one process), on a small shared machine: ratios within one run say more than they do."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go version | cut -d' ' -f3)."
	for s in "${sections[@]}"; do
		IFS='|' read -r name what _ <<<"$s"
		[ -f "$raw/$name.txt" ] || continue
		command=${s#*|}
		command=${command#*|}
		echo
		echo "## $what"
		echo
		echo "    $command"
		echo
		echo '```'
		cat "$raw/$name.txt"
		echo '```'
	done
} >"$page"
echo "wrote $page" >&2
