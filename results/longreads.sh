#!/usr/bin/env bash
# Measures long reads beside writers, in drtmx, badger and PostgreSQL (which
# postgres.sh finds or fetches), and updates with and without versions, and
# writes results/longreads.md. Takes up to 15 minutes; the machine should be idle.
#
#   results/longreads.sh [flag ...]       flags of results/longreads; its help lists them
#
#   LONGREADS_PAGE        what to write                        (results/longreads.md)
set -euo pipefail
cd "$(dirname "$0")/.."
page=${LONGREADS_PAGE:-results/longreads.md}

work=$(mktemp -d "${TMPDIR:-/tmp}/longreads.XXXXXX")
chmod 755 "$work" # PostgreSQL runs as another user
child='' pg_running=
cleanup() {
	trap - EXIT INT TERM HUP
	[ -z "$child" ] || kill "$child" 2>/dev/null || true
	wait 2>/dev/null || true
	stop_postgres
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

source results/signals.sh
fact() { echo "$2" >"$work/version-$1"; }
source results/unpack.sh
source results/postgres.sh

go_on go build -tags peers -o "$work/longreads" ./results/longreads
where=
if find_postgres && start_postgres longreads; then
	where="host=$work/pg user=async dbname=longreads sslmode=disable default_transaction_isolation='repeatable read'"
else
	echo "longreads.sh: no PostgreSQL: its rows will be missing" >&2
fi
load=$(cut -d' ' -f1-3 /proc/loadavg)
started=$SECONDS
go_on "$work/longreads" -postgres "$where" "$@" >"$work/tables.md"
peers="badger $(go list -m -f '{{.Version}}' github.com/dgraph-io/badger), $(cat "$work/version-postgres" 2>/dev/null || echo 'no PostgreSQL')"
{
	echo "# Long reads beside writers"
	echo
	echo "Written by \`results/longreads.sh${*:+ $*}\`, commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' || echo ', with changes'), $(date -u +%Y-%m-%d), in $((SECONDS - started)) s."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION). Load average before: $load, after: $(cut -d' ' -f1-3 /proc/loadavg). With $peers."
	echo
	cat <<-'TEXT'
		Each store has two tables of equal size, `hot` and `cold`, of rows with a number and 30 bytes of text. Writers move 1 between two random rows of `hot` in a transaction; nobody writes `cold`. One reader adds up all rows of a table, again and again, and checks the total: each read below had the right one. drtmx has its data servers in processes of their own over shared memory, and keeps versions for its default of 5 s after a snapshot. badger is in the process of the writers and the reader, without waiting for the disk. PostgreSQL has `repeatable read` and `synchronous_commit = off`, and a transfer is one statement; "fetch" sends the rows to the reader, as the other stores do, and "sum" adds them up in the server.

		What a reader costs writers has two parts. It takes processor time, of which there is little here: reader, writers and servers share the processors. And it may be in the way of writers: by locks and conflicts, by versions that are kept for it, by memory. Only the second part is the store's doing. So there is a control in the same run: the same reader, as often, at `cold`.

		- *Without pause*: writers write as fast as they can, windows beside `cold` and `hot` take turns. **hot ÷ cold** is what writers keep beside a reader of their own table, of their rate beside one that has nothing to do with them. *Pairs*: the least and the greatest ratio of two neighbouring windows, which shows the noise. *CPU µs*: processor time of writers and servers, without the reader's, for each commit.
		- *Paced*: writers are offered half of their rate beside `cold`, and the reader reads half as often. **Kept** is the part of the offered transactions that was committed by the end of the window; what is late is lost. A latency counts from the time at which the transaction was to begin.

	TEXT
	cat "$work/tables.md"
} >"$page"
echo "wrote $page" >&2
