package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// Bounds of the traffic between data servers.
const (
	// peerTimeout bounds the wait for the answer to one message of a
	// transaction, and the time to connect.
	peerTimeout = 2 * time.Second
	// settleTimeout bounds one exchange that settles transactions in doubt.
	settleTimeout = time.Second
	// answeredTimeout bounds the wait for an answer after peerTimeout.
	answeredTimeout = 50 * time.Millisecond
	// deadlineShared is for how long new requests get the same deadline.
	deadlineShared = 50 * time.Millisecond
	// idleLinksMax bounds the idle connections to one server.
	idleLinksMax = 64
	// outboxMax bounds the messages that wait for one server. Messages above
	// the bound are dropped: machines repeat unanswered messages.
	outboxMax = 1 << 10
)

// peer has the connections of this server to another data server, and the
// messages that wait for it.
type peer struct {
	s      *Server
	server placement.Server

	mu struct {
		sync.Mutex
		idle    []*link
		outbox  []twophase.Message
		working bool // a goroutine empties outbox
		dialing bool // a goroutine connects for later callers
		closed  bool
	}
}

// link is a connection to a peer. One goroutine uses it at a time.
type link struct {
	peer        *peer
	conn        rdma.Conn
	incarnation uint64
	epoch       uint32
	replaced    bool // this server has seen another incarnation of the peer first, whose memory is lost
	resp        []byte
	messages    []twophase.Message // of the last answer
}

// errLink reports an invalid answer from a peer.
var errLink = errors.New("server: peer breaks the protocol")

// link returns an idle connection, or a new one. It holds no lock while it
// connects.
func (p *peer) link(ctx context.Context) (*link, error) {
	if l, err := p.idle(); l != nil || err != nil {
		return l, err
	}
	return p.dial(ctx)
}

// idle takes an idle connection. It returns nil if there is none.
func (p *peer) idle() (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.mu.idle); n > 0 {
		l := p.mu.idle[n-1]
		p.mu.idle = p.mu.idle[:n-1]
		return l, nil
	}
	if p.mu.closed {
		return nil, rdma.ErrClosed
	}
	return nil, nil
}

// dial connects, and asks for the incarnation of the server.
func (p *peer) dial(ctx context.Context) (*link, error) {
	addr := p.s.cfg.Addrs[p.server]
	c, err := p.s.cfg.Provider.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", addr, err)
	}
	resp, err := rdma.Call(ctx, c, wire.AppendHelloOfServer(nil, p.s.parts.self, p.s.parts.incarnation), nil)
	if err == nil {
		var h *wire.Hello
		if h, err = wire.DecodeHello(resp); err == nil && h.Server == p.server && h.Incarnation != 0 {
			l := &link{peer: p, conn: c, incarnation: h.Incarnation, epoch: h.Epoch, resp: resp[:0]}
			l.replaced = p.s.acquainted.replaced(p.server, h.Incarnation)
			return l, nil
		}
		if err == nil {
			err = fmt.Errorf("%w: server %d answers at the address of %d", errLink, h.Server, p.server)
		}
	}
	c.Close()
	return nil, fmt.Errorf("server %s: %w", addr, err)
}

// dialAhead connects in the background for later callers. Otherwise procedures whose
// deadlines are shorter than connecting takes would never get a connection.
func (p *peer) dialAhead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed || p.mu.dialing {
		return
	}
	p.mu.dialing = true
	p.s.workers.background(func() {
		ctx, cancel := context.WithTimeout(p.s.workers.ctx, peerTimeout)
		defer cancel()
		l, err := p.dial(ctx)
		p.mu.Lock()
		p.mu.dialing = false
		p.mu.Unlock()
		if err == nil {
			l.release()
		}
	})
}

// release returns a connection for reuse.
func (l *link) release() {
	p := l.peer
	p.mu.Lock()
	keep := !p.mu.closed && len(p.mu.idle) < idleLinksMax
	if keep {
		p.mu.idle = append(p.mu.idle, l)
	}
	p.mu.Unlock()
	if !keep {
		l.conn.Close()
	}
}

// drop closes a broken connection and all idle ones, because they probably lead
// to the same process.
func (l *link) drop() {
	l.conn.Close()
	p := l.peer
	p.mu.Lock()
	idle := p.mu.idle
	p.mu.idle = nil
	p.mu.Unlock()
	for _, i := range idle {
		i.conn.Close()
	}
}

func (p *peer) close() {
	p.mu.Lock()
	p.mu.closed = true
	idle := p.mu.idle
	p.mu.idle, p.mu.outbox = nil, nil
	p.mu.Unlock()
	for _, l := range idle {
		l.conn.Close()
	}
}

// post sends messages in the background, with their own deadline. A peer that
// does not answer delays no other peer.
func (p *peer) post(ms []twophase.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	p.mu.outbox = append(p.mu.outbox, ms[:min(len(ms), outboxMax-len(p.mu.outbox))]...)
	if !p.mu.working && len(p.mu.outbox) > 0 {
		p.mu.working = true
		p.s.workers.background(p.send)
	}
}

