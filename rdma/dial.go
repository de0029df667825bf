package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
)

// Errors of Dial, one for each reason why there is no connection. None of them
// says anything about the memory of the server: a server that refuses, or
// cannot be reached, may be alive with all its data. Only another incarnation,
// heard from the server itself or read in the membership store, proves that
// its memory is gone.
//
// A malformed address is ErrAddress, an address without a fabric in common is
// ErrUnsupported, and a dial that the caller's context ended is the error of
// that context.
var (
	// ErrRefused reports that no server listens at the address. It is also an
	// ErrAddress.
	ErrRefused = fmt.Errorf("%w: no server listens there", ErrAddress)
	// ErrUnreachable reports that the address cannot be reached: no route, a
	// network that is down, a firewall, or a socket file without permission.
	ErrUnreachable = errors.New("rdma: unreachable")
	// ErrNotResolved reports a host name that could not be resolved.
	ErrNotResolved = errors.New("rdma: host name not resolved")
	// ErrBusy reports a server that accepts no further connection at the
	// moment: its accept queue or its table of connections is full.
	ErrBusy = errors.New("rdma: the server takes no more connections")
	// ErrExhausted reports that this process or machine has no descriptor,
	// port or buffer left.
	ErrExhausted = errors.New("rdma: out of descriptors, ports or buffers")
	// ErrTimeout reports a server that did not answer within the bound of the
	// provider, or of the system. That may be more than a minute (tcp, verbs): a
	// caller that cannot wait for so long sets a deadline in its context.
	ErrTimeout = errors.New("rdma: no answer in time")
)

// DialErrors lists the errors above, for tests that try every one.
func DialErrors() []error {
	return []error{ErrRefused, ErrUnreachable, ErrNotResolved, ErrBusy, ErrExhausted, ErrTimeout, ErrPeerDown}
}

// dialErrnos maps errors of the operating system to errors of Dial.
var dialErrnos = []struct {
	err    error
	errnos []syscall.Errno
}{
	{ErrRefused, []syscall.Errno{syscall.ECONNREFUSED, syscall.ENOENT}},
	{ErrExhausted, []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL}},
	{ErrBusy, []syscall.Errno{syscall.EAGAIN}},
	{ErrTimeout, []syscall.Errno{syscall.ETIMEDOUT}},
	{ErrPeerDown, []syscall.Errno{syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE}},
}

// DialError wraps a connect error of the operating system or of package net
// with the matching error of Dial. An unknown error becomes ErrUnreachable.
func DialError(err error) error {
	var errno syscall.Errno
	var malformed *net.AddrError
	var parse *net.ParseError
	var dns *net.DNSError
	if errors.As(err, &errno) {
		for _, d := range dialErrnos {
			if slices.Contains(d.errnos, errno) {
				return fmt.Errorf("%w: %w", d.err, err)
			}
		}
	}
	switch {
	case errors.As(err, &malformed), errors.As(err, &parse):
		return fmt.Errorf("%w: %w", ErrAddress, err)
	case errors.As(err, &dns):
		// The resolver hides the error of its sockets; a process without
		// descriptors resolves no name either.
		return fmt.Errorf("%w: %w", ErrNotResolved, err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}
