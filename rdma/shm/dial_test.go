package shm

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = p.Dial(ctx, addr)
	if !errors.Is(err, rdma.ErrBusy) || errors.Is(err, rdma.ErrAddress) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial to a full accept queue: %v; want ErrBusy at the end of the context", err)
	}
	// Room in the queue lets the next dial in, up to the handshake.
	accepted, _, err := unix.Accept(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(accepted)
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Dial(ctx, addr); errors.Is(err, rdma.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial with room in the accept queue: %v", err)
	}
}
