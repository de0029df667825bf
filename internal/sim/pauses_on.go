//go:build simulated

package sim

import (
	"runtime"
	"strings"
	_ "unsafe" // for linkname

	"drtmx/internal/mem"
	"drtmx/internal/stall"
)

// locking is called before a mutex is taken, with the address of the code that takes
// it; package goruntime adds it to Go's runtime.
//
//go:linkname locking runtime.simLocking
var locking func(pc uintptr)

// pauseAt calls a function before each access to registered memory, one before each
// mutex that the engine takes, and one where a goroutine may be held up. Libraries take
// some mutexes once in the life of a process, so what they take must not count.
func pauseAt(access, lock, stalled func()) {
	mem.Simulate(access)
	stall.Simulate(stalled)
	k := &callers{}
	locking = func(pc uintptr) {
		if k.isEngine(pc) {
			lock()
		}
	}
}

// callers remembers of which code addresses the engine's are. It is a table without
// locks, for the reason that pauses has none.
type callers [1 << 14]struct {
	pc     uintptr
	engine bool
}

//go:norace
func (k *callers) isEngine(pc uintptr) bool {
	at := pc * 0x9e3779b97f4a7c15 >> (64 - 14)
	for ; k[at].pc != pc; at = (at + 1) % uintptr(len(k)) {
		if k[at].pc == 0 {
			// The function that Lock is inlined into.
			engine := isEngine(runtime.FuncForPC(runtime.FuncForPC(pc - 1).Entry()).Name())
			k[at].pc, k[at].engine = pc, engine
			return engine
		}
	}
	return k[at].engine
}

func isEngine(function string) bool {
	for _, prefix := range []string{"drtmx/internal/sim.", "drtmx/server_test.", "drtmx/internal/vfstest.", "drtmx/internal/history."} {
		if strings.HasPrefix(function, prefix) {
			return false
		}
	}
	return strings.HasPrefix(function, "drtmx/")
}
