//go:build simulated

package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"drtmx/index"
	"drtmx/internal/history"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
	"drtmx/internal/twophase"
	"drtmx/internal/vfstest"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

func init() {
	sim.Start()
	runtime.MemProfileRate = 0
}

// TestSimulation runs whole clusters in a simulated world, one for each seed, and
// prints what each has shown. internal/sim/simulate builds and runs it. The
// environment says what to run:
//
//	DRTMX_SIM_SEEDS=from:count
//	DRTMX_SIM_KIND=memory|faults|disk|hosts|storm|tpcc|bank|queue|lost
//	                                                that kind of cluster; drawn if empty.
//	                                                storm:name are storms with such a name
//	DRTMX_SIM_ORDER=n                               other delays for the same case
//	DRTMX_SIM_WITHOUT=part,part                     parts of the case to leave out
//	DRTMX_SIM_TRACE=dir                             where each trace is written
func TestSimulation(t *testing.T) {
	from, count := uint64(1), uint64(1)
	if v := os.Getenv("DRTMX_SIM_SEEDS"); v != "" {
		if _, err := fmt.Sscanf(v, "%d:%d", &from, &count); err != nil {
			t.Fatalf("DRTMX_SIM_SEEDS=%q, want from:count", v)
		}
	}
	checkKind(t, os.Getenv("DRTMX_SIM_KIND"))
	var o sim.Options
	if v := os.Getenv("DRTMX_SIM_ORDER"); v != "" {
		if _, err := fmt.Sscan(v, &o.Order); err != nil {
			t.Fatalf("DRTMX_SIM_ORDER=%q, want a number", v)
		}
	}
	if v := os.Getenv("DRTMX_SIM_WITHOUT"); v != "" {
		o.Without = strings.Split(v, ",")
	}
	if runtime.GOMAXPROCS(0) != 1 || os.Getenv("GOMAXPROCS") != "1" {
		t.Fatal("the process must start with GOMAXPROCS=1")
	}
	debug.SetGCPercent(-1)
	for seed := from; seed < from+count; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulateOnce(t, seed, o) })
		// What a bubble leaves in pools must not reach the next one.
		runtime.GC()
		runtime.GC()
		if t.Failed() {
			t.FailNow()
		}
	}
}

// checkKind fails the test if there is no such kind of cluster.
func checkKind(t *testing.T, kind string) {
	t.Helper()
	name, only, storms := strings.Cut(kind, ":")
	kinds := []string{"", "memory", "writers", "bins", "twins", "faults", "disk", "hosts", "storm", "tpcc", "bank", "queue", "lost"}
	if !slices.Contains(kinds, name) || storms && (name != "storm" || len(stormsOf(only)) == 0) {
		t.Fatalf("DRTMX_SIM_KIND=%q, want one of %s, or storm: and a part of a storm's name", kind, strings.Join(kinds[1:], ", "))
	}
}

// simulateOnce runs one cluster in a bubble.
func simulateOnce(t *testing.T, seed uint64, o sim.Options) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, seed)
	var trace *bufio.Writer
	if dir := os.Getenv("DRTMX_SIM_TRACE"); dir != "" {
		file, err := os.Create(filepath.Join(dir, fmt.Sprintf("trace-%d", seed)))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		trace = bufio.NewWriterSize(file, 1<<20)
		defer func() {
			if err := trace.Flush(); err != nil {
				t.Error(err)
			}
		}()
		o.Trace = trace
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(sim.Date))
		r := newSimulation(sim.New(seed, o), seed)
		r.trace = trace
		result, err := r.run(t)
		if err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if err := errors.Join(r.report(result, err), r.w.Err()); err != nil {
			t.Error(err)
		}
	})
}

// report prints what a run has shown.
func (r *simulation) report(x simulated, failure error) error {
	hash, events := r.w.Trace()
	out := sim.Result{
		Seed: r.l.Seed, Kind: r.kind, Hash: fmt.Sprintf("%016x", hash), Events: events, Lasted: time.Since(sim.Date),
		Transactions: x.txns, Counts: x.counts, Parts: r.w.Parts(),
	}
	if r.d != nil && r.d.replicas > 1 {
		out.Kind = "replicas"
	}
	if failure != nil {
		out.Failure, out.Case, out.Tail = failure.Error(), fmt.Sprintf("%+v\n%+v", r.l, r.u.net.Faults), r.w.Tail()
	}
	return out.Print(os.Stdout)
}

