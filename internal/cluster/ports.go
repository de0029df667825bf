package cluster

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"

	"drtmx/rdma"
)

// Ports that are chosen here. They are below those that kernels give to outgoing
// connections, which come and go and could take one before the data server
// listens there.
const (
	firstPort = 16 << 10
	lastPort  = 32 << 10
	portTries = 1000
)

// LoopbackAddrs returns n addresses of this machine at which nothing listens now.
func LoopbackAddrs(n int) ([]string, error) {
	return freeAddrs(n, func(port string) (string, error) {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			return "", fmt.Errorf("%w: %w", rdma.ErrAddress, err)
		}
		return l.Addr().String(), l.Close()
	})
}

// DeviceAddrs returns n addresses at which a provider can listen and nothing does now.
// The provider chooses the host.
func DeviceAddrs(p rdma.Provider, n int) ([]string, error) {
	return freeAddrs(n, func(port string) (string, error) {
		e, err := p.Listen(":"+port, rdma.ListenOptions{})
		if err != nil {
			return "", err
		}
		return e.Addr(), e.Close()
	})
}

// freeAddrs tries ports until it has n addresses; try fails with rdma.ErrAddress if a
// port is taken.
func freeAddrs(n int, try func(port string) (string, error)) ([]string, error) {
	addrs := make([]string, 0, n)
	var last error
	for range portTries + n {
		if len(addrs) == n {
			return addrs, nil
		}
		var b [2]byte
		_, _ = rand.Read(b[:]) // never fails
		addr, err := try(strconv.Itoa(firstPort + int(binary.NativeEndian.Uint16(b[:]))%(lastPort-firstPort)))
		switch {
		case err == nil && !slices.Contains(addrs, addr):
			addrs = append(addrs, addr)
		case err != nil && !errors.Is(err, rdma.ErrAddress):
			return nil, err
		case err != nil:
			last = err
		}
	}
	if len(addrs) == n {
		return addrs, nil
	}
	return nil, fmt.Errorf("%w: found %d free ports from %d to %d, want %d: %w", ErrOptions, len(addrs), firstPort, lastPort, n, last)
}
