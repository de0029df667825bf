package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/rng"

	"github.com/zeebo/xxh3"
)

// Bounds of the delays that a World draws, before swarms vary them.
const (
	linkMin, linkMax = 2 * time.Microsecond, 60 * time.Microsecond
	diskMin, diskMax = 2 * time.Microsecond, 40 * time.Microsecond
	syncMax          = 600 * time.Microsecond
	// slowShare is the share of events that take much longer.
	slowShare  = 0.01
	slowFactor = 50
)

// tailLines is how many of the last events a World keeps for messages.
const tailLines = 40

// World draws the delays of a run, and keeps its trace. Safe for concurrent use.
type World struct {
	mu     sync.Mutex
	rng    *rng.Stream
	start  time.Time
	hash   uint64
	events int
	line   []byte
	tail   [tailLines]string
	out    io.Writer
	err    error                       // of out
	cuts   map[[2]string]chan struct{} // by the two processes: closed when nothing is cut between them
	lives  map[string]*life            // of processes, by name
	swarm  swarm
	clocks *processes
	memory pauses // before accesses to registered memory
	locks  pauses // before mutexes are taken
	stalls pauses // where goroutines may be held up
	parts  parts
}

// life is a process from its start to its death.
type life struct {
	w       *World
	dead    bool
	stopped chan struct{} // closed when it runs again; nil while it runs
	addrs   []string      // where it listens, or did
	conns   []io.Closer   // of a client, which break when it dies
}

// swarm varies the delays from run to run.
type swarm struct {
	link, disk, sync, slow float64
	late                   float64 // share of READs that are performed in Wait
	pauses, locks          float64 // shares of accesses to memory and of mutexes before which others may run
	stalls                 float64 // share of places at which a goroutine is held up
	skew                   time.Duration
}

// Options vary the world of a seed.
type Options struct {
	Order   uint64    // other delays for the same case
	Without []string  // parts of the case that are left out
	Trace   io.Writer // gets each event as a line; may be nil
}

// New returns the world of a seed. Call it in the bubble.
func New(seed uint64, o Options) *World {
	s := rng.New(seed).Split("world")
	w := &World{rng: s, start: time.Now(), out: o.Trace, cuts: map[[2]string]chan struct{}{}, lives: map[string]*life{}}
	w.parts.without = o.Without
	factor := func() float64 { return []float64{0.1, 1, 1, 1, 4}[s.Intn(5)] }
	w.swarm = swarm{
		link: factor(), disk: factor(), sync: factor(), slow: slowShare * factor(), late: s.Float64(),
		skew: []time.Duration{0, 0, 30 * time.Millisecond, 500 * time.Millisecond}[s.Intn(4)],
	}
	memory, locks, stalls := rng.New(seed).Split("pauses"), rng.New(seed).Split("locks"), rng.New(seed).Split("stalls")
	w.swarm.stalls = []float64{0, 0, 0.005, 0.03, 0.2}[stalls.Intn(5)]
	w.swarm.pauses = []float64{0, 0, 0.0005, 0.005, 0.05}[memory.Intn(5)]
	w.swarm.locks = []float64{0, 0, 0.001, 0.01, 0.1}[locks.Intn(5)]
	w.clocks = newProcesses(rng.New(seed).Split("clocks"))
	w.swarm.leaveOut(w)
	if o.Order > 0 {
		w.rng, memory, locks, stalls = w.rng.SplitN(o.Order), memory.SplitN(o.Order), locks.SplitN(o.Order), stalls.SplitN(o.Order)
	}
	w.stalls = newPauses(stalls, w.swarm.stalls)
	w.memory, w.locks = newPauses(memory, w.swarm.pauses), newPauses(locks, w.swarm.locks)
	newest.Store(w)
	return w
}

// Start makes the clocks of the bubbles' processes those of this process. Call it
// once, before anything reads the clock.
func Start() {
	began := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	clock.Simulate(func() time.Duration {
		if w := newest.Load(); w != nil {
			return w.start.Sub(began) + w.reading()
		}
		return time.Since(began)
	}, func() time.Duration {
		if w := newest.Load(); w != nil {
			return w.skew()
		}
		return 0
	})
	pauseAt(func() {
		if w := newest.Load(); w != nil {
			w.memory.pause()
		}
	}, func() {
		if w := newest.Load(); w != nil {
			w.locks.pause()
		}
	}, func() {
		if w := newest.Load(); w != nil {
			w.stalls.stall()
		}
	})
}

// newest is the World of the bubble that runs.
var newest atomic.Pointer[World]

// skew draws how much the wall clock of a server that starts is ahead.
func (w *World) skew() time.Duration {
	w.mu.Lock()
	d := time.Duration((w.rng.Float64()*2 - 1) * float64(w.swarm.skew))
	w.mu.Unlock()
	if d != 0 {
		w.Event("a server starts with a clock that is %v ahead", d)
	}
	return d
}

