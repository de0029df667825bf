#!/bin/sh
# What `make test-verbs` runs, in the folder of the test binaries. The device
# is DRTMX_VERBS_DEVICE, or the first there is.
folder=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d) && cd "$tmp" || exit 1
trap 'cd /; rm -rf "$tmp"' EXIT
[ -n "${DRTMX_VERBS_DEVICE:-}" ] || DRTMX_VERBS_DEVICE=$(ls /sys/class/infiniband | head -n1)
export DRTMX_VERBS_DEVICE
failed=0

seconds() { cut -d. -f1 /proc/uptime; }

# run NAME BINARY PATTERN [FLAG...]: a quiet test says only how it went. No test may be
# skipped; a case of one that does not apply to the device says why.
run() {
	start=$(seconds)
	name=$1 binary=$2 pattern=$3
	shift 3
	if (cd "$folder/$binary" && ./test -test.run "$pattern" -test.v -test.timeout 20m "$@") >out 2>&1 &&
		! grep -q -e '^--- SKIP' -e "no tests to run" out; then
		echo "ok    $name: $(grep -c -e '--- PASS' out) cases, $(($(seconds) - start)) s"
		sed -n 's/^ *--- SKIP: /      does not apply: /p; s/^ *[a-z_]*_test.go:[0-9]*: \(latency: .*\)/      \1/p' out
	else
		echo "FAIL  $name"
		cat out
		failed=1
	fi
}

latency=TestLatencyBesidePerftest
if [ -e "$folder/bench" ]; then # asks for latencies alone, and for how many pairs
	DRTMX_VERBS_LATENCY=$(cat "$folder/bench")
	export DRTMX_VERBS_LATENCY
	run "latency beside perftest" verbs "$latency"
	exit $failed
fi
run "provider: conformance, hostile peers, killed processes" verbs . -test.skip "$latency"
run "hash index" hash 'TestConformance$/./verbs/(model|concurrent)|TestConformanceWithPast$/./verbs/concurrent'
run "learned index" learned 'TestConformance$/././verbs/(model|concurrent)'
run "transactions: histories of processes, some killed" server 'TestProcessHistoriesOverVerbs|TestWritersOverVerbs'
run "transactions: snapshots beside writers, Views that go on as snapshots" server '^(TestSnapshotsBesideWriters|TestOvertakenViewGoesOn)$/^verbs$'
run "roles: every request as every peer, roles that nothing proves" server '^(TestEveryRequestUnderEveryRole|TestARoleIsNotClaimed|TestAReaderOfTheDatabase)$/^verbs$'
run "cluster: a takeover beside writers" cluster TestTakeoverOverVerbs
run "TPC-C: what each transaction asks of every fabric" tpcc 'TestEveryFabricCostsTheSame'
run "commands: TPC-C between processes, check, a killed server" command 'TestScripts/(run|serve)_verbs|TestKilledServerOverVerbs'
exit $failed
