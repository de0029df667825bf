package provide

import (
	"errors"
	"net"
	"time"
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
