package clock

import (
	"cmp"
	"slices"
)

// Logical is the logical clock of one party to transactions. It gives each
// transaction its tick, under these rules:
//
//   - The clock never goes back. A party adopts the tick of every decision
//     before it applies the transaction.
//   - A transaction of one party commits at the party's present tick. One of
//     several parties commits at a single tick, no less than any of their votes.
//   - A party keeps what a transaction has read and what it writes locked from
//     the vote to the decision.
//
// So of two transactions in conflict the later one never has a smaller tick.
// Ticks of transactions that share no party promise nothing.
//
// The zero Logical is at tick 0. It is not safe for concurrent use.
type Logical struct {
	tick  Tick
	votes []votes // in doubt, ascending by tick
}

// votes are the votes of one tick that are in doubt.
type votes struct {
	tick Tick
	n    int
}

func (v votes) compare(t Tick) int { return cmp.Compare(v.tick, t) }

// Tick returns the present tick.
func (l *Logical) Tick() Tick { return l.tick }

// Adopt moves the clock up to a tick of the own clock, or of a message. It
// reports whether the clock was behind.
func (l *Logical) Adopt(t Tick) bool {
	if t <= l.tick {
		return false
	}
	l.tick = t
	return true
}

// Vote records that the party votes for a transaction now, and returns the tick
// of the vote. The transaction must be settled later.
func (l *Logical) Vote() Tick {
	if n := len(l.votes); n > 0 && l.votes[n-1].tick == l.tick {
		l.votes[n-1].n++
	} else {
		l.votes = append(l.votes, votes{l.tick, 1})
	}
	return l.tick
}

// Settle records that a transaction with a vote of the given tick is over. If it
// committed, its tick was adopted before, and its effects are visible.
func (l *Logical) Settle(vote Tick) {
	i, ok := slices.BinarySearchFunc(l.votes, vote, votes.compare)
	if !ok {
		return
	}
	if l.votes[i].n--; l.votes[i].n == 0 {
		l.votes = slices.Delete(l.votes, i, i+1)
	}
}

// Closed returns the largest tick of which the party has applied all that it
// ever will. It is below the present tick and below the oldest vote in doubt.
// It never falls.
func (l *Logical) Closed() Tick {
	t := l.tick
	if len(l.votes) > 0 {
		t = l.votes[0].tick
	}
	return max(t, 1) - 1
}
