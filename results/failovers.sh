#!/usr/bin/env bash
# Makes failovers of real processes under load, in pieces, and writes
# results/failovers.md. Each piece is a run of drtmx tpcc run --chaos, of seven minutes;
# even seeds need root and ip, because they cut networks. In the last one nothing fails:
# data servers are moved, and hosts are restarted. Takes about 50 minutes.
#
#   results/failovers.sh [seed ...]       runs the pieces that have no report yet (1 to 7), and writes the page
#   results/failovers.sh -only seed ...   runs pieces, and writes no page
#
#   FAILOVERS_DIR         where reports, the program and data are, and stay  (a temporary directory)
#   FAILOVERS_DURATION    of a piece  (7m)
#   FAILOVERS_PAGE        what to write  (results/failovers.md)
set -euo pipefail
cd "$(dirname "$0")/.."
page=${FAILOVERS_PAGE:-results/failovers.md}
only=''
if [ "${1:-}" = -only ]; then
	only=1
	shift
fi
seeds=("$@")
[ ${#seeds[@]} -gt 0 ] || seeds=(1 2 3 4 5 6 7)

child=''
work=${FAILOVERS_DIR:-}
cleanup() {
	trap - EXIT INT TERM HUP
	[ -z "$child" ] || kill -INT "$child" 2>/dev/null || true
	wait 2>/dev/null || true
	[ -n "${FAILOVERS_DIR:-}" ] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
source results/signals.sh

[ -n "$work" ] || work=$(mktemp -d "${TMPDIR:-/tmp}/failovers.XXXXXX")
mkdir -p "$work/bin" "$work/data"
if [ ! -e "$work/bin/drtmx" ]; then
	commit=$(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' || echo ', with changes')
	go_on go build -ldflags "-X 'drtmx/internal/command.commit=$commit'" -o "$work/bin/drtmx" ./cmd/drtmx
fi
for seed in "${seeds[@]}"; do
	[ ! -e "$work/$seed.json" ] || continue
	kinds=kill,pause
	[ $((seed % 2)) -eq 1 ] || kinds=kill,pause,cut
	[ $((seed % 7)) -ne 0 ] || kinds=move,restart
	TMPDIR=$work/data go_on "$work/bin/drtmx" tpcc run --replicas 2 --chaos=$kinds --servers 3 --warehouses 3 --items 1000 --customers 60 --clients 4 \
		--checkpoint-bytes 32MiB --duration "${FAILOVERS_DURATION:-7m}" --seed "$seed" --json "$work/$seed.part" >&2
	mv "$work/$seed.part" "$work/$seed.json"
done
[ -z "$only" ] || exit 0
{
	echo "# Failovers of real processes"
	echo
	echo "Written by \`results/failovers.sh\` from the reports of its pieces."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION). Other programs used the processors, too."
	echo
	cat <<-'TEXT'
		Each piece is a run of `drtmx tpcc run --replicas 2 --chaos=KINDS` with three hosts, three warehouses of 1,000 items and 60 customers a district, and four clients, as `results/failovers.sh` starts it. A host is killed, stopped for longer than its lease, or cut off, one at a time; leases last 2 s. Over tcp each host has a network namespace of its own, and so has the store of members with the clients.

		A *failover* is a data server that another host took over. Its *stall* is the longest time in which no client was told of a commit there, from the moment at which its host was hit: for a kill it ends with the first commit at the new host. A data server whose host is cut off from the store alone serves until its lease ends, which is not part of the stall. *Patient* clients have deadlines of 30 s, the others of 0.5 to 5.5 s, which a failover may exceed. *Late Views* are those of clients that hear of no change and look at the data servers that were hit, after the hit. With moves and restarts alone patient clients have deadlines of 10 s, and may meet no error. A View is *stale* if it shows less than what was acknowledged before it began.

	TEXT
	go run ./results/failovers "$work"/*.json
} >"$page"
echo "wrote $page" >&2
