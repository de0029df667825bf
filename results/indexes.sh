#!/usr/bin/env bash
# Compares drtmx's ordered index with ALEX, FINEdex, XIndex, Masstree and a B+tree
# with optimistic lock coupling, which it fetches by git and compiles with g++, and
# writes results/indexes.md. Two million keys and three turns take 12 minutes; the
# machine should be idle. What cannot be fetched or compiled is left out, and the page
# says so.
#
#   results/indexes.sh [flag ...]         flags of results/indexes; its help lists them
#   results/indexes.sh -quick             a small run of up to three minutes, to try it
#
#   INDEXES_KEYS          keys of each set                     (10 million; with -quick 200,000)
#   INDEXES_CACHE         where checkouts stay for the next run (removed at the end)
#   INDEXES_DIR           where programs and keys are          ($TMPDIR or /tmp)
#   INDEXES_PAGE          what to write  (results/indexes.md; with -quick results/raw/indexes.md)
set -euo pipefail
cd "$(dirname "$0")/.."
page=results/indexes.md
for flag in "$@"; do
	case $flag in
	-quick | --quick) page=results/raw/indexes.md ;;
	-h | -help | --help) exec go run ./results/indexes -help ;;
	esac
done
page=${INDEXES_PAGE:-$page}
flags=(${INDEXES_KEYS:+-keys "$INDEXES_KEYS"} ${INDEXES_CACHE:+-cache "$INDEXES_CACHE"})

work=$(mktemp -d "${INDEXES_DIR:-${TMPDIR:-/tmp}}/indexes.XXXXXX")
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

mkdir -p "$(dirname "$page")"
go_on go build -o "$work/indexes" ./results/indexes
load=$(cut -d' ' -f1-3 /proc/loadavg)
started=$SECONDS
go_on "$work/indexes" -dir "$work" "${flags[@]}" "$@" >"$work/tables.md"
{
	echo "# Ordered indexes, compared"
	echo
	echo "Written by \`results/indexes.sh${INDEXES_KEYS:+ -keys $INDEXES_KEYS}${*:+ $*}\`, commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' || echo ', with changes'), $(date -u +%Y-%m-%d), in $((SECONDS - started)) s."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION), $(g++ --version 2>/dev/null | head -1 || echo 'no g++'). Load average before: $load, after: $(cut -d' ' -f1-3 /proc/loadavg)."
	echo
	cat <<-'TEXT'
		All indexes get the same keys of 8 bytes in the same order, with values of 8 bytes, and each is a process of its own. Half of the keys, every other one, are *loaded* in ascending order, in bulk where an index can. Then the other half is *inserted* in random order, a half of it by one thread and the rest by two; all by one thread if an index allows no more. GETs and scans of 100 rows are of random present keys, after the inserts unless a column says *loaded*. All answers are checked: the values of GETs by their sum, each scan row by row, apart from the times. Where scans answer wrongly, the share of these scans stands instead of a time.

		With two threads, a time is that of both together divided by the operations of both. Indexes are measured in turn, each from the start, and another one goes first each time. All ask for huge pages, those of the peers by malloc (`glibc.malloc.hugetlb`). *bytes/key* is what malloc has given out for the whole index, with its values, divided by the keys; for drtmx's server its leaves with headers and rows, inner nodes and models; for its client what it caches.

	TEXT
	cat "$work/tables.md"
} >"$page"
echo "wrote $page" >&2
