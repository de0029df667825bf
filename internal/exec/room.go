package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/rdma"
)

// room shares the connections to servers that accept no more of them. A session that
// lacks one gives up all its connections, and then waits for each that it needs, in
// ascending order of servers, so that waits form no cycle. Sessions whose
// transactions end hand their connections to the waiting sessions, in order of
// arrival.
type room struct {
	short   atomic.Bool    // some sessions wait
	crowded atomic.Bool    // there are more than linksKept connections to a server
	open    []atomic.Int32 // connections, by server
	mu      struct {
		sync.Mutex
		full    []time.Duration // by server: no dial is tried before, by clock.Fast
		waiting []*lack         // in order of arrival
		spare   []lentLink      // given up by sessions, and needed by none that waits
		closed  bool            // the DB is closed
	}
}

// lack is a session's wait for a connection.
type lack struct {
	server placement.Server
	got    chan lentLink // of one
}

// lentLink is a connection and the life of its server that it leads to.
type lentLink struct {
	l  *link
	lf *life
}

// linksKept bounds the connections to a server that sessions keep between their
// transactions. While there are more, a session whose transaction ends gives up its
// connections. Otherwise idle sessions might hold all connections that the server
// accepts, and block others for ever.
const linksKept = 2048

// count adds n, which may be negative, to the number of connections to a server.
func (r *room) count(server placement.Server, n int32) {
	switch most := r.open[server].Add(n); {
	case most > linksKept:
		r.crowded.Store(true)
	case n < 0 && r.crowded.Load():
		for i := range r.open {
			if r.open[i].Load() > linksKept {
				return
			}
		}
		r.crowded.Store(false)
	}
}

// shut closes a connection and stops counting it.
func (r *room) shut(l *link) {
	l.conn.Close()
	if l.counts.Swap(false) {
		r.count(l.server, -1)
	}
}

// roomTry is how long a server that accepts no more connections is not dialed, and
// how often the first waiting session tries.
const roomTry = 50 * time.Millisecond

// roomLook is how often the other waiting sessions check whether they are the first.
const roomLook = time.Second

// errNoRoom is the error for a server that was not dialed because it has just refused
// a connection.
var errNoRoom = fmt.Errorf("%w, and was not asked again", rdma.ErrBusy)

// lacksRoom reports whether err means that a server accepts no more connections, and
// nothing has been committed.
func lacksRoom(err error) bool {
	return errors.Is(err, rdma.ErrBusy) && !errors.Is(err, ErrOutcomeUnknown)
}

// mayDial reports whether a session may dial a server without waiting in the room.
func (r *room) mayDial(server placement.Server) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return (int(server) >= len(r.mu.full) || r.mu.full[server] <= clock.Fast()) && r.firstOf(server) < 0
}

// refused notes that a server accepts no more connections.
func (r *room) refused(server placement.Server) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.mu.full) <= int(server) {
		r.mu.full = append(r.mu.full, 0)
	}
	r.mu.full[server] = clock.Fast() + roomTry
}

// awaitRoom waits until the session has a connection to each server that it lacks;
// there must be at least one. It returns err, with the reason, if the caller's time
// is over.
func (n *network) awaitRoom(ctx context.Context, err error, patience *time.Duration) error {
	if n.closed.Load() || n.borrower != nil && n.borrower.connected() {
		return err // the caller's session has a connection
	}
	if _, bounded := ctx.Deadline(); !bounded {
		if *patience == 0 {
			*patience = clock.Fast() + n.db.cfg.Retry.Patience
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(*patience-clock.Fast(), 0))
		defer cancel()
	}
	if werr := ctx.Err(); werr != nil { // else spare connections could keep the transaction going
		return fmt.Errorf("%w: %w", err, werr)
	}
	n.giveUpLinks()
	for server := range placement.Server(len(n.lacks)) {
		if !n.lacks[server] || n.links[server] != nil { // one with pending answers stays
			continue
		}
		if werr := n.awaitLink(ctx, server); werr != nil {
			return fmt.Errorf("%w: %w", err, werr)
		}
	}
	n.lacks = nil
	return nil
}

// lack notes that the transaction lacks a connection.
func (n *network) lack(server placement.Server) {
	if n.lacks == nil {
		n.lacks = make([]bool, len(n.links))
	}
	n.lacks[server] = true
}

// yield is called when a transaction ends. It hands the session's connections to
// sessions that wait for them.
func (n *network) yield() {
	n.lacks = nil
	if r := &n.db.room; r.short.Load() || r.crowded.Load() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lend(n)
	}
}

// connected reports whether the session has connections.
func (n *network) connected() bool {
	return slices.ContainsFunc(n.links, func(l *link) bool { return l != nil })
}

// awaitLink waits for a connection to a server: from an idle session of the pool,
// from a session whose transaction ends, or a new one.
func (n *network) awaitLink(ctx context.Context, server placement.Server) error {
	r := &n.db.room
	w := &lack{server: server, got: make(chan lentLink, 1)}
	if k, ok := r.begin(w); ok {
		return n.takeOn(ctx, k)
	}
	r.lendIdle(&n.db.gate)
	for {
		try := roomTry
		if !r.first(w) {
			try = roomLook
		}
		timer := time.NewTimer(try)
		select {
		case k := <-w.got:
			timer.Stop()
			return n.takeOn(ctx, k)
		case <-timer.C:
			if n.closed.Load() {
				r.leaveTo(w)
				return ErrClosed
			}
			if !r.first(w) {
				continue
			}
			if r.lendIdle(&n.db.gate); !r.first(w) { // connections may have been made since
				continue
			}
			_, err := n.reach(ctx, server)
			if lacksRoom(err) {
				continue
			}
			r.leaveTo(w) // a connection may have been handed over, too
			return err
		case <-ctx.Done():
			timer.Stop()
			if k, ok := r.leave(w); ok {
				return n.takeOn(ctx, k)
			}
			return ctx.Err()
		}
	}
}

