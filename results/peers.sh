#!/usr/bin/env bash
# Compares drtmx with other stores and writes results/peers.md: YCSB A to F
# through one go-ycsb binary against drtmx, Redis, PostgreSQL, badger and bbolt,
# and TPC-C against PostgreSQL through go-tpc. Takes up to 25 minutes; the
# machine should be idle.
#
# Redis and PostgreSQL are Debian's. The script fetches missing packages with
# apt-get and unpacks them into a temporary directory, without installing them;
# it starts no service of the distribution. Servers listen on sockets in that
# directory, which the script removes at the end, also after Ctrl-C.
#
#   PEERS_QUICK=1         a smoke run of about two minutes (compiling aside),
#                         its page goes to results/raw/peers/quick.md
#   PEERS_RECORDS         records of YCSB, 1 KB each           (100000)
#   PEERS_SECONDS         measured seconds of each YCSB run    (2)
#   PEERS_WARMUP          seconds before that                  (1)
#   PEERS_OPERATIONS      ends a run earlier, 0: never         (0)
#   PEERS_THREADS         thread counts of YCSB                ("1 8")
#   PEERS_REPS            repetitions                          (3)
#   PEERS_WORKLOADS       of YCSB; empty: none                 ("a b c f d e")
#   PEERS_SYSTEMS         of YCSB; see SYSTEMS below
#   PEERS_WAREHOUSES      of TPC-C; 0: no TPC-C                (4)
#   PEERS_TERMINALS       of TPC-C                             (16)
#   PEERS_TPCC_SECONDS    measured seconds of each TPC-C run   (10)
#   PEERS_DIR             where the temporary directory is     ($TMPDIR or /tmp)
#   PEERS_PAGE            what to write                        (results/peers.md)
#   PEERS_INSTALLED=0     take Debian's packages even if installed
set -euo pipefail
cd "$(dirname "$0")/.."

SYSTEMS="drtmx drtmx-hash redis redis-aof postgres postgres-sync badger badger-sync bbolt bbolt-sync"
TPCC_SYSTEMS="drtmx postgres postgres-sync"
# The shares of the five transactions that go-tpc has by default.
TPCC_MIX="new-order=45,payment=43,order-status=4,delivery=4,stock-level=4"
TPCC_WEIGHT="45,43,4,4,4"
BBOLT=v1.4.3

raw=results/raw/peers
page=results/peers.md
if [ "${PEERS_QUICK:-}" = 1 ]; then
	page=$raw/quick.md
	: "${PEERS_RECORDS:=5000}" "${PEERS_SECONDS:=1}" "${PEERS_WARMUP:=0}" "${PEERS_THREADS:=8}"
	: "${PEERS_REPS:=1}" "${PEERS_WAREHOUSES:=1}" "${PEERS_TERMINALS:=8}" "${PEERS_TPCC_SECONDS:=3}"
fi
page=${PEERS_PAGE:-$page}
records=${PEERS_RECORDS:-100000}
seconds=${PEERS_SECONDS:-2}
warmup=${PEERS_WARMUP:-1}
operations=${PEERS_OPERATIONS:-0}
threads=${PEERS_THREADS:-1 8}
reps=${PEERS_REPS:-3}
workloads=${PEERS_WORKLOADS-a b c f d e}
systems=${PEERS_SYSTEMS:-$SYSTEMS}
warehouses=${PEERS_WAREHOUSES:-4}
terminals=${PEERS_TERMINALS:-16}
tpcc_seconds=${PEERS_TPCC_SECONDS:-10}

die() {
	echo "peers.sh: $*" >&2
	exit 2
}
whole() { [[ $2 =~ ^[0-9]+$ ]] && [ "$2" -ge "$3" ] || die "$1 \"$2\": want a whole number of at least $3"; }
whole PEERS_RECORDS "$records" 1000
whole PEERS_SECONDS "$seconds" 1
whole PEERS_WARMUP "$warmup" 0
whole PEERS_OPERATIONS "$operations" 0
whole PEERS_REPS "$reps" 1
whole PEERS_WAREHOUSES "$warehouses" 0
whole PEERS_TERMINALS "$terminals" 1
whole PEERS_TPCC_SECONDS "$tpcc_seconds" 1
for t in $threads; do whole PEERS_THREADS "$t" 1; done
for w in $workloads; do [[ $w =~ ^[a-f]$ ]] || die "PEERS_WORKLOADS \"$w\": want some of a b c d e f"; done
for s in $systems; do [[ " $SYSTEMS " == *" $s "* ]] || die "PEERS_SYSTEMS \"$s\": want some of $SYSTEMS"; done

