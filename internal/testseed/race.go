//go:build race

package testseed

// Race reports whether the race detector is on: regions are then not shared memory, and
// everything is twenty times slower.
const Race = true
