//go:build simulated

package stall

var held func()

// Simulate makes every Here call fn, which may wait. Call it once, before anything runs.
func Simulate(fn func()) { held = fn }

// Here marks a place at which a goroutine may be held up.
func Here() {
	if held != nil {
		held()
	}
}
