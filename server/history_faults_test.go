package server_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
)

// Harsh scenarios join failures of whole servers, of dials and of single
// messages with a high rate of transactions. Each is short by default; with
// DRTMX_SIM its pauses and delays last longer than every timeout. Faults come
// and go: what lasts long is followed by as long a calm, so that most of a
// scenario's transactions commit, beside the fault or just after it.

// longSim is the time per scenario from which on disturbances last long.
const longSim = 10 * time.Second

// drops breaks connections at requests, answers and verbs.
func drops(*rng.Stream) inproc.Faults {
	return inproc.Faults{DropBefore: 0.004, DropDuring: 0.004, DropAfter: 0.004, DropVerb: 0.001}
}

// distributed makes most transactions touch several servers.
func distributed(l *load, s *rng.Stream) {
	l.OneTable, l.OpsPerTxn, l.Views = false, 3+s.Intn(4), l.Views/2
}

// largeRequests makes transactions write rows of many KiB, those of some
// clients as many as a request may hold.
func largeRequests(l *load, s *rng.Stream) {
	if l.Engine == tables.Rolex {
		l.Engine, l.Bare = tables.XStore, false // rows are too large
	}
	l.Strings, l.Room, l.Rotate, l.Keys, l.MayBeTooLarge = false, 1000+s.Intn(1000), 20, 60, true
	l.OpsPerTxn, l.LargeOps = 1+s.Intn(6), 10+s.Intn(70)
	l.TxnsPerClient = min(l.TxnsPerClient, 60)
}

// harshScenarios are the scenarios that need more than the faults of inproc.
func harshScenarios() []scenario {
	return []scenario{
		{name: "dials that fail", faults: drops, loses: true, load: distributed, upset: (*upsetting).failDials},
		{name: "delayed messages", loses: true, load: distributed, upset: (*upsetting).delayMessages},
		{name: "a flood past delayed messages", loses: true, lasts: 25 * time.Second, upset: (*upsetting).delayBehindMany, load: manyDecisions},
		{name: "pauses longer than timeouts", loses: true, upset: (*upsetting).pauseLong, load: distributed},
		{name: "pauses and dials that fail", faults: drops, loses: true, load: distributed, upset: func(x *upsetting) {
			x.pauseLong()
			x.failDials()
			x.delayMessages()
		}},
		{name: "one server of four partitions", servers: 1, partitions: 4, load: distributed},
		{name: "two servers of four partitions", servers: 2, partitions: 4, load: distributed},
		{name: "partitions and delayed messages", faults: drops, loses: true, servers: 2, partitions: 6, load: distributed, upset: (*upsetting).delayMessages},
		{name: "large requests", load: largeRequests},
	}
}

// combinations joins each kind of fault with each kind of stress.
func combinations() (all []scenario) {
	faults := []scenario{
		{name: "broken connections", faults: drops},
		{name: "failed dials", faults: drops, upset: (*upsetting).failDials},
		{name: "late messages", upset: (*upsetting).delayMessages},
		{name: "paused servers", upset: (*upsetting).pauseShort},
	}
	stresses := []scenario{
		{name: "many decisions", load: manyDecisions},
		{name: "full tables", load: manyDecisions, limits: func(s *rng.Stream) twophase.Limits {
			return twophase.Limits{Open: 1 + s.Intn(4), Kept: 2 + s.Intn(14)}
		}},
		{name: "largest requests", load: largeRequests},
		{name: "long pauses", load: distributed, upset: func(u *upsetting) {
			if u.long {
				u.pauseLong()
				return
			}
			u.pause("pauses", 300, 500, false)
		}},
	}
	for _, f := range faults {
		for _, stress := range stresses {
			sc := scenario{
				name: f.name + " and " + stress.name, faults: f.faults, limits: stress.limits,
				loses: true, short: 150 * time.Millisecond,
			}
			sc.load = func(l *load, s *rng.Stream) {
				l.TxnsPerClient /= 4 // there are many combinations
				stress.load(l, s)
			}
			sc.upset = func(u *upsetting) {
				for _, upset := range []func(*upsetting){f.upset, stress.upset} {
					if upset != nil {
						upset(u)
					}
				}
			}
			all = append(all, sc)
		}
	}
	return all
}

// manyDecisions makes nearly every transaction one that several servers decide.
func manyDecisions(l *load, s *rng.Stream) {
	l.OneTable, l.OpsPerTxn, l.Keys, l.Clients = false, 2+s.Intn(3), 40+s.Intn(40), 8+s.Intn(8)
	l.Views, l.Looks, l.Reads, l.Scans = 0, 0, min(l.Reads, 0.3), min(l.Scans, 0.05)
	l.Room, l.Rotate = 24, 12 // few lists are found full
}

