package tcp

import (
	"context"
	"net"
	"sync"
	"time"
)

// watch ends the socket's reads and writes when a context ends. It keeps watching
// a context from one wait to the next, because setting it up is expensive and
// successive waits mostly have the same context.
type watch struct {
	mu      sync.Mutex
	done    <-chan struct{} // of the context being watched
	cancel  func() bool
	ended   bool // that context ended
	waiting bool
	poked   bool // the socket's deadline is in the past
	stopped bool

	socket    net.Conn
	keepAlive time.Duration
}

// begin starts a wait under ctx. It reports false if ctx has ended.
func (w *watch) begin(ctx context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := ctx.Done(); d != w.done {
		if w.cancel != nil {
			w.cancel()
		}
		w.done, w.cancel, w.ended = d, nil, false
		if d != nil && !w.stopped {
			w.cancel = context.AfterFunc(ctx, func() { w.fire(d) })
		}
	}
	if w.ended || ctx.Err() != nil {
		return false
	}
	w.waiting = true
	return true
}

func (w *watch) fire(d <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d != w.done {
		return
	}
	w.ended = true
	if w.waiting {
		w.poked = true
		_ = w.socket.SetDeadline(time.Unix(1, 0))
	}
}

// end ends a wait. The connection may have received what it waited for although
// the context ended; it can then be used further.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = false
	if w.poked {
		w.poked = false
		_ = w.socket.SetWriteDeadline(time.Time{})
		_ = w.socket.SetReadDeadline(time.Now().Add(w.keepAlive))
	}
}

func (w *watch) fired() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.poked
}

// extend lets the socket's reads wait for another KeepAlive, unless the context
// has ended.
func (w *watch) extend() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.poked {
		return nil
	}
	return w.socket.SetReadDeadline(time.Now().Add(w.keepAlive))
}

// stop forgets the context.
func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
}
