# shellcheck shell=bash
# TPC-C on PostgreSQL by go-tpc, which is $work/go-tpc. The script sources
# postgres.sh and defines $warehouses.

GO_TPC=github.com/pingcap/go-tpc/cmd/go-tpc@v1.0.12

build_go_tpc() {
	mkdir -p "$work/go-tpc.d"
	printf 'module throwaway\n' >"$work/go-tpc.d/go.mod"
	(cd "$work/go-tpc.d" && go get "$GO_TPC" && go build -o "$work/go-tpc" "${GO_TPC%@*}") 2>"$work/go-tpc.log" ||
		{ echo "go-tpc: $(tail -1 "$work/go-tpc.log")" >&2; return 1; }
	fact go-tpc "${GO_TPC##*@}"
}

# go_tpc ROLE COMMAND ARGUMENT...
go_tpc() {
	local role=$1 command=$2
	shift 2
	# It wants a host, which the socket's directory then replaces: lib/pq
	# takes the greatest value that it is given.
	go_on "$work/go-tpc" tpcc "$command" -d postgres -U "$role" -p x -H . -P 5432 -D tpcc \
		--conn-params "sslmode=disable&host=$work/pg" --warehouses "$warehouses" "$@"
}

# check_tpcc: conditions 3.3.2.1 to 3.3.2.4 of the specification. (Those of
# go-tpc check take minutes.)
check_tpcc() {
	local bad
	bad=$(sql tpcc "SELECT
		(SELECT count(*) FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)) || ' ' ||
		(SELECT count(*) FROM district WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)) || ' ' ||
		(SELECT count(*) FROM (SELECT max(no_o_id) - min(no_o_id) + 1 AS span, count(*) AS n FROM new_order GROUP BY no_w_id, no_d_id) x WHERE span <> n) || ' ' ||
		(SELECT count(*) FROM (SELECT o_w_id AS w, o_d_id AS d, sum(o_ol_cnt) AS n FROM orders GROUP BY 1, 2) o
			JOIN (SELECT ol_w_id AS w, ol_d_id AS d, count(*) AS n FROM order_line GROUP BY 1, 2) l USING (w, d) WHERE o.n <> l.n)") || return 1
	[ "$bad" = "0 0 0 0" ] && return 0
	echo "warehouses or districts that violate 3.3.2.1 to 3.3.2.4: $bad" >&2
	return 1
}
