//go:build amd64 && !(race && invariants)

package mem

import "unsafe"

// prefetchLines is a hint to the processor: it loads nothing and cannot fault.
//
//go:noescape
func prefetchLines(p unsafe.Pointer, lines int)

// Prefetch asks the processor to bring the span into its cache. Several spans
// asked for one after another arrive together, which reading them would not.
func (s Span) Prefetch() {
	prefetchLines(s.p, (s.n*WordBytes+LineBytes-1)/LineBytes)
}