work=$(mktemp -d "${PEERS_DIR:-${TMPDIR:-/tmp}}/peers.XXXXXX")
chmod 755 "$work" # PostgreSQL runs as another user
child= redis_pid= pg_running= pg_dirty=

cleanup() {
	trap - EXIT INT TERM HUP
	if [ -n "$child" ] && kill "$child" 2>/dev/null; then
		sleep 1 # go-tpc takes ten
		kill -KILL "$child" 2>/dev/null || true
	fi
	[ -z "$redis_pid" ] || kill "$redis_pid" 2>/dev/null || true
	stop_postgres
	wait 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

source results/signals.sh

note() { echo "== $*" >&2; }
fact() { printf '%s\t%s\n' "$1" "$2" >>"$raw/facts.tsv"; }

# --- programs ---------------------------------------------------------------

source results/unpack.sh # of Debian packages
source results/postgres.sh
source results/gotpc.sh

find_redis() {
	redis_server=redis-server redis_cli=redis-cli
	if ! installed redis-server || ! installed redis-cli; then
		unpack redis-server redis-tools || return 1
		redis_server=$work/root/usr/bin/redis-server redis_cli=$work/root/usr/bin/redis-cli
	fi
	fact redis "$("$redis_server" --version | sed 's/.*v=\([^ ]*\).*/Redis \1/')"
}

# build compiles drtmx, go-ycsb with the drivers of all systems, go-tpc.
build() {
	make -s build
	# go-ycsb's driver is of bolt, whose successor bbolt has the same functions.
	mkdir -p "$work/bolt"
	cat >"$work/bolt/bolt.go" <<-'END'
		// Package bolt gives go-ycsb's driver of bolt its successor bbolt.
		package bolt

		import (
			"os"

			"go.etcd.io/bbolt"
		)

		type (
			DB      = bbolt.DB
			Tx      = bbolt.Tx
			Options = bbolt.Options
		)

		var (
			Open           = bbolt.Open
			DefaultOptions = bbolt.DefaultOptions
		)

		func init() { DefaultOptions.NoSync = os.Getenv("PEERS_BBOLT_NOSYNC") != "" }
	END
	printf 'module github.com/boltdb/bolt\n\ngo 1.24\n\nrequire go.etcd.io/bbolt %s\n' "$BBOLT" >"$work/bolt/go.mod"
	cp go.mod "$work/peers.mod"
	cp go.sum "$work/peers.sum"
	go mod edit -replace "github.com/boltdb/bolt=$work/bolt" "$work/peers.mod"
	go_on go build -mod=mod -modfile="$work/peers.mod" -tags peers -o "$work/go-ycsb" ./cmd/go-ycsb
	local versions
	versions=$(go version -m "$work/go-ycsb")
	module() { awk -v m="$1" '$2 == m {print $3}' <<<"$versions"; }
	fact go-ycsb "$(module github.com/pingcap/go-ycsb)"
	fact badger "badger $(module github.com/dgraph-io/badger)"
	fact bbolt "bbolt $(module go.etcd.io/bbolt)"
	fact drivers "go-redis $(module github.com/go-redis/redis/v9), lib/pq $(module github.com/lib/pq)"
	if [ "$warehouses" -gt 0 ]; then
		build_go_tpc 2>"$work/no-tpcc" && rm "$work/no-tpcc" || true
	fi
}

# --- Redis ------------------------------------------------------------------

redis() { "$redis_cli" -s "$work/redis/sock" "$@"; }

# start_redis [aof]: with the records of $work/loaded/redis.rdb, if any.
start_redis() {
	rm -rf "$work/redis"
	mkdir -p "$work/redis"
	[ ! -f "$work/loaded/redis.rdb" ] || cp "$work/loaded/redis.rdb" "$work/redis/dump.rdb"
	"$redis_server" --port 0 --unixsocket "$work/redis/sock" --dir "$work/redis" --save "" \
		--appendonly no --appendfsync everysec >"$work/redis/log" 2>&1 &
	redis_pid=$!
	for _ in {1..300}; do
		[ "$(redis ping 2>/dev/null)" = PONG ] && break
		sleep 0.05
	done
	if [ "${1:-}" = aof ]; then
		redis config set appendonly yes >/dev/null || return 1
		for _ in {1..600}; do
			redis info persistence | grep -qE '^aof_rewrite_(in_progress|scheduled):1' || break
			sleep 0.05
		done
	fi
	redis config resetstat >/dev/null
}

stop_redis() {
	kill "$redis_pid"
	wait "$redis_pid" 2>/dev/null || true
	redis_pid=
}

# counts_redis: operations and errors since the start, by the server.
counts_redis() {
	redis info all | tr -d '\r' | awk -F '[:=,]' '
		/^cmdstat_(hmget|hset):/ { ops += $3 }
		/^cmdstat_/ { errors += $9 + $11 }
		/^keyspace_misses:/ { errors += $2 }
		END { printf "%d\t%d", ops, errors }'
}

# --- PostgreSQL -------------------------------------------------------------

# counts_postgres: transactions committed and rolled back so far.
counts_postgres() {
	sleep 0.1 # until the sessions that have ended have said so
	sql postgres "SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = 'ycsb'" | tr '|' '\t'
}

# --- YCSB -------------------------------------------------------------------

# store SYSTEM: whose loaded records it starts from.
store() {
	case $1 in
	drtmx*) echo "$1" ;;
	*) echo "${1%-*}" ;;
	esac
}

