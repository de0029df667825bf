//go:build race

package shm

import "sync/atomic"

const raceEnabled = true

// messageOrder shows the race detector that what a sender did before a message
// happens before what its receiver does after it. The detector does not see the
// words of the message, which are in mapped memory. It sees these words of the Go
// heap, if both sides are in one process.
var messageOrder [64]atomic.Uint64

func messageSent(slot int)     { messageOrder[slot%len(messageOrder)].Add(1) }
func messageReceived(slot int) { messageOrder[slot%len(messageOrder)].Load() }
