# shellcheck shell=bash
# Part of scripts: commands that a signal ends.

# go_on runs a command so that a signal to the script ends it at once: bash keeps
# signals until a command in the foreground has ended. The command is $child, which
# the script's cleanup ends.
go_on() {
	local status=0
	"$@" &
	child=$!
	wait "$child" || status=$?
	child=
	return "$status"
}
