package exec

import (
	"math"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
)

// drifting is a clock that runs at a rate which changes within the bound.
type drifting struct {
	now  time.Duration
	rate float64
}

// rateBound is how far a rate may be from 1, so that of two clocks none is ahead
// of the other by more than clock.Drift allows.
const rateBound = 0.49 / clock.Drift

func (c *drifting) pass(s *rng.Stream, d time.Duration) {
	if c.rate == 0 || s.Intn(100) == 0 {
		switch s.Intn(3) {
		case 0:
			c.rate = 1 + rateBound
		case 1:
			c.rate = 1 - rateBound
		default:
			c.rate = 1 + rateBound*(2*s.Float64()-1)
		}
	}
	c.now += time.Duration(float64(d) * c.rate)
}

// timed is a lease by the clock of its holder.
type timed struct {
	member.Lease
	deadline, ttl time.Duration
}

func (l timed) Deadline() time.Duration { return l.deadline }
func (l timed) TTL() time.Duration      { return l.ttl }

// journey is a message on its way, and back: it waits for two moments of real time.
type journey struct {
	leaves, arrives, returns time.Duration
	asked                    time.Duration // by the clock of who has sent it
	answer                   time.Duration
	answered                 bool
}

// leaseModel is a server that is paused now and then, the store that has its lease,
// and a client, each with its own clock.
type leaseModel struct {
	s                     *rng.Stream
	now                   time.Duration // real
	server, store, client drifting
	ttl                   time.Duration
	ends                  time.Duration // the lease, by the store's clock
	taken                 bool          // another process has the place
	deadline              time.Duration // of the lease, by the server's clock
	paused                time.Duration // until when, in real time
	renewal, question     *journey
	trust                 trust
}

func newLeaseModel(s *rng.Stream) *leaseModel {
	m := &leaseModel{s: s, ttl: time.Duration(s.Range(int64(member.MinTTL), int64(20*time.Second)))}
	for _, c := range []*drifting{&m.server, &m.store, &m.client} {
		c.now = time.Duration(s.Range(0, int64(1000*time.Hour)))
	}
	m.ends, m.deadline = m.store.now+m.ttl, m.server.now+m.ttl
	return m
}

// delay is usually short.
func (m *leaseModel) delay() time.Duration {
	switch m.s.Intn(20) {
	case 0:
		return time.Duration(m.s.Range(0, int64(time.Hour)))
	case 1, 2:
		return time.Duration(m.s.Range(0, int64(2*m.ttl)))
	}
	return time.Duration(m.s.Range(0, int64(20*time.Millisecond)))
}

func (m *leaseModel) send(asked time.Duration) *journey {
	return &journey{leaves: m.now, arrives: m.now + m.delay(), asked: asked}
}

// step lets some time pass, and everybody act who can.
func (m *leaseModel) step() {
	d := time.Duration(m.s.Range(1, int64(m.ttl/40)))
	if m.s.Intn(500) == 0 {
		d = m.delay()
	}
	m.now += d
	for _, c := range []*drifting{&m.server, &m.store, &m.client} {
		c.pass(m.s, d)
	}
	if r := m.renewal; r != nil && !r.answered && m.now >= r.arrives {
		r.answered, r.returns = true, m.now+m.delay()
		if m.taken = m.taken || m.store.now >= m.ends; !m.taken {
			m.ends = m.store.now + m.ttl
		} else {
			r.returns = math.MaxInt64
		}
	}
	m.taken = m.taken || m.store.now >= m.ends && m.s.Bool(0.5)
	if m.now >= m.paused {
		m.serve()
	}
	m.ask()
}

// serve is what the server does when it runs.
func (m *leaseModel) serve() {
	switch r := m.renewal; {
	case r == nil || m.server.now-r.asked > m.ttl/3 && m.now >= r.returns && r.answered:
		m.renewal = m.send(m.server.now)
	case r.answered && m.now >= r.returns:
		m.deadline = max(m.deadline, r.asked+m.ttl)
	}
	if q := m.question; q != nil && !q.answered && m.now >= q.arrives {
		left := member.Left(timed{deadline: m.deadline, ttl: m.ttl}, m.server.now)
		// It may be paused with the answer in its hand.
		q.answered, q.answer, q.returns = true, max(left, 0), m.now+m.delay()
	}
	if m.s.Intn(300) == 0 {
		m.paused = m.now + m.delay()
	}
}

