package shm

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// wakeEvery is after how many replies of one pass a client is woken. A client
// that is woken at the first reply competes with the server for a core; one that
// is woken after the last has been idle.
const wakeEvery = 16

// poller serves the RPCs of its share of the slots of every link.
type poller struct {
	e      *endpoint
	index  int
	asleep mem.Span // word 0: odd while the poller sleeps; clients map it read-only
	epoll  int
	own    *doorFD // for kick
	events [64]unix.EpollEvent
	spin   provide.Spinner
	links  atomic.Pointer[[]*serverLink] // copied on change
	buf    []byte                        // the request being handled

	yielder  yielder
	deferred bool // a handler has returned without a reply

	mu     sync.Mutex // serialises attach, detach, kick and close
	closed bool
}

// doorFD is an eventfd in a poller's epoll set. It is edge-triggered and never
// read, so every write to it, by any holder, is one event.
type doorFD struct {
	file *os.File
	fd   int
}

func newPoller(e *endpoint, index int, o Options) (*poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &poller{e: e, index: index, epoll: ep, asleep: e.page.MustSpan(uint64(index)*mem.LineBytes, mem.LineBytes)}
	p.links.Store(new([]*serverLink))
	p.spin.Init(serverSpins * o.Spin)
	if p.own, err = p.newDoor(); err != nil {
		unix.Close(ep)
		return nil, err
	}
	return p, nil
}

// newDoor makes an eventfd and watches it.
func (p *poller) newDoor() (*doorFD, error) {
	// Blocking: the runtime would watch a non-blocking descriptor too.
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &doorFD{os.NewFile(uintptr(fd), "doorbell"), fd}, nil
}

// attach adds a link and returns the eventfd for its client.
func (p *poller) attach(l *serverLink) (*doorFD, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, err := p.newDoor()
	if err != nil {
		return nil, err
	}
	links := append(slices.Clone(*p.links.Load()), l)
	p.links.Store(&links)
	return d, nil
}

func (p *poller) detach(l *serverLink, d *doorFD) {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := slices.DeleteFunc(slices.Clone(*p.links.Load()), func(x *serverLink) bool { return x == l })
	p.links.Store(&links)
	// Closing it is not enough, because the client has it open too.
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, d.fd, nil)
	d.file.Close()
}

// kick makes a sleeping poller look again.
func (p *poller) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		_, _ = unix.Write(p.own.fd, eventOne)
	}
}

func (p *poller) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.own.file.Close()
	unix.Close(p.epoll)
}

// run serves until the endpoint is closed.
func (p *poller) run(h rdma.Handler) {
	for !p.e.Closed() {
		if p.pass(h) || p.watch(h) {
			continue
		}
		seq := p.asleep.Load(0) + 1
		p.asleep.Store(0, seq)
		if !p.pass(h) && !p.e.Closed() {
			if cap(p.buf) > provide.KeepBytes {
				p.buf = nil
			}
			p.sleep()
		}
		p.asleep.Store(0, seq+1)
	}
}

// sleep waits in the kernel. It blocks the thread in a system call, because a
// goroutine in the runtime's poller takes three times as long to wake. Therefore
// watch lets every other goroutine run first.
func (p *poller) sleep() {
	if _, err := unix.EpollWait(p.epoll, p.events[:], -1); err != nil && !errors.Is(err, unix.EINTR) {
		// Impossible while the descriptor is open, but must not become a hot loop.
		time.Sleep(time.Millisecond)
	}
}

// watch looks for work for as long as spinning pays, and reports whether there
// was any.
func (p *poller) watch(h rdma.Handler) bool {
	// Another goroutine has a request without a reply.
	p.yielder.yield(p.deferred)
	p.deferred = false
	// Once in any case: the next requests of a process that waits for this core
	// then need no wake-up and are handled together. This doubled the throughput
	// of four servers on two cores, for a third of their CPU time.
	yieldProcessor()
	if p.pass(h) {
		return true
	}
	budget := p.spin.Budget()
	if budget == 0 {
		return false
	}
	start := now()
	for took := time.Duration(0); took < budget; took = now() - start {
		yieldProcessor()
		if p.pass(h) {
			p.spin.Hit(took)
			return true
		}
	}
	p.spin.Miss()
	return false
}

// pass handles the requests whose bells have rung, and reports whether there
// were any.
func (p *poller) pass(h rdma.Handler) (worked bool) {
	links := *p.links.Load()
	defer runtime.KeepAlive(links) // and their memory, if one ends meanwhile
	n := len(p.e.pollers)
	first := p.index * (doorbellWords / n)
	for _, l := range links {
		words := (int(l.used.Load()) + 64*n - 1) / (64 * n)
		replies := 0
		for w := first; w < first+words; w++ {
			if l.requests.Load(w) == 0 {
				continue
			}
			for rung := l.requests.Swap(w, 0); rung != 0; rung &= rung - 1 {
				c := l.conns[slotOf(p.index, w, bits.TrailingZeros64(rung), n)].Load()
				if c == nil {
					continue
				}
				p.serve(h, c)
				if replies++; replies%wakeEvery == 0 {
					wakeClient(l.peerSleep)
				}
			}
		}
		if replies > 0 {
			worked = true
			wakeClient(l.peerSleep)
		}
	}
	return worked
}

// serve performs the verbs and handles the request in c's slot, if there are any.
func (p *poller) serve(h rdma.Handler, c *serverConn) {
	c.performVerbs()
	body, ok := c.take(p.buf)
	p.buf = body[:cap(body)]
	if !ok {
		return
	}
	c.req = rdma.Request{Body: body, Peer: c.peer, From: &c.link.who, Replier: c}
	h(&c.req)
	p.deferred = c.handlerReturned() || p.deferred
}
