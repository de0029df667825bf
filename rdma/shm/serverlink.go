package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// serverLink is the server side of a link.
type serverLink struct {
	e         *endpoint
	sock      socket
	seg       *mem.Control
	requests  mem.Span
	responses mem.Span
	peerPage  *mem.Control
	peerSleep mem.Span // see wakeClient
	conns     []atomic.Pointer[serverConn]
	used      atomic.Int32 // slots up to the highest ever used
	bells     []*doorFD    // an eventfd in the epoll set of each poller
	who       rdma.Identity
	unwoken   atomic.Uint32 // replies since the endpoint was corked
	hungUp    bool          // the client closed the socket: it no longer relies on the segment
}

// newServerLink makes the segment for a client that has sent its page.
func newServerLink(e *endpoint, s socket, page *os.File) (*serverLink, error) {
	peerPage, err := mem.OpenControl(page, pageBytes)
	if err != nil {
		return nil, err
	}
	seg, err := mem.NewControl("link", linkBytes)
	if err != nil {
		return nil, err
	}
	l := &serverLink{
		e: e, sock: s, seg: seg, peerPage: peerPage,
		requests:  seg.Span(requestBells, doorbellWords*mem.WordBytes),
		responses: seg.Span(responseBells, doorbellWords*mem.WordBytes),
		peerSleep: peerPage.Span(0, mem.LineBytes),
		conns:     make([]atomic.Pointer[serverConn], slotsFor(len(e.pollers))),
	}
	for _, p := range e.pollers {
		d, err := p.attach(l)
		if err != nil {
			l.detach()
			return nil, err
		}
		l.bells = append(l.bells, d)
	}
	return l, nil
}

// welcome sends the client the segment, the bells and the regions.
func (l *serverLink) welcome(grants []provide.Grant) error {
	files := []*os.File{l.seg.File(), l.e.page.Files(0)[0].File}
	for _, d := range l.bells {
		files = append(files, d.file)
	}
	m := message{kind: msgWelcome, version: wireVersion, pollers: uint32(len(l.bells)), regions: uint32(len(grants))}
	if err := l.sock.send(&m, files...); err != nil {
		return err
	}
	for i, g := range grants {
		if err := l.sendRegion(&message{rkey: rdma.RKey(i + 1)}, g); err != nil {
			return err
		}
	}
	return nil
}

// sendRegion sends files of a region that the client does not have, as many as
// one message carries.
func (l *serverLink) sendRegion(asked *message, g provide.Grant) error {
	var files []*os.File
	first := asked.first
	for i, f := range g.Region.Files(first) {
		if i == 0 {
			first = f.Off
		}
		if files = append(files, f.File); len(files) == filesMax {
			break
		}
	}
	return l.sock.send(&message{
		kind: msgRegion, id: asked.id, rkey: asked.rkey, first: first,
		segment: g.Region.SegmentBytes(), max: g.Region.MaxBytes(),
	}, files...)
}

// receive answers the control socket until it ends.
func (l *serverLink) receive() {
	for {
		m, _, err := l.sock.receive(false)
		if err == nil {
			err = l.control(&m)
		}
		if err != nil {
			l.hungUp = errors.Is(err, io.EOF)
			return
		}
	}
}

func (l *serverLink) control(m *message) error {
	switch m.kind {
	case msgOpen:
		answer := message{kind: msgOpened, id: m.id, reason: reasonFull}
		if slot, ok := l.open(m.id); ok {
			answer.slot, answer.reason = uint32(slot), reasonNone
		}
		return l.sock.send(&answer)
	case msgClose:
		if int(m.slot) >= len(l.conns) {
			return errWire
		}
		if c := l.conns[m.slot].Load(); c != nil {
			if c.cut() {
				// OnDisconnect may wait for what this goroutine has to answer.
				l.e.background(func() { l.e.opts.OnDisconnect(c.peer) })
			}
			l.free(c)
			if c.longest > provide.KeepBytes {
				l.seg.Discard(uint64(slotsOffset+c.slot*slotBytes), slotBytes)
			}
		}
		return nil
	case msgAsk:
		g, ok := l.e.Region(m.rkey)
		if !ok || !l.who.MayRead() {
			return l.sock.send(&message{kind: msgRegion, id: m.id, rkey: m.rkey, reason: reasonNoRegion})
		}
		return l.sendRegion(m, g)
	}
	return fmt.Errorf("%w: kind %d", errWire, m.kind)
}

// open assigns a slot to a new connection. Only the link's goroutine calls it.
func (l *serverLink) open(id uint32) (int, bool) {
	for slot := range l.conns {
		if l.conns[slot].Load() != nil {
			continue
		}
		c := &serverConn{link: l, id: id, slot: slot, peer: rdma.PeerID(l.e.lastPeer.Add(1))}
		var poller int
		poller, c.word, c.mask = bellOf(slot, len(l.bells))
		c.poller = l.e.pollers[poller]
		c.request, c.response = slotAreas(l.seg, slot)
		c.agent.verbs, c.agent.results = slotVerbs(l.seg, slot)
		c.request.clear()
		c.response.clear()
		l.used.Store(max(l.used.Load(), int32(slot+1)))
		l.conns[slot].Store(c)
		return slot, true
	}
	return 0, false
}

