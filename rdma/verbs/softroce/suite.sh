#!/bin/sh
# What `make test-verbs` runs, in the folder of the test binaries.
folder=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d) && cd "$tmp" || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0

# run NAME COMMAND...: a quiet test says only how it went.
run() {
	name=$1
	shift
	if "$@" >out 2>&1; then
		echo "ok    $name"
	else
		echo "FAIL  $name (status $?)"
		cat out
		failed=1
	fi
}

run "provider" "$folder/verbs.test" -test.timeout 10m
exit $failed
