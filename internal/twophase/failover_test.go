package twophase

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// former is a party's machine at a primary that was replaced and does not know
// it. Nothing that it logs is acknowledged any more, so what rests on its log
// never leaves.
type former struct {
	at     Party
	m      *Machine
	memory int // of its server
}

// depose keeps the machines of a server whose log goes on elsewhere.
func (w *world) depose(h int) {
	for i, m := range w.machines {
		if w.t.hosts[i] == h {
			w.former = append(w.former, &former{w.party(i), m, w.servers[h].memory - 1})
		}
	}
}

// haunt gives a former machine an input, and sends what may leave.
func (w *world) haunt(f *former, fn func(*Machine, *Out)) error {
	var out Out
	fn(f.m, &out)
	for i := 0; i < len(out.Effects); i++ {
		switch e := out.Effects[i]; e.Kind {
		case Lock:
			f.m.Locked(e.ID, Yes, w.clocks[f.at.Partition].Tick(), &out)
		case Carry:
			f.m.Carried(e.ID, true, e.Tick, &out)
		}
	}
	for _, m := range out.Messages {
		if !m.Rests() && w.t.hosts[m.To.Partition] != w.t.hosts[f.at.Partition] {
			w.log("the former %v sends %v of %v to %v", f.at, m.Kind, m.ID, m.To)
			w.flight = append(w.flight, m)
		}
	}
	return nil
}

// beginLate begins a transaction at a former primary. Its proofs are of that
// primary's memory.
func (w *world) beginLate(f *former, p plan) error {
	if p.coordinator != int(f.at.Partition) {
		return nil
	}
	shares, agent := []Party{}, Party{}
	for _, s := range p.shares {
		shares = append(shares, w.party(s))
	}
	if p.agent >= 0 {
		agent = w.party(p.agent)
	}
	return w.haunt(f, func(m *Machine, out *Out) {
		if id, err := m.Begin(shares, agent, out); err == nil {
			w.log("the former %v begins %v", f.at, id)
			w.shares[id], w.born[id] = shares, w.memories()
			w.born[id][w.t.hosts[f.at.Partition]] = f.memory
		}
	})
}

// formers adds what may happen at former primaries.
func (w *world) formers(add func(*int, func() error)) {
	for _, f := range w.former {
		add(&w.left.former, func() error { return w.haunt(f, (*Machine).Tick) })
		for _, p := range w.t.plans {
			add(&w.left.former, func() error { return w.beginLate(f, p) })
		}
		for i, m := range w.flight {
			if m.To == f.at {
				add(&w.left.former, func() error { // instead of its successor
					w.flight = slices.Delete(w.flight, i, i+1)
					w.log("the former %v gets %v of %v", f.at, m.Kind, m.ID)
					return w.haunt(f, func(fm *Machine, out *Out) { fm.Receive(&m, out) })
				})
			}
		}
	}
}

// TestExploreFailovers is TestExploreLongCrashes with servers that are replaced
// instead of restarted: another one goes on with what was acknowledged of the
// log, as the same parties, while the former one goes on too, is told things and
// begins transactions.
func TestExploreFailovers(t *testing.T) {
	many := budget{begins: 5, losses: 4, duplicates: 4, ticks: 12, timeouts: 3, refusals: 2, advances: 12, crashes: 4, checkpoints: 2, former: 12}
	all := durableScenes()
	for _, s := range all {
		s.failover = true
	}
	exploreLong(t, all, many, max(paths(t)/4, 1), func(s *scene, rng *rand.Rand, n int) int {
		s.budget.syncs = 2 + n%16
		return 20 + rng.IntN(80)
	})
}
