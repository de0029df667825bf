//go:build !unix

package server

import "time"

var started = time.Now()

// threadTime returns the time since the start, because the processor time of a thread
// is not known here. It is never too short, so the trainer rests at least as much as it
// should.
func threadTime() time.Duration { return time.Since(started) }

// cpuTimeOfProcess is not known on this system.
func cpuTimeOfProcess() time.Duration { return 0 }
