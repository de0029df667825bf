//go:build !amd64 || (race && invariants)

package mem

// Prefetch asks the processor to bring the span into its cache. Several spans
// asked for one after another arrive together, which reading them would not.
func (s Span) Prefetch() {}
