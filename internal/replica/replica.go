package replica

import (
	"errors"
	"fmt"
	"math/bits"

	"drtmx/internal/placement"
)

// Position is a position in the log, in bytes.
type Position uint64

// Epoch is the epoch of the data server that is the home. It rises with every start.
type Epoch uint32

// Member is a place for the log of a group: 0 is the home, k is the copy at the
// k-th server after it.
type Member int

// MaxMembers bounds the members of a group.
const MaxMembers = 8

// Members is a set of members, one bit for each.
type Members uint8

// Has reports whether k is one of the members.
func (m Members) Has(k Member) bool { return k >= 0 && k < MaxMembers && m&(1<<k) != 0 }

// With returns the members and k.
func (m Members) With(k Member) Members { return m | 1<<k }

// Without returns the members but for k.
func (m Members) Without(k Member) Members { return m &^ (1 << k) }

// Count returns how many there are.
func (m Members) Count() int { return bits.OnesCount8(uint8(m)) }

// First returns the members of a group with so many places.
func First(places int) Members { return Members(1<<places - 1) }

// Host returns the host of member k of the group of a data server that is at host at,
// of so many hosts. The members are at the hosts after it, in a circle. The server's
// own host always has a member: if it is too far away, it has the last place.
func Host(k Member, server placement.Server, at, hosts int) int {
	if k == MaxMembers-1 && (int(server)-at+hosts)%hosts >= MaxMembers {
		return int(server)
	}
	return (at + int(k)) % hosts
}

// MemberAt is the inverse of Host. It returns -1 if no member is at a host.
func MemberAt(host int, server placement.Server, at, hosts int) Member {
	for k := range Member(min(hosts, MaxMembers)) {
		if Host(k, server, at, hosts) == host {
			return k
		}
	}
	return -1
}

// Set is what the store holds of a group. The zero Set is that of a group which
// does not exist yet.
type Set struct {
	// Epoch is that of the present home, or of the last one.
	Epoch Epoch `json:"epoch"`
	// Since is the epoch in which a copy last became the home, or the group began.
	// Only copies that were made in it are of this log.
	Since Epoch `json:"since"`
	// Version counts the changes. A change that is delayed, and made twice, finds
	// another version.
	Version uint64 `json:"version"`
	// Members have everything that was acknowledged. The home is one of them,
	// unless a copy is about to take its place: then the copy is the only one.
	Members Members `json:"members"`
}

// Errors of changes of a set.
var (
	// ErrReplaced reports a log whose home was replaced by a copy.
	ErrReplaced = errors.New("replica: the log is of an earlier epoch than the set of its copies: a copy has taken its place, or it is an older state of the directory")
	// ErrNotInSync reports a copy that may lack what was acknowledged.
	ErrNotInSync = errors.New("replica: the copy is not in the set of those in sync: it may lack what was acknowledged")
)

// Open returns the set with which a home begins an epoch. The caller makes its Since
// durable at the home, and then swaps it for was, before the home serves. since is the
// Since that the home has, 0 if none. places is how many members the group may have
// now, the home included.
//
// A home that was replaced is recognised by its lineage, whatever its epoch is: a start
// raises the epoch even if the change of the set then fails. An older state of a home
// is recognised by its epoch, so the caller asks Open before it counts the epoch up.
func Open(was Set, epoch, since Epoch, places int) (Set, error) {
	if was == (Set{}) {
		return Set{Epoch: epoch, Since: epoch, Version: 1, Members: First(1)}, nil
	}
	if epoch <= was.Epoch {
		return Set{}, fmt.Errorf("%w (epoch %d, that of the set is %d)", ErrReplaced, epoch, was.Epoch)
	}
	if since != 0 && since != was.Since {
		return Set{}, fmt.Errorf("%w (it is of the log that began in epoch %d, the set of that of epoch %d)", ErrReplaced, since, was.Since)
	}
	next := Set{Epoch: epoch, Since: was.Since, Version: was.Version + 1, Members: was.Members & First(places)}
	if !was.Members.Has(0) { // the copy that was the only member is the home now
		next.Members = First(1)
	}
	return next, nil
}

