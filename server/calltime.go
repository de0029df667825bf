package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/wire"
)

// The deadline of a caller also bounds its procedure. The call carries the time that
// was left when it was sent, which counts from the call's arrival, since nobody knows
// how long it was on its way. At the deadline the procedure begins nothing new, its
// waits end, and it does not commit. A commit that has begun by then ends as the commit
// protocol lets it: see docs/invariants.md.

// MaxCallTime bounds a procedure that leaves its partition and whose caller has no
// deadline. It is longer than a body may run, txn.MaxBodyAge.
const MaxCallTime = 30 * time.Second

// The answers to a procedure whose time is over. Nothing was committed.
var (
	tooLate = verdict{code: wire.Late, text: "the caller's time was over before the commit of its procedure began"}
	tooLong = verdict{code: wire.Unavailable, text: "a procedure without a deadline has not reached its commit within MaxCallTime"}
)

// callTime is the context of a procedure: it ends with the server, or when the
// procedure's time is over. A timer for each call would cost more than most procedures
// do, so it gets one only when something waits for its end.
type callTime struct {
	context.Context               // of the server
	ends            time.Duration // by clock.Fast
	late            verdict       // the answer when that is over
	own             bool          // ends is the server's own bound, not a caller's deadline
	of              *elsewhere    // which counts the procedure; nil: it stays in its partition

	mu     sync.Mutex
	armed  context.Context // nil: it has no timer yet
	cancel context.CancelFunc
}

// arm returns the context with a timer. The caller holds mu.
func (c *callTime) arm() context.Context {
	if c.armed == nil {
		c.armed, c.cancel = context.WithTimeout(c.Context, c.ends-clock.Fast())
	}
	return c.armed
}

// timed is arm for a caller that does not hold mu.
func (c *callTime) timed() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arm()
}

// Deadline implements context.Context. It hides the server's own bound, so that code
// with a timeout for contexts without a deadline still applies it.
func (c *callTime) Deadline() (at time.Time, bounded bool) {
	if c.own {
		return c.Context.Deadline()
	}
	return c.timed().Deadline()
}

// Done implements context.Context.
func (c *callTime) Done() <-chan struct{} { return c.timed().Done() }

// Err implements context.Context.
func (c *callTime) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed == nil && clock.Fast() < c.ends {
		return c.Context.Err()
	}
	return c.arm().Err() // a timer that comes too late ends the context at once
}

// Value implements context.Context. It makes contexts that are derived from this one
// end with its timer, without a goroutine for each.
func (c *callTime) Value(key any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed == nil {
		return c.Context.Value(key)
	}
	return c.armed.Value(key)
}

// end releases the timer. The procedure is over.
func (c *callTime) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
}

// ended returns the answer to a procedure that runs under ctx and must end before its
// commit begins, OK if it may go on.
func ended(ctx context.Context) verdict {
	switch c, _ := ctx.(*callTime); {
	case ctx.Err() == nil && (c == nil || clock.Fast() < c.ends): // the timer does not run while the machine sleeps
		return verdict{}
	case c == nil || errors.Is(ctx.Err(), context.Canceled):
		return stops
	default:
		return c.late
	}
}

// ended returns the answer to a share of a procedure that must not commit any more, OK
// if the share may be committed.
func (sh share) ended() verdict {
	if sh.call == nil {
		return verdict{}
	}
	return ended(sh.call)
}

// deadline returns the time by clock.Fast at which a caller gives up, given the time
// that it has left; 0 if it has no deadline.
func deadline(left time.Duration) time.Duration {
	if left == 0 {
		return 0
	}
	return clock.Fast() + left
}