// send empties the outbox.
func (p *peer) send() {
	for {
		p.mu.Lock()
		ms := p.mu.outbox
		p.mu.outbox = nil
		if p.mu.working = len(ms) > 0; !p.mu.working {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if err := p.exchange(ms); err != nil {
			p.s.log.Debug("peer does not answer", "peer", p.server, "reason", err.Error())
			p.look(ms)
		}
	}
}

// exchange sends messages to the partitions in their current lives at the peer.
// Messages to former lives are not sent: the incarnation of the peer proves
// that those parties are gone.
func (p *peer) exchange(ms []twophase.Message) error {
	ctx, cancel := context.WithTimeout(p.s.workers.ctx, settleTimeout)
	defer cancel()
	l, err := p.link(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ms, func(m twophase.Message) bool { return m.To.Incarnation != l.incarnation }) {
		// An idle connection may be older than the life of a party that it
		// does not lead to. Only a server that answers now proves anything.
		l.drop()
		if l, err = p.dial(ctx); err != nil {
			return err
		}
	}
	var decisions, rest []twophase.Message
	b := &batch{driver: &p.s.driver}
	for _, m := range ms {
		switch {
		case m.To.Incarnation != l.incarnation:
			b.gone(m.To)
		case m.Kind == twophase.Decide:
			decisions = append(decisions, m)
		default:
			rest = append(rest, m)
		}
	}
	for _, x := range []struct {
		op wire.Op
		ms []twophase.Message
	}{{wire.OpDecide, decisions}, {wire.OpResolve, rest}} {
		if len(x.ms) == 0 || err != nil {
			continue
		}
		if err = l.conn.StartCall(ctx, wire.AppendMessages([]byte{byte(x.op)}, x.ms)); err == nil {
			if _, err = l.finish(ctx); err == nil {
				b.out.Messages = append(b.out.Messages, l.messages...)
			}
		}
	}
	if err != nil {
		l.drop()
	} else {
		l.release()
	}
	b.settle()
	return err
}

// look is called when the server of the addressed parties does not answer. It
// asks the membership store whether another incarnation of the server is
// registered, which proves that the parties are gone.
func (p *peer) look(ms []twophase.Message) {
	if p.s.cfg.hosted.Registered == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.s.workers.ctx, settleTimeout)
	defer cancel()
	now, err := p.s.cfg.hosted.Registered(ctx, p.server)
	if err != nil || now == 0 {
		return // a store that does not answer, or a server without a lease, proves nothing
	}
	b := &batch{driver: &p.s.driver}
	for _, m := range ms {
		if m.To.Incarnation != now {
			b.gone(m.To)
		}
	}
	b.settle()
}

// finish waits for the answer to a request of the commit protocol. It returns
// the verdict and sets l.messages to the messages of the answer.
func (l *link) finish(ctx context.Context) (verdict, error) {
	l.messages = l.messages[:0]
	resp, err := l.conn.FinishCall(ctx, l.resp)
	if err != nil {
		return verdict{}, err
	}
	l.resp = resp
	d := wire.NewDecoder(resp)
	v := verdictIn(&d)
	ms := d.Messages(l.messages)
	if err := d.End(); err != nil {
		if v.code == wire.Bad || v.code == wire.Forbidden {
			return v, nil // the peer refused the request; the text says why
		}
		return verdict{}, fmt.Errorf("%w: %w", errLink, err)
	}
	l.messages = ms
	return v, nil
}

// acquaint asks the server for its incarnation until its answer shows that it knows the
// incarnation of this one.
func (p *peer) acquaint(ctx context.Context) {
	said := false
	for wait := acquaintMin; ; wait = min(2*wait, acquaintMax) {
		h, err := p.hello(ctx)
		if errors.Is(err, rdma.ErrRole) && !said {
			said = true
			p.s.log.Error("another data server refuses this one: all data servers of a cluster need the same secret", "server", p.server, "error", err)
		}
		if err == nil {
			known, replaced, err := p.s.acquainted.meet(h)
			if err != nil {
				p.s.log.Error("hello not encoded", "error", err)
			}
			if replaced {
				p.s.log.Warn("this server replaces one whose memory is lost; clients refuse it until the cluster is restarted", "known_to", p.server)
			}
			if known {
				return
			}
		} else if err := p.s.acquainted.missed(p.server, err); err != nil {
			p.s.log.Error("hello not encoded", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (p *peer) hello(ctx context.Context) (*wire.Hello, error) {
	ctx, cancel := context.WithTimeout(ctx, acquaintTimeout)
	defer cancel()
	c, err := p.s.cfg.Provider.Dial(ctx, p.s.cfg.Addrs[p.server])
	if err != nil {
		return nil, err
	}
	defer c.Close()
	resp, err := rdma.Call(ctx, c, wire.AppendHelloOfServer(nil, p.s.parts.self, p.s.parts.incarnation), nil)
	if err != nil {
		return nil, err
	}
	h, err := wire.DecodeHello(resp)
	if err == nil && h.Server != p.server {
		err = fmt.Errorf("server %d answers at the address of server %d", h.Server, p.server)
	}
	return h, err
}
