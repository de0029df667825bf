package inproc

import (
	"runtime"
	"time"

	"drtmx/internal/rng"
)

// Options configure a Network. The zero value is a fabric without latency or
// faults.
type Options struct {
	// Pollers is the number of goroutines that run an endpoint's handler; 0
	// means 1. A connection always uses the same one.
	Pollers int
	// Latency delays completions; zero means no delay.
	Latency Latency
	// Faults are the probabilities of injected faults; zero means none.
	Faults Faults
	// Seed determines all faults.
	Seed uint64
	// Clock measures latencies and delays; nil means real time.
	Clock Clock
	// Yield is called, on the client's goroutine, where the adversary lets
	// others run: between two words of a READ, between two work requests, and
	// between Post and Wait. A single-threaded simulation steps its writers
	// here. It must not use the connection. nil means runtime.Gosched.
	Yield func()
}

// Latency is the speed of every connection's link. Batches on one connection
// share its bandwidth.
type Latency struct {
	Read   time.Duration // Post to completion of a READ of no bytes
	Write  time.Duration // likewise for a WRITE
	Atomic time.Duration // likewise for a CAS or FAA
	RPC    time.Duration // both ways of a call together, without the handler
	ByteNs float64       // nanoseconds for each byte carried, in either direction
}

// Faults are the adversary's choices, each with its probability from 0 to 1.
type Faults struct {
	// Scramble is the probability that a READ loads its words in a random
	// order. If it is not zero, connections do not report InOrder.
	Scramble float64
	// Pause is the probability of a Yield between two words of a READ.
	Pause float64
	// Reorder is the probability that a batch is performed in a random order.
	Reorder float64
	// Defer is the probability that a work request is performed in Wait
	// rather than in Post.
	Defer float64
	// Delay is the probability that a batch or a response is delayed, by up to
	// MaxDelay.
	Delay    float64
	MaxDelay time.Duration // 0 means 100 µs
	// Late is the probability that a WRITE, CAS or FAA which was posted but not
	// completed when its connection broke takes effect after that, while
	// another client of the endpoint posts.
	Late float64
	// DropVerb is the probability that the connection breaks at a work request,
	// which is performed with probability one half.
	DropVerb float64
	// DropBefore is the probability that a request is lost with its connection
	// and never handled; DropDuring that the connection breaks while the
	// request is in flight, to be handled later; DropAfter that it breaks
	// instead of carrying the response.
	DropBefore float64
	DropDuring float64
	DropAfter  float64
	// Duplicate is the probability that a request is delivered to the handler a
	// second time, soon or some requests later. The first answer counts.
	Duplicate float64
	// Apart is the probability of a Yield between the load and the store of an atomic. If it is not
	// zero, atomics are atomic only among each other, and with the endpoint's Swap, as those of a
	// device may be: see rdma.ApartAtomics. Swap then fails with the probability DropVerb.
	Apart float64
}

// Swarm draws faults for one run of many: each kind is present with probability
// one half, then with a random probability up to limit. Omitting whole kinds
// reaches states that a constant mix of all kinds hides.
func Swarm(s *rng.Stream, limit float64) Faults {
	draw := func() float64 {
		present, p := s.Bool(0.5), s.Float64()*limit
		if !present {
			return 0
		}
		return p
	}
	return Faults{
		Scramble: draw(), Pause: draw(), Reorder: draw(), Defer: draw(), Delay: draw(), Late: draw(),
		DropVerb: draw(), DropBefore: draw(), DropDuring: draw(), DropAfter: draw(), Duplicate: draw(),
	}
}

// Clock measures latencies and delays. All connections use it concurrently.
type Clock interface {
	// Now returns the time since some fixed moment. It never decreases.
	Now() time.Duration
	// Sleep returns after d, which is at most a millisecond or so: longer
	// waits are made of several.
	Sleep(d time.Duration)
}

// realClock sleeps by yielding where the kernel's timers are too coarse.
type realClock struct{ start time.Time }

const (
	timerSlack = 100 * time.Microsecond
	sleepMax   = time.Millisecond
)

func (c realClock) Now() time.Duration { return time.Since(c.start) }

func (c realClock) Sleep(d time.Duration) {
	until := c.Now() + d
	if d > timerSlack {
		time.Sleep(d - timerSlack)
	}
	for c.Now() < until {
		runtime.Gosched()
	}
}

// withDefaults replaces zero values by their defaults.
func (o Options) withDefaults() Options {
	o.Pollers = max(o.Pollers, 1)
	if o.Clock == nil {
		o.Clock = realClock{time.Now()}
	}
	if o.Yield == nil {
		o.Yield = runtime.Gosched
	}
	if o.Faults.MaxDelay == 0 {
		o.Faults.MaxDelay = 100 * time.Microsecond
	}
	return o
}

// plain reports whether there is no latency and no fault.
func (o Options) plain() bool {
	o.Faults.MaxDelay = 0
	return o.Latency == Latency{} && o.Faults == Faults{}
}
