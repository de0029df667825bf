package twophase

import (
	"errors"
	"slices"

	"drtmx/internal/clock"
)

// ErrBusy reports that a transaction cannot begin, because too many
// transactions with the same party are not settled.
var ErrBusy = errors.New("twophase: too many transactions are not settled")

// Limits bound a machine's table. Zero fields take the defaults.
type Limits struct {
	// Open is how many transactions of one coordinator may wait for one party
	// when another one with it begins. Those that wait for others do not count:
	// a silent party keeps out transactions with itself, and no others.
	Open int
	// Kept bounds the records that a party keeps for one coordinator, and the
	// numbers that the coordinator keeps for it. Refusals of transactions that
	// it has not seen may exceed the bound by Open.
	Kept int
	// AskAfter is the number of ticks in doubt after which a party asks.
	AskAfter int
	// RepeatEvery is the number of ticks between repeated messages.
	RepeatEvery int
}

// Default limits.
const (
	DefaultOpen        = 1 << 12
	DefaultKept        = 1 << 16
	DefaultAskAfter    = 5
	DefaultRepeatEvery = 2
)

// Machine is the state of one party in all its transactions. It is not safe for
// concurrent use.
type Machine struct {
	self    Party
	limits  Limits
	next    uint64 // sequence number of the next transaction begun here
	table   map[ID]*record
	pending map[ID]*record // the part of table that is undecided, or not known to all parties
	peers   map[Party]*peer
	gone    map[Party]struct{}
	doubts  int  // records in doubt
	durable bool // see Restore
}

// peer is the state that a machine keeps for another party.
type peer struct {
	// As coordinator of transactions that concern it:
	open  []uint64 // sequence numbers of those that it may have a record of, in order
	debts int      // transactions that wait for it
	last  uint64   // the highest number of all
	heard uint64   // the highest watermark it has confirmed
	quiet int      // ticks since a message was sent to it
	names naming

	// As a party to transactions that it coordinates:
	settled  uint64   // its watermark
	answered uint64   // see Message.Named
	forgot   bool     // restored, and does not know what was named
	kept     []uint64 // sequence numbers of the records, in order of arrival
	records  int
}

type state uint8

const (
	voting   state = iota // coordinator: votes are outstanding
	locking               // participant: its share is being locked
	inDoubt               // participant that has voted; coordinator that has handed over
	carrying              // last agent: its share is being carried out
	committed
	aborted
)

// member is a party of a transaction, and what its machine waits for.
type member struct {
	Party
	waiting  bool // a vote or an acknowledgement is outstanding
	owes     bool // counts in debts: a vote, an answer or an acknowledgement is outstanding
	heard    bool // has answered: it has a record of the transaction, or had one
	holds    bool // may have locks
	answered bool // is in doubt too, and accepts nothing from the parties that are gone
}

// record is the state of one transaction, whatever the role of this party.
type record struct {
	id      ID
	members []member // the coordinator first, whether or not it has a share
	parties []Party  // with a share; only at a coordinator with an agent
	agent   Party
	tick    clock.Tick // the highest tick of the votes known here; once committed, that of the commit
	ticks   int
	state   state
	share   bool // the coordinator, or this party, has a share here
	locked  bool // Lock has succeeded and End has not been emitted
	busy    bool // Lock was emitted and has not been reported
	refused bool
	named   bool      // another coordinator's, and settled
	ballot  Ballot    // in doubt: the result of Lock
	few     [4]member // the memory of members, if they are few
}

// push appends to a queue whose first elements are sliced off as they leave it.
// It allocates for many elements at a time.
func push(queue []uint64, seq uint64) []uint64 {
	if n := len(queue); n == cap(queue) {
		queue = append(make([]uint64, 0, max(2*n, 128)), queue...)
	}
	return append(queue, seq)
}

// New returns the machine of a party.
func New(self Party, l Limits) *Machine {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Open, DefaultOpen)
	def(&l.Kept, DefaultKept)
	def(&l.AskAfter, DefaultAskAfter)
	def(&l.RepeatEvery, DefaultRepeatEvery)
	return &Machine{
		self: self, limits: l, next: 1,
		table: map[ID]*record{}, pending: map[ID]*record{}, peers: map[Party]*peer{}, gone: map[Party]struct{}{},
	}
}

// InDoubt returns the number of transactions in doubt.
func (m *Machine) InDoubt() int { return m.doubts }

// Doubts reports whether a transaction is in doubt.
func (m *Machine) Doubts(id ID) bool {
	r := m.table[id]
	return r != nil && r.state == inDoubt
}

