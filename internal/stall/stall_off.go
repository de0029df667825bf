//go:build !simulated

package stall

// Here marks a place at which a goroutine may be held up. It has an effect in simulations alone.
func Here() {}
