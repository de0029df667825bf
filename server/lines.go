package server

import (
	"context"
	"slices"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// A transaction that has lost against others, or met a row that is reserved,
// waits in the lines of the rows that it needs. Each line is served in order of
// arrival, and the first of all its lines has its turn:
//
//   - A procedure, or a commit whose proofs may still hold, runs.
//   - A transaction whose proofs have failed gets a reservation: its client
//     hears that it may try again, and until its next request arrives, or the
//     lease ends, no other transaction writes the rows.
//
// Lines decide who waits, and never what commits: a commit under a reservation
// is validated like any other. Readers do not see lines.
//
// A request that meets a lock waits only in the line of the locked row, and one that
// must not write yet only in those of the rows where others come first: so it holds up
// no other row. If the first of a line finds the row locked, it is parked until the
// decision. If a request then meets another row that it must wait for, it moves to the
// line of that row, to the place of its arrival. After movesMax moves it keeps its
// places in the lines that it has stood in, so that it does not wait for one row after
// the other for ever.
//
// A claim that has its turn waits in no line. Any other claim waits only for claims
// that have their turn, or are older. Lines of several partitions are entered in
// ascending order. So waits form no cycle. A prepared transaction never waits in a
// line.
const (
	// claimsMax bounds the claims of a partition, claimsBytesMax the messages
	// that they keep.
	claimsMax      = 1 << 15
	claimsBytesMax = 4 << 20
	// claimNamesMax bounds the rows that all claims of a partition name. Each takes
	// about a hundred bytes, and a turn has up to wire.MaxTurnRows.
	claimNamesMax = 1 << 18
	// leaseMin and leaseMax bound a reservation. In between it is leaseFactor
	// times as long as the attempt that was lost, or as turns take at present.
	leaseMin    = 100 * time.Millisecond
	leaseMax    = time.Second
	leaseFactor = 4
	// Each lease that ends in vain halves the next one in the same line, down to
	// leaseLeast, until a client comes in time.
	leaseLeast = time.Millisecond
	// expiredMax bounds the sessions that are remembered because their lease has
	// ended, for leaseMax.
	expiredMax = 1 << 12
	// A transaction whose attempts take so long that others would wait for more
	// than leaseMin gets a turn only after slowLosses lost attempts.
	slowLosses = 2
	// After wholeLosses lost attempts a transaction may have the partition for
	// itself. Whatever rows its next attempt reads, no one writes them.
	wholeLosses = 6
	// movesMax is the number of times that a request changes its line.
	movesMax = 3
	// linesTick is how often the ends of leases and waits are looked for.
	linesTick = 5 * time.Millisecond
)

// claim is a place in the lines of some rows of a partition. A session has at
// most one.
type claim struct {
	session uint64
	peer    rdma.PeerID
	names   []wire.RowName
	whole   bool   // the whole partition, and no line
	seq     uint64 // order of arrival
	ahead   int    // lines in which another claim is before
	granted bool
	parked  bool          // it has its turn, and its request waits for a decision
	lost    bool          // its proofs have failed: its turn is a reservation
	alone   bool          // it needs no turn in another partition first
	lease   time.Duration // of the reservation
	ends    time.Duration // by clock.Fast: of the wait, then of the lease
	since   time.Duration // by clock.Fast: when the reservation was granted
	q       *request      // what waits; nil once the reservation is granted
	bytes   int
	at      int // in lines.all
}

// lines are the lines of a partition. The partition's mutex guards them.
type lines struct {
	rs      *requests
	rows    map[wire.RowName]line    // no empty ones
	of      map[uint64]*claim        // by session
	all     []*claim                 // in any order
	wholes  []*claim                 // of the whole partition, first one first
	ready   []*claim                 // whose turn has come
	turn    time.Duration            // mean time from a grant to the client's next request
	gone    map[uint64]time.Duration // sessions whose lease has ended: when it was granted
	places  map[uint64]place         // of sessions whose transactions may ask again
	swept   time.Duration            // when all places were looked through, by clock.Fast
	seq     uint64
	bytes   int
	names   int // of all claims
	max     int
	timer   *time.Timer
	armed   bool
	stopped bool

	waited, reserved, expired uint64 // counted: claims, reservations, leases that ended in vain
}

// line has the claims that wait for a row, the first one first.
type line struct {
	claims []*claim
	vain   uint8 // leases that have ended in vain, one after the other
}

func (l *lines) init(rs *requests) {
	l.max = claimsMax
	l.rs, l.rows, l.of = rs, map[wire.RowName]line{}, map[uint64]*claim{}
	l.gone, l.places = map[uint64]time.Duration{}, map[uint64]place{}
}

// busy reports whether anyone waits or has a reservation.
func (l *lines) busy() bool { return len(l.of) > 0 }

// blocks reports whether a session must wait before it writes: another claim
// comes first at a row, which it then notes in waitsFor.
func (l *lines) blocks(session uint64, writes []wire.Write) (blocks bool) {
	if !l.busy() {
		return false
	}
	rs := l.rs
	rs.waitsFor = rs.waitsFor[:0]
	mine := l.of[session]
	if mine != nil && !mine.granted {
		mine = nil
	}
	if len(l.wholes) > 0 && l.wholes[0].before(mine) {
		return len(writes) > 0
	}
	if mine != nil && mine.whole { // those that came with an older place wait for it
		return false
	}
	for i := range writes {
		name := nameOf(&writes[i])
		if row := l.rows[name]; len(row.claims) > 0 && row.claims[0].before(mine) {
			rs.waitsFor = append(rs.waitsFor, name)
		}
	}
	return len(rs.waitsFor) > 0
}

// taken reports whether a row is reserved for another session, or another claim has its
// turn there. Only then is a transaction refused that must not wait, because it has
// prepared elsewhere: a claim that still waits for another row loses nothing if the
// transaction goes first.
func (l *lines) taken(session uint64, writes []wire.Write) bool {
	if !l.busy() {
		return false
	}
	mine := l.of[session]
	if len(l.wholes) > 0 && l.wholes[0].granted && l.wholes[0] != mine {
		return len(writes) > 0
	}
	for i := range writes {
		row := l.rows[nameOf(&writes[i])]
		if len(row.claims) > 0 && row.claims[0].granted && row.claims[0] != mine {
			return true
		}
	}
	return false
}

// before reports whether other, which may be nil, must wait for c.
func (c *claim) before(other *claim) bool {
	return c != other && (other == nil || c.granted || c.seq < other.seq)
}

// enter puts a claim into its lines, which may give it its turn at once. It reports
// whether there is room.
func (l *lines) enter(c *claim) bool {
	if len(l.all) >= l.max || l.bytes+c.bytes > claimsBytesMax || l.names+len(c.names) > claimNamesMax || l.stopped || c.ends <= clock.Fast() {
		return false
	}
	if old := l.of[c.session]; old != nil {
		if old.q != nil {
			return false // another request of the session waits already
		}
		l.remove(old, true)
	}
	if c.seq == 0 {
		l.seq++
		c.seq = l.seq
	}
	c.q.seq = c.seq
	c.ahead, c.granted, c.at = 0, false, len(l.all)
	l.all = append(l.all, c)
	l.of[c.session] = c
	slices.Sort(c.names)
	c.names = slices.Compact(c.names)
	l.bytes += c.bytes
	l.names += len(c.names)
	l.waited++
	if c.whole {
		l.wholes = append(l.wholes, c)
	} else {
		for _, name := range c.names {
			l.join(c, name)
		}
	}
	l.check(c)
	l.arm()
	return true
}

// join puts a claim into a line, at the place of its arrival.
func (l *lines) join(c *claim, name wire.RowName) {
	row := l.rows[name]
	at := len(row.claims)
	for at > 0 && !row.claims[at-1].granted && row.claims[at-1].seq > c.seq {
		at--
	}
	if at > 0 {
		c.ahead++
	} else if len(row.claims) > 0 {
		row.claims[0].ahead++
	}
	row.claims = slices.Insert(row.claims, at, c)
	l.rows[name] = row
}

// check gives a claim its turn if nothing is before it.
func (l *lines) check(c *claim) {
	if c.granted || c.ahead > 0 || len(l.wholes) > 0 && l.wholes[0].before(c) {
		return
	}
	if c.whole { // it waits for all claims that came before
		for _, other := range l.all {
			if other.seq < c.seq {
				return
			}
		}
	}
	c.granted = true
	l.ready = append(l.ready, c)
}

// remove takes a claim out of its lines, which may give others their turn. inTime says
// that its client has come before the end of its lease.
func (l *lines) remove(c *claim, inTime bool) {
	last := l.all[len(l.all)-1]
	l.all[c.at], last.at = last, c.at
	l.all[len(l.all)-1] = nil
	l.all = l.all[:len(l.all)-1]
	delete(l.of, c.session)
	l.bytes -= c.bytes
	l.names -= len(c.names)
	c.granted = true // not again
	if c.whole {
		l.wholes = slices.DeleteFunc(l.wholes, func(x *claim) bool { return x == c })
		for _, other := range l.all {
			l.check(other)
		}
		return
	}
	for _, name := range c.names {
		row := l.rows[name]
		at := slices.Index(row.claims, c)
		row.claims = slices.Delete(row.claims, at, at+1)
		if len(row.claims) == 0 {
			delete(l.rows, name)
			continue
		}
		if at == 0 && c.q == nil && !c.parked {
			if row.vain = min(row.vain+1, 20); inTime {
				row.vain = 0
			}
		}
		l.rows[name] = row
		if at == 0 {
			row.claims[0].ahead--
			l.check(row.claims[0])
		}
	}
	if len(l.wholes) > 0 {
		l.check(l.wholes[0])
	}
}

// arrived ends the reservation of a session, whose next request has run.
func (l *lines) arrived(session uint64) {
	if l.busy() {
		if c := l.of[session]; c != nil && c.q == nil {
			if c.alone {
				l.took(clock.Fast() - c.since)
			}
			l.remove(c, true)
			return
		}
	}
	if len(l.gone) > 0 {
		if since, ok := l.gone[session]; ok { // it was slow, and not dead
			delete(l.gone, session)
			l.took(clock.Fast() - since)
		}
	}
}

// took records the length of a turn.
func (l *lines) took(turn time.Duration) {
	l.turn += (min(turn, leaseMax) - l.turn) / 8
}

// serve gives turns until no claim is ready. The caller holds the mutex, and afterwards
// answers l.rs.over.
func (l *lines) serve() {
	for len(l.ready) > 0 {
		c := l.ready[0]
		l.ready = l.ready[1:]
		if l.of[c.session] != c || c.q == nil {
			continue // it has left
		}
		if !c.lost {
			l.run(c)
		}
		if c.lost && l.of[c.session] == c {
			l.reserve(c)
		}
	}
	l.ready = nil
}

// run runs the request of a claim whose turn it is.
func (l *lines) run(c *claim) {
	q := c.q
	end := l.rs.attempt(q)
	switch end {
	case lost:
		if c.lost, c.alone, c.lease = true, true, leaseFor(q.age, q.turn.Losses); c.lease > 0 && q.wait > 0 {
			return
		}
	case locked:
		if c.stands(l.rs.waitsFor) && l.park(c) {
			return
		}
	}
	if l.of[c.session] == c {
		l.remove(c, true)
	}
	if l.rs.place(q, end, nil) {
		l.rs.over = append(l.rs.over, q)
	}
}

// stands reports whether a claim is in the lines of all the rows.
func (c *claim) stands(rows []wire.RowName) bool {
	for _, name := range rows {
		if !slices.Contains(c.names, name) {
			return false
		}
	}
	return true
}

// park lets a request whose turn it is wait for the decision that ends a lock.
// It keeps its place.
func (l *lines) park(c *claim) bool {
	q := c.q
	if !l.rs.parking.enqueue(q) {
		return false
	}
	c.q, c.parked, c.ends = nil, true, forever // it leaves with its request
	return true
}

// reserve grants a reservation, and answers the claim's request with it.
func (l *lines) reserve(c *claim) {
	if c.q.gone {
		l.drop(c)
		return
	}
	l.reserved++
	lease := min(max(c.lease, leaseFactor*l.turn), leaseMax)
	if len(c.names) > 0 {
		lease = max(lease>>l.rows[c.names[0]].vain, leaseLeast)
	}
	c.since = clock.Fast()
	c.ends = c.since + lease
	q := c.q
	c.q = nil
	l.rs.refuse(q, conflict(q.cause))
	q.result, q.reserved = append(q.result, wire.Reserved), true
	l.rs.over = append(l.rs.over, q)
}

// leaseFor returns the lease for a transaction whose attempts take so long, 0 if
// it must not have one yet.
func leaseFor(attempt time.Duration, losses uint8) time.Duration {
	lease := leaseFactor * attempt
	if lease > leaseMin && losses < slowLosses {
		return 0
	}
	return min(max(lease, leaseMin), leaseMax)
}

// leaseOfSeveral returns the lease for a transaction that must have turns in
// several partitions at the same time, and so may wait for the others. It grows
// with each loss.
func leaseOfSeveral(losses uint8) time.Duration {
	return min(leaseMin<<min(losses, 8)/2, leaseMax)
}

// leave removes the claims of a connection that has ended. Requests that need
// nothing more of their client stay.
func (l *lines) leave(peer rdma.PeerID) {
	for session, pl := range l.places {
		if pl.peer == peer {
			delete(l.places, session)
		}
	}
	for i := len(l.all) - 1; i >= 0; i-- {
		c := l.all[i]
		switch {
		case c.peer != peer || c.peer == 0 || c.parked:
		case c.q != nil && !c.lost:
			c.q.gone = true
		default:
			l.drop(c)
		}
	}
}

// drop removes a claim. If a request waits, it is refused.
func (l *lines) drop(c *claim) {
	l.remove(c, false)
	if c.q != nil {
		l.rs.refuse(c.q, conflict(c.q.cause))
		l.rs.over = append(l.rs.over, c.q)
		c.q = nil
	}
}

// arm sets the timer. The server waits for its function as for its goroutines.
func (l *lines) arm() {
	if l.armed || l.stopped {
		return
	}
	l.armed = true
	l.rs.p.srv.workers.wg.Add(1)
	if l.timer == nil {
		l.timer = time.AfterFunc(linesTick, l.tick)
	} else {
		l.timer.Reset(linesTick)
	}
}

// tick ends the leases and waits whose time is over.
func (l *lines) tick() {
	defer l.rs.p.srv.workers.wg.Done()
	l.rs.p.mu.Lock()
	defer l.rs.p.unlock()
	l.armed = false
	now := clock.Fast()
	for i := len(l.all) - 1; i >= 0; i-- {
		if i >= len(l.all) || l.all[i].ends > now {
			continue
		}
		c := l.all[i]
		if c.q == nil && !c.parked {
			l.expired++
			if c.peer != 0 { // this server comes, if late
				delete(l.places, c.session)
			}
			if c.alone && len(l.gone) < expiredMax {
				l.gone[c.session] = c.since
			}
		}
		if c.q != nil && !c.lost {
			l.rs.parking.expired++
		}
		l.drop(c)
	}
	for session, since := range l.gone {
		if now-since > 2*leaseMax {
			delete(l.gone, session)
		}
	}
	if len(l.all)+len(l.gone) > 0 {
		l.arm()
	}
}

// stop refuses what waits, because the server stops. The caller holds the mutex.
func (l *lines) stop() {
	l.stopped = true
	for len(l.all) > 0 {
		c := l.all[0]
		q := c.q
		c.q = nil
		l.remove(c, true)
		if q != nil {
			l.rs.refuse(q, stops)
			l.rs.over = append(l.rs.over, q)
		}
	}
	l.ready = nil
	if l.armed && l.timer.Stop() {
		l.armed = false
		l.rs.p.srv.workers.wg.Done()
	}
}

// lose lets a commit whose proofs have failed wait for its turn, instead of
// refusing it. It reports false if the commit must be refused.
func (l *lines) lose(q *request) bool {
	lease := leaseFor(q.age, q.turn.Losses)
	if q.wait == 0 || lease == 0 || q.part == nil {
		return false
	}
	c := &claim{
		session: q.id.Client, peer: q.r.Peer, q: &request{id: q.id, r: q.r, cause: q.cause}, bytes: q.bytes,
		names: append(make([]wire.RowName, 0, len(q.part.Writes)+len(q.turn.Rows)), q.turn.Rows...),
		ends:  l.rs.parking.ends(q), lost: true, alone: true, lease: lease,
		whole: q.turn.Whole && q.turn.Losses >= wholeLosses,
	}
	for i := range q.part.Writes {
		c.names = append(c.names, nameOf(&q.part.Writes[i]))
	}
	if !c.whole {
		c.seq = q.seq
	}
	return l.enter(c)
}

func nameOf(w *wire.Write) wire.RowName { return wire.NameRow(w.Index, w.Key) }

// stays reports whether a parked request that has met a lock again stays parked:
// it has its place in the line of the row, or is in none.
func (l *lines) stays(q *request) bool {
	c := l.of[q.id.Client]
	return c == nil && len(l.rs.waitsFor) == 0 || c != nil && (!c.parked || c.stands(l.rs.waitsFor))
}

// reserveFor waits for a turn of a procedure of several servers, which this
// server runs. It reports whether the turn has come.
func (l *lines) reserveFor(ctx context.Context, session uint64, t *wire.Turn) bool {
	q := &request{woken: make(chan struct{})}
	c := &claim{session: session, names: slices.Clone(t.Rows), whole: t.Whole, lost: true, lease: leaseOfSeveral(t.Losses), ends: clock.Fast() + t.Wait, q: q}
	l.rs.p.mu.Lock()
	ok := l.enterAgain(c, t.Again)
	l.rs.p.unlock()
	if !ok {
		return false
	}
	select {
	case <-q.woken:
		return q.reserved
	case <-ctx.Done():
		l.release(session, false)
		return false
	}
}

// release gives up what a session has or waits for in the lines. again says that
// the same transaction will ask for another turn.
func (l *lines) release(session uint64, again bool) {
	l.rs.p.mu.Lock()
	if c := l.of[session]; c != nil {
		l.drop(c)
	}
	if !again {
		delete(l.places, session)
	}
	l.rs.p.unlock()
}
