package twophase

import (
	"maps"
	"slices"

	"drtmx/internal/clock"
)

// RecordKind is a kind of record in the log of a durable party.
type RecordKind uint8

// Records.
const (
	// Prepared: this party is in doubt. It has voted and keeps its locks, or it
	// hands the decision over. The driver adds what it needs to lock the share
	// again.
	Prepared RecordKind = 1 + iota
	// Decided: a commit, or the abort of a transaction that was Prepared. The
	// driver logs it with the effect End, before another transaction can see
	// that the locks are released.
	Decided
	// Departed: another party is gone, and this one accepts nothing more from it.
	Departed
)

// Record is what a party must find in its log when it is restored.
type Record struct {
	Kind   RecordKind
	Ballot Ballot // Prepared; No: a coordinator without a share, which has no locks
	Commit bool   // Decided
	ID     ID
	Agent  Party      // Prepared
	Party  Party      // Departed
	Tick   clock.Tick // Prepared: of the vote; Decided: of the commit

	// Parties are those of the transaction but the coordinator. In a Decided of the
	// coordinator those that must be notified of the commit come first. The others know of
	// it, and must not forget it before those do.
	Parties []Party
	// Mark: all transactions of the coordinator below it that concern this party
	// are settled. Marks, in a Decided of the coordinator: the same for each of
	// Parties that must be told.
	Mark  uint64
	Marks []uint64
}

// Rests reports whether a message of a durable party rests on the party's log:
// it may leave only when all that was logged before it is durable. A message to
// a party with the same log need not wait.
func (m *Message) Rests() bool { return m.Kind != Prepare && m.Kind != Ask }

// Decided returns the record of the commit that the effect Carry asks for. The
// driver logs it with that commit; Carried makes no record.
func (e *Effect) Decided(tick clock.Tick) Record {
	return Record{Kind: Decided, Commit: true, ID: e.ID, Tick: tick, Parties: e.Parties, Mark: e.Mark}
}

// log puts out a record of a durable party.
func (m *Machine) log(r Record, out *Out) {
	if r.Kind != 0 {
		out.Records = append(out.Records, r)
	}
}

// others returns the members but the coordinator.
func (r *record) others() []Party {
	ps := make([]Party, 0, len(r.members)-1)
	for _, mb := range r.members[1:] {
		ps = append(ps, mb.Party)
	}
	return ps
}

// prepared returns the record of a transaction in doubt, nothing if this party
// is not durable.
func (m *Machine) prepared(r *record) (rec Record) {
	if m.durable {
		rec = Record{Kind: Prepared, Ballot: r.ballot, ID: r.id, Agent: r.agent, Tick: r.tick, Parties: r.others(), Mark: m.mark(r.id.Coordinator)}
	}
	return rec
}

// outcome returns the record of a decision, nothing if this party is not durable.
func (m *Machine) outcome(r *record) (rec Record) {
	if !m.durable {
		return rec
	}
	rec = Record{Kind: Decided, Commit: r.state == committed, ID: r.id, Tick: r.tick}
	switch {
	case !rec.Commit:
	case r.id.Coordinator != m.self:
		rec.Parties, rec.Mark = r.others(), m.mark(r.id.Coordinator)
	default:
		var know []Party
		for _, mb := range r.members[1:] {
			switch {
			case mb.waiting:
				rec.Parties = append(rec.Parties, mb.Party)
				rec.Marks = append(rec.Marks, m.watermark(m.peer(mb.Party)))
			case !m.isGone(mb.Party):
				know = append(know, mb.Party)
			}
		}
		if len(rec.Marks) > 0 {
			rec.Parties = append(rec.Parties, know...)
		}
	}
	return rec
}

// mark returns the watermark of another coordinator.
func (m *Machine) mark(c Party) uint64 {
	if pr := m.peers[c]; pr != nil {
		return pr.settled
	}
	return 0
}

// What a restored party must know is in the records of Export for each of the IDs,
// and in those of Departures. A log before them is not needed any more. The machine
// may be used between these calls: what changes meanwhile may be in the records or
// not, and the caller's log has it after them.

// Departures returns a record of each party that is gone.
func (m *Machine) Departures() (all []Record) {
	for _, p := range slices.SortedFunc(maps.Keys(m.gone), Party.compare) {
		all = append(all, Record{Kind: Departed, Party: p})
	}
	return all
}

