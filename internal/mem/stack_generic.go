//go:build !amd64 || (race && invariants)

package mem

// Depth is a place in the stack of a goroutine. It does not keep the stack where
// it is, and is good for Prefetch only.
type Depth uintptr

// Here returns how deep the calling goroutine's stack is.
func Here() Depth { return 0 }

// Prefetch asks the processor to bring into its cache the part of its stack that a
// goroutine that waits at this place will use: so many bytes of calls, and the frames
// of its callers.
func (d Depth) Prefetch(calls, callers int) {}

// PrefetchObject asks the processor to bring an object into its cache.
func PrefetchObject[T any](p *T) {}
