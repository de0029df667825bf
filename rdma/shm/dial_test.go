package shm

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"drtmx/rdma"
)

// TestDialToAFullAcceptQueue: a server that is paused with a full accept queue
// is busy, not gone, and a dial waits for room in the queue.
func TestDialToAFullAcceptQueue(t *testing.T) {
	addr := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: addr}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	filler, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(filler)
	if err := unix.Connect(filler, &unix.SockaddrUnix{Name: addr}); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, Options{})
	dial := p.dialSocket
	// dialUntil ends the context of a dial after a try for which end holds, so
	// that no step depends on how long another takes.
	dialUntil := func(end func(tries int, err error) bool) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		tries := 0
		p.dialSocket = func(ctx context.Context, network, addr string) (net.Conn, error) {
			nc, err := dial(ctx, network, addr)
			if tries++; end(tries, err) {
				cancel()
			}
			return nc, err
		}
		_, err := p.Dial(ctx, addr)
		return err
	}
	err = dialUntil(func(tries int, _ error) bool { return tries == 3 })
	if !errors.Is(err, rdma.ErrBusy) || errors.Is(err, rdma.ErrAddress) || !errors.Is(err, context.Canceled) {
		t.Errorf("dial to a full accept queue: %v; want ErrBusy at the end of the context", err)
	}
	// Room in the queue lets the next dial in, up to the handshake.
	accepted, _, err := unix.Accept(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(accepted)
	err = dialUntil(func(_ int, err error) bool { return err == nil })
	if errors.Is(err, rdma.ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("dial with room in the accept queue: %v", err)
	}
}