# database SYSTEM: the arguments of go-ycsb that name the database.
database() {
	case $1 in
	drtmx) echo "drtmx -p drtmx.fabric=shm -p drtmx.primary=ordered" ;;
	drtmx-hash) echo "drtmx -p drtmx.fabric=shm -p drtmx.primary=hash" ;;
	redis*) echo "redis -p redis.network=unix -p redis.addr=$work/redis/sock" ;;
	# The driver has no property for a socket's directory, and appends
	# "?sslmode=disable" to the name of the database.
	postgres) echo "pg -p pg.host= -p pg.user=async -p pg.db=ycsb?host=$work/pg&sslmode=disable&application_name=x" ;;
	postgres-sync) echo "pg -p pg.host= -p pg.user=sync -p pg.db=ycsb?host=$work/pg&sslmode=disable&application_name=x" ;;
	badger) echo "badger -p badger.dir=$work/run -p badger.sync_writes=false" ;;
	badger-sync) echo "badger -p badger.dir=$work/run -p badger.sync_writes=true" ;;
	bbolt*) echo "boltdb -p bolt.path=$work/run" ;;
	esac
}

# ycsb COMMAND SYSTEM WORKLOAD ARGUMENT...
ycsb() {
	local command=$1 system=$2 workload=$3 nosync=
	shift 3
	[ "$system" != bbolt ] || nosync=1
	# shellcheck disable=SC2046 # words
	PEERS_BBOLT_NOSYNC=$nosync go_on "$work/go-ycsb" "$command" $(database "$system") -P "ycsb/workloads/workload$workload" \
		-p recordcount="$records" "$@"
}

# before SYSTEM: its server runs, and it has the loaded records, no others.
before() {
	case $1 in
	redis) start_redis ;;
	redis-aof) start_redis aof ;;
	postgres*)
		[ -n "$pg_dirty" ] || return 0
		sql ycsb "DELETE FROM usertable u WHERE NOT EXISTS (SELECT FROM loaded l WHERE l.ycsb_key = u.ycsb_key)" && pg_dirty=
		;;
	badger* | bbolt*)
		rm -rf "$work/run"
		cp -r "$work/loaded/$(store "$1")" "$work/run"
		;;
	esac
}

after() {
	case $1 in
	redis*) stop_redis ;;
	badger* | bbolt*) rm -rf "$work/run" ;;
	esac
}

counts() {
	case $1 in
	redis*) counts_redis ;;
	postgres*) counts_postgres ;;
	*) printf -- '-1\t0' ;;
	esac
}

