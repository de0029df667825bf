//go:build race

package shm

import "sync/atomic"

const raceEnabled = true

// The race detector does not see that a message orders what its sender did
// before what its receiver does after: the words lie in mapped memory. Where
// both are in one process, these words of the Go heap tell it.
var messageOrder [64]atomic.Uint64

func messageSent(slot int)     { messageOrder[slot%len(messageOrder)].Add(1) }
func messageReceived(slot int) { messageOrder[slot%len(messageOrder)].Load() }
