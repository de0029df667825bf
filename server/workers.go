package server

import (
	"context"

	"drtmx/internal/clock"
)

// workersIdleMax bounds the goroutines that wait for work. It is about the
// number of clients that commit over several servers at the same time.
const workersIdleMax = 64

// background runs work for which a handler must not wait. It prefers a
// goroutine that has run such work before, because a new one must first grow
// its stack, which costs more than the messages of a commit.
func (s *Server) background(fn func()) {
	s.idle.Lock()
	if n := len(s.idle.workers); n > 0 {
		w := s.idle.workers[n-1]
		s.idle.workers = s.idle.workers[:n-1]
		s.idle.Unlock()
		w <- fn // has room
		return
	}
	s.idle.Unlock()
	s.wg.Add(1)
	go s.worker(fn)
}

// worker runs fn, and then what background gives it.
func (s *Server) worker(fn func()) {
	defer s.wg.Done()
	next := make(chan func(), 1)
	for fn != nil {
		fn()
		s.idle.Lock()
		if s.ctx.Err() != nil || len(s.idle.workers) == workersIdleMax {
			s.idle.Unlock()
			return
		}
		s.idle.workers = append(s.idle.workers, next)
		s.idle.Unlock()
		fn = <-next
	}
}

// stopWorkers ends the goroutines that wait for work. The server's context has
// ended, so that no other one begins to wait.
func (s *Server) stopWorkers() {
	s.idle.Lock()
	defer s.idle.Unlock()
	for _, w := range s.idle.workers {
		close(w)
	}
	s.idle.workers = nil
}

// deadline returns a context for requests to other servers that are sent now.
// It ends with the server, or after peerTimeout. Requests that are sent at
// about the same time share it; its end may be up to deadlineShared later.
func (s *Server) deadline() context.Context {
	now := clock.Fast()
	s.shared.Lock()
	defer s.shared.Unlock()
	if s.shared.ctx == nil || now-s.shared.made > deadlineShared {
		ctx, cancel := context.WithTimeout(s.ctx, peerTimeout+deadlineShared)
		context.AfterFunc(ctx, cancel)
		s.shared.ctx, s.shared.made = ctx, now
	}
	return s.shared.ctx
}