// Date is when simulated clusters begin: the clock of a bubble would be before
// the first tick.
var Date = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// Event adds a line to the trace.
func (w *World) Event(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line = fmt.Appendf(w.line[:0], "%d ", time.Since(w.start))
	w.line = fmt.Appendf(w.line, format, args...)
	w.hash = xxh3.HashSeed(w.line, w.hash)
	w.tail[w.events%tailLines] = string(w.line)
	w.events++
	if w.out != nil && w.err == nil {
		_, w.err = w.out.Write(append(w.line, '\n'))
	}
}

// Trace returns the hash of all events so far, and their number.
func (w *World) Trace() (hash uint64, events int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hash, w.events
}

// Tail returns the last events, one a line.
func (w *World) Tail() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	for i := max(w.events-tailLines, 0); i < w.events; i++ {
		text += w.tail[i%tailLines] + "\n"
	}
	return text
}

// Err returns the first error of the writer of the trace.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// draw draws a delay. Now and then it is much longer than usual.
func (w *World) draw(least, most time.Duration, factor float64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := float64(least) + w.rng.Float64()*float64(most-least)
	if d *= factor; w.rng.Bool(w.swarm.slow) {
		d *= w.rng.Float64() * slowFactor
	}
	return max(time.Duration(d), 1)
}

// Bool draws whether something of that probability happens.
func (w *World) Bool(p float64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Bool(p)
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	if ctx.Done() == nil {
		time.Sleep(d)
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cut stops everything from one process to another, until Mend. Nothing is lost:
// messages wait.
func (w *World) Cut(from, to string) {
	w.mu.Lock()
	if w.cuts[[2]string{from, to}] == nil {
		w.cuts[[2]string{from, to}] = make(chan struct{})
	}
	w.mu.Unlock()
	w.Event("cut %s %s", from, to)
}

// Mend ends a cut.
func (w *World) Mend(from, to string) {
	w.mu.Lock()
	if c := w.cuts[[2]string{from, to}]; c != nil {
		close(c)
		delete(w.cuts, [2]string{from, to})
	}
	w.mu.Unlock()
	w.Event("mend %s %s", from, to)
}

// Cross takes a message from one process to another.
func (w *World) Cross(ctx context.Context, from, to string) error {
	for {
		w.mu.Lock()
		mended := w.cuts[[2]string{from, to}]
		w.mu.Unlock()
		if mended == nil {
			return pause(ctx, w.draw(linkMin, linkMax, w.swarm.link))
		}
		select {
		case <-mended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// isCut reports whether nothing gets from one process to another.
func (w *World) isCut(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts[[2]string{from, to}] != nil
}

// ErrDead is the error of operations of a process that was killed.
var ErrDead = errors.New("sim: the process is dead")

// of returns the present life of a process. The lock is held.
func (w *World) of(name string) *life {
	l := w.lives[name]
	if l == nil {
		l = &life{w: w}
		w.lives[name] = l
	}
	return l
}

// Kill ends a process. Its operations fail from now on. Another process of its name may
// begin.
func (w *World) Kill(name string) {
	w.mu.Lock()
	l := w.of(name)
	l.dead = true
	l.goOn()
	delete(w.lives, name)
	conns := l.conns
	l.conns = nil
	w.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	w.Event("kill %s", name)
}

// Life returns a function that reports whether the present process of a name is dead.
func (w *World) Life(name string) (dead func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.of(name)
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return l.dead
	}
}

// Stop suspends a process until GoOn, as a stop signal does: all that it sends, and its
// operations on its disk, wait. Others can still read its memory.
func (w *World) Stop(name string) {
	w.mu.Lock()
	if l := w.of(name); l.stopped == nil {
		l.stopped = make(chan struct{})
	}
	w.mu.Unlock()
	w.Event("stop %s", name)
}

// GoOn ends Stop.
func (w *World) GoOn(name string) {
	w.mu.Lock()
	w.of(name).goOn()
	w.mu.Unlock()
	w.Event("go on %s", name)
}

func (l *life) goOn() {
	if l.stopped != nil {
		close(l.stopped)
		l.stopped = nil
	}
}

// Runs waits while a process is stopped.
func (w *World) Runs(name string) error {
	w.mu.Lock()
	l := w.of(name)
	w.mu.Unlock()
	return l.runs()
}

// runs waits while the process is stopped.
func (l *life) runs() error {
	for {
		l.w.mu.Lock()
		c, dead := l.stopped, l.dead
		l.w.mu.Unlock()
		switch {
		case dead:
			return ErrDead
		case c == nil:
			return nil
		}
		<-c
	}
}

// await waits while another process is stopped, or until ctx ends.
func (w *World) await(ctx context.Context, name string) error {
	for {
		w.mu.Lock()
		c := w.of(name).stopped
		w.mu.Unlock()
		if c == nil {
			return nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Addrs returns the addresses at which a process listens, or did.
func (w *World) Addrs(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.of(name).addrs)
}

// process returns the name of the process at an address.
func process(addr string) string {
	name, _, _ := strings.Cut(addr, ":")
	return name
}
