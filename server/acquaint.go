package server

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// acquaintance holds, for each server, the first incarnation of it that this server has
// seen. A restarted server learns from the others that they know another incarnation of
// it. Its hello then reports that it is a replacement, and clients refuse it, because
// its memory is empty and that of the others is not.
//
// This needs that the others have seen every incarnation that holds data. So a server
// reports that it is unmet until all others have shown that they know it, and clients
// wait for that before they use it.
type acquaintance struct {
	hello atomic.Pointer[[]byte] // the answer to OpHello

	mu    sync.Mutex
	said  wire.Hello
	unmet []string // for each server, why it has not shown that it knows this one; empty if it has
}

const (
	acquaintMin     = 10 * time.Millisecond
	acquaintMax     = time.Second
	acquaintTimeout = 2 * time.Second
)

// introduce sets the server's own hello.
func (a *acquaintance) introduce(h wire.Hello) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	h.Incarnations = make([]uint64, len(h.Servers))
	h.Incarnations[h.Server] = h.Incarnation
	a.unmet = make([]string, len(h.Servers))
	for i, addr := range h.Servers {
		if placement.Server(i) != h.Server {
			a.unmet[i] = fmt.Sprintf("data server %s has not answered yet", addr)
		}
	}
	a.said = h
	return a.publish()
}

// change changes the hello.
func (a *acquaintance) change(fn func(*wire.Hello) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := fn(&a.said); err != nil {
		return err
	}
	return a.publish()
}

// publish encodes the hello again. The caller holds mu.
func (a *acquaintance) publish() error {
	a.said.Unmet = ""
	for i := 0; i < len(a.unmet) && a.said.Unmet == "" && !a.said.Durable; i++ {
		a.said.Unmet = a.unmet[i]
	}
	b, err := json.Marshal(a.said)
	if err == nil {
		a.hello.Store(&b)
	}
	return err
}

// missed takes the reason why a server did not answer.
func (a *acquaintance) missed(server placement.Server, reason error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	text := fmt.Sprintf("data server %s: %v", a.said.Servers[server], reason)
	if a.unmet[server] == text {
		return nil
	}
	a.unmet[server] = text
	return a.publish()
}

// meet takes the hello of another server. known reports that the other server knows an
// incarnation of this one; replaced, that it is not the present one, so this server is
// a replacement.
func (a *acquaintance) meet(h *wire.Hello) (known, replaced bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.said.Server
	a.note(h.Server, h.Incarnation)
	if int(own) < len(h.Incarnations) && h.Incarnations[own] != 0 {
		known, replaced = true, h.Incarnations[own] != a.said.Incarnation
		a.unmet[h.Server] = ""
	}
	a.said.Replaced = a.said.Replaced || replaced
	return known, replaced, a.publish()
}

// note records the first known incarnation of a server. first reports that
// there was none. The caller holds mu.
func (a *acquaintance) note(server placement.Server, incarnation uint64) (first bool) {
	if int(server) >= len(a.said.Incarnations) || a.said.Incarnations[server] != 0 {
		return false
	}
	a.said.Incarnations[server] = incarnation
	return true
}

// heard records the incarnation of a data server that has asked for this
// server's hello.
func (a *acquaintance) heard(server placement.Server, incarnation uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.note(server, incarnation) {
		return nil
	}
	return a.publish()
}

// replaced reports whether this server has seen another incarnation of a server first.
func (a *acquaintance) replaced(server placement.Server, incarnation uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.said.Incarnations[server]
	return first != 0 && first != incarnation
}
