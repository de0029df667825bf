# shellcheck shell=bash
# A PostgreSQL server of a script: Debian's, installed or unpacked, in $work/pg,
# with a socket there. The script defines fact and go_on, and sources unpack.sh.
#
#   PEERS_INSTALLED=0     take Debian's packages even if installed

installed() { [ "${PEERS_INSTALLED:-1}" != 0 ] && command -v "$1" >/dev/null; }

find_postgres() {
	pg_bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)
	if [ "${PEERS_INSTALLED:-1}" = 0 ] || [ ! -x "$pg_bin/initdb" ]; then
		local version
		version=$(apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p')
		unpack "${version:-postgresql-15}" postgresql-client-common "postgresql-client-${version##*-}" || return 1
		pg_bin=$(ls -d "$work"/root/usr/lib/postgresql/*/bin | tail -1)
	fi
	fact postgres "$("$pg_bin/postgres" --version | sed 's/postgres (PostgreSQL) \([^ ]*\).*/PostgreSQL \1/')"
}

as_pg() {
	if [ "$(id -u)" != 0 ]; then
		"$@"
		return
	fi
	local user=postgres
	id "$user" >/dev/null 2>&1 || user=nobody
	env -C "$work" HOME="$work/pg" setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups -- "$@"
}

sql() { as_pg "$pg_bin/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h "$work/pg" -U super -d "$1" -c "$2"; }

# start_postgres NAME...: a cluster with these databases, and with roles whose
# commits wait for the log on disk (sync) or not (async).
start_postgres() {
	mkdir -p "$work/pg"
	[ "$(id -u)" != 0 ] || chown "$(id -u postgres 2>/dev/null || id -u nobody)" "$work/pg"
	as_pg "$pg_bin/initdb" -D "$work/pg/data" -U super -A trust -E UTF8 --locale=C >"$work/initdb.log" 2>&1 ||
		{ tail -n 1 "$work/initdb.log" >&2; return 1; }
	# Checkpoints are kept out of the measured intervals, in its favour.
	as_pg tee -a "$work/pg/data/postgresql.conf" >/dev/null <<-END
		listen_addresses = ''
		unix_socket_directories = '$work/pg'
		shared_buffers = 1GB
		max_wal_size = 16GB
		checkpoint_timeout = 1h
		max_connections = 200
	END
	pg_running=1
	as_pg "$pg_bin/pg_ctl" -D "$work/pg/data" -l "$work/pg/log" -w start >/dev/null ||
		{ tail -n 1 "$work/pg/log" >&2; return 1; }
	local db role
	for role in "async off" "sync on"; do
		sql postgres "CREATE ROLE ${role% *} SUPERUSER LOGIN" || return 1
		sql postgres "ALTER ROLE ${role% *} SET synchronous_commit = ${role#* }" || return 1
	done
	for db in "$@"; do sql postgres "CREATE DATABASE $db" || return 1; done
}

# stop_postgres ends it without a checkpoint.
stop_postgres() {
	[ -z "$pg_running" ] || as_pg "$pg_bin/pg_ctl" -D "$work/pg/data" -m immediate -w stop >/dev/null 2>&1 || true
}
