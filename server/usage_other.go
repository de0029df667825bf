//go:build !unix

package server

import "time"

var started = time.Now()

// threadTime is at most the time that has passed, by which the trainer rests at
// least as much as it should.
func threadTime() time.Duration { return time.Since(started) }

// cpuTimeOfProcess is not known on this system.
func cpuTimeOfProcess() time.Duration { return 0 }