// end frees the link and its connections, and reports the disconnects.
func (l *serverLink) end() {
	l.sock.Close()
	for i := range l.conns {
		if c := l.conns[i].Load(); c != nil {
			c.stop()
			l.free(c)
		}
	}
	l.detach()
	if l.hungUp {
		// Otherwise the client may still be reading a response; see link.leave.
		l.seg.Discard(0, linkBytes)
	}
	l.seg.CloseFile()
}

// free makes the slot of a stopped connection available, and keeps its counts.
func (l *serverLink) free(c *serverConn) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	l.e.mu.retired = l.e.mu.retired.Add(c.counters())
	l.conns[c.slot].Store(nil)
}

func (l *serverLink) detach() {
	for i, d := range l.bells {
		l.e.pollers[i].detach(l, d)
	}
	l.bells = nil
}

// serverConn is the server side of a connection.
type serverConn struct {
	link     *serverLink
	id       uint32 // the client's name for it
	slot     int
	word     int
	mask     uint64
	peer     rdma.PeerID
	poller   *poller
	request  area
	response area
	req      rdma.Request

	mu       sync.Mutex
	agent    agent
	seq      uint32 // of the last request taken
	busy     bool   // a request has no reply yet
	handling bool   // the handler runs
	ended    bool
	farewell bool // the poller calls OnDisconnect when the handler returns
	longest  int  // message so far
	reqBytes int
	count    rdma.Counters
}

func (c *serverConn) counters() rdma.Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// take copies a new request from the slot into buf. It trusts nothing in the
// slot: a request that does not follow the last one, comes before the reply to
// it, or is too long ends the connection.
func (c *serverConn) take(buf []byte) (body []byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seq, n := c.request.header()
	if c.ended || seq == c.seq {
		return buf, false
	}
	if c.busy || seq != c.seq+1 || n > rdma.MaxMessageBytes {
		c.mu.Unlock()
		c.violate()
		c.mu.Lock()
		return buf, false
	}
	if cap(buf) < int(n) {
		buf = make([]byte, max(int(n), 2*cap(buf)))
	}
	body = buf[:n]
	c.request.body().CopyBytesOut(body)
	c.seq, c.busy, c.handling, c.reqBytes = seq, true, true, int(n)
	c.longest = max(c.longest, int(n))
	return body, true
}

// handlerReturned is called after the handler, and reports whether the reply is
// pending.
func (c *serverConn) handlerReturned() (deferred bool) {
	c.mu.Lock()
	c.handling = false
	deferred = c.busy
	farewell := c.farewell
	c.farewell = false
	c.mu.Unlock()
	if farewell {
		c.link.e.opts.OnDisconnect(c.peer)
	}
	return deferred
}

// Reply publishes the response. It wakes the client at once, unless a handler of
// the same connection runs: then the poller wakes the client later.
func (c *serverConn) Reply(body []byte) error {
	c.mu.Lock()
	if err := provide.CheckReply(c.peer, !c.ended, c.busy, body); err != nil {
		c.mu.Unlock()
		return err
	}
	c.busy = false
	c.longest = max(c.longest, len(body))
	c.count.RPCs++
	c.count.RPCBytes += uint64(c.reqBytes + len(body))
	c.response.publish(c.seq, body)
	handling := c.handling
	c.mu.Unlock()
	c.link.responses.Or(c.word, c.mask)
	if !handling {
		c.link.wake()
	}
	return nil
}

// wake wakes the client for a reply, unless Uncork does.
func (l *serverLink) wake() {
	if l.e.corked.Load() > 0 && l.unwoken.Add(1)%wakeEvery != 0 && l.e.corked.Load() > 0 {
		return // Uncork, which is yet to come, sees the reply
	}
	wakeClient(l.peerSleep)
	runtime.KeepAlive(l) // and the page, if the link ends meanwhile
}

// violate ends only the connection whose client broke the protocol. Its slot
// stays in use until the client closes it.
func (c *serverConn) violate() {
	c.link.e.Refuse(refusedProtocol)
	c.expel()
}

// expel ends a connection whose client may still use it.
func (c *serverConn) expel() {
	tell := c.cut()
	// The caller must not wait for a client that does not read its socket, and may hold what
	// OnDisconnect waits for.
	c.link.e.background(func() {
		if tell {
			c.link.e.opts.OnDisconnect(c.peer)
		}
		_ = c.link.sock.send(&message{kind: msgClosed, id: c.id, slot: uint32(c.slot)})
	})
}

// stop ends the service of the connection, once. OnDisconnect follows the
// last handler call.
func (c *serverConn) stop() {
	if c.cut() {
		c.link.e.opts.OnDisconnect(c.peer)
	}
}

// cut ends the service of the connection, and reports whether the caller must call
// OnDisconnect.
func (c *serverConn) cut() (tell bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tell = !c.ended && c.link.e.opts.OnDisconnect != nil && c.link.e.Handler() != nil && !c.link.e.Closed()
	c.ended = true
	if tell && c.handling {
		c.farewell, tell = true, false
	}
	return tell
}
