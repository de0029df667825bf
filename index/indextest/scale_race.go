//go:build race

package indextest

// Scale divides the length of runs: the race detector is slow.
const Scale = 10
