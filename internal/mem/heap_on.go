//go:build race && invariants

package mem

// watched says that regions are on the Go heap and copied by instrumented
// loads and stores, so that the race detector sees every word.
const watched = true