// begin begins a wait, unless there is a spare connection. It checks and enters under
// one lock. Otherwise a session could give up a connection in between, and the
// waiting session would miss it.
func (r *room) begin(w *lack) (k lentLink, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k, ok = r.spareFor(w.server); !ok {
		r.mu.waiting = append(r.mu.waiting, w)
		r.short.Store(true) // before it looks for idle sessions, see release
	}
	return k, ok
}

// firstOf returns the index of the oldest wait for a server, -1 if there is none. The
// caller holds the mutex.
func (r *room) firstOf(server placement.Server) int {
	return slices.IndexFunc(r.mu.waiting, func(w *lack) bool { return w.server == server })
}

// first reports whether a wait is the oldest one for its server.
func (r *room) first(w *lack) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.firstOf(w.server)
	return i >= 0 && r.mu.waiting[i] == w
}

// leave ends a wait. It returns the connection that was handed over meanwhile, if
// there is one.
func (r *room) leave(w *lack) (k lentLink, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(slices.Index(r.mu.waiting, w))
	select {
	case k = <-w.got:
		return k, true
	default:
		return k, false
	}
}

// leaveTo ends a wait of a session that needs no connection any more. It passes on
// one that was handed over meanwhile.
func (r *room) leaveTo(w *lack) {
	if k, ok := r.leave(w); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pass(k)
	}
}

// remove removes the ith wait, if i is not negative. The caller holds the mutex.
func (r *room) remove(i int) {
	if i < 0 {
		return
	}
	r.mu.waiting = slices.Delete(r.mu.waiting, i, i+1)
	r.short.Store(len(r.mu.waiting) > 0)
}

// next removes and returns the oldest wait for a server, nil if there is none. The
// caller holds the mutex.
func (r *room) next(server placement.Server) *lack {
	i := r.firstOf(server)
	if i < 0 {
		return nil
	}
	w := r.mu.waiting[i]
	r.remove(i)
	return w
}

// lend gives a session's connections to sessions that wait for them. No transaction of
// the session may be in progress. The caller holds the mutex.
func (r *room) lend(n *network) {
	for _, l := range n.links {
		if l == nil || l.pending.until != 0 {
			continue
		}
		if w := r.next(l.server); w != nil {
			w.got <- n.part(l)
		} else if r.open[l.server].Load() > linksKept {
			r.pass(n.part(l))
		}
	}
}

// lendMade does the same as lend for connections whose dials have ended since the
// transactions that needed them gave up.
func (r *room) lendMade(n *network) {
	for server := range placement.Server(len(n.dials)) {
		if n.dials[server] == nil || r.firstOf(server) < 0 {
			continue
		}
		select {
		case g := <-n.dials[server].result:
			n.endDial(server)
			if g.err != nil {
				continue
			}
			if k, err := n.db.accept(g, server); err == nil {
				r.next(server).got <- k
			}
		default:
		}
	}
}

// part takes a connection away from the session.
func (n *network) part(l *link) lentLink {
	n.count(l)
	n.uncounted = slices.DeleteFunc(n.uncounted, func(o *link) bool { return o == l })
	l.uncounted, l.touched, l.decides = false, false, false
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[l.server] = nil
	return lentLink{l, n.lives[l.server]}
}

// takeOn adds a connection to the session, unless the session has been closed.
func (n *network) takeOn(ctx context.Context, k lentLink) error {
	n.mu.Lock()
	if n.closed.Load() {
		n.mu.Unlock()
		n.db.room.shut(k.l)
		return ErrClosed
	}
	n.links[k.l.server] = k.l
	n.mu.Unlock()
	n.rebind(k.l.server, k.lf)
	n.use(k.l)
	return n.settleAt(ctx, k.l)
}

// pass gives a connection that belongs to no session to the first one that waits for
// it, or keeps it as spare. The caller holds the mutex.
func (r *room) pass(k lentLink) {
	switch w := r.next(k.l.server); {
	case w != nil:
		w.got <- k
	case r.mu.closed:
		r.shut(k.l)
	default:
		r.mu.spare = append(r.mu.spare, k)
	}
}

// takeSpare takes a spare connection to a server, if there is one.
func (r *room) takeSpare(server placement.Server) (k lentLink, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spareFor(server)
}

// spareFor does the same as takeSpare for a caller that holds the mutex.
func (r *room) spareFor(server placement.Server) (k lentLink, ok bool) {
	i := slices.IndexFunc(r.mu.spare, func(k lentLink) bool { return k.l.server == server })
	if i < 0 {
		return k, false
	}
	k = r.mu.spare[i]
	r.mu.spare = slices.Delete(r.mu.spare, i, i+1)
	return k, true
}

// close closes the spare connections.
func (r *room) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.mu.spare {
		r.shut(k.l)
	}
	r.mu.spare, r.mu.closed = nil, true
}

// giveUpLinks passes all connections of a session that is about to wait to other
// sessions, and notes that its transaction may need them.
func (n *network) giveUpLinks() {
	r := &n.db.room
	r.mu.Lock()
	defer r.mu.Unlock()
	for server, l := range n.links {
		if l != nil && l.pending.until == 0 {
			n.lacks[server] = true
			r.pass(n.part(l))
		}
	}
}

// lendIdle gives the connections of idle sessions of the pool to waiting sessions.
func (r *room) lendIdle(g *gate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.mu.idle {
		r.lend(&s.net)
		r.lendMade(&s.net)
	}
}