// disturbance delays, loses and repeats requests, of servers and of clients.
type disturbance struct {
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		rnd     *rng.Stream
		rates   map[wire.Op]rates
		longest time.Duration
		share   float64 // of the delays that may last so long
		counts  map[string]int
		decided int // decisions sent so far
		past    int // if not 0, late copies wait until so many more have been sent
		waiting []lateCopy
		calm    bool // nothing is disturbed any more
	}
}

// lateCopy is a copy of a request that waits for decisions to pass.
type lateCopy struct {
	due     int
	deliver func()
}

// rates are probabilities of what happens to a request.
type rates struct {
	hold  float64 // it is sent late
	late  float64 // its connection breaks, and it arrives late all the same
	twice float64 // it arrives, and once more late
}

func newDisturbance(s *rng.Stream) *disturbance {
	d := &disturbance{}
	d.mu.rnd, d.mu.counts, d.mu.rates = s.Split("requests"), map[string]int{}, map[wire.Op]rates{}
	return d
}

func (d *disturbance) total() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.mu.counts)
}

// end lets all late copies arrive, and disturbs no more.
func (d *disturbance) end() {
	d.mu.Lock()
	d.mu.calm = true
	for _, w := range d.mu.waiting {
		w.deliver()
	}
	d.mu.waiting = nil
	d.mu.Unlock()
	d.wg.Wait()
}

// fate is what happens to one request.
type fate struct {
	hold   time.Duration // before it is sent
	lost   bool          // its connection breaks
	copied bool          // a copy arrives late
	late   time.Duration // of the copy
	behind bool          // the copy waits for many decisions
}

func (d *disturbance) draw(op wire.Op) (f fate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if op == wire.OpDecide || op == wire.OpHandOver {
		d.mu.decided++
		for len(d.mu.waiting) > 0 && d.mu.decided >= d.mu.waiting[0].due {
			d.mu.waiting[0].deliver()
			d.mu.waiting = d.mu.waiting[1:]
		}
	}
	r, ok := d.mu.rates[op]
	if !ok || d.mu.calm {
		return fate{}
	}
	s := d.mu.rnd
	delay := 2 * time.Millisecond
	if s.Bool(d.mu.share) {
		delay = d.mu.longest
	}
	delay = time.Duration(s.Uint64n(uint64(delay) + 1))
	switch x := s.Float64(); {
	case x < r.hold:
		f.hold = delay
		d.mu.counts["held"]++
	case x < r.hold+r.late:
		f = fate{lost: true, copied: true, late: delay, behind: d.mu.past > 0}
		d.mu.counts["late"]++
	case x < r.hold+r.late+r.twice:
		f = fate{copied: true, late: delay, behind: d.mu.past > 0}
		d.mu.counts["twice"]++
	}
	return f
}

// copyLate sends a copy of a request over a connection of its own.
func (d *disturbance) copyLate(p rdma.Provider, to string, req []byte, f fate) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.calm {
		return
	}
	req = slices.Clone(req)
	d.wg.Add(1)
	deliver := func() {
		go func() {
			defer d.wg.Done()
			if !f.behind {
				time.Sleep(f.late)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			c, err := p.Dial(ctx, to)
			if err != nil {
				return // lost for good, which is allowed too
			}
			defer c.Close()
			_, _ = rdma.Call(ctx, c, req, nil)
		}()
	}
	if f.behind {
		d.mu.waiting = append(d.mu.waiting, lateCopy{d.mu.decided + d.mu.past, deliver})
		return
	}
	deliver()
}

// upsetProvider disturbs the requests of one member of the network.
type upsetProvider struct {
	rdma.Provider
	d *disturbance
}

func (p *upsetProvider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := p.Provider.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &upsetConn{Conn: c, p: p, to: addr}, nil
}

type upsetConn struct {
	rdma.Conn
	p  *upsetProvider
	to string
}

