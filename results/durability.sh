#!/usr/bin/env bash
# Measures what durability costs and what recovery takes, beside the bare sync
# rate of the file system and PostgreSQL (which postgres.sh finds or fetches), and
# writes results/durability.md. Takes up to 20 minutes and 10 GiB of disk; the
# machine should be idle.
#
#   results/durability.sh [flag ...]      flags of results/durability; its help lists them
#   results/durability.sh -quick          a small run of about a minute, to try it
#
#   DURABILITY_DIR        where data is kept, on the file system to measure ($TMPDIR or /tmp)
#   DURABILITY_PAGE       what to write  (results/durability.md; with -quick results/raw/durability.md)
set -euo pipefail
cd "$(dirname "$0")/.."
warehouses=4
page=results/durability.md quick=
for flag in "$@"; do
	case $flag in
	-quick | --quick) quick=1 page=results/raw/durability.md ;;
	-h | -help | --help) exec go run ./results/durability -help ;;
	esac
done
page=${DURABILITY_PAGE:-$page}
sections=" $(printf '%s\n' "$@" | sed -n 's/^--\?sections=//p' | tr ',' ' ') "

work=$(mktemp -d "${DURABILITY_DIR:-${TMPDIR:-/tmp}}/durability.XXXXXX")
chmod 755 "$work" # PostgreSQL runs as another user
child='' pg_running=
cleanup() {
	trap - EXIT INT TERM HUP
	[ -z "$child" ] || kill -INT "$child" 2>/dev/null || true
	wait 2>/dev/null || true
	stop_postgres
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

source results/signals.sh
fact() { echo "$2" >"$work/version-$1"; }
version() { cat "$work/version-$1" 2>/dev/null || echo "no $1"; }
source results/unpack.sh
source results/postgres.sh
source results/gotpc.sh

mkdir -p "$work/bin" "$work/data" "$(dirname "$page")"
go_on go build -o "$work/bin/" ./cmd/... ./results/durability
peer=()
if [[ $sections != "  " && $sections != *" postgres "* ]]; then
	echo "durability.sh: PostgreSQL was not asked for" >&2
elif find_postgres && build_go_tpc && start_postgres tpcc; then
	[ -z "$quick" ] || warehouses=1
	go_tpc async prepare -T 8 --no-check >"$work/prepare.log" 2>&1 || { tail -1 "$work/prepare.log" >&2; exit 1; }
	sql tpcc "VACUUM ANALYZE" && sql tpcc CHECKPOINT
	peer=(-go-tpc "$work/go-tpc" -postgres "$work/pg")
else
	echo "durability.sh: no PostgreSQL: its rows will be missing" >&2
fi
load=$(cut -d' ' -f1-3 /proc/loadavg)
started=$SECONDS
go_on "$work/bin/durability" -bin "$work/bin" -dir "$work/data" "${peer[@]}" "$@" >"$work/tables.md"
checked=
if [ ${#peer[@]} -gt 0 ]; then
	if check_tpcc 2>"$work/why"; then
		checked=" After the runs the data in PostgreSQL met the consistency conditions 3.3.2.1 to 3.3.2.4."
	else
		checked=" **The data in PostgreSQL is not consistent: $(tail -1 "$work/why").**"
	fi
fi
{
	echo "# Durability, measured"
	echo
	echo "Written by \`results/durability.sh${*:+ $*}\`, commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' || echo ', with changes'), $(date -u +%Y-%m-%d), in $((SECONDS - started)) s."
	echo
	echo "Machine: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION); files on $(stat -f -c %T "$work"). Load average before: $load, after: $(cut -d' ' -f1-3 /proc/loadavg). With $(version postgres), go-tpc $(version go-tpc).$checked"
	echo
	cat <<-'TEXT'
		Clients and data servers share the processors; servers are processes over shared memory, unless a section says otherwise. *Disk* is `--durability disk`: a client learns of a commit when the log on the server's disk has it. *Memory* is the default. Both clusters run at the same time, on the same data, and are measured in turns; which is first changes from pair to pair. A ratio is the median of the pairs (least to greatest); rates are medians.

		**Log ÷ row bytes**: the bytes that the logs grew by, with frames and records of the commit protocol, divided by the bytes of the keys and rows that transactions wrote, without entries of secondary indexes; both are counted by the servers (`drtmx_log_bytes_total`, `drtmx_log_row_bytes_total`). In F the log also has the result of each read-modify-write, which is the row that it has read: a client that asks again after a restart must hear it.

	TEXT
	cat "$work/tables.md"
} >"$page"
echo "wrote $page" >&2
