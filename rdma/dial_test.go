package rdma

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

// TestDialErrorKinds gives every kind of failure its own error, and only one.
func TestDialErrorKinds(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)} }
	for _, c := range []struct {
		from error
		want error
	}{
		{dial(syscall.ECONNREFUSED), ErrRefused},
		{dial(syscall.ENOENT), ErrRefused},
		{dial(syscall.ENETUNREACH), ErrUnreachable},
		{dial(syscall.EHOSTUNREACH), ErrUnreachable},
		{dial(syscall.EACCES), ErrUnreachable},
		{dial(syscall.EMFILE), ErrExhausted},
		{dial(syscall.ENFILE), ErrExhausted},
		{dial(syscall.EADDRNOTAVAIL), ErrExhausted},
		{dial(syscall.EAGAIN), ErrBusy},
		{dial(syscall.ETIMEDOUT), ErrTimeout},
		{dial(syscall.ECONNRESET), ErrPeerDown},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid"}}, ErrNotResolved},
		{&net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port", Addr: "x"}}, ErrAddress},
		{os.ErrDeadlineExceeded, ErrTimeout},
		{errors.New("something else"), ErrUnreachable},
	} {
		got := DialError(fmt.Errorf("dial: %w", c.from))
		if !errors.Is(got, c.want) || !errors.Is(got, c.from) {
			t.Errorf("%v becomes %v, want %v", c.from, got, c.want)
		}
		for _, other := range DialErrors() {
			if other != c.want && errors.Is(got, other) {
				t.Errorf("%v is %v as well as %v", c.from, other, c.want)
			}
		}
	}
}
