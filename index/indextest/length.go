package indextest

import "drtmx/internal/testseed"

// Length is how long a run is that has n operations in a soak.
func Length(n int) int {
	if !testseed.Soaking() {
		n /= 15
	}
	return n / Scale
}