// simulation is one run of a cluster.
type simulation struct {
	w    *sim.World
	kind string
	s    *rng.Stream
	l    load
	u    setup
	d    *crashable

	storm *scenario // what goes wrong; nil: other things
	only  string    // storms with such a name
	job   job       // what clients do; nil: lists

	losses *losses // of memory; nil: there are none

	trace *bufio.Writer // nil: none is written

	quiet               bool // nothing goes wrong
	cuts, pauses, dials bool

	mortals, lifetime int  // clients that die, each after so many ms at most
	veryLate          bool // some messages are on their way for longer than a proof may be old

	faults struct {
		sync.Mutex
		rng    *rng.Stream
		share  float64                         // of the calls of disks that fail
		fails  func(i int, op vfstest.Op) bool // which calls may fail
		once   bool                            // a disk that has failed works again
		up     []bool                          // servers that may fail
		failed []atomic.Bool                   // servers whose disk has failed
		moment *moment                         // a server is to crash then; may be nil
		held   []*moment                       // by server: where it is, until it is dead
		writes []*checkpoint                   // by server: that a test has asked for, and is under way
	}
}

// simulated is what a run has shown.
type simulated struct {
	txns   int
	counts map[string]int
}

// newSimulation draws a cluster, its load and what happens to it.
func newSimulation(w *sim.World, seed uint64) *simulation {
	s := rng.New(seed).Split("simulation")
	r := &simulation{w: w, s: s, l: swarm(s, seed)}
	switch x := s.Float64(); {
	case x < 0.05:
		r.kind = []string{"memory", "memory", "writers", "bins"}[rng.New(seed).Split("kind").Intn(4)]
	case x < 0.10:
		r.kind = "tpcc"
	case x < 0.14:
		r.kind = "bank"
	case x < 0.18:
		r.kind = "queue"
	case x < 0.22:
		r.kind = "lost"
	case x < 0.30:
		r.kind = "faults"
	case x < 0.57:
		r.kind = "storm"
	case x < 0.77:
		r.kind = "hosts"
	default:
		r.kind = "disk"
	}
	if kind := os.Getenv("DRTMX_SIM_KIND"); kind != "" {
		r.kind, r.only, _ = strings.Cut(kind, ":")
	}
	// With small leaves there are many splits and merges.
	slots := []int{0, 0, 0, 0, 4, 6, 8}[rng.New(seed).Split("slots").Intn(7)]
	// With a short retention the servers stop keeping versions between snapshots.
	retain := []time.Duration{0, 0, 0, 50 * time.Millisecond, 400 * time.Millisecond}[rng.New(seed).Split("retain").Intn(5)]
	if r.kind == "storm" {
		return r.stormOf(r.storms(), seed, slots)
	}
	l := &r.l
	l.TxnsPerClient, l.Clients = 10+s.Intn([]int{15, 50, 150}[s.Intn(3)]), 2+s.Intn(5)
	r.u = setup{servers: 1 + s.Intn(3), client: txn.Config{Seed: seed | 1}, net: inproc.Options{Seed: seed, Clock: fakeClock{time.Now()}}, world: w}
	r.u.partitions, r.u.slots, r.u.retain = r.u.servers*(1+s.Intn(2)), slots, retain
	r.quiet = r.kind == "memory"
	switch r.kind {
	case "writers":
		r.quiet = r.drawWriters(rng.New(seed).Split("writers"))
	case "bins":
		bins := rng.New(seed).Split("bins")
		r.l.bins(bins)
		r.quiet = bins.Bool(0.4)
		r.u.slots = max(slots, 4) // so that arrays merge often
		if bins.Bool(0.5) {
			return r.stormOf(ofBins(), seed, 0)
		}
	case "twins":
		twins := rng.New(seed).Split("twins")
		r.l.twins(twins)
		r.quiet = twins.Bool(0.4)
		if twins.Bool(0.5) {
			return r.stormOf(ofTwins(), seed, slots)
		}
	}
	if r.quiet {
		r.atomicsApart(seed)
		r.u.servers, r.u.partitions = 2, 2
		r.leaveOut()
		return r
	}
	l.ServersToFail, l.OutcomeMayLost, l.LossyCalls, l.ClocksStop, l.AskUnknown = true, true, true, true, true
	l.AskFor, l.MayBeTooLarge = 10*time.Minute, true // a pause may be longer than a body may run
	if s.Bool(0.5) {
		l.Patience = between(s, 5, 200)
	}
	if s.Bool(0.5) {
		r.u.net.Faults = inproc.Faults{DropBefore: 0.002, DropDuring: 0.002, DropAfter: 0.002, DropVerb: 0.0005, Duplicate: 0.1}
	}
	if s.Bool(0.3) {
		r.u.net.Faults.Pause = 0.02
	}
	r.atomicsApart(seed)
	r.cuts, r.pauses, r.dials = s.Bool(0.5), s.Bool(0.5), s.Bool(0.3)
	r.veryLate = s.Bool(0.1)
	if s.Bool(0.3) {
		r.mortals, r.lifetime = 1+s.Intn(3), []int{10, 100, 1000}[s.Intn(3)]
	}
	if s.Bool(0.4) {
		r.u.upset = newDisturbance(s)
	}
	switch x := s.Float64(); {
	case x < 0.06:
		largeRequests(l, s)
		l.TxnsPerClient = min(l.TxnsPerClient, 20)
	case x < 0.15:
		manyDecisions(l, s)
		l.TxnsPerClient = min(l.TxnsPerClient, 40)
	}
	if r.kind == "hosts" {
		if s.Bool(0.5) { // what reads the memory of a server that others have taken over
			l.Views, l.Calls, l.Snapshots = 0.3+0.4*s.Float64(), l.Calls/4, l.Snapshots/4
		}
		if l.OddRead = s.Bool(0.4); l.OddRead && l.Patience == 0 {
			l.Patience = between(s, 20, 500) // they go on to read what can be read
		}
		l.TxnsPerClient += 20
		// Takeovers take seconds.
		l.Rest = 2 * between(s, 2000, []int{3000, 10_000, 25_000}[s.Intn(3)]) / time.Duration(l.TxnsPerClient)
		r.leaveOut()
		return r
	}
	draw := jobs[r.kind]
	switch {
	case draw != nil:
		r.job = draw(r, seed)
	case r.kind == "disk":
		r.onDisks()
	case s.Bool(0.2):
		r.u.limits = twophase.Limits{Open: 1 + s.Intn(4), Kept: 2 + s.Intn(14)}
	}
	if r.kind == "lost" {
		r.drawLosses()
	}
	r.leaveOut()
	return r
}

