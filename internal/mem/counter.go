package mem

import "sync/atomic"

// Counter is a counter to which one goroutine at a time adds, and which any may
// load. The zero Counter is at 0. It must not be copied.
type Counter struct{ v atomic.Uint64 }

// Add adds by. Its callers take turns: two at once may lose one of the sums. It
// costs less than an atomic addition, which would also serve several callers.
func (c *Counter) Add(by uint64) { addWord(&c.v, by) }

// Load returns the sum so far.
func (c *Counter) Load() uint64 { return c.v.Load() }