func (c *upsetConn) StartCall(ctx context.Context, req []byte) error {
	f := c.p.d.draw(wire.Op(req[0]))
	if f.lost {
		c.p.d.copyLate(c.p.Provider, c.to, req, f)
		c.Conn.Close()
		return fmt.Errorf("%w: %w", rdma.ErrPeerDown, errCut)
	}
	if f.hold > 0 {
		t := time.NewTimer(f.hold)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	err := c.Conn.StartCall(ctx, req)
	if err == nil && f.copied { // a copy of what was never sent cannot arrive
		c.p.d.copyLate(c.p.Provider, c.to, req, f)
	}
	return err
}

// upsetting disturbs one run.
type upsetting struct {
	x    *cluster
	d    *disturbance
	s    *rng.Stream
	long bool
	next func(what string) bool // whether what comes again and again happens this time
	done chan struct{}
	wg   sync.WaitGroup
}

func newUpsetting(t testing.TB, x *cluster, d *disturbance, s *rng.Stream) *upsetting {
	return &upsetting{
		x: x, d: d, s: s, long: simTime(t, 0) >= longSim, next: func(string) bool { return true }, done: make(chan struct{}),
	}
}

// end ends all disturbances.
func (u *upsetting) end() {
	close(u.done)
	u.wg.Wait()
	u.d.end()
}

// sleep waits, and reports whether the run goes on.
func (u *upsetting) sleep(d time.Duration) bool {
	select {
	case <-u.done:
		return false
	case <-time.After(d):
		return true
	}
}

// between draws a time of at least and at most so many milliseconds.
func between(s *rng.Stream, least, most int) time.Duration {
	return time.Duration(least)*time.Millisecond + time.Duration(s.Uint64n(uint64(most-least)*uint64(time.Millisecond)+1))
}

// failDials lets dials fail, from one member of the network to another, for
// every reason there is, while both live. In a long run some fail for longer
// than a server in doubt waits before it asks.
func (u *upsetting) failDials() {
	names := append([]string{clientName, ""}, u.x.addrs...)
	u.failDialsFrom(u.s.Split("dials"), names, 1, 20)
	if u.long {
		u.failDialsFrom(u.s.Split("long dials"), u.x.addrs, 300, 3000)
	}
}

// failDialsFrom lets dials fail, of one after the other of names, each for a
// number of milliseconds, and then none for up to as long.
func (u *upsetting) failDialsFrom(s *rng.Stream, names []string, least, most int) {
	u.wg.Go(func() {
		for on := true; on; {
			from, to := names[s.Intn(len(names))], u.x.addrs[s.Intn(len(u.x.addrs))]
			kinds := rdma.DialErrors()
			kind := kinds[s.Intn(len(kinds))]
			last := between(s, least, most)
			if u.next("dials that fail") {
				u.x.net.FailDials(from, to, kind)
			}
			on = u.sleep(last)
			u.x.net.FailDials(from, to, nil)
			on = on && u.sleep(last/2+between(s, 0, int(last.Milliseconds()/2)))
		}
	})
}

// delayMessages delays, loses and repeats requests of every kind that changes
// or decides something.
func (u *upsetting) delayMessages() {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	for _, op := range []wire.Op{
		wire.OpPrepare, wire.OpDecide, wire.OpHandOver, wire.OpResolve, wire.OpValidate, wire.OpCommit, wire.OpCall, wire.OpOutcome,
	} {
		u.d.mu.rates[op] = rates{hold: 0.03, late: 0.01, twice: 0.01}
	}
	u.d.mu.longest, u.d.mu.share = 20*time.Millisecond, 0.2
	if u.long {
		u.d.mu.longest, u.d.mu.share = 200*time.Millisecond, 0.05
		if u.s.Bool(0.2) {
			u.d.mu.longest, u.d.mu.share = 3*time.Second, 0.005
		}
	}
}

// delayBehindMany keeps copies of messages back until many decisions have passed.
func (u *upsetting) delayBehindMany() {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	for _, op := range []wire.Op{wire.OpPrepare, wire.OpDecide, wire.OpHandOver, wire.OpResolve, wire.OpCommit} {
		u.d.mu.rates[op] = rates{late: 0.005, twice: 0.005}
	}
	u.d.mu.past = 300 + u.s.Intn(700)
	if u.long && u.s.Bool(0.5) {
		u.d.mu.past = 1<<16 + u.s.Intn(1<<12)
	}
}

// pauseLong stops one server after the other for longer than any server waits
// for another. Its memory answers on.
func (u *upsetting) pauseLong() {
	least, most := 2200, 2400
	if u.long {
		least, most = 500, 6000
	}
	u.pause("pauses", least, most, u.long)
}

// pauseShort stops one server after the other for a moment.
func (u *upsetting) pauseShort() { u.pause("short pauses", 1, 300, true) }

// pause stops one server after the other, or only one, each for a number of
// milliseconds, and then leaves all alone for up to as long.
func (u *upsetting) pause(name string, least, most int, again bool) {
	s := u.s.Split(name)
	u.wg.Go(func() {
		on := u.sleep(between(s, 5, 100))
		for on {
			addr := u.x.addrs[s.Intn(len(u.x.addrs))]
			last := between(s, least, most)
			if u.next("pause") {
				_ = u.x.net.Pause(addr)
			}
			on = u.sleep(last)
			_ = u.x.net.Resume(addr)
			on = on && again && u.sleep(last/2+between(s, 0, int(last.Milliseconds()/2)))
		}
	})
}
