//go:build simulated

package server_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"drtmx/txn"
)

// A storm is one scenario of TestHistories in a simulated world: one kind of fault of
// the fabric, with one kind of stress. Time costs nothing, so pauses and delays last
// longer than every timeout.

// drawStorm draws a scenario, and a short load for it.
func (r *simulation) drawStorm(seed uint64) {
	all := slices.Concat(scenarios(), harshScenarios(), combinations())
	r.storm = &all[r.s.Intn(len(all))]
	r.l, r.u = r.storm.draw(r.s, seed)
	r.l.TxnsPerClient = min(r.l.TxnsPerClient, 5+r.s.Intn([]int{10, 30, 100}[r.s.Intn(3)]))
	r.l.AskUnknown, r.l.AskFor = true, 10*time.Minute
	if r.l.LargeOps > 0 {
		r.l.TxnsPerClient = min(r.l.TxnsPerClient, 15) // no garbage is collected
	}
	if r.s.Bool(0.3) {
		r.l.Keys = min(r.l.Keys, 2+r.s.Intn(4))
	}
	r.u.world, r.u.net.Clock = r.w, fakeClock{time.Now()}
	if r.s.Bool(0.2) {
		r.mortals, r.lifetime, r.l.LossyCalls = 1+r.s.Intn(3), []int{3, 30, 300}[r.s.Intn(3)], true
	}
	r.veryLate = r.s.Bool(0.1)
	r.u.client.Reads = cmp.Or(r.u.client.Reads, []txn.ReadPath{0, 0, 0, txn.OrderedByRPC}[r.s.Intn(4)])
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
