package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
)

// Ports of LoopbackAddrs. They are below those that kernels give to outgoing
// connections, which come and go and could take one before the data server
// listens there.
const (
	firstPort = 16 << 10
	lastPort  = 32 << 10
	portTries = 1000
)

// LoopbackAddrs are n addresses of this machine at which nobody listens now.
func LoopbackAddrs(n int) ([]string, error) {
	addrs := make([]string, 0, n)
	taken := map[int]bool{}
	for range portTries + n {
		if len(addrs) == n {
			return addrs, nil
		}
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails
		port := firstPort + int(binary.NativeEndian.Uint16(b[:]))%(lastPort-firstPort)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if l, err := net.Listen("tcp", addr); err == nil && !taken[port] {
			l.Close()
			taken[port] = true
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == n {
		return addrs, nil
	}
	return nil, fmt.Errorf("%w: found %d free ports from %d to %d, want %d", ErrOptions, len(addrs), firstPort, lastPort, n)
}
