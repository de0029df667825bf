package twophase

import (
	"cmp"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
)

// Party is a partition in one incarnation of its data server. The zero Party means
// none: incarnations are not 0.
type Party struct {
	Partition   placement.Partition
	Incarnation uint64
}

func (p Party) compare(q Party) int {
	return cmp.Or(cmp.Compare(p.Partition, q.Partition), cmp.Compare(p.Incarnation, q.Incarnation))
}

// ID names a transaction. Sequence numbers of one coordinator ascend from 1.
type ID struct {
	Coordinator Party
	Seq         uint64
}

// Compare orders IDs by their coordinators, then by their numbers.
func (id ID) Compare(other ID) int {
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
	Ask                      // question about a transaction
	Answer                   // answers Ask and HandOver
	Settled                  // only a watermark, and names
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
	Held               // refused; the reads stay locked until the decision
	Yes                // the share is locked until the decision
)

// Knowledge is the answer of a party to a question about a transaction.
type Knowledge uint8

// Answers to Ask.
const (
	Undecided Knowledge = iota // may still be decided: ask again, or ask others
	InDoubt                    // has voted, or handed the decision over, and does not know the decision
	Committed
	Aborted
)

// Message is a message from one party to another. Kind determines which fields
// are used.
type Message struct {
	Kind     Kind
	From, To Party
	ID       ID
	Parties  []Party // Prepare, HandOver: the parties with a share, the agent included
	Agent    Party   // Prepare, HandOver: the last agent, if there is one
	Ballot   Ballot
	Commit   bool // Decide
	Known    Knowledge
	Tick     clock.Tick // Prepare: the driver may set it; Vote: of the vote; HandOver: no less than any vote; Decide, Answer: of the commit
	Gone     []Party    // Ask, Decide: parties of the transaction that are gone
	Closed   int        // Answer: how many of them the question named

	// Watermark: all transactions below it that From coordinates and that
	// concern To are settled. Heard is the highest watermark that From has
	// received from To.
	Watermark, Heard uint64

	// Settled, in a message with names: of the transactions below Named that From
	// coordinates and that concern To, all but Open are settled, and To has
	// answered the requests for all of them. Open ascends, and has at most MaxOpen.
	// Noted: the highest number that To was told.
	Named uint64
	Open  []uint64
}

// MaxOpen bounds the transactions that one message names as open.
const MaxOpen = 1 << 12

// EffectKind is a kind of effect, which the driver must perform.
type EffectKind uint8

// Effects.
const (
	Lock  EffectKind = 1 + iota // lock this party's share, then call Locked
	Carry                       // carry out this party's share in one step, then call Carried
	End                         // apply or release the share that Lock has locked
	Done                        // a transaction that was begun here is decided
)

// Effect is an action that the driver must perform for a transaction.
type Effect struct {
	Kind   EffectKind
	ID     ID
	Commit bool       // End, Done
	Tick   clock.Tick // Carry: commit at no less; End, Done: of the commit

	// Carry, at a durable party: for the record of the commit, see Decided.
	Parties []Party
	Mark    uint64
}

// Out collects what a machine puts out. The driver may reuse its memory.
type Out struct {
	Messages []Message
	Effects  []Effect
	Records  []Record // only of a durable party
}

// Reset empties o and keeps its memory for reuse.
func (o *Out) Reset() {
	clear(o.Messages)
	clear(o.Records)
	o.Messages, o.Effects, o.Records = o.Messages[:0], o.Effects[:0], o.Records[:0]
}
