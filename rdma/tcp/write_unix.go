//go:build unix

package tcp

import "syscall"

// writeNow writes what the kernel takes at once.
func writeNow(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }
