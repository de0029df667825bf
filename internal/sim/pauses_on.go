//go:build simulated

package sim

import (
	"runtime"
	"strings"
	_ "unsafe" // for linkname

	"drtmx/internal/mem"
)

// locking is called before a mutex is taken, with the address of the code that takes
// it; package goruntime adds it to Go's runtime.
//
//go:linkname locking runtime.simLocking
var locking func(pc uintptr)

// pauseAt calls a function before each access to registered memory, and one before
// each mutex that the engine takes. Libraries take some once in the life of a process,
// so what they take must not count.
func pauseAt(access, lock func()) {
	mem.Simulate(access)
	engines := map[uintptr]bool{}
	locking = func(pc uintptr) {
		own, ok := engines[pc]
		if !ok {
			// Of the function that Lock is inlined into.
			own = isEngine(runtime.FuncForPC(runtime.FuncForPC(pc - 1).Entry()).Name())
			engines[pc] = own
		}
		if own {
			lock()
		}
	}
}

func isEngine(function string) bool {
	for _, prefix := range []string{"drtmx/internal/sim.", "drtmx/server_test.", "drtmx/internal/vfstest.", "drtmx/internal/history."} {
		if strings.HasPrefix(function, prefix) {
			return false
		}
	}
	return strings.HasPrefix(function, "drtmx/")
}
