//go:build !race

package rdmatest

// RaceEnabled reports that the race detector is built in: it allocates, and it
// sees region memory only where that is on the Go heap.
const RaceEnabled = false
