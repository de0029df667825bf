package server

import (
	"context"
	"sync"
	"time"

	"drtmx/internal/clock"
)

// workersIdleMax bounds the goroutines that wait for work. It is about the
// number of clients that commit over several servers at the same time.
const workersIdleMax = 64

// workers are the goroutines of a server, and its lifetime.
type workers struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	idle   struct {
		sync.Mutex
		workers []chan func() // the one that worked last is last
	}
	shared struct {
		sync.Mutex
		ctx  context.Context // see deadline
		made time.Duration   // by clock.Fast
	}
}

// background runs work for which a handler must not wait. It prefers a
// goroutine that has run such work before, because a new one must first grow
// its stack, which costs more than the messages of a commit.
func (w *workers) background(fn func()) {
	w.idle.Lock()
	if n := len(w.idle.workers); n > 0 {
		next := w.idle.workers[n-1]
		w.idle.workers = w.idle.workers[:n-1]
		w.idle.Unlock()
		next <- fn // has room
		return
	}
	w.idle.Unlock()
	w.wg.Add(1)
	go w.worker(fn)
}

// worker runs fn, and then what background gives it.
func (w *workers) worker(fn func()) {
	defer w.wg.Done()
	next := make(chan func(), 1)
	for fn != nil {
		fn()
		w.idle.Lock()
		if w.ctx.Err() != nil || len(w.idle.workers) == workersIdleMax {
			w.idle.Unlock()
			return
		}
		w.idle.workers = append(w.idle.workers, next)
		w.idle.Unlock()
		fn = <-next
	}
}

// stop ends the goroutines that wait for work. The server's context has
// ended, so that no other one begins to wait.
func (w *workers) stop() {
	w.idle.Lock()
	defer w.idle.Unlock()
	for _, next := range w.idle.workers {
		close(next)
	}
	w.idle.workers = nil
}

// deadline returns a context for requests to other servers that are sent now.
// It ends with the server, or after peerTimeout. Requests that are sent at
// about the same time share it; its end may be up to deadlineShared later.
func (w *workers) deadline() context.Context {
	now := clock.Fast()
	w.shared.Lock()
	defer w.shared.Unlock()
	if w.shared.ctx == nil || now-w.shared.made > deadlineShared {
		ctx, cancel := context.WithTimeout(w.ctx, peerTimeout+deadlineShared)
		context.AfterFunc(ctx, cancel)
		w.shared.ctx, w.shared.made = ctx, now
	}
	return w.shared.ctx
}

// rest waits for d. It returns an error at once when the server stops.
func (w *workers) rest(d time.Duration) error {
	select {
	case <-w.ctx.Done():
		return w.ctx.Err()
	case <-time.After(d):
		return nil
	}
}
