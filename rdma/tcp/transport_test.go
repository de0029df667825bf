package tcp

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"

	"drtmx/rdma"
)

// transportPair is a transport and its peer's socket, whose kernels hold little.
func transportPair(t *testing.T) (*transport, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		peer.Close()
		nc.Close()
	})
	if err := errors.Join(nc.(*net.TCPConn).SetWriteBuffer(64<<10), peer.(*net.TCPConn).SetReadBuffer(64<<10)); err != nil {
		t.Fatal(err)
	}
	tr, err := newTransport(nc.(*net.TCPConn), patience)
	if err != nil {
		t.Fatal(err)
	}
	return tr, peer.(*net.TCPConn)
}

// TestUndrainedWritesAreBounded writes without draining, as TLS does when it answers
// the KeyUpdates of a peer that does not read.
func TestUndrainedWritesAreBounded(t *testing.T) {
	tr, _ := transportPair(t)
	answer := make([]byte, 27)
	var err error
	for i := 0; err == nil && i < 16*keptBytesMax/len(answer); i++ {
		_, err = tr.Write(answer)
		if n := len(tr.kept); n > keptBytesMax {
			t.Fatalf("%d bytes are kept, want at most %d", n, keptBytesMax)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || !tr.overrun() || len(tr.kept) > 0 {
		t.Fatalf("the error is %v, %d bytes are kept", err, len(tr.kept))
	}
	if _, err := tr.Read(answer); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a Read afterwards: %v, want net.ErrClosed", err)
	}
	if err := tr.drain(); !errors.Is(err, errNotRead) {
		t.Errorf("drain afterwards: %v, want errNotRead", err)
	}
}

// hookedConn calls hook after each Write.
type hookedConn struct {
	net.Conn
	hook func()
}

func (c *hookedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.hook()
	return n, err
}

// TestWritesKeepTheirOrder writes between the pieces of a drain, as TLS does when it
// answers a KeyUpdate while a reply is on its way.
func TestWritesKeepTheirOrder(t *testing.T) {
	tr, peer := transportPair(t)
	var next uint64
	write := func(words int) {
		b := make([]byte, 8*words)
		for i := range words {
			binary.LittleEndian.PutUint64(b[8*i:], next)
			next++
		}
		if _, err := tr.Write(b); err != nil {
			t.Error(err)
		}
	}
	for !tr.left() {
		write(rdma.MaxMessageBytes / 8)
	}
	answers := 100
	tr.Conn = &hookedConn{tr.Conn, func() {
		for ; answers > 0; answers-- {
			write(1)
			runtime.Gosched() // the peer reads
		}
	}}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := errors.Join(tr.drain(), tr.Close()); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(peer)
	wg.Wait()
	if err != nil || len(got) != 8*int(next) {
		t.Fatalf("%d bytes have arrived of %d: %v", len(got), 8*next, err)
	}
	for i := range next {
		if word := binary.LittleEndian.Uint64(got[8*i:]); word != i {
			t.Fatalf("word %d has arrived as word %d", word, i)
		}
	}
}
