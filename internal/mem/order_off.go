//go:build !race || invariants

package mem

// Release has an effect under the race detector alone.
func Release() {}

// Acquire has an effect under the race detector alone.
func Acquire() {}