// ask is what the client does.
func (m *leaseModel) ask() {
	q := m.question
	if q != nil && q.answered && m.now >= q.returns {
		m.trust.take(q.asked, q.answer)
		m.question = nil
	}
	_, renew := m.trust.holds(m.client.now)
	if m.question == nil && (renew || m.s.Bool(0.05)) {
		m.question = m.send(m.client.now)
	}
}

// TestTrustEndsBeforeThePlaceIsTaken: whatever the clocks do within their bound, and
// however long messages travel and processes are paused, nobody trusts a server
// whose place another one may have.
func TestTrustEndsBeforeThePlaceIsTaken(t *testing.T) {
	s := rng.New(testseed.Of(t))
	trusted, taken, steps := 0, 0, 0
	for run := range 20_000 {
		m := newLeaseModel(s.SplitN(uint64(run)))
		for after := 0; after < 50; steps++ {
			m.step()
			holds, _ := m.trust.holds(m.client.now)
			if holds {
				trusted++
			}
			if m.taken {
				after++
			}
			if holds && m.taken {
				t.Fatalf("run %d: trusted until %v at %v by the client's clock, and another process has the place", run, m.trust.promise.Load().until, m.client.now)
			}
			if m.now > 40*m.ttl && !m.taken {
				m.paused = math.MaxInt64 // for ever
			}
		}
		taken++
	}
	t.Logf("trusted in %d of %d steps; the place was taken in %d runs", trusted, steps, taken)
	if trusted < steps/20 {
		t.Errorf("trusted in %d of %d steps: the model tells nothing", trusted, steps)
	}
}

// TestPromises: what follows from an answer.
func TestPromises(t *testing.T) {
	const asked = 1000 * time.Hour
	for _, c := range []struct{ left, now time.Duration }{
		{5 * time.Second, asked},
		{5 * time.Second, asked + 4900*time.Millisecond},
		{wire.NoLease, asked + math.MaxInt64/2},
		{wire.NoLease - 1, asked + time.Hour},
	} {
		var k trust
		k.take(asked, c.left)
		if holds, _ := k.holds(c.now); !holds {
			t.Errorf("%v left, %v after the question: not trusted", c.left, c.now-asked)
		}
	}
	for _, c := range []struct{ left, after time.Duration }{
		{0, 0},
		{clock.Slip, 0},
		{5 * time.Second, 5*time.Second - 5*time.Second/clock.Drift},
		{5 * time.Second, time.Hour},
		{wire.NoLease - 1, promiseMax},
	} {
		var k trust
		k.take(asked, c.left)
		if holds, _ := k.holds(asked + c.after); holds {
			t.Errorf("%v left, %v after the question: trusted", c.left, c.after)
		}
	}
	var k trust
	k.take(asked+time.Second, 5*time.Second)
	k.take(asked, 5*time.Second) // an earlier question, answered later
	k.take(asked+2*time.Second, 0)
	if holds, renew := k.holds(asked + 5500*time.Millisecond); !holds || !renew {
		t.Errorf("a longer promise does not stand: %v, %v", holds, renew)
	}
	if _, renew := k.holds(asked + 2*time.Second); renew {
		t.Error("asks again with more than half left")
	}
}

// TestAnsweredQuestion: a session that has found that a server must be asked, and comes
// to ask it when another session has just had the answer, does not ask again.
func TestAnsweredQuestion(t *testing.T) {
	const hour = time.Hour
	for name, was := range map[string]*promise{
		"no promise":           nil,
		"a promise that waned": {until: clock.Now() + hour, renew: clock.Now() - 1},
	} {
		db, lf := &DB{}, &life{}
		lf.trust.promise.Store(was)
		if !lf.trust.wanes(clock.Fast()) {
			t.Fatalf("%s: nothing to ask for", name)
		}
		got := make(chan *question)
		db.mu.Lock() // the session is on its way to ask
		go func() { got <- lf.ask(db, lf.trust.wanes) }()
		lf.trust.take(clock.Now(), 4*hour)
		db.gate.mu.Lock() // a question would not get far
		db.mu.Unlock()
		q := <-got
		select {
		case <-q.done:
			if q.err != nil {
				t.Errorf("%s: %v", name, q.err)
			}
		default:
			t.Errorf("%s: the server is asked again, though another session has had the answer", name)
		}
		db.mu.Lock()
		db.mu.closed = true
		db.mu.Unlock()
		db.gate.mu.Unlock()
		db.asks.Wait()
		if q := lf.ask(db, nil); q.err != ErrClosed {
			t.Errorf("%s: a question of a closed DB: %v", name, q.err)
		}
	}
}