# load STORE: makes $work/loaded/STORE, with values that verify can check.
load() {
	mkdir -p "$work/loaded"
	case $1 in
	redis)
		find_redis && start_redis && loading redis || return 1
		[ "$(redis dbsize)" = "$records" ] || { echo "Redis has $(redis dbsize) records" >&2; return 1; }
		redis save >/dev/null && mv "$work/redis/dump.rdb" "$work/loaded/redis.rdb" && stop_redis
		;;
	postgres)
		need_postgres && loading postgres || return 1
		sql ycsb "CREATE TABLE loaded AS SELECT ycsb_key FROM usertable" || return 1
		sql ycsb "ALTER TABLE loaded ADD PRIMARY KEY (ycsb_key)" || return 1
		sql ycsb "VACUUM ANALYZE" || return 1
		local n
		n=$(sql ycsb "SELECT count(*) FROM usertable")
		[ "$n" = "$records" ] || { echo "PostgreSQL has $n records" >&2; return 1; }
		sql ycsb CHECKPOINT
		;;
	badger | bbolt)
		rm -rf "$work/run"
		loading "$1" && mv "$work/run" "$work/loaded/$1"
		;;
	esac
}

# go-ycsb's driver of badger hands its buffers to the next insert before they
# are committed, so that two threads would mix up their records.
loading() {
	local t=8
	[ "$1" != badger ] || t=1
	ycsb load "$1" a -p threadcount="$t" -p dataintegrity=true >"$raw/load-$1.out" 2>"$raw/load-$1.err" && return 0
	echo "load: $(tail -1 "$raw/load-$1.err")" >&2
	return 1
}

need_postgres() {
	[ -z "$pg_running" ] || return 0
	find_postgres && start_postgres ycsb tpcc
}

# verify SYSTEM: reads back what was loaded and compares it.
verify() {
	before "$1" || return 1
	local status=0 command=run
	[[ $1 != drtmx* ]] || command=loadrun
	ycsb "$command" "$1" c -p threadcount=8 -p dataintegrity=true -p operationcount=5000 \
		>"$raw/verify-$1.out" 2>"$raw/verify-$1.err" || status=$?
	after "$1"
	[ "$status" = 0 ] && ! grep -q _ERROR "$raw/verify-$1.out" && return 0
	echo "records read back: $(grep -v -e Iterat -e Replay "$raw/verify-$1.err" | tail -1)" >&2
	return 1
}

# one WORKLOAD THREADS REP SYSTEM: one run of YCSB, entered in the index.
one() {
	local workload=$1 t=$2 rep=$3 system=$4 name status=0 was now command=run
	name=ycsb-$1-$2-$3-$4
	if [ -f "$work/failed-$(store "$system")" ]; then
		cp "$work/failed-$(store "$system")" "$raw/$name.err"
		: >"$raw/$name.out"
		entry ycsb "$workload" "$t" "$rep" "$system" -1 -1 0 "$name"
		return
	fi
	before "$system" || status=1
	was=$(counts "$system") || was=$'-1\t0'
	[[ $system != drtmx* ]] || command=loadrun
	ycsb "$command" "$system" "$workload" -p threadcount="$t" -p operationcount="$operations" \
		-p maxexecutiontime="$seconds" -p warmuptime="$warmup" -p drtmx.seed="$rep" \
		>"$raw/$name.out" 2>"$raw/$name.err" || status=$?
	now=$(counts "$system") || now=$'-1\t0'
	[[ $workload != [de] || $system != postgres* ]] || pg_dirty=1
	after "$system" || true
	entry ycsb "$workload" "$t" "$rep" "$system" "$status" \
		$(awk -v a="$was" -v b="$now" 'BEGIN { split(a, x); split(b, y); print (y[1] < 0) ? -1 : y[1] - x[1], y[2] - x[2] }') "$name"
}

# entry KIND WORKLOAD THREADS REP SYSTEM STATUS SERVER-OPS SERVER-ERRORS FILE
entry() { (IFS=$'\t'; echo "$*") >>"$raw/index.tsv"; }

# applies WORKLOAD SYSTEM: a hash index has no scans, go-ycsb cannot scan Redis,
# and C writes nothing that could be made durable.
applies() { [[ $1$2 != edrtmx-hash && $1$2 != eredis* && $1$2 != c*-sync && $1$2 != c*-aof ]]; }

run_ycsb() {
	local s base w t rep
	for s in $systems; do
		base=$(store "$s")
		[ ! -f "$work/loaded-$base" ] || continue
		note "loading $base"
		: >"$work/loaded-$base"
		if ! { load "$base" && verify "$s"; } 2>"$work/why"; then
			mv "$work/why" "$work/failed-$base"
			note "$base failed: $(tail -1 "$work/failed-$base")"
		fi
	done
	for w in $workloads; do
		for t in $threads; do
			for ((rep = 1; rep <= reps; rep++)); do
				note "YCSB ${w^^}, $t threads, repetition $rep of $reps"
				for s in $systems; do
					applies "$w" "$s" || continue
					one "$w" "$t" "$rep" "$s"
				done
			done
		done
	done
}