// atomicsApart lets the atomics of writers, in some clusters that have any, be those of a device.
func (r *simulation) atomicsApart(seed uint64) {
	if r.l.Engine == tables.Rolex && rng.New(seed).Split("atomics").Bool(0.4) {
		r.u.net.Faults.Apart = 0.8
	}
}

// stormOf draws one of some storms, in which leaves have so many slots unless it makes them small.
func (r *simulation) stormOf(all []scenario, seed uint64, slots int) *simulation {
	r.quiet = false
	if r.drawStorm(seed, all); !r.storm.leaves {
		r.u.slots = slots
	}
	r.leaveOut()
	return r
}

// drawWriters makes it a load most of which clients commit without the data servers, and reports
// whether nothing is to go wrong.
func (r *simulation) drawWriters(s *rng.Stream) (quiet bool) {
	r.l.writers(s)
	return s.Bool(0.4)
}

// onDisks makes the servers durable.
func (r *simulation) onDisks() {
	r.d = &crashable{sub: r.s.Split("disks"), parts: 8 << 10 << r.s.Intn(5), every: 2 << 10 << r.s.Intn(6), world: r.w}
	r.d.slow = []time.Duration{0, 0, time.Millisecond, 5 * time.Millisecond}[r.s.Intn(4)]
	r.u.more = r.d.config
	r.d.replicas = 1 + r.s.Intn(r.u.servers)
	f := &r.faults
	f.rng, f.up, f.failed = r.s.Split("faults"), make([]bool, r.u.servers), make([]atomic.Bool, r.u.servers)
	f.held, f.writes = make([]*moment, r.u.servers), make([]*checkpoint, r.u.servers)
	if r.s.Bool(0.5) {
		f.share, f.once = []float64{0.005, 0.02, 0.08}[r.s.Intn(3)], r.s.Bool(0.7)
		switch x := r.s.Float64(); {
		case x < 0.25:
			f.fails = func(_ int, op vfstest.Op) bool { return op == vfstest.Sync }
		case x < 0.8: // what makes segments and checkpoints, while other files are synced
			f.share *= 8
			f.fails = func(i int, op vfstest.Op) bool {
				return (op == vfstest.Create || op == vfstest.Rename || op == vfstest.SyncDir) && r.d.syncs[i].Load() > 0
			}
		default:
			f.fails = func(_ int, op vfstest.Op) bool { return op.Changes() }
		}
	}
	r.d.fail = r.disk
	r.l.MayBeFull = r.s.Bool(0.2)
}

