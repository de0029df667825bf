package sim

import (
	"context"
	"runtime/pprof"
	"time"
	"unsafe"

	"drtmx/internal/clock"
	"drtmx/internal/rng"
)

// rateMost is by how many millionths a clock may be fast or slow, so that no clock runs
// faster than another by more than clock.Drift allows.
const rateMost = 1_000_000/(2*clock.Drift) - 30

// processClock is the clock of a machine. It is never set.
type processClock struct {
	rate  int64         // millionths by which it is fast
	ahead time.Duration // at the beginning of the run
}

// at returns what the clock shows when so much of the bubble's time has passed.
func (c *processClock) at(passed time.Duration) time.Duration {
	return passed + passed/1_000_000*time.Duration(c.rate) + passed%1_000_000*time.Duration(c.rate)/1_000_000 + c.ahead
}

// processes are the clocks of a world, by name and by the label of the goroutines that
// read them.
type processes struct {
	seed   *rng.Stream
	rates  bool // they differ
	names  map[string]context.Context
	labels map[unsafe.Pointer]*processClock
}

func newProcesses(seed *rng.Stream) *processes {
	return &processes{seed: seed, rates: seed.Bool(0.75), names: map[string]context.Context{}, labels: map[unsafe.Pointer]*processClock{}}
}

// reading returns what the clock of the present process shows, from the world's
// beginning on.
func (w *World) reading() time.Duration {
	passed := time.Since(w.start)
	label := profLabel()
	if label == nil {
		return passed
	}
	w.mu.Lock()
	c := w.clocks.labels[label]
	w.mu.Unlock()
	if c == nil {
		return passed
	}
	return c.at(passed)
}

// As runs fn in the process of a name: fn and the goroutines that it starts read the
// clock of that process. All processes of a name are on one machine.
func (w *World) As(name string, fn func()) {
	p := w.clocks
	w.mu.Lock()
	ctx, ok := p.names[name]
	if !ok {
		ctx = pprof.WithLabels(context.Background(), pprof.Labels("process", name))
		p.names[name] = ctx
	}
	w.mu.Unlock()
	was := profLabel()
	defer func() { setProfLabel(was) }()
	pprof.SetGoroutineLabels(ctx)
	if !ok {
		c := p.draw(name)
		w.mu.Lock()
		p.labels[profLabel()] = c
		w.mu.Unlock()
		if p.rates {
			w.Event("the clock of %s is %d millionths fast", name, c.rate)
		}
	}
	fn()
}

// draw draws the clock of a process. Most are as fast or as slow as they may be.
func (p *processes) draw(name string) *processClock {
	s := p.seed.Split(name)
	c := &processClock{}
	if !p.rates {
		return c
	}
	c.ahead = time.Duration(s.Uint64n(uint64(time.Hour)))
	switch x := s.Float64(); {
	case x < 0.4:
		c.rate = rateMost
	case x < 0.8:
		c.rate = -rateMost
	default:
		c.rate = int64(s.Intn(2*rateMost+1)) - rateMost
	}
	return c
}

// Rate returns how fast the clock of a process runs: the seconds that it counts in a
// second of the bubble's time.
func (w *World) Rate(name string) float64 {
	return 1 + float64(w.clocks.draw(name).rate)/1_000_000
}

//go:linkname profLabel runtime/pprof.runtime_getProfLabel
func profLabel() unsafe.Pointer

//go:linkname setProfLabel runtime/pprof.runtime_setProfLabel
func setProfLabel(labels unsafe.Pointer)
