// Package invariants switches costly assertions: they are compiled in under
// the build tag invariants, and cost nothing otherwise.
//
// An assertion states what the code relies on and never replaces an error: a
// broken invariant is a bug of the engine, so it crashes the process before it
// can answer wrongly. Conditions that a peer, a file or a user can cause are
// errors and are returned.
//
//	if invariants.Enabled && key < leaf.low {
//		invariants.Failf("leaf covers key %d below its low fence %d", key, leaf.low)
//	}
//
// The surrounding if lets the compiler drop the condition too.
package invariants

import "fmt"

// Violation is the value of an assertion's panic.
type Violation string

func (v Violation) Error() string { return "invariant broken: " + string(v) }

// Failf panics with the formatted text if assertions are compiled in. It is
// for conditions that the caller has found broken, under Enabled.
func Failf(format string, args ...any) {
	if Enabled {
		panic(Violation(fmt.Sprintf(format, args...)))
	}
}
