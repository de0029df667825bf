package tcp

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// TestDialErrors: a name that does not resolve and a network without a route
// are no proof that a server is gone, and have errors of their own.
func TestDialErrors(t *testing.T) {
	p, err := New(Options{Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]error{
		"no-such-host.invalid:1": rdma.ErrNotResolved,
		"127.0.0.1:1":            rdma.ErrRefused,
		"127.0.0.1":              rdma.ErrAddress,
		"[fe80::1]:1":            rdma.ErrUnreachable, // a link-local address without a link
	} {
		ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
		_, err := p.Dial(ctx, addr)
		cancel()
		if !errors.Is(err, want) {
			t.Errorf("dial %s: %v, want %v", addr, err, want)
		}
		if gone := errors.Is(err, rdma.ErrAddress); gone != errors.Is(want, rdma.ErrAddress) {
			t.Errorf("dial %s: %v counts as a bad address: %v", addr, err, gone)
		}
	}
}
