package twophase

import "slices"

// A transaction that one party never acknowledges holds the watermarks of all its
// parties back. Those that do acknowledge would keep the records of all later
// transactions of the coordinator, until their tables are full, although these
// are settled. So a coordinator names what is settled above a watermark: all that
// is below a number, but for the transactions that it lists as open.
//
// A party then forgets the records of what is settled. From then on it refuses a
// request below that number which it has no record of. So the number must be
// such that the party has answered all requests below it: what is still open
// there has a record at the party, or had one.

// naming is what a coordinator has named to a party.
type naming struct {
	mark  uint64   // the number that the party has not confirmed, 0 if there is none
	open  []uint64 // what was open below it
	done  uint64   // the highest number that the party has confirmed
	left  int      // how many numbers were open below it
	ticks int      // since mark was sent
}

// crowded reports whether a party may have many records of settled transactions.
func (m *Machine) crowded(pr *peer) bool {
	return len(pr.open) >= pr.names.left+max(m.limits.Kept/namesIn, 1)
}

// namesIn: names are due for each namesIn-th part of a table.
const namesIn = 16

// name notifies a party of what is settled above its watermark, if anything is.
func (m *Machine) name(p Party, pr *peer, out *Out) {
	mark, open, settled := m.next, []uint64(nil), 0
	for _, seq := range pr.open {
		r := m.table[ID{m.self, seq}]
		if r == nil {
			settled++
			continue
		}
		if mb := r.member(p); !mb.heard || len(open) == MaxOpen {
			mark = seq
			break
		}
		open = append(open, seq)
	}
	again := pr.names.mark > 0 || pr.names.done > 0
	if len(open) == 0 || settled == 0 && !again {
		pr.names.mark = 0 // the watermark says as much
		return
	}
	pr.names.mark, pr.names.open, pr.names.ticks = mark, open, 0
	m.send(out, Message{Kind: Settled, To: p, Named: mark, Open: open})
}

// repeatNames names, once per tick at most, what is due or was not confirmed.
func (m *Machine) repeatNames(p Party, pr *peer, out *Out) {
	pr.names.ticks++
	if pr.names.mark > 0 && pr.names.ticks >= m.limits.RepeatEvery || pr.names.mark == 0 && m.crowded(pr) {
		m.name(p, pr, out)
	}
	if pr.forgot = pr.forgot && pr.records > 0; pr.forgot && pr.names.ticks%(stale*m.limits.RepeatEvery) == 0 {
		quiet := pr.quiet // it may have no answer, and then the party has yet to be asked for its watermark
		m.send(out, Message{Kind: Noted, To: p, Named: pr.answered})
		pr.quiet = quiet
	}
}

// takeNames forgets what another coordinator has named as settled.
func (m *Machine) takeNames(msg *Message, pr *peer) {
	if msg.Kind != Settled || msg.Named == 0 {
		return
	}
	pr.answered, pr.forgot = max(pr.answered, msg.Named), false
	pr.kept = slices.DeleteFunc(pr.kept, func(seq uint64) bool {
		if _, open := slices.BinarySearch(msg.Open, seq); open || seq >= msg.Named {
			return false
		}
		m.forget(ID{msg.From, seq}, pr)
		return true
	})
}

// noted takes a party's confirmation of names.
func (m *Machine) noted(msg *Message, pr *peer, out *Out) {
	n := &pr.names
	switch {
	case n.mark > 0 && msg.Named == n.mark:
		at, _ := slices.BinarySearch(pr.open, n.mark)
		pr.open = slices.Concat(n.open, pr.open[at:])
		n.mark, n.open, n.done, n.left = 0, nil, n.mark, len(n.open)
	case msg.Named < n.done: // it was restored, or the message is late
		m.name(msg.From, pr, out)
	}
}

// past reports whether a request for a transaction that has no record comes too
// late.
func (pr *peer) past(id ID) bool { return id.Seq < max(pr.settled, pr.answered) }