// Promote returns the set with which copy k, made in epoch since, begins to take the
// place of the home. The caller swaps it for was, moves the copy, and opens it in an
// epoch above that of the result. If that is interrupted, the caller begins again with
// the set in the store. It fails with ErrNotInSync if the copy may lack what was
// acknowledged.
func Promote(was Set, k Member, since Epoch) (Set, error) {
	switch {
	case k < 1 || !was.Members.Has(k):
		return Set{}, fmt.Errorf("%w (copy %d)", ErrNotInSync, k)
	case !was.Members.Has(0): // begun before
		return was, nil
	case since != was.Since: // its disk was lost, and a former home has made it anew
		return Set{}, fmt.Errorf("%w (copy %d is of epoch %d, not of %d)", ErrNotInSync, k, since, was.Since)
	}
	return Set{Epoch: was.Epoch + 1, Since: was.Epoch + 1, Version: was.Version + 1, Members: Members(0).With(k)}, nil
}

// Home is the home of a group in one epoch.
type Home struct {
	set     Set // that the store is known to hold
	next    Set // that is proposed, if changing
	changes bool
	deposed bool

	least   int      // members without which the horizon does not move
	durable Position // of the home's own log
	floor   Position // durable at the beginning: what was acknowledged before is not beyond
	horizon Position
	copies  [MaxMembers]copyState // by member; the first is not used
}

// copyState is what the home knows of a copy.
type copyState struct {
	live     bool     // it answers
	entering bool     // the horizon waits for it, so that it catches up
	durable  Position // what it has, at least
}

// NewHome returns the home that has begun an epoch with a set, and whose log is
// durable up to a position. What the copies have is not known yet. The horizon
// rests while the set has fewer than least members, the home included.
func NewHome(set Set, durable Position, least int) *Home {
	h := &Home{set: set, durable: durable, floor: durable, least: least}
	for k := range h.copies {
		h.copies[k].live = set.Members.Has(Member(k)) // until the driver loses patience
	}
	h.raise()
	return h
}

// Enough reports whether the set has as many members as are required. It counts
// those that the store is known to hold, whatever is proposed.
func (h *Home) Enough() bool {
	n := h.set.Members.Count()
	if h.changes {
		n = min(n, h.next.Members.Count())
	}
	return n >= h.least
}

// Set returns the set that the store is known to hold.
func (h *Home) Set() Set { return h.set }

// Counts reports whether the horizon waits for copy k: it is a member, may be one
// by now, or is about to enter.
func (h *Home) Counts(k Member) bool { return h.counting().Has(k) }

// Known returns the position up to which copy k is known to be durable.
func (h *Home) Known(k Member) Position { return h.copies[k].durable }

// Horizon returns the position up to which everything may be acknowledged. It
// never goes back.
func (h *Home) Horizon() Position { return h.horizon }

// Deposed reports that the store holds a set which this home has not made. It
// must acknowledge nothing more.
func (h *Home) Deposed() bool { return h.deposed }

// counting returns the members that the store may hold, and those about to enter.
func (h *Home) counting() Members {
	m := h.set.Members
	if h.changes {
		m |= h.next.Members
	}
	for k := range h.copies {
		if h.copies[k].entering {
			m = m.With(Member(k))
		}
	}
	return m
}

// raise moves the horizon on.
func (h *Home) raise() {
	if h.deposed || !h.Enough() {
		return
	}
	least := h.durable
	for k := Member(1); k < MaxMembers; k++ {
		if h.counting().Has(k) {
			least = min(least, h.copies[k].durable)
		}
	}
	h.horizon = max(h.horizon, least)
}