// fakeClock is the clock of a bubble.
type fakeClock struct{ start time.Time }

func (c fakeClock) Now() time.Duration    { return time.Since(c.start) }
func (c fakeClock) Sleep(d time.Duration) { time.Sleep(d) }

// run runs the cluster, and checks all that must hold.
func (r *simulation) run(t *testing.T) (simulated, error) {
	if r.d != nil || r.kind == "hosts" {
		r.l.onDisks()
	}
	if r.losses != nil {
		r.losses.bare = r.l.Bare
	}
	if r.kind == "hosts" {
		return r.runHosts(t)
	}
	counts := map[string]int{}
	x := r.u.start(t, newLists(&r.l))
	defer x.Close()
	x.present = r.present
	if r.job != nil {
		var err error
		if r.u.as(clientName, func() { err = r.job.populate(&r.u, x) }); err != nil {
			return simulated{counts: counts}, fmt.Errorf("load: %w", err)
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	var crashed error
	var feed *feedReader
	if r.d != nil {
		var err error
		if feed, err = r.newFeed(x, r.openFeed(x)); err != nil {
			return simulated{counts: counts}, fmt.Errorf("the feed does not begin: %w", err)
		}
	}
	if feed != nil {
		feed.begin(done)
		defer feed.end()
	}
	r.hire(x, &wg, done)
	if r.d != nil {
		k := &crashing{
			x: x, u: &r.u, d: r.d, s: r.s.Split("moments"), counts: map[string]int{}, rest: []int{15, 40, 120, 500}[r.s.Intn(4)], lost: r.lost,
		}
		for i := range r.u.servers {
			r.setUp(i, true)
		}
		wg.Go(func() {
			if crashed = r.crashes(k, done); crashed != nil {
				r.giveUp(crashed)
			}
			for what, n := range k.counts {
				counts[what] += n
			}
		})
		if r.l.MayBeFull {
			s := r.s.Split("space")
			wg.Go(func() { r.fill(s, done) })
		}
		if (r.s.Bool(0.5) || r.faults.share > 0) && r.w.Part("checkpoints") {
			s, rest := r.s.Split("checkpoints"), []int{3, 10, 40}[r.s.Intn(3)]
			wg.Go(func() { r.checkpoints(x, s, rest, done) })
		}
	}
	if r.losses != nil {
		s := r.s.Split("losses")
		wg.Go(func() {
			if crashed = r.lose(x, s, done); crashed != nil {
				r.giveUp(crashed)
			}
		})
		x.finish = func(clients []*client, last *client) error { return r.survivors(x, clients, last) }
	}
	end, stop := func() {}, func() {}
	switch {
	case r.storm != nil:
		u := r.stormy(t, x)
		end, stop = r.storm.disturb(x, u, r.s.Split("storm"))
		r.delayMore(u.d)
	case !r.quiet:
		s := r.s.Split("upsets")
		wg.Go(func() { r.upsets(x, s, done) })
		end = r.disturb(t, x)
	}
	var once sync.Once
	x.calm = func() { once.Do(func() { close(done); end(); wg.Wait() }) }
	var out *outcome
	var err error
	if r.job != nil {
		out, err = r.runJob(x)
	} else {
		out, err = x.run(t, &r.l)
	}
	x.calm()
	stop()
	err = errors.Join(err, crashed)
	if feed != nil && out.h != nil {
		err = errors.Join(err, feed.finish(out.h))
		feed.report(counts)
	}
	for what, n := range out.counts {
		counts[what] += n
	}
	for _, s := range x.Servers {
		if st := s.Stats(); st.Log != nil {
			counts["last checkpoints"] += int(st.Log.Checkpoints)
		}
	}
	return r.judge(out, err, counts)
}

// judge checks the history of a run.
func (r *simulation) judge(out *outcome, err error, counts map[string]int) (simulated, error) {
	if r.job != nil {
		return simulated{r.job.transactions(), counts}, err
	}
	if out.h == nil {
		return simulated{counts: counts}, err
	}
	if r.losses != nil {
		h, e := r.losses.left(out.h)
		if e != nil {
			return simulated{counts: counts}, errors.Join(err, e)
		}
		out.h = h
	}
	rep, e := history.Check(out.h, history.Options{})
	if e == nil {
		e = rep.Err()
	}
	return simulated{out.h.Len(), counts}, errors.Join(err, e, r.inLedger(out.h))
}

// giveUp ends the process: a server does not come back, for which clients would wait
// for long.
func (r *simulation) giveUp(err error) {
	_ = r.report(simulated{}, fmt.Errorf("no end: %w", err))
	if r.trace != nil {
		_ = r.trace.Flush()
	}
	os.Exit(1)
}

// disturb loses, delays and repeats requests, and lets dials fail.
func (r *simulation) disturb(t *testing.T, x *cluster) (end func()) {
	t.Helper()
	d := r.u.upset
	if d == nil {
		d = newDisturbance(r.s) // of nothing
	}
	u := newUpsetting(t, x, d, r.s)
	u.next = r.w.Next
	if r.u.upset != nil {
		u.delayMessages()
	}
	r.delayMore(d)
	if r.dials {
		u.failDials()
	}
	return u.end
}

// delayMore lets disturbed messages be late by up to four times what a proof may be old.
func (r *simulation) delayMore(d *disturbance) {
	if !r.veryLate || !r.w.Part("very late messages") {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.longest, d.mu.share = 4*index.MaxProofAge, 0.01
}

// crashesMax bounds how often a run kills servers, and failuresMax how long it goes
// on after that with disks that fail.
const crashesMax, failuresMax = 12, 20

// crashes kills servers now and then until done is closed, and always those whose
// disks have failed.
func (r *simulation) crashes(k *crashing, done <-chan struct{}) error {
	kill := func(which []int) error {
		for _, i := range which {
			r.setUp(i, false)
		}
		r.w.Event("crash of %v", which)
		err := k.kill(which)
		if err == nil && len(which) == r.u.servers && r.d.replicas > 1 && k.s.Bool(0.4) {
			err = k.loseDisk(k.s.Intn(r.u.servers))
		}
		if err == nil {
			err = k.start(which)
		}
		for _, i := range which {
			r.setUp(i, true)
		}
		return err
	}
	left := 1 + k.s.Intn(crashesMax)
	for {
		select {
		case <-done:
			r.mendDisks()
			if which := r.failed(); len(which) > 0 {
				return kill(which)
			}
			return nil
		case <-time.After(between(k.s, 2, k.rest)):
		}
		which := r.failed()
		if left == -failuresMax {
			r.mendDisks()
		}
		if left--; (left < 0 || !r.w.Next("crash")) && len(which) == 0 {
			continue
		}
		switch {
		case len(which) > 0:
			if k.s.Bool(0.6) { // it goes on for a while with a log that has failed
				r.sleep(between(k.s, 5, 200), done)
			}
		case k.s.Bool(0.3):
			for i := range r.u.servers {
				which = append(which, i)
			}
		default:
			which = []int{k.s.Intn(r.u.servers)}
			if k.s.Bool(0.5) {
				r.await(which[0], momentsOf[k.s.Intn(len(momentsOf))], between(k.s, 2, 4*k.rest), done)
			}
		}
		if err := kill(which); err != nil {
			return err
		}
	}
}

// hire makes some clients processes of their own, which die at some time.
func (r *simulation) hire(x *cluster, wg *sync.WaitGroup, done <-chan struct{}) {
	s := r.s.Split("mortals")
	x.mortals = map[int]*mortal{}
	for range r.mortals {
		i := s.Intn(r.l.Clients)
		name, dies := fmt.Sprintf("client%d", i), between(s, 1, r.lifetime)
		if x.mortals[i] != nil || !r.w.Next("mortal client") {
			continue
		}
		p := r.u.provider(x.net, rdma.Identity{Role: rdma.RoleWriter, Name: name})
		c := r.u.client
		c.Servers, c.Dial = x.addrs, p.Dial
		var db *txn.DB
		var err error
		r.u.as(name, func() { db, err = txn.Open(context.Background(), c) })
		if err != nil {
			continue // the fabric has lost something
		}
		own := r.w.Life(name)
		x.mortals[i] = &mortal{db: db, as: func(fn func()) { r.u.as(name, fn) }, died: own}
		wg.Go(func() {
			r.sleep(dies, done)
			if !over(done) {
				r.w.Kill(name)
			}
		})
	}
}

// upsets pauses servers, and cuts the network between two processes, until done
// is closed.
func (r *simulation) upsets(x *cluster, s *rng.Stream, done <-chan struct{}) {
	names := append([]string{clientName}, x.addrs...)
	for {
		select {
		case <-done:
			return
		case <-time.After(between(s, 1, 40)):
		}
		lasts := between(s, 1, []int{3, 30, 3000}[s.Intn(3)])
		if s.Bool(0.004) {
			lasts = between(s, 3000, 90_000) // longer than every timeout
		}
		switch a, b := names[s.Intn(len(names))], x.addrs[s.Intn(len(x.addrs))]; {
		case !r.w.Next("pause or cut"):
			r.sleep(lasts, done)
		case r.pauses && s.Bool(0.5):
			r.w.Event("pause of %s", b)
			_ = x.net.Pause(b) // it may be down
			r.sleep(lasts, done)
			_ = x.net.Resume(b)
			r.w.Event("resume of %s", b)
		case r.cuts && a != b:
			r.w.Cut(a, b)
			r.w.Cut(b, a)
			r.sleep(lasts, done)
			r.w.Mend(a, b)
			r.w.Mend(b, a)
		}
	}
}

// sleep waits for d, or until done is closed.
func (r *simulation) sleep(d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}

// inLedger looks for every append that was acknowledged in what the last client,
// which ran alone, has read: none may be lost, and none doubled. Keys that were
// deleted, or may have been, do not count.
func (r *simulation) inLedger(h *history.History) error {
	last := uint32(r.l.Clients)
	type entry struct {
		key   history.Key
		value history.Value
	}
	deleted, found := map[history.Key]bool{}, map[entry]int{}
	var acked []entry
	for x := range h.All() {
		for _, op := range x.Ops {
			switch {
			case x.ID.Process() == last:
				if x.Outcome != history.Committed {
					continue
				}
				for _, v := range op.List {
					found[entry{op.Key, v}]++
				}
				for _, row := range op.Rows {
					for _, v := range row.List {
						found[entry{row.Key, v}]++
					}
				}
			case op.Kind == history.OpDelete && x.Outcome != history.Aborted:
				deleted[op.Key] = true
			case op.Kind == history.OpAppend && x.Outcome == history.Committed:
				acked = append(acked, entry{op.Key, op.Value})
			}
		}
	}
	var errs []error
	for _, e := range acked {
		if n := found[e]; n > 1 || n == 0 && !deleted[e.key] {
			errs = append(errs, fmt.Errorf("ledger: the acknowledged value %d of key %d is there %d times", e.value, e.key, n))
		}
	}
	return errors.Join(errs...)
}
