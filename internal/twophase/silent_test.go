package twophase

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/placement"
)

// TestExploreSilence explores paths that end with a party that is silent for a long
// time: the others go on, in tables that have room for what waits for it.
func TestExploreSilence(t *testing.T) {
	few := budget{begins: 2, losses: 1, duplicates: 1, restarts: 1, ticks: 2, timeouts: 1, refusals: 1, advances: 1}
	many := budget{begins: 5, losses: 5, duplicates: 4, restarts: 2, ticks: 12, timeouts: 3, refusals: 2, advances: 12}
	exploreSilence(t, nil, few, many)
}

// TestExploreDurableSilence is TestExploreSilence with parties that have a log.
func TestExploreDurableSilence(t *testing.T) {
	few := budget{syncs: 100, begins: 2, losses: 1, duplicates: 1, ticks: 2, timeouts: 1, refusals: 1, advances: 1, crashes: 2, checkpoints: 1}
	many := budget{begins: 5, losses: 4, duplicates: 4, ticks: 12, timeouts: 3, refusals: 2, advances: 12, crashes: 4, checkpoints: 4, syncs: 12}
	exploreSilence(t, []int{0, 1, 2}, few, many)
}

func exploreSilence(t *testing.T, hosts []int, few, many budget) {
	t.Helper()
	votes := []plan{{0, []int{0, 1, 2}, -1}, {1, []int{1, 2}, 2}, {0, []int{1, 2}, -1}}
	agent := []plan{{0, []int{0, 1, 2}, 2}, {2, []int{0, 1, 2}, 1}, {0, []int{1}, 1}}
	// Room for all transactions that wait for the silent party, and not for those that
	// are begun meanwhile.
	l := Limits{AskAfter: 2, RepeatEvery: 1, Open: 3, Kept: 8}
	scenes := []*scene{
		{name: "votes", parties: 3, plans: votes, budget: few, depth: 3, limits: l, hosts: hosts, silent: true},
		{name: "hand-over", parties: 3, plans: agent, budget: few, depth: 3, limits: l, hosts: hosts, silent: true},
	}
	// A fault is found sooner by random paths. There are fewer, since they are long.
	exploreLong(t, scenes, many, max(paths(t)/5, 1), func(_ *scene, rng *rand.Rand, _ int) int { return 10 + rng.IntN(60) })
	for _, s := range scenes {
		s.budget = few
	}
	exploreEvery(t, scenes)
}

// goOnWithout lets party x be silent for as long as the others commit many more
// transactions with each other than a table has room for. Each must commit, whatever
// x has not acknowledged. What is on its way to x and from it stays there.
//
// Before, x votes for as many transactions as may wait for it, and hears of no
// decision. Meanwhile each request of the others arrives again, much later. Then
// one of the others may lose its memory.
func (w *world) goOnWithout(x int) error {
	w.log("%v votes, and neither hears decisions nor answers anything from here on", w.party(x))
	w.mute = x + 1
	var others, all []int
	for i := range w.machines {
		all = append(all, i)
		if i != x {
			others = append(others, i)
		}
	}
	for n := range 2 * w.t.limits.Open {
		shares := []Party{w.party(0), w.party(1), w.party(2)}
		agent := Party{}
		if w.begun%2 == 0 && n%2 == 0 {
			agent = w.party(x)
		}
		if err := w.beginAt(w.party(others[n/w.t.limits.Open]), shares, agent, nil); err != nil {
			return err
		}
		if err := w.among(all, true); err != nil {
			return err
		}
	}
	w.log("%v is silent from here on", w.party(x))
	w.again = []Message{}
	for round := range 8 {
		if err := w.among(others, round > 3); err != nil {
			return err
		}
	}
	for n := range w.t.limits.Kept + 4 {
		id, agent, shares := ID{}, Party{}, []Party{w.party(others[0]), w.party(others[1])}
		if n%3 == 1 {
			agent = shares[(n+1)%2]
		}
		for round := 0; !w.answered[id]; round++ {
			if round > 8 {
				return fmt.Errorf("%v is silent, and transaction %d of the others is not committed: %v, answered %v", w.party(x), n, id, w.answered)
			}
			if id == (ID{}) {
				if err := w.beginAt(shares[n%2], shares, agent, &id); err != nil {
					return err
				}
			}
			if err := w.among(others, true); err != nil {
				return err
			}
		}
		if late := len(w.again) - 6; late > 0 {
			w.flight = append(w.flight, w.again[:late]...)
			w.again = w.again[late:]
		}
	}
	w.loseDecisions()
	w.mute, w.again = 0, nil
	if w.servers == nil && w.begun%2 == 0 {
		return w.restart(others[0]) // the other one still knows what x has not heard
	}
	return nil
}

// loseDecisions loses the decisions that are on their way to the silent party.
func (w *world) loseDecisions() {
	w.flight = slices.DeleteFunc(w.flight, func(m Message) bool { return int(m.To.Partition) == w.mute-1 && m.Kind == Decide })
}

// beginAt begins a transaction, if its coordinator can.
func (w *world) beginAt(c Party, shares []Party, agent Party, id *ID) error {
	return w.do(c, func(m *Machine, out *Out) {
		if begun, err := m.Begin(shares, agent, out); err == nil {
			w.shares[begun], w.born[begun] = shares, w.memories()
			if id != nil {
				*id = begun
			}
		}
	})
}

// among lets everything arrive that is between some parties, and then some time pass.
func (w *world) among(some []int, learn bool) error {
	in := func(p Party) bool { return slices.Contains(some, int(p.Partition)) }
	arrives := func(m Message) bool {
		return in(m.From) && in(m.To) && (int(m.From.Partition) != w.mute-1 || m.Kind == Vote)
	}
	for n := 0; ; n++ {
		if n > 2000 {
			return fmt.Errorf("no end of messages")
		}
		w.loseDecisions()
		var err error
		if i := slices.IndexFunc(w.work, func(j job) bool { return in(j.at) }); i >= 0 {
			err = w.report(i, Yes)
		} else if i := slices.IndexFunc(w.flight, arrives); i >= 0 {
			if m := w.flight[i]; w.again != nil && (m.Kind == Prepare || m.Kind == HandOver) && len(w.again) < 8 {
				w.again = append(w.again, m)
			}
			err = w.deliver(i, false)
		} else if i := slices.IndexFunc(w.held, func(h held) bool { return in(Party{Partition: placement.Partition(slices.Index(w.t.hosts, h.from))}) }); i >= 0 {
			h := w.held[i].from
			err = w.sync(h, len(w.servers[h].log))
		} else {
			break
		}
		if err == nil {
			err = w.bounded()
		}
		if err != nil {
			return err
		}
	}
	for _, to := range w.timeouts() {
		if !in(to.at) {
			continue
		}
		w.log("%v: timeout of %v for %v", to.at, to.to, to.id)
		if err := w.do(to.at, func(m *Machine, out *Out) { m.Lost(to.id, to.to, out) }); err != nil {
			return err
		}
	}
	for _, i := range some {
		m := w.machines[i]
		for _, p := range w.ended {
			if learn && p.Partition != m.self.Partition && !m.isGone(p) {
				if err := w.learn(m, p); err != nil {
					return err
				}
			}
		}
		w.log("tick of %v", m.self)
		if err := w.do(m.self, (*Machine).Tick); err != nil {
			return err
		}
	}
	return nil
}
