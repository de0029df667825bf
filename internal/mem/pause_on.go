//go:build simulated

package mem

// paused is called before each access to a word of a region, if it is set.
var paused func()

// Simulate makes every access to a word of a region call fn first, so that a
// simulation may let other goroutines run between any two of them. Call it once,
// before there is a region.
func Simulate(fn func()) { paused = fn }

func pause() {
	if paused != nil {
		paused()
	}
}
