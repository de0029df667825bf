// Package testaddr gives tests addresses of this machine that no other test uses. A
// port that is taken, closed and taken again may be somebody else's in between.
package testaddr

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// Ports of an address are below those that kernels give to outgoing connections.
const firstPort, lastPort = 16 << 10, 32 << 10

var next atomic.Uint32

// Host is an address of the loopback interface that belongs to this process.
func Host() string {
	pid := os.Getpid() // at most 22 bits
	return fmt.Sprintf("127.%d.%d.%d", 64|pid>>16&0x3f, pid>>8&0xff, pid&0xff)
}

// Free returns an address at which nobody listens, with Host if there is such an
// interface, and a host of 127.0.0.1 otherwise.
func Free(t testing.TB) string {
	t.Helper()
	for range 100 {
		addr := net.JoinHostPort(Host(), strconv.Itoa(firstPort+int(next.Add(1))%(lastPort-firstPort)))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			_ = l.Close()
			return addr
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // only Linux has all of 127.0.0.0/8
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