// IDs returns the transactions that the machine knows, in any order. It calls rest
// after every most transactions. Meanwhile the caller may let others use the machine.
func (m *Machine) IDs(most int, rest func()) (all []ID) {
	for id := range m.table { // which may change while the loop rests
		if all = append(all, id); len(all)%most == 0 {
			rest()
		}
	}
	return all
}

// Export returns the record of a transaction, of kind 0 if none is needed.
func (m *Machine) Export(id ID) Record {
	r := m.table[id]
	switch {
	case r != nil && r.state == inDoubt:
		return m.prepared(r)
	case r != nil && r.state == committed:
		return m.outcome(r)
	}
	return Record{}
}

// Restore returns the machine of a durable party from its records: those of an
// Export, then those logged since the Export or earlier, in order. It makes
// records, which New does not. The numbers of its transactions begin at first,
// which must be above all that the party has used. Before it takes messages the
// driver locks again the shares of all transactions in doubt, and moves its
// clock so that it closes no tick of their votes.
func Restore(self Party, l Limits, first uint64, records []Record) *Machine {
	m := New(self, l)
	m.durable, m.next = true, first
	marks := map[Party]uint64{} // the watermarks of this coordinator
	for i := range records {
		m.replay(&records[i], marks)
	}
	for p := range m.gone {
		delete(m.peers, p)
	}
	for _, id := range slices.SortedFunc(maps.Keys(m.table), ID.Compare) {
		m.resume(m.table[id], marks)
	}
	return m
}

// replay enters what a record says into the table.
func (m *Machine) replay(rec *Record, marks map[Party]uint64) {
	if rec.Kind == Departed {
		m.gone[rec.Party] = struct{}{}
		return
	}
	if rec.Mark > 0 {
		pr := m.peer(rec.ID.Coordinator)
		pr.settled = max(pr.settled, rec.Mark)
	}
	for i, mark := range rec.Marks {
		marks[rec.Parties[i]] = max(marks[rec.Parties[i]], mark)
	}
	r := m.table[rec.ID]
	switch {
	case rec.Kind == Decided && !rec.Commit:
		delete(m.table, rec.ID)
		return
	case r == nil:
		r = &record{id: rec.ID, agent: rec.Agent, tick: rec.Tick, state: inDoubt}
		r.ballot, r.locked = rec.Ballot, rec.Ballot != No
		m.table[rec.ID] = r
	case rec.Kind == Prepared:
		return // known, or decided
	}
	if rec.Kind == Decided {
		r.state, r.tick, r.locked = committed, rec.Tick, false
	}
	m.fill(r, rec.Parties)
	for i := range rec.Marks {
		if mb := r.member(rec.Parties[i]); mb != nil {
			mb.waiting = true
		}
	}
}

// resume continues a restored transaction.
func (m *Machine) resume(r *record, marks map[Party]uint64) {
	c, doubt := r.id.Coordinator, r.state == inDoubt
	switch {
	case c == m.self:
		m.coordinate(r, marks)
	case m.isGone(c):
		m.survive(r)
	case !doubt && r.id.Seq < m.mark(c):
		delete(m.table, r.id)
		return
	default:
		pr := m.peer(c)
		pr.kept = push(pr.kept, r.id.Seq)
		pr.records++
		pr.forgot = true
	}
	switch {
	case doubt:
		m.doubt(r)
		m.pending[r.id], r.ticks = r, m.limits.AskAfter-1
	case r.waits():
		m.pending[r.id], r.ticks = r, m.limits.RepeatEvery-1
	case c == m.self || m.isGone(c):
		delete(m.pending, r.id)
		delete(m.table, r.id)
	}
}

// coordinate continues a restored transaction of this coordinator.
func (m *Machine) coordinate(r *record, marks map[Party]uint64) {
	doubt := r.state == inDoubt
	r.members = slices.DeleteFunc(r.members, func(mb member) bool {
		return !doubt && mb.Party != m.self && (m.isGone(mb.Party) || r.id.Seq < marks[mb.Party])
	})
	for i := range r.members {
		mb := &r.members[i]
		if mb.Party == m.self || m.isGone(mb.Party) {
			continue
		}
		mb.holds = mb.Party != r.agent
		mb.heard = !doubt || mb.Party != r.agent
		pr := m.peer(mb.Party)
		pr.open = push(pr.open, r.id.Seq)
		pr.last = r.id.Seq
		m.owe(mb, mb.waiting || !mb.heard)
	}
}
