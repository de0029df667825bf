//go:build !simulated

package sim

func pauseAt(_, _, _ func()) {}
