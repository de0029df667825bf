package clock

import "sync/atomic"

// Seen is the highest tick that a process has seen: that of a commit which it has
// made, or has read. It travels with what the process asks for, so that what comes
// of that has no lower tick, whatever the clocks show. The zero Seen has seen none.
// Safe for concurrent use.
type Seen struct{ tick atomic.Uint64 }

// Tick returns the highest tick seen.
func (s *Seen) Tick() Tick { return Tick(s.tick.Load()) }

// Saw notes a tick.
func (s *Seen) Saw(t Tick) {
	for {
		had := s.tick.Load()
		if uint64(t) <= had || s.tick.CompareAndSwap(had, uint64(t)) {
			return
		}
	}
}
