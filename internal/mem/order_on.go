//go:build race && !invariants

package mem

import "sync/atomic"

// The race detector of a program that embeds the engine need not judge the engine's own
// accesses to regions: readers race with writers there by design, and validate what
// they have read. So the detector does not see regions, which are not on the Go heap.
// It sees this word, which orders what a goroutine did before Release before what
// another does after Acquire.
var order atomic.Uint64

// Release is called before stores that make rows visible, for the race detector.
func Release() { order.Add(1) }

// Acquire is called after READs, for the race detector.
func Acquire() { order.Load() }
