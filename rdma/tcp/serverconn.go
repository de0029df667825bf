package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

var errTwoCalls = errors.New("tcp: a second call before the reply to the first")

// inputWords is the agent's buffer for requests.
const inputWords = 1 << 10

// serverConn is the server side of a connection.
type serverConn struct {
	e      *endpoint
	peer   rdma.PeerID
	id     Identity
	rights rdma.Access
	conn   net.Conn // TLS, or the socket
	agent  *agent
	out    *outbox
	tally  rdma.Tally
	poller *poller
	req    rdma.Request
	callEv provide.Node[event]
	goneEv provide.Node[event]
	extra  provide.Extra
	served chan struct{} // closed when no verb of the peer can take effect any more

	mu struct {
		sync.Mutex
		id       uint64 // of the last call taken
		body     []byte
		busy     bool // a call has no reply yet
		handling bool // the handler runs
		ended    bool
		count    rdma.Counters
		frame    []uint64 // of the reply
	}
}

// run serves the connection until it ends.
func (c *serverConn) run() {
	in := make([]uint64, inputWords)
	b := mem.Bytes(in)
	fill := 0 // bytes
	for {
		n, err := c.read(b[fill:])
		fill += n
		if n > 0 {
			began := time.Now()
			used, err := c.agent.consume(in[:fill/mem.WordBytes])
			if c.agent.performed {
				c.e.Spent(began)
			}
			if err == nil {
				err = c.agent.flush()
			}
			if err != nil {
				c.end(err)
				return
			}
			fill = copy(b, b[used*mem.WordBytes:fill])
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// read waits for bytes from the client. A connection that has become idle drops
// its large buffers meanwhile.
func (c *serverConn) read(b []byte) (int, error) {
	for c.agent.large() {
		if c.forget() {
			c.agent.shrink()
			break
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(provide.GiveBackAfter)) // if the socket is closed, Read fails
		n, err := c.conn.Read(b)
		_ = c.conn.SetReadDeadline(time.Time{})
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late {
			err = nil
		}
		if n > 0 || !late {
			return n, err
		}
	}
	return c.conn.Read(b)
}

// forget drops the last request, unless it is still in use.
func (c *serverConn) forget() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.busy || c.mu.handling {
		return false
	}
	c.mu.body, c.req.Body = nil, nil
	return true
}

// emit sends the agent's answers. It waits for the peer.
func (c *serverConn) emit(w []uint64) error { return c.out.send(w, true) }

// grant returns the access of the connection to a region.
func (c *serverConn) grant(k rdma.RKey) grant {
	g, _ := c.e.Region(k) // without a region, no access
	return grant{region: g.Region, access: g.Access & c.rights}
}

// ready refuses a call while another one has no reply, because its body would
// overwrite the one that the handler may be reading. It also waits until the last
// reply is sent, so that the replies to a client that reads none cannot pile up.
func (c *serverConn) ready() error {
	c.mu.Lock()
	busy := c.mu.busy
	c.mu.Unlock()
	if busy {
		return errTwoCalls
	}
	return c.out.settle()
}

// call queues a request for the handler.
func (c *serverConn) call(id uint64, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.busy {
		return errTwoCalls
	}
	c.mu.id, c.mu.body, c.mu.busy = id, body, true
	c.poller.push(&c.callEv)
	return nil
}

// take returns the request to be handled, if the connection has not ended.
func (c *serverConn) take() (*rdma.Request, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.ended {
		return nil, false
	}
	c.mu.handling = true
	c.req = rdma.Request{Body: c.mu.body, Peer: c.peer, From: &c.id.Identity, Replier: c}
	return &c.req, true
}

// handlerReturned is called after the handler.
func (c *serverConn) handlerReturned() {
	c.mu.Lock()
	c.mu.handling = false
	c.mu.Unlock()
}

// Reply sends the response. It does not wait for the peer to take it.
func (c *serverConn) Reply(body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := provide.CheckReply(c.peer, !c.mu.ended, c.mu.busy, body); err != nil {
		return err
	}
	f := appendMessage(c.mu.frame[:0], kindReply, c.mu.id, body)
	if cap(f) <= keepWords {
		c.mu.frame = f
	}
	c.mu.busy = false
	c.mu.count.RPCs++
	c.mu.count.RPCBytes += uint64(len(c.mu.body) + len(body))
	// Under the lock: the next call's reply must not overtake in c.mu.frame.
	if err := c.out.send(f, false); err != nil {
		return fmt.Errorf("tcp: reply to peer %d: %w", c.peer, rdma.ErrPeerDown)
	}
	return nil
}

// appendMessage encodes a call or a reply.
func appendMessage(w []uint64, k kind, id uint64, body []byte) []uint64 {
	w = append(w, frame{kind: k, size: uint32(len(body))}.word0(), id)
	at, n := len(w), wordsOf(len(body))
	for cap(w) < at+n {
		w = append(w[:cap(w)], 0)
	}
	w = w[:at+n]
	if n > 0 {
		w[at+n-1] = 0
		copy(mem.Bytes(w[at:]), body)
	}
	return w
}

// end closes the connection. The poller reports the disconnect after the last
// handler call. Only the agent's goroutine calls end.
func (c *serverConn) end(err error) {
	if errors.Is(err, errFrame) || errors.Is(err, errTwoCalls) {
		c.e.Refuse(refusedProtocol)
	}
	if c.out.t.overrun() {
		c.e.Refuse(refusedStalled)
	}
	c.conn.Close()
	c.out.fail(rdma.ErrPeerDown)
	c.out.join()
	c.mu.Lock()
	c.mu.ended = true
	c.mu.Unlock()
	if c.e.opts.OnDisconnect != nil {
		c.poller.push(&c.goneEv)
	}
}

// abort makes the agent end: the outbox could not send.
func (c *serverConn) abort(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, errNotRead) { // end counts errNotRead
		c.e.Refuse(refusedStalled)
	}
	c.out.t.Close()
}

func (c *serverConn) counters() rdma.Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tally.Snapshot().Add(c.mu.count)
}
