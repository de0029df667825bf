// Package clocktest has a clock that tests move by hand.
package clocktest

import (
	"sync/atomic"
	"time"
)

// Clock stands still until it is moved. The zero value is ready to use, and
// safe for concurrent use.
type Clock struct{ now atomic.Int64 }

// Now is a clock.Source.
func (c *Clock) Now() time.Duration { return time.Duration(c.now.Load()) }

// Advance moves the clock on.
func (c *Clock) Advance(d time.Duration) { c.now.Add(int64(d)) }
