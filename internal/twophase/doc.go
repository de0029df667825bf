// Package twophase decides transactions that several partitions take part in.
//
// A [Machine] is the part that one partition plays: coordinator of some
// transactions, participant or last agent of others. It is a pure step machine.
// Messages, reports and ticks go in; messages and effects come out. It knows no
// locks, connections or clock; a driver carries out what it asks for.
//
// # Parties
//
// A party is a partition in one of its lives. A partition whose memory is lost
// lives again in another epoch, as another party. A [ID] names its coordinator
// and is never used again.
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
// decision over. It is in doubt itself from then on. The agent carries out its
// own share in one step and so decides:
//
//	             votes: all yes             Answer            Ack: all
//	coordinator ---------------> (in doubt) ------> decided ----------> settled
//	                                |   ^
//	                                +---+ the answer was lost: Ask
//
// A party in doubt asks, after some ticks: first the coordinator and the agent,
// then everyone who takes part. A party that is asked about a transaction it
// has not seen refuses it from then on, so that its answer is final.
//
// # Who is gone
//
// No silence, however long, proves anything. A driver reports a party to be
// gone only if it has heard from another life of that partition, or read of one
// in the membership store. A machine then accepts nothing more from the party
// that is gone, and tells whom it asks. A party in doubt aborts without its
// coordinator if every other party of the transaction is gone or has answered
// that it is in doubt as well, and has answered so after it had closed its ears
// to all who are gone: nobody can hear of a commit any more.
//
// # What is remembered
//
// One table holds what is known of a transaction in all roles. A coordinator
// keeps the record of a commit until everyone who holds locks has acknowledged
// it; abort is presumed. For each party it then raises a watermark: below it everything that
// concerns this party is settled. The watermark travels with every message, and
// alone if there is nothing else to say. A participant keeps its decision until
// the watermark has passed, refuses late requests below it, and drops what it
// remembers. If the coordinator is gone, the survivors that know of a commit
// tell all others and keep it until those have acknowledged it.
//
// The table is bounded by refusing new transactions ([ErrBusy], or a vote
// against), never by forgetting. Being unknown means being aborted only if it
// is certain that no vote was given: at a party that refuses the transaction
// from then on, and at a coordinator that remembers every commit which may not
// be known to all.
package twophase
