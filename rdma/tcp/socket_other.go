//go:build !linux

package tcp

import "time"

// setUserTimeout does nothing: keepalive alone has to find a vanished peer.
func setUserTimeout(int, time.Duration) error { return nil }
