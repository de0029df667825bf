package provide

import (
	"errors"
	"net"
	"time"
)

// Buffers of large messages. A connection keeps larger ones only while it is
// busy.
const (
	// KeepBytes is how large the buffers are that an idle connection keeps.
	KeepBytes = 64 << 10
	// GiveBackAfter is how long a connection is idle before it gives larger
	// buffers back.
	GiveBackAfter = time.Second
)

// acceptRetry is how long to wait after a failure to accept. The process may be
// out of descriptors, and get some back.
const acceptRetry = 10 * time.Millisecond

// Accept hands every accepted socket to handle until the listener is closed.
func Accept[C net.Conn](accept func() (C, error), handle func(C)) {
	for {
		c, err := accept()
		switch {
		case err == nil:
			handle(c)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(acceptRetry)
		}
	}
}
