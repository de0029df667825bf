package server

import (
	"slices"
	"sync/atomic"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A procedure holds the executor of its partition, and so does the poller that
// runs it: a long one would hold up the requests of all connections of the
// poller, whatever they are for. So a procedure that was seen to be slow leaves
// the poller, and while one runs, so do all requests that may wait for an
// executor. Lookups, hellos and statistics never wait.

// slowness is what a server knows about a procedure.
type slowness struct {
	slow  atomic.Bool
	quick atomic.Int32 // runs since the last long one
}

const (
	// A slow procedure is slow again if it takes longer than quickRun; after
	// quickRuns shorter runs it is not slow any more.
	quickRun  = time.Millisecond
	quickRuns = 256
)

// watchProcedures notes the procedures that have been running since the last
// call, a tick ago.
func (s *Server) watchProcedures() {
	for _, p := range s.parts {
		if p == nil {
			continue
		}
		run := p.runs.Load()
		if proc := p.running.Load(); proc != nil && run == p.watched {
			s.markSlow(proc)
		}
		p.watched = run
	}
}

func (s *Server) markSlow(proc *exec.Procedure) {
	k := s.slowness[proc]
	k.quick.Store(0)
	if !k.slow.Swap(true) {
		s.slowKnown.Add(1)
	}
}

// waits reports whether a request of a kind may wait for an executor.
func waits(op wire.Op) bool {
	switch op {
	case wire.OpCommit, wire.OpCall, wire.OpPrepare, wire.OpHandOver, wire.OpDecide, wire.OpResolve,
		wire.OpValidate, wire.OpLoad, wire.OpReserve, wire.OpAdopt:
		return true
	}
	return false
}

// slowCall returns the slow procedure that a request calls, nil if it calls
// none.
func (s *Server) slowCall(r *rdma.Request) *exec.Procedure {
	if s.slowKnown.Load() == 0 || wire.Op(r.Body[0]) != wire.OpCall {
		return nil
	}
	var c wire.Call
	d := wire.NewDecoder(r.Body[1:])
	if c.Decode(&d) != nil {
		return nil
	}
	if proc := s.procs[string(c.Procedure)]; proc != nil && s.slowness[proc].slow.Load() {
		return proc
	}
	return nil
}

// leavesPoller serves a request in another goroutine if it may be held up for
// long. It reports whether it does.
func (s *Server) leavesPoller(r *rdma.Request) bool {
	proc := s.slowCall(r)
	if proc == nil && (s.slowRunning.Load() == 0 || !waits(wire.Op(r.Body[0]))) {
		return false
	}
	own := *r
	own.Body = slices.Clone(r.Body)
	if proc != nil {
		s.slowRunning.Add(1)
	}
	s.background(func() {
		start := time.Now()
		s.serve(&own)
		if proc == nil {
			return
		}
		s.slowRunning.Add(-1)
		k := s.slowness[proc]
		if time.Since(start) > quickRun {
			k.quick.Store(0)
		} else if k.quick.Add(1) >= quickRuns && k.slow.Swap(false) {
			s.slowKnown.Add(-1)
		}
	})
	return true
}
