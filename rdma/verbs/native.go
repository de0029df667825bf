//go:build verbs

package verbs

// #cgo pkg-config: libibverbs librdmacm
// #cgo CFLAGS: -O2 -Wall
// #cgo noescape vb_cq_poll
// #cgo nocallback vb_cq_poll
// #cgo noescape vb_qp_post
// #cgo nocallback vb_qp_post
// #cgo noescape vb_qp_receive
// #cgo nocallback vb_qp_receive
// #include "native.h"
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Identifiers of work requests: the number of the connection, the kind of
// request, and its number.
const (
	idOneSided uint64 = iota << idKindShift
	idSend
	idReceive
	idPing

	idKindShift = 28
	idConnShift = 32
	idKindMask  = 0xf << idKindShift
	idLowMask   = 1<<idKindShift - 1
)

// errno returns the error of a result of native.c, nil for 0.
func errno(what string, e C.int) error {
	if e == 0 {
		return nil
	}
	return fmt.Errorf("verbs: %s: %w", what, syscall.Errno(e))
}

// waiter lets goroutines wait for a descriptor in the runtime's network
// poller. It has a descriptor of its own to the same file, which must be in
// non-blocking mode.
type waiter struct {
	file *os.File
	raw  syscall.RawConn
	step func(uintptr) bool
}

// newWaiter waits for take to report true, which is tried first and whenever
// fd becomes readable.
func newWaiter(fd int, take func() bool) (*waiter, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("verbs: duplicate descriptor: %w", err)
	}
	w := &waiter{file: os.NewFile(uintptr(own), "verbs")}
	w.step = func(uintptr) bool { return take() }
	if w.raw, err = w.file.SyscallConn(); err == nil {
		err = w.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		w.file.Close()
		return nil, fmt.Errorf("verbs: descriptor cannot be waited for: %w", err)
	}
	return w, nil
}

// wait returns nil once take has reported true, os.ErrDeadlineExceeded at the
// deadline and os.ErrClosed after close. It allocates nothing when it
// succeeds.
func (w *waiter) wait(deadline time.Time) error {
	if err := w.file.SetReadDeadline(deadline); err != nil {
		return err
	}
	return w.raw.Read(w.step)
}

// expire makes a present wait return.
func (w *waiter) expire() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) }

func (w *waiter) close() { w.file.Close() }

// completions is a completion queue with its channel.
type completions struct {
	c    C.struct_vb_cq
	w    *waiter
	wcs  [32]C.struct_vb_wc
	size int
}

func newCompletions(v *C.struct_ibv_context, size int) (*completions, error) {
	q := &completions{size: size}
	if err := errno("create completion queue", C.vb_cq_open(v, C.int(size), &q.c)); err != nil {
		return nil, err
	}
	var err error
	q.w, err = newWaiter(int(q.c.channel.fd), func() bool { return C.vb_cq_event(&q.c) == 0 })
	if err != nil {
		q.close()
		return nil, err
	}
	return q, nil
}

// spinTries is how often one crossing into C looks for completions: long
// enough to be worth the crossing, short enough not to hold up the scheduler.
const spinTries = 32

// poll takes completions into wcs and returns how many.
func (q *completions) poll(tries int) int {
	n := int(C.vb_cq_poll(&q.c, &q.wcs[0], C.int(len(q.wcs)), C.int(tries)))
	return max(n, 0)
}

// arm requests an event at the next completion. A caller that then polls and
// finds no completion may sleep.
func (q *completions) arm() error {
	return errno("arm completion queue", C.vb_cq_arm(&q.c))
}

func (q *completions) resize(size int) error {
	if err := errno("resize completion queue", C.vb_cq_resize(&q.c, C.int(size))); err != nil {
		return err
	}
	q.size = size
	return nil
}

func (q *completions) close() {
	if q.w != nil {
		q.w.close()
	}
	C.vb_cq_close(&q.c)
}

// pinned is mapped memory registered with a device.
type pinned struct {
	r    *mem.Region
	span mem.Span
	addr uint64
	mr   *C.struct_ibv_mr
}

// pin maps n bytes, a power of two, and registers them for local use.
func pin(pd *C.struct_ibv_pd, name string, n uint64) (*pinned, error) {
	r, err := mem.New(mem.Options{Name: name, Kind: mem.Private, SegmentBytes: n, MaxBytes: n})
	if err != nil {
		return nil, err
	}
	mr, addr, err := registerMemory(pd, r, 0, n, C.IBV_ACCESS_LOCAL_WRITE)
	if err != nil {
		return nil, err
	}
	return &pinned{r, r.MustSpan(0, n), addr, mr}, nil
}

func (p *pinned) lkey() uint32 { return uint32(p.mr.lkey) }

func (p *pinned) close() {
	if p != nil {
		C.ibv_dereg_mr(p.mr)
	}
}

