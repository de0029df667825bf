package server

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

func (c *coordinator) clone() *coordinator {
	d := *c
	d.waiting, d.prepared = maps.Clone(c.waiting), maps.Clone(c.prepared)
	return &d
}

// trial is one path through a coordinator's events: what it was told, and what
// it asked for.
type trial struct {
	c       *coordinator
	votes   map[int]verdict // the first answer of each
	acked   map[int]bool
	unheard bool // of one the coordinator heard no acknowledgement
	effects []effect
	path    []event
}

func (tr *trial) after(e event) *trial {
	n := &trial{
		c: tr.c.clone(), votes: maps.Clone(tr.votes), acked: maps.Clone(tr.acked),
		effects: slices.Clone(tr.effects), path: append(slices.Clone(tr.path), e), unheard: tr.unheard,
	}
	switch e.kind {
	case evVote, evLost:
		if _, known := n.votes[e.server]; !known {
			n.votes[e.server] = e.v
		}
	case evAck, evUnheard:
		n.unheard = n.unheard || e.kind == evUnheard && !n.acked[e.server]
		n.acked[e.server] = true
	}
	n.effects = n.c.step(e, n.effects)
	return n
}

// lost reports whether a participant's first answer was that there is none.
func (tr *trial) lost(server int) bool {
	for _, e := range tr.path {
		if e.server == server && (e.kind == evVote || e.kind == evLost) {
			return e.kind == evLost
		}
	}
	return false
}

func (tr *trial) of(k effectKind) (at []int) {
	for i, e := range tr.effects {
		if e.kind == k {
			at = append(at, i)
		}
	}
	return at
}

// check holds the effects so far against the events so far.
func (tr *trial) check() error {
	if n := len(tr.of(doPrepare)); n != len(tr.c.participants) {
		return fmt.Errorf("%d prepares", n)
	}
	decided, yes, voted := map[int]bool{}, 0, len(tr.votes)
	for _, v := range tr.votes {
		if v.ok() {
			yes++
		}
	}
	all := len(tr.c.participants)
	for _, i := range tr.of(doDecide) {
		e := tr.effects[i]
		if decided[e.server] {
			return fmt.Errorf("server %d is told twice", e.server)
		}
		decided[e.server] = true
		if voted < all {
			return fmt.Errorf("decided before all votes were in")
		}
		if e.commit != (yes == all) {
			return fmt.Errorf("decided commit=%v with %d of %d votes yes", e.commit, yes, all)
		}
		if rec := tr.of(doRecord); e.commit && (len(rec) != 1 || rec[0] > i) {
			return fmt.Errorf("commit sent before it was recorded once")
		}
	}
	if yes < all && len(tr.of(doRecord)) > 0 {
		return fmt.Errorf("an abort was recorded as a commit")
	}
	if voted < all {
		if len(tr.of(doReply)) > 0 {
			return fmt.Errorf("replied before the votes were in")
		}
		return nil
	}
	for _, s := range tr.c.participants {
		if may := tr.votes[s].weight() < 2 || tr.lost(s); may != decided[s] {
			return fmt.Errorf("server %d, prepared or perhaps so: %v, is told: %v", s, may, decided[s])
		}
	}
	return tr.checkEnd(decided, yes == all)
}

func (tr *trial) checkEnd(decided map[int]bool, commit bool) error {
	finished := true
	for s := range decided {
		finished = finished && tr.acked[s]
	}
	reply := tr.of(doReply)
	forget := len(reply)
	if tr.unheard && commit {
		forget = 0 // one that does not know of the commit will ask
	}
	if finished != (len(reply) == 1) || len(reply) > 1 || len(tr.of(doForget)) != forget {
		return fmt.Errorf("all acknowledged: %v, replies: %d, forgotten: %d", finished, len(reply), len(tr.of(doForget)))
	}
	if len(reply) == 0 {
		return nil
	}
	v := tr.effects[reply[0]].v
	if v.ok() != commit {
		return fmt.Errorf("commit is %v, the client is told %d", commit, v.code)
	}
	for _, w := range tr.votes {
		if w.weight() > v.weight() {
			return fmt.Errorf("a vote %d is told as %d, which stands only if all that was read did", w.code, v.code)
		}
	}
	return nil
}

