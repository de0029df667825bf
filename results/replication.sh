#!/usr/bin/env bash
# Measures what copies of the data servers' data cost, beside data on disk without
# copies and data in memory, and writes results/replication.md. Takes up to ten
# minutes; the machine should be idle.
#
#   results/replication.sh [flag ...]     flags of results/replication; its help lists them
#   results/replication.sh -quick         a small run, to try it
#
#   REPLICATION_DIR       where data is kept, on the file system to measure ($TMPDIR or /tmp)
#   REPLICATION_PAGE      what to write  (results/replication.md; with -quick results/raw/replication.md)
set -euo pipefail
cd "$(dirname "$0")/.."
page=results/replication.md
for flag in "$@"; do
	case $flag in
	-quick | --quick) page=results/raw/replication.md ;;
	-h | -help | --help) exec go run ./results/replication -help ;;
	esac
done
page=${REPLICATION_PAGE:-$page}

work=$(mktemp -d "${REPLICATION_DIR:-${TMPDIR:-/tmp}}/replication.XXXXXX")
child=''
cleanup() {
	trap - EXIT INT TERM HUP
	[ -z "$child" ] || kill -INT "$child" 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
source results/signals.sh

mkdir -p "$work/bin" "$work/data" "$(dirname "$page")"
go_on go build -o "$work/bin/" ./cmd/drtmx ./results/replication
load=$(cut -d' ' -f1-3 /proc/loadavg)
started=$SECONDS
go_on "$work/bin/replication" -bin "$work/bin" -dir "$work/data" "$@" >"$work/tables.md"
{
	echo "# Replication, measured"
	echo
	echo "Written by \`results/replication.sh${*:+ $*}\`, commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' || echo ', with changes'), $(date -u +%Y-%m-%d), in $((SECONDS - started)) s."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION); files on $(stat -f -c %T "$work"). Load average before: $load, after: $(cut -d' ' -f1-3 /proc/loadavg)."
	echo
	cat <<-'TEXT'
		The whole TPC-C with three data servers and three warehouses, over shared memory. Clients, data servers and all copies share the processors and one disk, so what a copy costs shows in full: on hosts of their own the copies would have processors and disks of their own. *Memory* keeps nothing. *Disk* is `--data-dir`: a client learns of a commit when the log on the server's disk has it. With *copies* (`--replicas`) it learns of it when the logs of all copies in sync have it too. Modes are measured in turns, each run loads its data anew and checks the consistency conditions afterwards. A ratio is the median of those to memory in the same round (least to greatest); other figures are medians.

		*Log bytes* are what the logs of the data servers grew by, *sent to copies* what was sent of logs and checkpoints, both divided by the transactions that committed or were rolled back.

	TEXT
	cat "$work/tables.md"
} >"$page"
echo "wrote $page" >&2
