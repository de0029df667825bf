//go:build !race

package indextest

// Scale divides the length of runs.
const Scale = 1
