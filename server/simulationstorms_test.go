//go:build simulated

package server_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/txn"
)

// A storm is one scenario of TestHistories in a simulated world: one kind of fault of
// the fabric, with one kind of stress. Time costs nothing, so pauses and delays last
// longer than every timeout.

// storms are those that a seed draws from.
func (r *simulation) storms() []scenario {
	focus := r.s.Bool(0.4)
	switch {
	case r.only != "":
		return stormsOf(r.only)
	case focus:
		return focused()
	}
	return slices.Concat(scenarios(), harshScenarios(), combinations())
}

// drawStorm draws one of some scenarios, and a short load for it.
func (r *simulation) drawStorm(seed uint64, all []scenario) {
	r.storm = &all[r.s.Intn(len(all))]
	r.l, r.u = r.storm.draw(r.s, seed)
	r.l.TxnsPerClient = min(r.l.TxnsPerClient, 5+r.s.Intn([]int{10, 30, 100}[r.s.Intn(3)]))
	r.l.AskUnknown, r.l.AskFor = true, 10*time.Minute
	if r.l.LargeOps > 0 {
		r.l.TxnsPerClient = min(r.l.TxnsPerClient, 15) // no garbage is collected
	}
	if r.s.Bool(0.3) && r.storm.name != "scans over many leaves" && !r.storm.leaves {
		r.l.Keys = min(r.l.Keys, 2+r.s.Intn(4))
	}
	r.u.world, r.u.net.Clock = r.w, fakeClock{time.Now()}
	if r.s.Bool(0.2) {
		r.mortals, r.lifetime, r.l.LossyCalls = 1+r.s.Intn(3), []int{3, 30, 300}[r.s.Intn(3)], true
	}
	r.veryLate = r.s.Bool(0.1)
	r.u.client.Reads = cmp.Or(r.u.client.Reads, []txn.ReadPath{0, 0, 0, txn.OrderedByRPC}[r.s.Intn(4)])
}

// stormsOf are all scenarios whose names have a part.
func stormsOf(part string) []scenario {
	all := slices.Concat(scenarios(), harshScenarios(), combinations(), focused(), ofBins(), ofTwins())
	return slices.DeleteFunc(all, func(sc scenario) bool { return !strings.Contains(sc.name, part) })
}

// focused are storms around one mechanism, which the others seldom bring into a state
// where it matters.
func focused() []scenario {
	return []scenario{
		{name: "scans over many leaves", load: func(l *load, s *rng.Stream) {
			manyLeaves(l, s)
			l.Scans, l.Reads, l.Deletes = 0.3+0.4*s.Float64(), 0.1, 0.1+0.2*s.Float64()
			l.Views, l.Snapshots, l.Calls, l.Looks = 0.3, 0, 0.2*s.Float64(), 0.1
		}},
		{name: "edges of scans", servers: 1, partitions: 1, leaves: true, load: fewRows},
		{name: "edges of scans of two partitions", servers: 2, partitions: 2, leaves: true, load: fewRows},
		{name: "splits of prepared transactions", servers: 2, partitions: 2, loses: true, leaves: true, load: func(l *load, s *rng.Stream) {
			fewRows(l, s)
			l.OpsPerTxn, l.Keys, l.Clients, l.Views, l.Looks = 2+s.Intn(4), 16+s.Intn(24), 8+s.Intn(8), 0, 0
			l.Scans, l.Reads, l.Deletes, l.RollBacks = 0.2+0.2*s.Float64(), 0.1, 0.2, 0
		}, upset: (*upsetting).delayPrepares},
		{name: "reads of prepared transactions", loses: true, load: func(l *load, s *rng.Stream) {
			distributed(l, s)
			if s.Bool(0.5) {
				manyLeaves(l, s)
			}
			l.Scans, l.Reads, l.Deletes, l.Snapshots = 0.3*s.Float64(), 0.3+0.3*s.Float64(), 0.2, 0
			l.Views, l.Looks, l.Calls = 0.1*s.Float64(), 0.1*s.Float64(), 0.3*s.Float64()
		}, upset: (*upsetting).delayDecisions},
		{name: "decisions that full tables forget", loses: true, faults: drops, load: manyDecisions, limits: func(s *rng.Stream) twophase.Limits {
			return twophase.Limits{Open: 1 + s.Intn(3), Kept: 1 + s.Intn(3)}
		}, upset: func(u *upsetting) {
			u.delayDecisions()
			u.failDials()
		}},
		{name: "decisions that come late and twice", loses: true, servers: 3, load: manyDecisions, limits: func(s *rng.Stream) twophase.Limits {
			return twophase.Limits{Open: 1 + s.Intn(4), Kept: 1 + s.Intn(6)}
		}, upset: (*upsetting).delayDecisions},
	}
}

// manyLeaves spreads short lists over many leaves.
func manyLeaves(l *load, s *rng.Stream) {
	l.OneTable, l.OpsPerTxn, l.Room, l.Rotate = false, 1+s.Intn(4), 4, 2
	l.Keys, l.Clients = 40+s.Intn(100), 4+s.Intn(5)
}

// fewRows scans short ranges of few rows that are deleted and inserted again and
// again, so ranges often end where a leaf has no rows, or where it splits.
func fewRows(l *load, s *rng.Stream) {
	l.OneTable, l.Hows = false, l.Hows&^(howSecondary|howLimit)
	l.Keys, l.Clients, l.Room = 8+s.Intn(24), 4+s.Intn(5), []int{4, 24}[s.Intn(2)] // inline, or apart
	l.Rotate = l.Room - 1
	l.OpsPerTxn, l.Scans, l.Reads, l.Deletes = 2+s.Intn(3), 0.4+0.2*s.Float64(), 0.05, 0.2
	l.Views, l.Looks, l.Calls, l.Snapshots = 0.3*s.Float64(), 0.1, 0.2*s.Float64(), 0
}

// delayDecisions lets much of what ends distributed transactions come late, or twice.
func (u *upsetting) delayDecisions() {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	for _, op := range []wire.Op{wire.OpDecide, wire.OpHandOver, wire.OpResolve, wire.OpPrepare} {
		u.d.mu.rates[op] = rates{hold: 0.3, late: 0.05, twice: 0.1}
	}
	u.d.mu.longest, u.d.mu.share = []time.Duration{5, 50, 500}[u.s.Intn(3)]*time.Millisecond, 0.3
}

// delayPrepares delays what prepares transactions at other servers, so these can
// commit much beside them.
func (u *upsetting) delayPrepares() {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	for _, op := range []wire.Op{wire.OpHandOver, wire.OpPrepare} {
		u.d.mu.rates[op] = rates{hold: 0.5}
	}
	u.d.mu.longest, u.d.mu.share = 5*time.Millisecond, 0.3
}

// stormy begins the disturbances of a storm. Half of them last long.
func (r *simulation) stormy(t *testing.T, x *cluster) *upsetting {
	t.Helper()
	d := r.u.upset
	if d == nil {
		d = newDisturbance(r.s) // of nothing
	}
	u := newUpsetting(t, x, d, r.s)
	u.long, u.next = r.s.Bool(0.5), r.w.Next
	return u
}
