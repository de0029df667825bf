//go:build simulated

package sim

import "drtmx/internal/mem"

func pauseAt(fn func()) { mem.Simulate(fn) }
