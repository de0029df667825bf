#!/usr/bin/env bash
# Tests the provider verbs, and the engine over it: builds test binaries and
# runs suite.sh with them, in a guest with Soft-RoCE (see boot.sh) or, if DEVICE
# names an RDMA device of this machine, here. The status is the suite's. BENCH=n
# only takes n pairs of latencies.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
cd "$here/../../.."
go=${GO:-go}
start=$SECONDS

# The headers are needed to build; the guest runs what the host has.
if ! echo '#include <rdma/rdma_cma.h>' | "${CC:-gcc}" -E - >/dev/null 2>&1 || ! command -v pkg-config >/dev/null ||
	! command -v ib_read_lat >/dev/null; then
	root=()
	[ "$(id -u)" -eq 0 ] || root=(sudo -n)
	command -v apt-get >/dev/null || { echo "test-verbs: needs gcc, pkg-config, perftest, libibverbs and librdmacm with headers" >&2; exit 125; }
	log=$(mktemp)
	{ "${root[@]}" apt-get update -q && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -q -y --no-install-recommends gcc libc6-dev pkg-config perftest libibverbs-dev librdmacm-dev; } >"$log" 2>&1 ||
		{ echo "test-verbs: cannot install libibverbs-dev and librdmacm-dev (no network?): $(grep -m1 -E '^(E|Err)' "$log" || tail -n1 "$log")" >&2; exit 125; }
	rm -f "$log"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/suite.sh" "$folder/"
packages="rdma/verbs index/hash index/learned index/learned/read server internal/cluster tpcc internal/command"
if [ -n "${BENCH:-}" ]; then
	echo "$BENCH" >"$folder/bench"
	packages=rdma/verbs
fi
for package in $packages; do
	to=$folder/${package##*/}
	mkdir "$to"
	$go test -c -tags verbs -o "$to/test" "./$package"
	[ ! -d "$package/testdata" ] || cp -r "$package/testdata" "$to/"
done
echo "test-verbs: built in $((SECONDS - start)) s"

if [ -n "${DEVICE:-}" ]; then
	[ -e "/sys/class/infiniband/$DEVICE" ] || { echo "test-verbs: no RDMA device $DEVICE in /sys/class/infiniband" >&2; exit 125; }
	DRTMX_VERBS_DEVICE=$DEVICE sh "$folder/suite.sh"
	exit
fi
"$here/boot.sh" "$folder" suite.sh &
child=$!
# Who waits for a job in the background hears of signals at once.
trap 'kill $child; wait $child; exit 130' INT
trap 'kill $child; wait $child; exit 143' TERM HUP
wait $child
