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

// slowProcedures are the procedures that were seen to be slow.
type slowProcedures struct {
	of      map[*exec.Procedure]*slowness // all procedures
	known   atomic.Int32                  // procedures that are slow
	running atomic.Int32                  // calls of them
	calls   atomic.Uint64
}

const (
	// A slow procedure is slow again if it takes longer than quickRun; after
	// quickRuns shorter runs it is not slow any more.
	quickRun  = time.Millisecond
	quickRuns = 256
)

// watch notes the procedures of partitions that have been running since the last
// call, a tick ago.
func (k *slowProcedures) watch(parts []*partition) {
	for _, p := range parts {
		run := p.requests.runs.Load()
		if proc := p.requests.running.Load(); proc != nil && run == p.requests.watched {
			k.mark(proc)
		}
		p.requests.watched = run
	}
}

// mark notes that a procedure is slow.
func (k *slowProcedures) mark(proc *exec.Procedure) {
	of := k.of[proc]
	of.quick.Store(0)
	if !of.slow.Swap(true) {
		k.known.Add(1)
	}
}

// ran notes how long a run of a slow procedure took.
func (k *slowProcedures) ran(proc *exec.Procedure, took time.Duration) {
	of := k.of[proc]
	if took > quickRun {
		of.quick.Store(0)
	} else if of.quick.Add(1) >= quickRuns && of.slow.Swap(false) {
		k.known.Add(-1)
	}
}

// waits reports whether a request of a kind may wait for an executor.
func waits(op wire.Op) bool {
	switch op {
	case wire.OpCommit, wire.OpCall, wire.OpPrepare, wire.OpHandOver, wire.OpDecide, wire.OpResolve,
		wire.OpShip, wire.OpPlaces, wire.OpValidate, wire.OpLoad, wire.OpReserve, wire.OpAdopt, wire.OpWriter:
		return true
	}
	return false
}

// slowCall returns the slow procedure that a request calls, nil if it calls
// none.
func (s *Server) slowCall(r *rdma.Request) *exec.Procedure {
	if s.slow.known.Load() == 0 || wire.Op(r.Body[0]) != wire.OpCall {
		return nil
	}
	var c wire.Call
	d := wire.NewDecoder(r.Body[1:])
	if c.Decode(&d) != nil {
		return nil
	}
	if proc := s.procs[string(c.Procedure)]; proc != nil && s.slow.of[proc].slow.Load() {
		return proc
	}
	return nil
}

// leavesPoller serves a request in another goroutine if it may be held up for
// long. It reports whether it does.
func (s *Server) leavesPoller(r *rdma.Request) bool {
	proc := s.slowCall(r)
	if proc == nil && (s.slow.running.Load() == 0 || !waits(wire.Op(r.Body[0]))) {
		return false
	}
	own := *r
	own.Body = slices.Clone(r.Body)
	if proc != nil {
		s.slow.running.Add(1)
	}
	s.workers.background(func() {
		start := time.Now()
		s.serve(&own)
		if proc == nil {
			return
		}
		s.slow.running.Add(-1)
		s.slow.ran(proc, time.Since(start))
	})
	return true
}