// registerMemory registers n bytes at off of a region; to peers they are at
// offset off.
func registerMemory(pd *C.struct_ibv_pd, r *mem.Region, off, n uint64, access C.int) (*C.struct_ibv_mr, uint64, error) {
	addr, ok := r.Address(off)
	if !ok {
		return nil, 0, fmt.Errorf("verbs: the region is on the Go heap, which no device may see: %w", rdma.ErrUnsupported)
	}
	iova := uint64(addr)
	if access&C.IBV_ACCESS_REMOTE_READ != 0 {
		iova = off
	}
	var mr *C.struct_ibv_mr
	e := C.vb_mr_open(pd, C.uint64_t(addr), C.uint64_t(n), C.uint64_t(iova), access, &mr)
	if e != 0 {
		err := errno(fmt.Sprintf("register %d bytes", n), e)
		if syscall.Errno(e) == syscall.ENOMEM {
			err = fmt.Errorf("%w (is the limit of locked memory, ulimit -l, too low?)", err)
		}
		return nil, 0, err
	}
	return mr, uint64(addr), nil
}

// remoteAccess is the device's form of a grant.
func remoteAccess(a rdma.Access) C.int {
	flags := C.int(C.IBV_ACCESS_REMOTE_READ)
	if a&rdma.AccessWrite != 0 {
		flags |= C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE
	}
	if a&rdma.AccessAtomic != 0 {
		flags |= C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_ATOMIC
	}
	return flags
}

// limits are the limits of a device.
type limits struct {
	reads, sendQueue, completions int
	atomics                       bool
}

func deviceLimits(v *C.struct_ibv_context) (limits, error) {
	var reads, sq, cqe, atomics C.uint32_t
	if err := errno("query device", C.vb_device(v, &reads, &sq, &cqe, &atomics)); err != nil {
		return limits{}, err
	}
	// Connection parameters have 8 bits for the reads in flight.
	return limits{min(int(reads), 255), int(sq), int(cqe), atomics != 0}, nil
}

// manager is an event channel of the connection manager.
type manager struct {
	ch *C.struct_rdma_event_channel
	w  *waiter
	ev C.struct_vb_event
	e  C.int
}

func newManager() (*manager, error) {
	m := &manager{}
	if err := errno("open the connection manager", C.vb_cm_open(&m.ch)); err != nil {
		return nil, fmt.Errorf("%w: is there an RDMA device, and module rdma_ucm? %w", rdma.ErrUnsupported, err)
	}
	var err error
	m.w, err = newWaiter(int(m.ch.fd), func() bool {
		m.e = C.vb_cm_event(m.ch, &m.ev)
		return m.e != C.EAGAIN
	})
	if err != nil {
		C.rdma_destroy_event_channel(m.ch)
		return nil, err
	}
	return m, nil
}

// next waits for an event, which is then in ev until the next call.
func (m *manager) next(deadline time.Time) error {
	if err := m.w.wait(deadline); err != nil {
		return err
	}
	return errno("connection event", m.e)
}

// data is the private data that came with the event.
func (m *manager) data() []byte {
	b := make([]byte, m.ev.bytes)
	for i := range b {
		b[i] = byte(m.ev.data[i])
	}
	return b
}

func (m *manager) newID() (*C.struct_rdma_cm_id, error) {
	var id *C.struct_rdma_cm_id
	return id, errno("create connection identifier", C.vb_cm_id(m.ch, &id))
}

// close is called when its identifiers are destroyed.
func (m *manager) close() {
	m.w.close()
	C.rdma_destroy_event_channel(m.ch)
}

// ackTimeout is how long the device waits for an acknowledgement before it
// sends again, which it does seven times: 4.096 µs · 2^17, so that a peer that
// is gone is noticed within 4.3 s. The default of RoCE is four times that.
const ackTimeout = 17

// setAckTimeout is for an identifier that is not connected yet.
func setAckTimeout(id *C.struct_rdma_cm_id) error {
	return errno("set the timeout of acknowledgements", C.vb_cm_ack_timeout(id, ackTimeout))
}

// wireAddress is an address in the form native.c takes.
type wireAddress struct {
	ip    [16]C.uint8_t
	bytes C.int
	port  C.uint16_t
	scope C.uint32_t
}

func toWire(a netip.AddrPort) wireAddress {
	w := wireAddress{port: C.uint16_t(a.Port())}
	ip := a.Addr().Unmap()
	w.scope = C.uint32_t(scopeOf(ip.Zone()))
	raw := ip.AsSlice()
	w.bytes = C.int(len(raw))
	for i, v := range raw {
		w.ip[i] = C.uint8_t(v)
	}
	return w
}

// cbytes views bytes as C does.
func cbytes(b []byte) *C.uint8_t { return (*C.uint8_t)(&b[0]) }

// isErrno reports whether err stems from one of these errors of the system.
func isErrno(err error, want ...syscall.Errno) bool {
	var e syscall.Errno
	if !errors.As(err, &e) {
		return false
	}
	for _, w := range want {
		if e == w {
			return true
		}
	}
	return false
}
