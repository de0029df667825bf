package server_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/txn"
)

// TestCrashHistories: durable servers crash and recover at random moments, all of
// them or one while the others go on, some again while they recover, under clients
// that are not opened again. What all clients found is strictly serializable with
// every commit that was acknowledged. Outcomes that clients do not know are asked
// for. DRTMX_SIM and DRTMX_SEED are as for TestHistories.
func TestCrashHistories(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	var sum tally
	begin := time.Now()
	for end := begin.Add(simTime(t, 2*time.Second)); sum.runs == 0 || time.Now().Before(end); {
		runSeed := seed + uint64(sum.runs)
		txns, counts := crashHistory(t, runSeed)
		if t.Failed() {
			t.Fatalf("run %d: replay with DRTMX_SEED=%d", sum.runs, runSeed)
		}
		sum.add(1, txns, counts)
	}
	t.Logf("%v: %v", time.Since(begin).Round(10*time.Millisecond), &sum)
}

func crashHistory(t *testing.T, seed uint64) (txns int, counts map[string]int) {
	t.Helper()
	s := rng.New(seed).Split("crashes")
	l := swarm(s, seed)
	l.onDisks()
	l.Duration, l.Clients = between(s, 300, 800), 4+s.Intn(8)
	switch {
	case simTime(t, 0) >= longSim:
		l.Duration *= 4
	case !testseed.Soaking():
		l.Duration /= 4
	}
	l.ServersToFail, l.OutcomeMayLost, l.LossyCalls, l.ClocksStop, l.AskUnknown = true, true, true, true, true
	if s.Bool(0.5) {
		l.Patience = between(s, 5, 200)
	}
	d := &crashable{slow: []time.Duration{0, 0, 0, 0, time.Millisecond, 5 * time.Millisecond}[s.Intn(6)], sub: s.Split("disks"), parts: 32 << 10 << s.Intn(4)}
	u := setup{servers: 1 + s.Intn(3), client: txn.Config{Seed: seed | 1}, more: d.config, net: inproc.Options{Seed: seed}}
	u.partitions = u.servers * (1 + s.Intn(2))
	d.replicas = 1 + s.Intn(u.servers)
	if s.Bool(0.5) {
		u.net.Faults = inproc.Faults{DropBefore: 0.001, DropDuring: 0.001, DropAfter: 0.001, DropVerb: 0.0002, Duplicate: 0.1}
	}
	x := u.start(t, newLists(&l))
	defer x.Close()
	k := &crashing{x: x, u: &u, d: d, s: s.Split("moments"), counts: map[string]int{}, rest: []int{60, 120, 500}[s.Intn(3)]}
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- k.run(done) }()
	var crashed error
	var once sync.Once
	x.calm = func() { once.Do(func() { close(done); crashed = <-ended }) }
	out, err := x.run(t, &l)
	x.calm()
	if err := errors.Join(err, crashed); err != nil {
		t.Errorf("%+v\n%d servers, %d partitions, faults %+v: %v", l, u.servers, u.partitions, u.net.Faults, err)
	}
	if out.h == nil {
		return 0, nil
	}
	check(t, t.Name(), out.h)
	for what, n := range k.counts {
		out.counts[what] += n
	}
	if t.Failed() {
		t.Logf("%+v\n%v", l, out.counts)
	}
	return out.h.Len(), out.counts
}
