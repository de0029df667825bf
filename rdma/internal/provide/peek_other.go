//go:build !unix

package provide

// received reports whether a socket has bytes to read, which this system cannot
// tell without taking them.
func received(uintptr) bool { return false }
