//go:build !unix

package tcp

import "syscall"

// writeNow writes nothing: another goroutine sends every reply.
func writeNow(uintptr, []byte) (int, error) { return 0, syscall.EAGAIN }
