package sim

import (
	"math"
	"runtime"
)

// access is called before each access to a word of registered memory. Now and then
// it lets other goroutines run, so that READs meet what a writer has half done. One
// goroutine of a bubble runs at a time and nothing takes it off, so it needs no lock.
func (w *World) access() {
	if w.until--; w.until > 0 {
		return
	}
	w.until = 1 + int(math.Log(1-w.pauses.Float64())/math.Log1p(-w.swarm.pauses))
	runtime.Gosched()
}
