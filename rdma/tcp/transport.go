package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// keptBytesMax bounds what a transport keeps: the largest frame in records of TLS,
// of which the shortest have 1 KiB and 22 bytes of overhead, and room for what TLS
// writes by itself.
const keptBytesMax = rdma.MaxMessageBytes + rdma.MaxMessageBytes/32 + 64<<10

// errNotRead reports a peer that does not read and makes TLS write.
var errNotRead = fmt.Errorf("tcp: the peer does not read: %w", os.ErrDeadlineExceeded)

// transport is a socket whose Write never waits for the peer: drain sends later
// what the kernel does not accept at once. TLS uses it too, so that the same
// holds for encrypted connections. The caller drains the rest before it writes
// again, which bounds the rest to one write. TLS also writes while it reads: it
// answers each KeyUpdate that requests an update. Nobody drains these answers
// before the next write, and they may come while another goroutine drains. So they
// go behind what is kept or being drained, and a connection ends at keptBytesMax.
type transport struct {
	net.Conn
	raw   syscall.RawConn
	stall time.Duration  // longest wait of drain
	guest *provide.Guest // until something was read

	mu       sync.Mutex // TLS writes alerts, and answers to KeyUpdates, by itself
	p        []byte     // try's argument, and what it leaves
	err      error      // of try
	try      func(fd uintptr) bool
	kept     []byte
	draining bool  // drain sends what comes before kept
	broken   error // what ended the connection
}

func newTransport(c *net.TCPConn, stall time.Duration) (*transport, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	t := &transport{Conn: c, raw: raw, stall: stall}
	t.try = t.tryWrite // made once: a closure for each write would be garbage
	return t, nil
}

// Read reads from the socket. The first bytes are reported to the lobby.
func (t *transport) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	if n > 0 && t.guest != nil {
		t.guest.Speak()
		t.guest = nil
	}
	return n, err
}

func (t *transport) tryWrite(fd uintptr) bool {
	for len(t.p) > 0 {
		n, err := writeNow(fd, t.p)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return true
		case err != nil:
			t.err = err
			return true
		}
		t.p = t.p[n:]
	}
	return true
}

// Write passes p to the kernel, and keeps what the kernel does not accept.
func (t *transport) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken != nil {
		return 0, t.broken
	}
	if t.draining || len(t.kept) > 0 {
		if len(t.kept)+len(p) > keptBytesMax {
			t.kept, t.broken = nil, errNotRead
			_ = t.Close() // so that the reader, which may be the writer, ends
			return 0, t.broken
		}
		t.kept = append(t.kept, p...)
		return len(p), nil
	}
	t.p, t.err = p, nil
	err := t.raw.Write(t.try)
	rest := t.p
	t.p = nil
	if err = errors.Join(err, t.err); err != nil {
		return 0, err
	}
	t.kept = append(t.kept[:0], rest...)
	return len(p), nil
}

// left reports whether drain has something to do.
func (t *transport) left() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.kept) > 0
}

// drain waits until the kernel has accepted everything, at most stall for each
// piece of it. Only one goroutine drains at a time.
func (t *transport) drain() error {
	for {
		t.mu.Lock()
		b := t.kept
		t.kept = nil
		t.draining = len(b) > 0
		err := t.broken
		t.mu.Unlock()
		if err != nil || len(b) == 0 {
			return err
		}
		if err := t.drainBytes(b); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.draining = false
			if t.broken == nil {
				t.broken = os.ErrDeadlineExceeded
				return err
			}
			return t.broken
		}
	}
}

// overrun reports whether the connection ended because the peer did not read what
// TLS wrote by itself.
func (t *transport) overrun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Is(t.broken, errNotRead)
}

// drainPiece is how much a peer must read within the stall timeout.
const drainPiece = 64 << 10

func (t *transport) drainBytes(b []byte) error {
	for len(b) > 0 {
		if err := t.SetWriteDeadline(time.Now().Add(t.stall)); err != nil {
			return err
		}
		n, err := t.Conn.Write(b[:min(len(b), drainPiece)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return t.SetWriteDeadline(time.Time{})
}

// outbox sends the words of several goroutines. One of them sends at a time; the
// words of others are queued meanwhile, and sent next.
type outbox struct {
	w net.Conn // the transport, or TLS over it
	t *transport
	// broken is called once, with the first error.
	broken func(error)

	mu     sync.Mutex
	idle   sync.Cond // busy has become false
	busy   bool
	err    error
	queued []uint64
	spare  []uint64
}

func newOutbox(w net.Conn, t *transport, broken func(error)) *outbox {
	o := &outbox{w: w, t: t, broken: broken}
	o.idle.L = &o.mu
	return o
}

// send sends w, which the caller may reuse on return. With wait it returns when
// the kernel has accepted everything, so that the agent stops when its peer does
// not read. Without wait it returns at once.
func (o *outbox) send(w []uint64, wait bool) error {
	o.mu.Lock()
	for o.busy && wait && o.err == nil {
		o.idle.Wait()
	}
	if o.err != nil {
		defer o.mu.Unlock()
		return o.err
	}
	if o.busy {
		o.queued = append(o.queued, w...)
		o.mu.Unlock()
		return nil
	}
	o.busy = true
	o.mu.Unlock()
	_, err := o.w.Write(mem.Bytes(w))
	if err == nil && o.t.left() {
		if !wait {
			go o.finish(nil)
			return nil
		}
		err = o.t.drain()
	}
	return o.release(err, wait)
}

// settle waits until nothing is being sent.
func (o *outbox) settle() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.busy && o.err == nil {
		o.idle.Wait()
	}
	return o.err
}

// finish drains the transport for a sender that must not wait.
func (o *outbox) finish(err error) {
	if err == nil {
		err = o.t.drain()
	}
	_ = o.release(err, true)
}

// release sends what was queued meanwhile, and lets others send.
func (o *outbox) release(err error, wait bool) error {
	for {
		o.mu.Lock()
		if err != nil || o.err != nil || len(o.queued) == 0 {
			first := o.err == nil
			if first {
				o.err = err
			}
			o.busy = false
			o.idle.Broadcast()
			o.mu.Unlock()
			if first && err != nil {
				o.broken(err)
			}
			return err
		}
		w := o.queued
		o.queued, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		_, err = o.w.Write(mem.Bytes(w))
		if err == nil && o.t.left() {
			if !wait {
				go o.finish(nil)
				return nil
			}
			err = o.t.drain()
		}
		o.mu.Lock()
		if cap(w) <= keepWords {
			o.spare = w
		}
		o.mu.Unlock()
	}
}

// fail makes waiting senders return an error.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.idle.Broadcast()
}

// join waits until no goroutine sends. The socket must be closed.
func (o *outbox) join() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.busy {
		o.idle.Wait()
	}
}
