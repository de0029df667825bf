package twophase

import "cmp"

// Party is a partition in one of its lives. The zero Party is nobody: epochs
// begin at 1.
type Party struct {
	Partition uint16
	Epoch     uint64
}

func (p Party) compare(q Party) int {
	return cmp.Or(cmp.Compare(p.Partition, q.Partition), cmp.Compare(p.Epoch, q.Epoch))
}

// ID names a transaction. Sequence numbers of one coordinator ascend from 1.
type ID struct {
	Coordinator Party
	Seq         uint64
}

func (id ID) compare(other ID) int {
	return cmp.Or(id.Coordinator.compare(other.Coordinator), cmp.Compare(id.Seq, other.Seq))
}

// Kind of a message.
type Kind uint8

// Messages between parties.
const (
	Prepare  Kind = 1 + iota // coordinator to participant: lock your share and vote
	Vote                     // participant to coordinator
	HandOver                 // coordinator to last agent: carry out your share and decide
	Decide                   // the decision, to a participant
	Ack                      // answers Decide
	Ask                      // what is known of a transaction
	Answer                   // answers Ask and HandOver
	Settled                  // carries a watermark alone
	Noted                    // answers Settled
)

func (k Kind) String() string {
	return [...]string{"none", "Prepare", "Vote", "HandOver", "Decide", "Ack", "Ask", "Answer", "Settled", "Noted"}[min(k, Noted+1)%(Noted+1)]
}

// Ballot is a participant's vote.
type Ballot uint8

// Votes.
const (
	No   Ballot = iota // refused; nothing is locked
	Held               // refused; what was read stays locked until the decision
	Yes                // everything is locked until the decision
)

// Knowledge is what a party knows of a transaction.
type Knowledge uint8

// Answers to Ask.
const (
	Undecided Knowledge = iota // the decision may still be made here, or elsewhere: ask again
	InDoubt                    // voted for it, or handed it over, and does not know
	Committed
	Aborted
)

// Message is what one party sends another. Which fields count depends on Kind.
type Message struct {
	Kind     Kind
	From, To Party
	ID       ID
	Parties  []Party // Prepare, HandOver: the parties with a share, the agent included
	Agent    Party   // Prepare, HandOver: the last agent, if there is one
	Ballot   Ballot
	Commit   bool // Decide
	Known    Knowledge
	Gone     []Party // Ask, Decide: parties of the transaction that are gone
	Closed   int     // Answer: how many of them the question named

	// Watermark: all transactions below it that From coordinates and that
	// concern To are settled. Heard is the highest such mark that From has from To.
	Watermark, Heard uint64
}

// EffectKind is what a driver must do.
type EffectKind uint8

// Effects.
const (
	Lock  EffectKind = 1 + iota // lock the own share, then call Locked
	Carry                       // carry out the own share in one step, then call Carried
	End                         // apply or release what Lock has locked
	Done                        // a transaction that was begun here is decided
)

// Effect is something to be done for a transaction.
type Effect struct {
	Kind   EffectKind
	ID     ID
	Commit bool // End, Done
}

// Out collects what a machine wants done. The driver may reuse its memory.
type Out struct {
	Messages []Message
	Effects  []Effect
}

// Reset empties o and keeps its memory.
func (o *Out) Reset() {
	clear(o.Messages)
	o.Messages, o.Effects = o.Messages[:0], o.Effects[:0]
}
