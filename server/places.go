package server

import (
	"time"

	"drtmx/internal/clock"
	"drtmx/rdma"
)

// A transaction of several partitions may lose although it has its turn in one of
// them, because of another. If it then went behind all that came after it, it
// would wait for them again each time. So a partition remembers the place of a
// session's first claim, and the next claim of the same transaction takes it.
//
// A client says itself which claims are of one transaction. If it lies, it gains
// little: between two turns of a session, the next of the line has one. The place
// is forgotten when the transaction has committed, when the session asks for another
// one or ends this one, when its client lets a lease end in vain, when its connection ends, after
// placeTries claims, and after placeFor.
const (
	placesMax  = 1 << 12
	placeTries = 32
	placeFor   = 10 * time.Second
	// placesEvery is how often all places are looked through for old ones, when
	// there is no room for another.
	placesEvery = placeFor / 16
)

// place is where a session's transaction stood when it first asked for a turn.
type place struct {
	seq   uint64
	since time.Duration // by clock.Fast
	tries int
	peer  rdma.PeerID // 0: this server
}

// enterAgain is enter for a transaction of several partitions. again says that it
// has asked before.
func (l *lines) enterAgain(c *claim, again bool) bool {
	pl, known := l.places[c.session]
	if known && (!again || pl.tries >= placeTries || clock.Fast()-pl.since > placeFor) {
		delete(l.places, c.session)
		pl, known = place{}, false
	}
	if !c.whole { // those of whole partitions stand in the order in which they come
		c.seq = pl.seq
	}
	if !l.enter(c) {
		return false
	}
	switch {
	case known:
		pl.tries++
	case l.spare():
		pl = place{seq: c.seq, since: clock.Fast(), tries: 1, peer: c.peer}
	default:
		return true
	}
	l.places[c.session] = pl
	return true
}

// spare reports whether another place can be remembered.
func (l *lines) spare() bool {
	if len(l.places) < placesMax {
		return true
	}
	now := clock.Fast()
	if l.swept != 0 && now-l.swept < placesEvery {
		return false
	}
	l.swept = now
	for session, pl := range l.places {
		if now-pl.since > placeFor {
			delete(l.places, session)
		}
	}
	return len(l.places) < placesMax
}

// committed forgets the place of a session whose transaction has committed.
func (l *lines) committed(session uint64) {
	if len(l.places) > 0 {
		delete(l.places, session)
	}
}