# --- TPC-C ------------------------------------------------------------------

load_tpcc() {
	need_postgres || return 1
	if ! go_tpc async prepare -T 8 --no-check >"$raw/load-tpcc.out" 2>"$raw/load-tpcc.err"; then
		echo "go-tpc prepare: $(cat "$raw/load-tpcc.out" "$raw/load-tpcc.err" | tail -1)" >&2
		return 1
	fi
	sql tpcc "VACUUM ANALYZE" && sql tpcc CHECKPOINT
}

# rows_tpcc: rows that NEW-ORDER and PAYMENT have inserted.
rows_tpcc() { sql tpcc "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM history)"; }

one_tpcc() {
	local rep=$1 system=$2 name=tpcc-$1-$2 status=0 role=async was=0 rows=-1
	if [ "$system" = drtmx ]; then
		go_on bin/drtmx tpcc run --warehouses "$warehouses" --servers "$((warehouses < 4 ? warehouses : 4))" --clients "$terminals" --mix "$TPCC_MIX" --delivery now \
			--seed "$rep" --duration "${tpcc_seconds}s" --output plain >"$raw/$name.out" 2>"$raw/$name.err" || status=$?
	elif [ -f "$work/no-tpcc" ]; then
		cp "$work/no-tpcc" "$raw/$name.err"
		: >"$raw/$name.out"
		status=-1
	else
		[ "$system" = postgres ] || role=sync
		was=$(rows_tpcc) || status=1
		go_tpc "$role" run -T "$terminals" --time "${tpcc_seconds}s" --weight "$TPCC_WEIGHT" \
			>"$raw/$name.out" 2>"$raw/$name.err" || status=$?
		rows=$(($(rows_tpcc) - was)) || status=1
	fi
	entry tpcc full "$terminals" "$rep" "$system" "$status" "$rows" 0 "$name"
}

run_tpcc() {
	local rep s
	note "loading TPC-C, $warehouses warehouses"
	if [ ! -f "$work/no-tpcc" ] && ! load_tpcc 2>"$work/why"; then
		mv "$work/why" "$work/no-tpcc"
		note "PostgreSQL failed: $(tail -1 "$work/no-tpcc")"
	fi
	for ((rep = 1; rep <= reps; rep++)); do
		note "TPC-C, repetition $rep of $reps"
		for s in $TPCC_SYSTEMS; do one_tpcc "$rep" "$s"; done
	done
	if [ -f "$work/no-tpcc" ]; then
		fact tpcc-check "not made"
	elif check_tpcc 2>"$work/why"; then
		fact tpcc-check "all hold"
	else
		fact tpcc-check "failed: $(tail -1 "$work/why")"
	fi
}

# --- all --------------------------------------------------------------------

rm -rf "$raw"
mkdir -p "$raw"
: >"$raw/facts.tsv"
: >"$raw/index.tsv"
started=$SECONDS
fact commit "$(git rev-parse --short HEAD)$(git diff --quiet HEAD -- . ':!results' 2>/dev/null || echo ', with changes')"
fact date "$(date -u +%Y-%m-%d)"
fact machine "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) processors, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo), Linux $(uname -r | cut -d- -f1), $(go env GOVERSION)"
fact load "$(cut -d' ' -f1-3 /proc/loadavg)"
fact records "$records"
fact seconds "$seconds"
fact warmup "$warmup"
fact operations "$operations"
fact reps "$reps"
fact warehouses "$warehouses"
fact tpcc-seconds "$tpcc_seconds"
fact tpcc-mix "$TPCC_MIX"
fact tpcc-weight "$TPCC_WEIGHT"
fact command "$(env | grep '^PEERS_' | grep -v -e '^PEERS_DIR' -e '^PEERS_PAGE' | sort | tr '\n' ' ')make bench-peers"
fact filesystem "$(stat -f -c %T "$work")"
note "building"
build
[ -z "$workloads" ] || run_ycsb
[ "$warehouses" = 0 ] || run_tpcc
fact took "$((SECONDS - started))"
go run ./results/peers -raw "$raw" -o "$page"
echo "wrote $page" >&2
