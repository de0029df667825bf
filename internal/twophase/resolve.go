package twophase

import (
	"maps"
	"slices"
)

// Gone reports that a party's memory is lost. The driver must have proof:
// another incarnation of its server has answered, or is named by the membership
// store.
func (m *Machine) Gone(p Party, out *Out) {
	if m.isGone(p) || p == m.self {
		return
	}
	m.gone[p] = struct{}{}
	delete(m.peers, p)
	if m.durable {
		m.log(Record{Kind: Departed, Party: p}, out)
	}
	of := map[ID]*record{}
	for id, r := range m.table {
		if r.member(p) != nil || id.Coordinator == p {
			of[id] = r
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(of), ID.Compare) {
		m.without(of[id], p, out)
	}
}

// without continues a transaction that has lost a member.
func (m *Machine) without(r *record, p Party, out *Out) {
	if mb := r.member(p); mb != nil {
		if r.state == voting && (mb.waiting || p == r.agent) {
			r.refused = true
		}
		mb.waiting, mb.owes, mb.holds = false, false, false
	}
	for i := range r.members {
		r.members[i].answered = false // given before these members refused messages of p
	}
	switch {
	case r.state == voting:
		m.conclude(r, out)
	case r.state == inDoubt:
		r.ticks = max(r.ticks, m.limits.AskAfter-1)
		m.evaluate(r, out)
	case r.id.Coordinator != p:
		m.drop(r)
	case r.state == locking:
		m.decided(r, false, out) // this party has not voted, so no party has committed
	case r.state >= committed:
		m.survive(r)
		m.drop(r)
	}
}

// survive makes this party notify all others of a commit, because the coordinator is
// gone. An abort needs no message: this party will not vote for the transaction.
func (m *Machine) survive(r *record) {
	if r.state != committed {
		return
	}
	for i := range r.members {
		mb := &r.members[i]
		mb.waiting = mb.Party != m.self && !m.isGone(mb.Party)
	}
	m.pending[r.id] = r
	r.ticks = m.limits.RepeatEvery - 1
}

// evaluate aborts a transaction in doubt if no other party can know of a
// commit.
func (m *Machine) evaluate(r *record, out *Out) {
	for i := range r.members {
		mb := &r.members[i]
		if mb.Party != m.self && !mb.answered && !m.isGone(mb.Party) {
			return
		}
	}
	m.decided(r, false, out)
}

// ask asks one party.
func (m *Machine) ask(r *record, p Party, out *Out) {
	m.send(out, Message{Kind: Ask, To: p, ID: r.id, Gone: m.goneOf(r)})
}

// Tick advances the time by one tick. For transactions in doubt the machine
// sends questions, and it repeats decisions without an acknowledgement.
func (m *Machine) Tick(out *Out) {
	// In order, so that the same inputs always have the same outputs.
	for _, id := range slices.SortedFunc(maps.Keys(m.pending), ID.Compare) {
		r := m.pending[id]
		r.ticks++
		switch {
		case r.state == inDoubt && r.ticks >= m.limits.AskAfter && (r.ticks-m.limits.AskAfter)%m.limits.RepeatEvery == 0:
			m.askAll(r, out)
			m.evaluate(r, out) // restored, and all others are gone
		case r.state >= committed && r.ticks%m.limits.RepeatEvery == 0:
			for i := range r.members {
				if mb := &r.members[i]; mb.waiting {
					m.send(out, m.decision(r, mb.Party))
				}
			}
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.peers), Party.compare) {
		pr := m.peers[p]
		pr.quiet++
		if pr.quiet > m.limits.RepeatEvery && pr.last > 0 && pr.heard <= pr.last && m.watermark(pr) > pr.heard {
			m.send(out, Message{Kind: Settled, To: p})
		}
		m.repeatNames(p, pr, out)
		if m.durable && len(pr.kept) > 0 && pr.quiet > stale*m.limits.RepeatEvery {
			// The other side was restarted, and owes no watermark. Its answer has one.
			m.send(out, Message{Kind: Ask, To: p, ID: ID{p, pr.kept[0]}})
		}
	}
}

// stale is the number of periods of RepeatEvery without a message after which a durable
// party asks for a watermark.
const stale = 4

// askAll asks the coordinator and the agent, which may have decided. Later, or
// if a member is gone, it also asks all others, which may know the decision or
// refuse a transaction that they have not seen.
func (m *Machine) askAll(r *record, out *Out) {
	all := r.ticks >= 2*m.limits.AskAfter || len(m.goneOf(r)) > 0
	for i := range r.members {
		p := r.members[i].Party
		if p != m.self && !m.isGone(p) && (all || i == 0 || p == r.agent) {
			m.ask(r, p, out)
		}
	}
}

// watermark returns the current watermark for a party.
func (m *Machine) watermark(pr *peer) uint64 {
	for len(pr.open) > 0 {
		if m.table[ID{m.self, pr.open[0]}] != nil {
			return pr.open[0]
		}
		pr.open = pr.open[1:]
		pr.names.left = min(pr.names.left, len(pr.open))
	}
	pr.open = spare(pr.open)
	return m.next
}

// open counts a transaction of this coordinator that concerns another party.
func (m *Machine) open(r *record, p *member, out *Out) {
	pr := m.peer(p.Party)
	pr.open = push(pr.open, r.id.Seq)
	pr.last = r.id.Seq
	m.owe(p, true)
	if pr.names.mark == 0 && m.crowded(pr) {
		m.name(p.Party, pr, out)
	}
}

// owe counts whether a transaction of this coordinator waits for a party.
func (m *Machine) owe(p *member, owes bool) {
	if p.owes == owes {
		return
	}
	p.owes = owes
	if pr := m.peers[p.Party]; owes {
		pr.debts++
	} else {
		pr.debts--
	}
}

// settled removes a transaction of this coordinator that all parties know.
func (m *Machine) settled(r *record) {
	delete(m.table, r.id)
	for i := range r.members {
		m.owe(&r.members[i], false)
	}
}

// raise takes a coordinator's watermark and removes the decided records below
// it.
func (m *Machine) raise(c Party, pr *peer, mark uint64) {
	if mark <= pr.settled {
		return
	}
	pr.settled = mark
	n := 0
	for n < len(pr.kept) && pr.kept[n] < mark {
		m.forget(ID{c, pr.kept[n]}, pr)
		n++
	}
	if pr.kept = pr.kept[n:]; len(pr.kept) == 0 {
		pr.kept = spare(pr.kept)
	}
}

// forget removes the record of a settled transaction of another coordinator, once
// it is decided here.
func (m *Machine) forget(id ID, pr *peer) {
	switch r := m.table[id]; {
	case r == nil:
	case r.state >= committed && !r.busy && !r.waits():
		delete(m.table, id)
		delete(m.pending, id)
		pr.records--
	default:
		r.named = true
	}
}

// spare keeps the memory of an empty queue for later, unless it is large.
func spare(queue []uint64) []uint64 {
	if cap(queue) > 1<<10 {
		return nil
	}
	return queue
}
