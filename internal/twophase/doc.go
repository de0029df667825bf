// Package twophase decides transactions of several partitions.
//
// A [Machine] is the state of one partition: coordinator of some transactions,
// participant or last agent of others. It is a pure step machine. Messages,
// reports and ticks go in; messages and effects come out. It has no locks,
// connections or clock: a driver delivers its messages and performs its
// effects.
//
// # Parties
//
// A party is a partition in one incarnation of its data server. If the server
// loses its state, the next incarnation is another party. An [ID] contains the
// coordinator of its transaction and is never reused.
//
// # The protocol
//
//	             Prepare               Vote: all yes           Ack: all
//	coordinator ---------> (voting) ------------------> commit --------> settled
//	                          |                                            ^
//	                          +--- a refusal, or a lost vote --> abort ----+
//
//	             Lock: yes              Decide
//	participant ----------> (in doubt) --------> decided
//
// With a last agent the coordinator collects all other votes and then hands the
// decision over. From then on the coordinator is in doubt. The agent carries
// out its share in one step, and the result is the decision:
//
//	             votes: all yes             Answer            Ack: all
//	coordinator ---------------> (in doubt) ------> decided ----------> settled
//	                                |   ^
//	                                +---+ the answer was lost: Ask
//
// A party in doubt asks after some ticks: first the coordinator and the agent,
// then all parties of the transaction. A party that is asked about a
// transaction that it has not seen refuses it from then on, so that its answer
// is final.
//
// # Parties that are gone
//
// Silence proves nothing, however long it is. A driver reports that a party is
// gone only if another incarnation of its server has answered, or is named by the
// membership store. The machine then accepts nothing more from that party, and
// names it in every question. A party in doubt aborts without its coordinator
// if each other party of the transaction is gone, or has answered that it is in
// doubt too and accepts nothing more from the parties that are gone: no party
// can then learn of a commit.
//
// # What is remembered
//
// One table has a record of each transaction, for all roles. A coordinator
// keeps the record of a commit until all parties that hold locks have
// acknowledged it; abort is presumed. It then raises a watermark for each
// party: all transactions below it that concern this party are settled. The
// watermark is in every message, and is sent alone if there is no other
// message. A participant keeps its decision until the watermark has passed it.
// Below the watermark it refuses late requests and drops records. If the
// coordinator is gone, the survivors that know of a commit tell all others, and
// keep the record until these have acknowledged it.
//
// A party that does not acknowledge holds the watermarks of all parties of the
// transaction back. So a coordinator also names what is settled above a
// watermark: see names.go.
//
// A full table refuses new transactions ([ErrBusy], or a vote against) and
// never forgets. An unknown transaction counts as aborted in two cases only: at
// a party that refuses it from then on, and at its coordinator, which remembers
// every commit until all parties know it.
//
// # Durable parties
//
// A party that has a log lives on after a crash as the same party ([Restore]).
// Its machine puts out records, and a driver appends them to the log, in order.
// Of the messages, those that rest on the log ([Message.Rests]) leave when
// everything that was logged before them is durable, and so does the answer to
// the client of the effect Done. Parties whose records are in one log need not
// wait for each other: after a crash they all have the same prefix of it.
// Nothing else is forced: an abort is presumed, and a record of it only spares
// a restored party a question.
//
// A restored party has forgotten what it promised to refuse. Its driver must
// refuse every Prepare and HandOver whose proofs are of a former memory of the
// party, by Locked with No and Carried without a commit. Every such request is
// older than the memory in which the promise was lost.
package twophase