// Members returns the number of parties of a transaction, the coordinator among
// them.
func (m *Machine) Members(id ID) int {
	if r := m.table[id]; r != nil {
		return len(r.members)
	}
	return 0
}

// Oldest returns the transaction that has been in doubt for the most ticks, and
// that number. Of several it is the one with the least ID.
func (m *Machine) Oldest() (id ID, ticks int) {
	for _, r := range m.pending {
		if r.state != inDoubt || r.ticks < ticks {
			continue
		}
		if r.ticks > ticks || id == (ID{}) || r.id.Compare(id) < 0 {
			id, ticks = r.id, r.ticks
		}
	}
	return id, ticks
}

// Records returns the number of transactions in the table.
func (m *Machine) Records() int { return len(m.table) }

func (m *Machine) peer(p Party) *peer {
	pr := m.peers[p]
	if pr == nil {
		pr = &peer{}
		m.peers[p] = pr
	}
	return pr
}

func (m *Machine) isGone(p Party) bool {
	_, gone := m.gone[p]
	return gone
}

// Begin begins a transaction that this party coordinates. The parties have a
// share of it. The agent, if not zero, is one of them and makes the decision.
// Begin returns ErrBusy, and begins nothing, if too many transactions with one
// of the parties are not settled. The machine and its messages keep parties.
func (m *Machine) Begin(parties []Party, agent Party, out *Out) (ID, error) {
	for _, p := range parties {
		if pr := m.peers[p]; pr != nil && (pr.debts >= m.limits.Open || len(pr.open) >= m.limits.Kept) {
			return ID{}, ErrBusy
		}
	}
	r := &record{id: ID{m.self, m.next}, state: voting, agent: agent}
	m.next++
	m.fill(r, parties)
	if agent != (Party{}) {
		r.parties = parties
	}
	m.table[r.id], m.pending[r.id] = r, r
	for i := range r.members {
		p := &r.members[i]
		if p.Party == m.self {
			if r.share {
				p.waiting, r.busy = true, true
			}
			continue
		}
		if m.isGone(p.Party) {
			r.refused = true
			continue
		}
		m.open(r, p, out)
		if p.Party == agent {
			continue
		}
		p.waiting = true
		m.send(out, Message{Kind: Prepare, To: p.Party, ID: r.id, Parties: parties, Agent: agent})
	}
	if r.busy {
		out.Effects = append(out.Effects, Effect{Kind: Lock, ID: r.id})
	}
	m.conclude(r, out)
	return r.id, nil
}

// fill lists the members of a transaction.
func (m *Machine) fill(r *record, parties []Party) {
	if r.members = r.few[:1]; len(parties) >= len(r.few) {
		r.members = make([]member, 1, len(parties)+1)
	}
	r.members[0].Party = r.id.Coordinator
	for _, p := range parties {
		r.share = r.share || p == m.self
		if p != r.id.Coordinator {
			r.members = append(r.members, member{Party: p})
		}
	}
}

func (r *record) member(p Party) *member {
	for i := range r.members {
		if r.members[i].Party == p {
			return &r.members[i]
		}
	}
	return nil
}

// send completes a message and appends it to out.
func (m *Machine) send(out *Out, msg Message) {
	msg.From = m.self
	pr := m.peer(msg.To)
	msg.Watermark, msg.Heard = m.watermark(pr), pr.settled
	if m.durable && !msg.Rests() {
		msg.Watermark = 0 // it rests on decisions that may not be durable
	}
	pr.quiet = 0
	out.Messages = append(out.Messages, msg)
}

// Locked reports the outcome of the effect Lock. A vote has the tick at which
// the share was locked.
func (m *Machine) Locked(id ID, b Ballot, tick clock.Tick, out *Out) {
	r := m.table[id]
	if r == nil || !r.busy {
		return
	}
	r.busy, r.locked = false, b != No
	switch r.state {
	case voting:
		m.voted(r, r.member(m.self), b, tick, out)
	case locking:
		if b == No {
			m.decided(r, false, out)
		} else {
			r.tick, r.ballot = tick, b
			m.doubt(r)
			m.log(m.prepared(r), out)
		}
		m.send(out, Message{Kind: Vote, To: id.Coordinator, ID: id, Ballot: b, Tick: tick})
	default: // aborted in the meantime: this party has not voted yet
		m.end(r, false, out)
		m.drop(r)
	}
}

// doubt puts a record in doubt.
func (m *Machine) doubt(r *record) {
	r.state, r.ticks = inDoubt, 0
	m.doubts++
}