// TestCoordinatorInEveryOrder explores all orders of all events of up to three
// participants, repeated and late ones included.
func TestCoordinatorInEveryOrder(t *testing.T) {
	votes := []event{
		{kind: evVote},
		{kind: evVote, v: conflict(exec.CauseRow)},
		{kind: evVote, v: verdict{code: wire.Exists}},
		{kind: evLost, v: verdict{code: wire.Unavailable}},
	}
	for n := 1; n <= 3; n++ {
		servers := []int{4, 7, 9}[:n]
		start := &trial{c: newCoordinator(servers), votes: map[int]verdict{}, acked: map[int]bool{}}
		var rec func(tr *trial)
		seen := map[string]bool{}
		steps, ends := 0, 0
		rec = func(tr *trial) {
			steps++
			if err := tr.check(); err != nil {
				t.Fatalf("%d participants, %v: %v\neffects %+v", n, tr.path, err, tr.effects)
			}
			key := fmt.Sprintf("%d %v %v %#v %#v %v %v", tr.c.state, tr.c.waiting, tr.c.prepared, tr.c.outcome, tr.votes, tr.acked, tr.unheard)
			if seen[key] {
				return
			}
			seen[key] = true
			if tr.c.state == done {
				ends++
			}
			for _, s := range servers {
				for _, v := range votes {
					v.server = s
					rec(tr.after(v))
				}
				if slices.ContainsFunc(tr.effects, func(e effect) bool { return e.kind == doDecide && e.server == s }) {
					rec(tr.after(event{kind: evAck, server: s}))
					rec(tr.after(event{kind: evUnheard, server: s}))
				}
			}
			if tr.c.state != idle {
				rec(tr.after(event{kind: evStart}))
			}
		}
		first := start.after(event{kind: evStart})
		rec(first)
		if ends == 0 {
			t.Errorf("%d participants: no path came to an end", n)
		}
		t.Logf("%d participants: %d states, %d steps, %d ends", n, len(seen), steps, ends)
	}
}

// TestParticipantInEveryOrder: whatever the order and number of prepares,
// decisions and questions about one transaction, what was prepared is handed
// out once, answers do not change once given, and nothing is prepared after a
// decision or an answer that it aborted.
func TestParticipantInEveryOrder(t *testing.T) {
	id := wire.ID{Client: 1, Seq: 1}
	names := []string{"prepare", "commit", "abort", "ask"}
	const length = 6
	total := 1
	for range length {
		total *= len(names)
	}
	for code := range total {
		p := newParticipant()
		handed, prepares := 0, 0
		var answer wire.Code // the last final one
		final := false
		for i, c := 0, code; i < length; i, c = i+1, c/len(names) {
			path := func() string { return fmt.Sprintf("sequence %d, step %d (%s)", code, i, names[c%len(names)]) }
			switch c % len(names) {
			case 0:
				if _, known := p.decided[id]; known || p.doubt[id] != nil {
					continue // refused, as Server.prepare does
				}
				prepares++
				p.doubt[id] = &doubt{}
			case 1, 2:
				if d := p.decide(id, c%len(names) == 1); d != nil {
					handed++
				}
			case 3:
				got := p.ask(id)
				if final && got != answer {
					t.Fatalf("%s: answered %d before and %d now", path(), answer, got)
				}
				if final = final || got != wire.InDoubt; final {
					answer = got
				}
			}
			if _, known := p.decided[id]; known && p.doubt[id] != nil {
				t.Fatalf("%s: decided and in doubt", path())
			}
		}
		if handed > prepares || prepares > 1 {
			t.Fatalf("sequence %d: prepared %d times, handed out %d times", code, prepares, handed)
		}
	}
}

// TestParticipantForgetsOldDecisions: memory is bounded.
func TestParticipantForgetsOldDecisions(t *testing.T) {
	p := newParticipant()
	for i := range uint64(3 * decidedMax) {
		p.decide(wire.ID{Client: 1, Seq: i}, i%2 == 0)
	}
	if len(p.decided) != decidedMax || len(p.ring) != decidedMax {
		t.Errorf("%d decisions kept, want %d", len(p.decided), decidedMax)
	}
	if got := p.ask(wire.ID{Client: 1, Seq: 3*decidedMax - 1}); got != wire.Aborted {
		t.Errorf("the last decision is answered %d", got)
	}
	if got := p.ask(wire.ID{Client: 1, Seq: 3*decidedMax - 2}); got != wire.OK {
		t.Errorf("the last commit is answered %d", got)
	}
}
