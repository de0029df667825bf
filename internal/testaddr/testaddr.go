// Package testaddr gives tests addresses of this machine that no other test uses. A
// port that is taken, closed and taken again may be somebody else's in between.
package testaddr

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// Ports of an address are below those that kernels give to outgoing connections.
const firstPort, lastPort = 16 << 10, 32 << 10

var next atomic.Uint32

// Host is an address of the loopback interface that belongs to this process, and
// 127.0.0.1 where there are no others.
var Host = sync.OnceValue(func() string {
	pid := os.Getpid() // at most 22 bits
	host := fmt.Sprintf("127.%d.%d.%d", 64|pid>>16&0x3f, pid>>8&0xff, pid&0xff)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "127.0.0.1" // only Linux has all of 127.0.0.0/8
	}
	_ = l.Close()
	return host
})

// Free is New for one address of a test, which fails if there is none.
func Free(t testing.TB) string {
	t.Helper()
	addrs, err := New(1)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0]
}

// New returns n addresses with successive ports at which nobody listens and which no
// other call returned, at Host.
func New(n int) ([]string, error) {
	host := Host()
	for range 100 {
		last := next.Add(uint32(n)) % (lastPort - firstPort)
		if last < uint32(n) {
			continue // they would not be successive
		}
		if addrs, ok := free(host, firstPort+int(last)-n, n); ok {
			return addrs, nil
		}
	}
	return nil, errors.New("no free ports at " + host)
}

// free returns the addresses of n ports, if nobody listens there.
func free(host string, port, n int) ([]string, bool) {
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = net.JoinHostPort(host, strconv.Itoa(port+i))
		l, err := net.Listen("tcp", addrs[i])
		if err != nil {
			return nil, false
		}
		_ = l.Close()
	}
	return addrs, true
}
