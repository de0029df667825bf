package server

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// acquaintance is what a server knows of the incarnations of the others: those
// that it heard of first. A server that is restarted finds in the others that
// they knew a different incarnation in its place. It then says so to clients,
// which refuse it: its memory is empty, and that of the others is not.
type acquaintance struct {
	hello atomic.Pointer[[]byte] // the answer to OpHello

	mu   sync.Mutex
	said wire.Hello
}

const (
	acquaintMin     = 10 * time.Millisecond
	acquaintMax     = time.Second
	acquaintTimeout = 2 * time.Second
)

// introduce sets what the server says of itself.
func (a *acquaintance) introduce(h wire.Hello) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.Incarnations = make([]uint64, len(h.Servers))
	h.Incarnations[h.Server] = h.Incarnation
	a.said = h
	return a.publish()
}

// publish encodes the answer anew. Under mu.
func (a *acquaintance) publish() error {
	b, err := json.Marshal(a.said)
	if err == nil {
		a.hello.Store(&b)
	}
	return err
}

// meet takes what another server says, and reports whether this server turns
// out to be a replacement.
func (a *acquaintance) meet(h *wire.Hello) (replaced bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.said.Server
	a.note(h.Server, h.Incarnation)
	if own < len(h.Incarnations) && h.Incarnations[own] != 0 && h.Incarnations[own] != a.said.Incarnation {
		replaced, a.said.Replaced = true, true
	}
	return replaced, a.publish()
}

// note remembers the first incarnation of a server. Under mu.
func (a *acquaintance) note(server int, incarnation uint64) (first bool) {
	if server >= len(a.said.Incarnations) || a.said.Incarnations[server] != 0 {
		return false
	}
	a.said.Incarnations[server] = incarnation
	return true
}

// heard takes what a data server says of itself when it asks.
func (a *acquaintance) heard(server int, incarnation uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.note(server, incarnation) {
		return nil
	}
	return a.publish()
}

// acquaint asks another server for its incarnation until it answers.
func (s *Server) acquaint(ctx context.Context, server int) {
	for wait := acquaintMin; ; wait = min(2*wait, acquaintMax) {
		if h := s.helloOf(ctx, server); h != nil {
			replaced, err := s.acquainted.meet(h)
			if err != nil {
				s.log.Error("hello not encoded", "error", err)
			}
			if replaced {
				s.log.Warn("this server replaces one whose memory is lost; clients refuse it until the cluster is restarted", "known_to", server)
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (s *Server) helloOf(ctx context.Context, server int) *wire.Hello {
	ctx, cancel := context.WithTimeout(ctx, acquaintTimeout)
	defer cancel()
	c, err := s.cfg.Provider.Dial(ctx, s.cfg.Addrs[server])
	if err != nil {
		return nil
	}
	defer c.Close()
	resp, err := rdma.Call(ctx, c, wire.AppendHelloOfServer(nil, s.cfg.Index, s.incarnation), nil)
	if err != nil {
		return nil
	}
	h, err := wire.DecodeHello(resp)
	if err != nil || h.Server != server {
		return nil
	}
	return h
}