// Durable reports that the home's log is durable up to a position.
func (h *Home) Durable(to Position) {
	h.durable = max(h.durable, to)
	h.raise()
}

// Begun reports that copy k answers, has a log of this group's present lineage, and is
// durable up to a position of the home's log.
func (h *Home) Begun(k Member, durable Position) {
	c := &h.copies[k]
	c.live, c.durable = true, durable
	h.raise()
}

// Acknowledged reports that copy k is durable up to a position, in the session of the
// last Begun.
func (h *Home) Acknowledged(k Member, to Position) {
	c := &h.copies[k]
	c.live, c.durable = true, max(c.durable, to)
	h.raise()
}

// Enter makes the horizon wait for copy k, which answers and lacks little. When it
// has everything up to the horizon, and all that a home before may have
// acknowledged, the home proposes a set with it.
func (h *Home) Enter(k Member) {
	c := &h.copies[k]
	c.entering = c.live && !h.set.Members.Has(k)
}

// Lost reports that copy k does not answer, or has lost what it had. If it is a member,
// the home proposes a set without it.
func (h *Home) Lost(k Member) {
	h.copies[k].live, h.copies[k].entering = false, false
	h.raise()
}

// Propose returns a change of the set that the driver is to make at the store. It
// returns the same change again until Changed has its result.
func (h *Home) Propose() (from, to Set, ok bool) {
	if h.deposed {
		return Set{}, Set{}, false
	}
	if !h.changes {
		h.next = h.set
		for k := Member(1); k < MaxMembers; k++ {
			c := &h.copies[k]
			switch {
			case h.set.Members.Has(k) && !c.live:
				h.next.Members = h.next.Members.Without(k)
			case c.entering && c.durable >= max(h.horizon, h.floor):
				h.next.Members = h.next.Members.With(k)
			}
		}
		h.changes = h.next != h.set
		h.next.Version++
	}
	return h.set, h.next, h.changes
}

// Changed reports which set the store held after an attempt to make the proposed
// change. While the store holds the former set, the change stays proposed: an attempt
// whose answer was lost may take effect later.
func (h *Home) Changed(now Set) {
	switch {
	case h.changes && now == h.next:
		h.set, h.changes = h.next, false
		for k := range h.copies {
			if h.set.Members.Has(Member(k)) {
				h.copies[k].entering = false
			}
		}
		h.raise()
	case now != h.set:
		h.deposed = true
	}
}

// Lacks reports the position up to which copy k, of the present lineage, is durable. It
// returns whether k is a member and the log of the home ends before that position. A
// copy gets only what is durable at the home, so the home has then lost the end of its
// log, and what was acknowledged may be at the copy alone: the home acknowledges
// nothing, and does not change the set.
func (h *Home) Lacks(k Member, durable Position) bool {
	lacks := h.set.Members.Has(k) && durable > h.durable
	h.deposed = h.deposed || lacks
	return lacks
}

// Copy is the rule by which a copy takes the log.
type Copy struct {
	// Epoch is the highest epoch that the copy knows. The driver makes it durable.
	Epoch Epoch
	// End is the end of what the copy has taken, durable or not.
	End Position
}

// Begin handles the request of a home of an epoch to send its log, and reports whether
// the copy takes it. The driver makes the epoch durable before it answers.
func (c *Copy) Begin(e Epoch) bool {
	if e < c.Epoch {
		return false
	}
	c.Epoch = e
	return true
}

// Takes reports whether the copy takes a piece of the log: it is from the home of
// the highest epoch, and follows on what the copy has.
func (c *Copy) Takes(e Epoch, at Position) bool { return e == c.Epoch && at == c.End }

// Usable reports whether a copy that was made in epoch since, and ends at end, can
// continue the log of a home that has the log from first to durable.
func Usable(set Set, since Epoch, end, first, durable Position) bool {
	return since == set.Since && end >= first && end <= durable
}
