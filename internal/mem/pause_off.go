//go:build !simulated

package mem

// pause stands before each access to a region. It has an effect in simulations alone.
func pause() {}