// Carried reports the outcome of the effect Carry, and the tick of the commit.
func (m *Machine) Carried(id ID, commit bool, tick clock.Tick, out *Out) {
	r := m.table[id]
	if r == nil || r.state != carrying {
		return
	}
	r.tick = tick
	m.decided(r, commit, out)
	if !m.isGone(id.Coordinator) {
		m.send(out, m.answer(id.Coordinator, id))
	}
}

// Lost reports that a party has not answered a message about a transaction that
// this party coordinates. The party may have received the message. Lost has no
// effect if the message was answered.
func (m *Machine) Lost(id ID, p Party, out *Out) {
	r := m.table[id]
	if r == nil || id.Coordinator != m.self {
		return
	}
	mb := r.member(p)
	switch {
	case mb == nil:
	case r.state == voting && mb.waiting:
		mb.holds, r.refused, mb.waiting = true, true, false
		m.conclude(r, out)
	case r.state == inDoubt && p == r.agent && !m.isGone(p):
		m.ask(r, p, out)
	}
}

// voted counts a vote.
func (m *Machine) voted(r *record, mb *member, b Ballot, tick clock.Tick, out *Out) {
	if mb == nil || !mb.waiting {
		return
	}
	mb.waiting, mb.heard, mb.holds = false, true, b != No
	m.owe(mb, false)
	r.refused = r.refused || b != Yes
	r.tick = max(r.tick, tick)
	m.conclude(r, out)
}

// waits reports whether anything is outstanding.
func (r *record) waits() bool {
	return slices.ContainsFunc(r.members, func(mb member) bool { return mb.waiting })
}

// conclude decides, or hands the decision over, when no vote is outstanding.
func (m *Machine) conclude(r *record, out *Out) {
	if r.state != voting || r.waits() {
		return
	}
	if r.refused || r.agent == (Party{}) {
		m.decided(r, !r.refused, out)
		return
	}
	if r.locked {
		r.ballot = Yes
	}
	m.doubt(r)
	m.log(m.prepared(r), out)
	m.send(out, Message{Kind: HandOver, To: r.agent, ID: r.id, Parties: r.parties, Agent: r.agent, Tick: r.tick})
}

// decided makes a decision final: it ends the own share and sends the decision to the
// other parties.
func (m *Machine) decided(r *record, commit bool, out *Out) {
	was := r.state
	if was == inDoubt {
		m.doubts--
	}
	r.state, r.ticks = aborted, 0
	if commit {
		r.state = committed
	}
	m.end(r, commit, out)
	if r.id.Coordinator == m.self {
		for i := range r.members {
			mb := &r.members[i]
			if mb.holds && mb.Party != m.self && !m.isGone(mb.Party) {
				m.send(out, m.decision(r, mb.Party))
				// Abort is presumed: a party that does not receive it asks.
				mb.waiting = commit
			}
			m.owe(mb, mb.waiting)
		}
		out.Effects = append(out.Effects, Effect{Kind: Done, ID: r.id, Commit: commit, Tick: r.tick})
	} else if m.isGone(r.id.Coordinator) {
		m.survive(r)
	}
	if was == inDoubt || commit && was != carrying {
		m.log(m.outcome(r), out)
	}
	m.drop(r)
}

// end emits the effect that applies or releases the own share.
func (m *Machine) end(r *record, commit bool, out *Out) {
	if r.locked {
		r.locked = false
		out.Effects = append(out.Effects, Effect{Kind: End, ID: r.id, Commit: commit, Tick: r.tick})
	}
}

// decision returns the message with a decision for a party.
func (m *Machine) decision(r *record, to Party) Message {
	return Message{Kind: Decide, To: to, ID: r.id, Commit: r.state == committed, Tick: r.tick, Gone: m.goneOf(r)}
}

// goneOf returns the members of a transaction that are gone.
func (m *Machine) goneOf(r *record) (gone []Party) {
	if len(m.gone) == 0 {
		return nil
	}
	for i := range r.members {
		if m.isGone(r.members[i].Party) {
			gone = append(gone, r.members[i].Party)
		}
	}
	return gone
}

// drop removes the record of a decided transaction when no party needs it any
// more.
func (m *Machine) drop(r *record) {
	if r.state < committed || r.busy || r.waits() {
		return
	}
	delete(m.pending, r.id)
	c := r.id.Coordinator
	switch {
	case c == m.self:
		m.settled(r)
	case m.isGone(c):
		delete(m.table, r.id)
	default:
		if pr := m.peer(c); r.named || r.id.Seq < pr.settled {
			delete(m.table, r.id)
			pr.records--
		}
	}
}
