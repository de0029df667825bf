// Package replica decides how far a replicated log is safe, and which of its copies
// count. It is a step machine: no goroutine, no clock, no file and no message. A driver
// reports events to it, and carries out what it proposes.
//
// The log of a data server is one group: a home, which writes the log, and
// copies. A store outside of the group holds its Set: the members, each of which
// has everything that was acknowledged. The set changes by compare-and-swap
// alone. The rules:
//
//   - The horizon is the least durable position of all members. Nothing beyond it
//     is acknowledged.
//   - A copy gets only what is durable at the home, so it is never ahead of a home
//     that crashes and recovers.
//   - A member leaves the set before the horizon moves without it, and a copy that
//     enters counts from the moment at which the change is proposed: the store may
//     have made a change whose answer is lost.
//   - The horizon waits for a copy before the copy enters, and it enters when it
//     has everything up to the horizon.
//   - Only a member may become the home, in a higher epoch. From then on, a copy
//     that was made in an epoch before is made anew, because it may have what the
//     new home has not.
//   - A copy takes nothing from an epoch before the highest that it has heard of.
//   - A log whose epoch is not above that of the set belongs to a home that was
//     replaced, and is refused.
package replica
