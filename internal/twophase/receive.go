package twophase

import "drtmx/internal/clock"

// Receive handles a message. A message to another party, or from a party that
// is gone, has no effect and no answer.
func (m *Machine) Receive(msg *Message, out *Out) {
	if msg.To != m.self || m.isGone(msg.From) || msg.From == m.self {
		return
	}
	for _, p := range msg.Gone {
		if p != m.self {
			m.Gone(p, out)
		}
	}
	if m.isGone(msg.From) {
		return
	}
	pr := m.peer(msg.From)
	pr.heard = max(pr.heard, min(msg.Heard, m.next))
	m.raise(msg.From, pr, msg.Watermark)
	m.takeNames(msg, pr)
	switch msg.Kind {
	case Prepare, HandOver:
		m.request(msg, pr, out)
	case Vote:
		if r := m.table[msg.ID]; r != nil && r.state == voting && msg.ID.Coordinator == m.self {
			m.voted(r, r.member(msg.From), msg.Ballot, msg.Tick, out)
		}
	case Decide:
		m.takeDecision(msg, out)
	case Ack:
		m.acknowledged(msg)
	case Ask:
		answer := m.answer(msg.From, msg.ID)
		answer.Closed = len(msg.Gone)
		m.send(out, answer)
	case Answer:
		m.answered(msg, out)
	case Settled:
		m.send(out, Message{Kind: Noted, To: msg.From, Named: pr.answered})
	case Noted:
		m.noted(msg, pr, out)
	}
}

// request handles Prepare and HandOver.
func (m *Machine) request(msg *Message, pr *peer, out *Out) {
	id, handed := msg.ID, msg.Kind == HandOver
	if id.Coordinator != msg.From || handed && msg.Agent != m.self {
		return
	}
	r := m.table[id]
	if r == nil && !pr.past(id) && pr.records < m.limits.Kept {
		r = m.enter(id, pr)
		r.agent = msg.Agent
		m.fill(r, msg.Parties)
		m.pending[id] = r
		if handed {
			r.state = carrying
			e := Effect{Kind: Carry, ID: id, Tick: msg.Tick}
			if m.durable {
				e.Parties, e.Mark = r.others(), pr.settled
			}
			out.Effects = append(out.Effects, e)
			return
		}
		r.state, r.busy = locking, true
		out.Effects = append(out.Effects, Effect{Kind: Lock, ID: id})
		return
	}
	if !handed {
		// The request is repeated or late, or the table is full. A coordinator
		// that already has a vote of this party ignores this one.
		m.send(out, Message{Kind: Vote, To: msg.From, ID: id, Ballot: No})
		return
	}
	// The answer is final only if it is remembered. Below the watermark the
	// coordinator knows the decision.
	m.send(out, m.answer(msg.From, id))
}

// answer returns the answer to a question about a transaction.
func (m *Machine) answer(to Party, id ID) Message {
	msg := Message{Kind: Answer, To: to, ID: id, Known: m.knowOrRefuse(id)}
	if msg.Known == Committed {
		msg.Tick = m.table[id].tick
	}
	return msg
}

// enter adds a record of a transaction of another coordinator.
func (m *Machine) enter(id ID, pr *peer) *record {
	r := &record{id: id}
	m.table[id] = r
	pr.kept = push(pr.kept, id.Seq)
	pr.records++
	return r
}

// takeDecision handles Decide.
func (m *Machine) takeDecision(msg *Message, out *Out) {
	r := m.table[msg.ID]
	switch {
	case r == nil:
		if !msg.Commit {
			m.knowOrRefuse(msg.ID) // refuse a late request from now on
		}
	case r.state == inDoubt && r.takeTick(msg.Commit, msg.Tick):
		m.decided(r, msg.Commit, out)
	case r.state == locking && !msg.Commit:
		m.decided(r, false, out)
	case r.state == committed && msg.Commit, r.state == aborted && !msg.Commit:
	default:
		return // invalid: it contradicts the record, or nothing can be decided yet
	}
	m.send(out, Message{Kind: Ack, To: msg.From, ID: msg.ID})
}

// takeTick takes the tick of a decision. A tick below a vote is invalid: the
// party may have committed later transactions, which then came before this one.
func (r *record) takeTick(commit bool, tick clock.Tick) bool {
	if commit {
		if tick < r.tick {
			return false
		}
		r.tick = tick
	}
	return true
}

// acknowledged handles the acknowledgement of a decision.
func (m *Machine) acknowledged(msg *Message) {
	r := m.table[msg.ID]
	if r == nil || r.state < committed {
		return
	}
	if mb := r.member(msg.From); mb != nil {
		mb.waiting, mb.heard = false, true
		m.owe(mb, false)
		m.drop(r)
	}
}

// knowOrRefuse returns the answer to a question. If the transaction is unknown and its
// request may still arrive, it records that it is refused.
func (m *Machine) knowOrRefuse(id ID) Knowledge {
	if r := m.table[id]; r != nil {
		switch r.state {
		case inDoubt:
			return InDoubt
		case committed:
			return Committed
		case aborted:
			return Aborted
		}
		return Undecided
	}
	if id.Coordinator == m.self || m.isGone(id.Coordinator) {
		// A coordinator remembers a commit until all parties know it. If the
		// coordinator is gone, a party remembers its vote, and a commit until
		// all survivors know it.
		return Aborted
	}
	pr := m.peer(id.Coordinator)
	if pr.past(id) || pr.records >= m.limits.Kept+m.limits.Open {
		return Undecided // a party in doubt has to ask others
	}
	m.enter(id, pr).state = aborted
	return Aborted
}

// answered handles the answer to a question or to a hand-over.
func (m *Machine) answered(msg *Message, out *Out) {
	r := m.table[msg.ID]
	if r == nil {
		return
	}
	mb := r.member(msg.From)
	switch {
	case mb == nil:
	case r.state >= committed:
		if msg.Known >= Committed {
			m.acknowledged(msg)
		}
	case r.state != inDoubt:
	case msg.Known >= Committed:
		if commit := msg.Known == Committed; r.takeTick(commit, msg.Tick) {
			mb.heard = true
			m.decided(r, commit, out)
		}
	default:
		mb.answered = msg.Known == InDoubt && msg.Closed == len(m.goneOf(r))
		m.evaluate(r, out)
	}
}
