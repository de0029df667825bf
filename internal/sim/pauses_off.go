//go:build !simulated

package sim

func pauseAt(func()) {}
