package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/datadir"
	"drtmx/internal/image"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A durable server may have copies of its data directory at other servers: the
// newest checkpoint and the log after it. What is durable at the server is sent to
// the copies, and no answer leaves before it is durable at all members of the set
// of copies in sync. Package replica has the rules, docs/replication.md the design.

// Sets holds the sets of copies in sync of a cluster's data servers. It survives
// the loss of any one server. Methods are safe for concurrent use.
type Sets interface {
	// Set returns the set of a data server's log, the zero Set if there is none.
	Set(ctx context.Context, server placement.Server) (replica.Set, error)
	// SwapSet replaces the set of a data server's log by to if it equals from. It returns
	// the set after that. After an error the caller does not know whether the set was
	// replaced.
	SwapSet(ctx context.Context, server placement.Server, from, to replica.Set) (replica.Set, error)
}

// Bounds and defaults of copies.
const (
	// copyPatienceDefault is how long a copy in sync may be silent.
	copyPatienceDefault = 2 * time.Second
	// copyPiece bounds what one message has of the log or of a checkpoint.
	copyPiece = 512 << 10
	// copyClose is how many bytes of the log a copy may lack to enter the set. From then
	// on answers wait for it.
	copyClose = 1 << 20
	// copyPauseMin and copyPauseMax bound the pause between attempts to reach a copy.
	copyPauseMin = 10 * time.Millisecond
	copyPauseMax = time.Second
	// copyAsk is the time between questions to a copy whether it has installed a
	// checkpoint.
	copyAsk = 100 * time.Millisecond
)

// CopiesDir is the name of the directory, in that of a server, with its copies of other
// servers.
const CopiesDir = "copies"

// group sends the log of this server to its copies, and maintains the set of those in
// sync.
type group struct {
	s       *Server
	d       *durable
	horizon atomic.Uint64 // of home, for readers without mu
	deposed atomic.Bool
	enough  atomic.Bool   // as many copies in sync as are required
	sent    atomic.Uint64 // bytes of log and checkpoints
	turns   atomic.Uint64 // rounds of keep
	links   []*copyLink
	wake    chan struct{} // of keep; has room for one

	mu    sync.Mutex
	home  *replica.Home
	lacks error // why it is deposed although no other server has its place; nil: it is not
}

// copyLink sends the log to one copy.
type copyLink struct {
	g       *group
	k       replica.Member
	host    int           // number of the host that keeps the copy
	more    chan struct{} // more is durable; has room for one
	session uint64

	last   time.Time // when the copy last answered; under group.mu
	failed string    // why the last session ended; under group.mu
	pinned bool      // under backups.mu
	pin    wal.LSN   // under backups.mu: the log from here on is not cut

	// need is the position up to which a copy outside of the set must have the log before
	// it may enter: its checkpoint may have changes whose records end there.
	need wal.LSN
	base sending // the checkpoint that is being sent to a copy that has an older one
}

// sending is a checkpoint on its way to a copy.
type sending struct {
	file vfs.File
	log  uint64
	at   int64
	size int64
	// need is the position up to which the copy must have the log before it may use the
	// checkpoint.
	need  wal.LSN
	asked time.Time // when the copy was last asked to install it
}

// sent reports whether there is a checkpoint and all of it was sent.
func (b *sending) sent() bool { return b.file != nil && b.at == b.size }

// setTimeout bounds each exchange with the membership store of a server that starts. Nothing is held up
// meanwhile, and a store that is slow to answer is no reason not to start.
const setTimeout = 15 * time.Second

// setChange is the change of the set of copies in sync with which a server begins its
// epoch. It is zero for a server that has never had copies.
type setChange struct{ was, next replica.Set }

// askSet returns the change of the set with which the server is to begin its epoch. It
// changes nothing. It fails with replica.ErrReplaced if the directory is not that of
// the present home: such a directory must begin no epoch.
func (d *durable) askSet() (c setChange, err error) {
	if d.s.cfg.Sets == nil {
		return c, nil
	}
	ctx, cancel := context.WithTimeout(d.s.workers.ctx, setTimeout)
	defer cancel()
	if c.was, err = d.s.cfg.Sets.Set(ctx, d.s.parts.self); err != nil {
		return c, err
	}
	places := d.s.cfg.places()
	if c.was == (replica.Set{}) && places == 1 {
		return c, nil // it has never had copies
	}
	dir := d.dir
	if c.next, err = replica.Open(c.was, replica.Epoch(dir.Epoch), replica.Epoch(dir.Since), places); err != nil {
		err = fmt.Errorf("%s: %w", dir.Path(), err)
	}
	return c, err
}

// openGroup makes the change that askSet has returned, and the group. It fails with
// replica.ErrReplaced if the set has changed since.
func (d *durable) openGroup(c setChange) error {
	next := c.next
	if next == (replica.Set{}) {
		return nil
	}
	dir, places := d.dir, d.s.cfg.places()
	if dir.Since != uint32(next.Since) {
		if err := dir.SetSince(uint32(next.Since)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(d.s.workers.ctx, setTimeout)
	defer cancel()
	now, err := d.s.cfg.Sets.SwapSet(ctx, d.s.parts.self, c.was, next)
	if err != nil {
		return err
	}
	if now != next {
		return fmt.Errorf("%s: %w", dir.Path(), replica.ErrReplaced)
	}
	g := &group{s: d.s, d: d, home: replica.NewHome(next, replica.Position(d.log.Durable()), d.s.cfg.MinInSync), wake: make(chan struct{}, 1)}
	for k := 1; k < places; k++ {
		g.links = append(g.links, &copyLink{
			g: g, k: replica.Member(k), host: replica.Host(replica.Member(k), d.s.parts.self, d.s.cfg.host(), len(d.s.cfg.Addrs)), more: make(chan struct{}, 1), last: time.Now(),
		})
	}
	g.horizon.Store(uint64(g.home.Horizon()))
	g.enough.Store(g.home.Enough())
	d.group = g
	return nil
}

// host returns the number of the host where the server runs.
func (c *Config) host() int {
	if c.hosted.Host != nil {
		return *c.hosted.Host
	}
	return c.Index
}

// places returns how many places the group has, the server's own included. Where copies
// can be kept may change if Kept is set, so each host then has a place.
func (c *Config) places() int {
	if c.hosted.Kept != nil && c.Replicas > 1 {
		return min(len(c.Addrs), replica.MaxMembers)
	}
	return max(c.Replicas, 1)
}

// wanted reports whether the copy of a link is to be kept. As many copies are kept as
// configured, at hosts that can keep one, those in sync first.
func (l *copyLink) wanted() bool {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	return l.wantedLocked()
}

func (l *copyLink) wantedLocked() bool {
	s := l.g.s
	if s.cfg.hosted.Kept == nil {
		return true
	}
	target := s.cfg.target()
	if !s.cfg.hosted.Kept(l.host) || l.host == target {
		return s.cfg.hosted.Kept(l.host) // the host to which the server moves keeps one copy more
	}
	crowded := l.g.crowded(target)
	last := func(o *copyLink) bool {
		leaves, _ := s.cfg.leaves(o.host)
		return leaves || crowded[o]
	}
	before := func(o *copyLink) bool {
		if a, b := last(o), last(l); a != b {
			return b && l.g.home.Set().Members.Has(o.k) // a copy that is to leave gives way only to one in sync
		}
		for _, has := range []func(replica.Member) bool{l.g.home.Set().Members.Has, l.g.home.Counts} {
			if a, b := has(o.k), has(l.k); a != b {
				return a
			}
		}
		return o.k < l.k
	}
	rank := 1
	for _, o := range l.g.links {
		if o != l && o.host != target && s.cfg.hosted.Kept(o.host) && before(o) {
			rank++
		}
	}
	return rank < s.cfg.Replicas && (!last(l) || l.g.home.Counts(l.k))
}

// crowded returns the copies that share a zone with the home, or with another copy,
// while a host in a zone of its own could have one instead. Such a copy stays until
// that one is in sync, like a copy that is to leave. Of the copies in one zone, those
// in sync come first. A host without a zone counts as a zone of its own. The caller
// holds g.mu.
func (g *group) crowded(target int) map[*copyLink]bool {
	s := g.s
	if s.cfg.hosted.Zone == nil || !slices.ContainsFunc(g.links, func(l *copyLink) bool { return s.cfg.hosted.Zone(l.host) != "" }) {
		return nil
	}
	type candidate struct {
		l    *copyLink
		zone string
		mate int // how many come before it in its zone, the home included
	}
	rank := func(l *copyLink) int {
		switch {
		case g.home.Set().Members.Has(l.k):
			return 0
		case g.home.Counts(l.k):
			return 1
		}
		return 2
	}
	var all []candidate
	for _, l := range g.links {
		if leaves, _ := s.cfg.leaves(l.host); leaves || l.host == target || !s.cfg.hosted.Kept(l.host) {
			continue
		}
		all = append(all, candidate{l: l, zone: s.cfg.hosted.Zone(l.host)})
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a.l), rank(b.l)), cmp.Compare(a.l.k, b.l.k))
	})
	mates := map[string]int{s.cfg.hosted.Zone(s.cfg.host()): 1}
	for i := range all {
		if c := &all[i]; c.zone != "" {
			c.mate = mates[c.zone]
			mates[c.zone]++
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.mate, b.mate) })
	out := map[*copyLink]bool{}
	for i, c := range all {
		if i >= s.cfg.Replicas-1 {
			out[c.l] = true
		}
	}
	return out
}

// target returns the number of the host to which the server is to move, -1 if to none.
func (c *Config) target() int {
	if c.hosted.Target != nil {
		return c.hosted.Target()
	}
	return c.Index // back to its own host, if it runs elsewhere
}

// dismissed reports whether a copy is to leave the set at once: there are enough
// others, or copies are to leave its host, which has ended. A host that may come back
// has until its patience ends. The caller holds g.mu.
func (l *copyLink) dismissed() bool {
	s := l.g.s
	if s.cfg.hosted.Kept == nil || !l.g.home.Counts(l.k) || l.wantedLocked() {
		return false
	}
	leaves, ended := s.cfg.leaves(l.host)
	return s.cfg.hosted.Kept(l.host) || leaves && ended
}

// leaves reports whether copies are to leave a host, and whether the host has ended.
func (c *Config) leaves(host int) (leaves, ended bool) {
	if c.hosted.Leaves == nil {
		return false, false
	}
	return c.hosted.Leaves(host)
}

// notReplaced fails with replica.ErrReplaced if the data directory is not that of the
// present home, or does not exist although there is a home. It creates nothing: a copy
// can take the place of a missing directory, and not of an existing one.
func (c *Config) notReplaced() error {
	if c.Sets == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), setTimeout)
	defer cancel()
	was, err := c.Sets.Set(ctx, placement.Server(c.Index))
	if err != nil || was == (replica.Set{}) {
		return err
	}
	epoch, served, err := datadir.ReadEpoch(c.FS, c.Dir)
	if err != nil {
		return err
	}
	if !served {
		if _, there, err := datadir.Read(c.FS, c.Dir); err != nil || there {
			return err // openLog finds out whether the directory has lost its epoch
		}
	}
	since, err := datadir.ReadSince(c.FS, c.Dir)
	if err != nil {
		return err
	}
	if _, err = replica.Open(was, replica.Epoch(epoch)+1, replica.Epoch(since), max(c.Replicas, 1)); err != nil {
		err = fmt.Errorf("%s: %w", c.Dir, err)
	}
	return err
}

// start starts the goroutines that send the log and maintain the set.
func (g *group) start() {
	if len(g.links) == 0 {
		return
	}
	g.mu.Lock()
	for _, l := range g.links {
		l.last = time.Now() // before keep looks for silent copies
	}
	g.mu.Unlock()
	g.s.workers.wg.Go(func() { g.keep(g.s.workers.ctx) })
	for _, l := range g.links {
		g.s.workers.wg.Go(func() { l.run(g.s.workers.ctx) })
	}
}

// durable notes that the server's own log is durable up to a position. The caller calls
// pass, which releases what that makes safe.
func (g *group) durable(to wal.LSN) {
	g.step(func(h *replica.Home) { h.Durable(replica.Position(to)) })
	for _, l := range g.links {
		poke(l.more)
	}
}

// change applies fn to the home, and releases the answers that this makes safe.
func (g *group) change(fn func(h *replica.Home)) {
	if g.step(fn) {
		g.d.pass()
	}
}

// step applies fn to the home. It reports whether the safe position has risen.
func (g *group) step(fn func(h *replica.Home)) (raised bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.home.Horizon()
	fn(g.home)
	g.horizon.Store(uint64(g.home.Horizon()))
	g.enough.Store(g.home.Enough())
	return g.home.Horizon() > before
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// least returns the first position of the log that the copies need, at most before. The
// caller holds backups.mu.
func (g *group) least(before wal.LSN) wal.LSN {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links {
		if g.home.Counts(l.k) {
			before = min(before, wal.LSN(g.home.Known(l.k)))
		}
		if l.pinned {
			before = min(before, l.pin)
		}
	}
	return before
}

// keep changes the set of copies in sync: copies that are silent for too long
// leave it, those that have caught up enter it.
func (g *group) keep(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-g.wake:
		}
		g.turns.Add(1)
		g.loseSilent()
		for g.swap(ctx) {
		}
		if g.deposed.Load() {
			g.s.Suspend()
			g.mu.Lock()
			why := g.lacks
			g.mu.Unlock()
			if why == nil {
				why = errors.New("another server has taken its place")
			}
			g.s.log.Error("the data server acknowledges nothing more", "reason", why)
			return
		}
		t.Reset(g.rest())
	}
}

// rest returns how long keep may sleep if it is not woken: until a copy in sync has
// been silent for too long. It is short enough to repeat a change that has failed, and
// to see that a copy is to leave, for which nothing wakes keep.
func (g *group) rest() time.Duration {
	soon := g.s.cfg.CopyPatience / 16
	rest := 4 * soon
	g.step(func(h *replica.Home) {
		if _, _, changes := h.Propose(); changes {
			rest = soon
		}
		for _, l := range g.links {
			if h.Counts(l.k) {
				rest = min(rest, g.s.cfg.CopyPatience-time.Since(l.last))
			}
		}
	})
	return max(rest, soon)
}

// fewCopies returns the answer to a write while there are fewer copies in sync than are
// required, OK otherwise. Reads go on.
func (d *durable) fewCopies() verdict {
	if d == nil || d.group == nil || d.group.enough.Load() {
		return verdict{}
	}
	return verdict{code: wire.FewCopies, text: fmt.Sprintf("server %d: fewer than %d copies of its data are in sync, its own included", d.s.parts.self, d.s.cfg.MinInSync)}
}

// loseSilent gives up members that have not answered for CopyPatience, and those that
// are to leave at once.
func (g *group) loseSilent() {
	g.change(func(h *replica.Home) {
		for _, l := range g.links {
			if h.Counts(l.k) && (time.Since(l.last) > g.s.cfg.CopyPatience || l.dismissed()) {
				h.Lost(l.k)
			}
		}
	})
}

// swap makes a change of the set, if the home proposes one. It reports whether
// there may be another one.
func (g *group) swap(ctx context.Context) (more bool) {
	var from, to replica.Set
	ok := false
	g.step(func(h *replica.Home) { from, to, ok = h.Propose() })
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	now, err := g.s.cfg.Sets.SwapSet(ctx, g.s.parts.self, from, to)
	if err != nil {
		if ctx.Err() == nil {
			g.s.log.Warn("the set of copies in sync could not be changed", "error", err)
		}
		return false
	}
	g.change(func(h *replica.Home) {
		h.Changed(now)
		g.deposed.Store(h.Deposed())
		for _, l := range g.links {
			l.last = maxTime(l.last, enteredAt(from, now, l.k))
		}
	})
	g.s.log.Info("copies in sync", "members", fmt.Sprintf("%08b", now.Members), "epoch", now.Epoch)
	return now == to
}

// enteredAt returns the present time if a copy has just become a member, so that its
// patience begins, and otherwise the zero time.
func enteredAt(from, now replica.Set, k replica.Member) time.Time {
	if now.Members.Has(k) && !from.Members.Has(k) {
		return time.Now()
	}
	return time.Time{}
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// run sends the log to the copy until the server stops or is deposed. It makes a new
// session when one has failed.
func (l *copyLink) run(ctx context.Context) {
	pause := copyPauseMin
	for ctx.Err() == nil && !l.g.deposed.Load() {
		if !l.wanted() {
			if l.g.s.workers.rest(copyPauseMax/4) != nil {
				return
			}
			continue
		}
		began := time.Now()
		err := l.serve(ctx)
		l.g.change(func(h *replica.Home) {
			if !h.Counts(l.k) { // a member is lost only when its patience ends
				h.Lost(l.k)
			}
			l.failed = err.Error()
		})
		l.unpin()
		l.base.close()
		if time.Since(began) > copyPauseMax {
			pause = copyPauseMin
		}
		l.g.s.log.Debug("copy not reached", "copy", l.host, "reason", err.Error())
		if l.g.s.workers.rest(pause) != nil {
			return
		}
		pause = min(2*pause, copyPauseMax)
	}
}

func (l *copyLink) unpin() {
	k := &l.g.d.backups
	k.mu.Lock()
	defer k.mu.Unlock()
	l.pinned = false
}

// pinAt pins the log from a position on. It reports whether the log still has that
// position.
func (l *copyLink) pinAt(at wal.LSN) bool {
	k := &l.g.d.backups
	k.mu.Lock()
	defer k.mu.Unlock()
	l.pinned, l.pin = true, at
	return l.g.d.log.First() <= at
}

// errCopy reports a copy with which a session cannot go on. The next session may.
var errCopy = errors.New("server: the copy")

// dial connects to the host of the copy: to the data server of the same number, or as
// Config.DialHost does.
func (l *copyLink) dial(ctx context.Context) (rdma.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	s := l.g.s
	if s.cfg.hosted.DialHost == nil {
		link, err := s.peers[placement.Server(l.host)].dial(ctx)
		if err != nil {
			return nil, err
		}
		return link.conn, nil
	}
	c, err := s.cfg.hosted.DialHost(ctx, l.host)
	if err != nil {
		return nil, err
	}
	resp, err := rdma.Call(ctx, c, wire.AppendHelloOfServer(nil, s.parts.self, s.parts.incarnation), nil)
	if err == nil {
		_, err = wire.DecodeHello(resp) // of the same version?
	}
	if err != nil && !errors.Is(err, wire.ErrKeeper) {
		c.Close()
		return nil, err
	}
	return c, nil
}

// serves reports whether the copy is to get more of the log: it is wanted, or answers
// wait for it until it has left the set.
func (l *copyLink) serves() bool {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	return l.wantedLocked() || l.dismissed()
}

// serve connects to the copy, begins a session, and sends the log until something
// fails. It never returns nil.
func (l *copyLink) serve(ctx context.Context) error {
	conn, err := l.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	l.session++
	id, err := json.Marshal(l.g.d.dir.Identity)
	if err != nil {
		return err
	}
	state, err := l.call(ctx, conn, wire.CopyStep{Step: wire.CopyBegin, Bytes: id})
	if err != nil {
		return err
	}
	usable := l.pinAt(wal.LSN(state.End)) && state.There
	var refused error
	anew := false
	l.g.change(func(h *replica.Home) {
		if !h.Counts(l.k) {
			l.need = l.g.d.log.Durable()
		}
		first, end := replica.Position(l.g.d.log.First()), replica.Position(state.End)
		h.Durable(replica.Position(l.g.d.log.Durable())) // the copy may have records that the log's writer has not reported yet
		if state.There && replica.Epoch(state.Since) == h.Set().Since && h.Lacks(l.k, replica.Position(state.Durable)) {
			l.g.deposed.Store(true)
			refused = fmt.Errorf("%w at server %d is durable up to %d, and %s up to %d only: this directory has lost the end of its log; remove it, so that the copy takes its place",
				errCopy, l.host, state.Durable, l.g.d.dir.Path(), l.g.d.log.Durable())
			l.g.lacks = refused
			return
		}
		usable = usable && replica.Usable(h.Set(), replica.Epoch(state.Since), end, first, replica.Position(l.g.d.log.Durable()))
		switch {
		case usable && !(h.Counts(l.k) && replica.Position(state.Durable) < h.Known(l.k)):
			h.Begun(l.k, replica.Position(state.Durable))
		case h.Counts(l.k):
			h.Lost(l.k)
			refused = fmt.Errorf("%w at server %d lacks what it had, and is made anew when it has left the set", errCopy, l.host)
		default:
			anew = true
		}
	})
	poke(l.g.wake)
	if refused != nil {
		return refused
	}
	if anew {
		if state, err = l.makeAnew(ctx, conn); err != nil {
			return err
		}
		l.g.change(func(h *replica.Home) {
			h.Begun(l.k, replica.Position(state.Durable))
		})
	}
	l.g.s.log.Info("copy reached", "copy", l.host, "log", state.End, "made_anew", anew)
	return l.ship(ctx, conn, state)
}

// call sends a step to the copy and returns the copy's state. Only answers to
// CopyFrames renew its patience: a copy that begins session after session and takes
// nothing, since its disk is full or its log damaged, leaves the set when its patience
// ends.
func (l *copyLink) call(ctx context.Context, c rdma.Conn, m wire.CopyStep) (state wire.CopyState, err error) {
	return l.callRaw(ctx, c, m, nil)
}

// callRaw is call with a buffer for the message, which it overwrites.
func (l *copyLink) callRaw(ctx context.Context, c rdma.Conn, m wire.CopyStep, buf []byte) (state wire.CopyState, err error) {
	l.g.mu.Lock()
	set := l.g.home.Set()
	l.g.mu.Unlock()
	m.Server, m.Host, m.To = l.g.s.parts.self, l.g.s.cfg.host(), l.host
	m.Epoch, m.Since, m.Session = uint32(set.Epoch), uint32(set.Since), l.session
	ctx, cancel := context.WithTimeout(ctx, max(l.g.s.cfg.CopyPatience, peerTimeout))
	defer cancel()
	resp, err := rdma.Call(ctx, c, m.Append(buf[:0]), nil)
	if err != nil {
		return state, err
	}
	if len(resp) == 0 || wire.Code(resp[0]) != wire.OK {
		return state, fmt.Errorf("%w at server %d: %s", errCopy, l.host, string(resp[min(1, len(resp)):]))
	}
	if err = state.Decode(resp[1:]); err == nil && m.Step == wire.CopyFrames {
		l.g.mu.Lock()
		l.last = time.Now()
		l.g.mu.Unlock()
	}
	return state, err
}

// makeAnew sends the newest checkpoint to a copy that is no member, and lets it begin
// its log there.
func (l *copyLink) makeAnew(ctx context.Context, c rdma.Conn) (state wire.CopyState, err error) {
	b, err := l.newest(true)
	if err != nil {
		return state, err
	}
	defer b.close()
	l.need = b.need
	if _, err = l.call(ctx, c, wire.CopyStep{Step: wire.CopyReset}); err != nil {
		return state, err
	}
	for b.at < b.size {
		if err = l.sendPiece(ctx, c, b); err != nil {
			return state, err
		}
	}
	for {
		state, err = l.call(ctx, c, wire.CopyStep{Step: wire.CopyInstall, Log: b.log, At: uint64(b.size)})
		if err != nil || state.There || l.g.deposed.Load() {
			break
		}
		if err = l.g.s.workers.rest(copyAsk); err != nil { // the copy still reads the checkpoint
			return state, err
		}
	}
	if err == nil && (!state.There || state.End != b.log) {
		err = fmt.Errorf("%w at server %d begins at %d, not at %d", errCopy, l.host, state.End, b.log)
	}
	return state, err
}

// newest opens the newest checkpoint, for the caller to close. With pin, it pins the
// log from there on.
func (l *copyLink) newest(pin bool) (*sending, error) {
	s := l.g.s
	for {
		from := l.g.d.checkpoints.from.Load()
		b := &sending{log: from, need: l.g.d.log.Durable()}
		if pin && !l.pinAt(wal.LSN(from)) {
			if l.g.d.checkpoints.from.Load() != from {
				continue
			}
			return nil, fmt.Errorf("%w: the log begins at %d, after the newest checkpoint at %d", errCopy, l.g.d.log.First(), from)
		}
		if from == 0 {
			return b, nil
		}
		f, err := s.cfg.FS.Open(s.cfg.FS.PathJoin(s.cfg.Dir, CheckpointDir, image.Name(from)))
		if err != nil {
			if l.g.d.checkpoints.from.Load() != from {
				continue // a newer one has taken its place
			}
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		b.file, b.size = f, info.Size()
		return b, nil
	}
}

func (b *sending) close() {
	if b.file != nil {
		_ = b.file.Close()
	}
	*b = sending{}
}

// sendPiece sends the next piece of a checkpoint.
func (l *copyLink) sendPiece(ctx context.Context, c rdma.Conn, b *sending) error {
	piece := make([]byte, min(copyPiece, b.size-b.at))
	if n, err := b.file.ReadAt(piece, b.at); n < len(piece) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	l.g.sent.Add(uint64(len(piece)))
	_, err := l.call(ctx, c, wire.CopyStep{Step: wire.CopyBase, Log: b.log, At: uint64(b.at), Bytes: piece})
	b.at += int64(len(piece))
	return err
}

// ship sends the log as it becomes durable, and newer checkpoints in between, until
// something fails.
func (l *copyLink) ship(ctx context.Context, c rdma.Conn, state wire.CopyState) error {
	log := l.g.d.log
	t := time.NewTicker(l.g.s.cfg.CopyPatience / 4)
	defer t.Stop()
	var frames, buf []byte
	for {
		next := wal.LSN(state.End)
		if err := l.shipBase(ctx, c, &state); err != nil {
			return err
		}
		if next >= log.Durable() && (l.base.file == nil || l.base.sent()) {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-l.more:
			case <-t.C: // even if there is nothing to send: the copy must answer
			}
		}
		if l.g.deposed.Load() {
			return replica.ErrReplaced
		}
		if !l.serves() {
			return fmt.Errorf("%w at server %d is not wanted: it can keep none, or there are enough", errCopy, l.host)
		}
		var err error
		if frames, err = log.Frames(next, copyPiece, frames[:0]); err != nil {
			return err
		}
		if cap(buf) < len(frames)+64 {
			buf = make([]byte, 0, len(frames)+64)
		}
		l.g.sent.Add(uint64(len(frames)))
		base := state.Base
		if state, err = l.callRaw(ctx, c, wire.CopyStep{Step: wire.CopyFrames, At: uint64(next), Bytes: frames}, buf); err != nil {
			return err
		}
		if state.End != uint64(next)+uint64(len(frames)) || state.Durable > uint64(log.Durable()) || state.Base < base {
			return fmt.Errorf("%w at server %d does not take the log at %d", errCopy, l.host, next)
		}
		l.acknowledged(&state)
	}
}

// acknowledged notes what the copy has. A copy that has caught up enters the set.
func (l *copyLink) acknowledged(state *wire.CopyState) {
	k := &l.g.d.backups
	k.mu.Lock()
	l.pin = wal.LSN(state.Durable)
	k.mu.Unlock()
	changes := false
	l.g.change(func(h *replica.Home) {
		h.Acknowledged(l.k, replica.Position(state.Durable))
		if uint64(l.g.d.log.Durable())-state.Durable <= copyClose && wal.LSN(state.Durable) >= l.need && !h.Counts(l.k) {
			h.Enter(l.k)
			l.last = time.Now()
		}
		_, _, changes = h.Propose()
	})
	if changes {
		poke(l.g.wake)
	}
}

// shipBase sends the next piece of a checkpoint that is newer than that of the copy.
// When all was sent, and the copy has the log up to need, it asks the copy to install
// the checkpoint. The copy takes the log while it reads the checkpoint.
func (l *copyLink) shipBase(ctx context.Context, c rdma.Conn, state *wire.CopyState) error {
	b := &l.base
	if b.file == nil {
		if l.g.d.checkpoints.from.Load() <= state.Base {
			return nil
		}
		n, err := l.newest(false)
		if err != nil {
			return err
		}
		*b = *n
	}
	if b.at < b.size {
		return l.sendPiece(ctx, c, b)
	}
	if wal.LSN(state.Durable) < b.need || time.Since(b.asked) < copyAsk {
		return nil
	}
	b.asked = time.Now()
	now, err := l.call(ctx, c, wire.CopyStep{Step: wire.CopyInstall, Log: b.log, At: uint64(b.size)})
	if err != nil || now.Base < b.log {
		return err
	}
	state.Base = b.log
	b.close()
	return nil
}

// CopyStatus is the state of a copy of a server's log.
type CopyStatus struct {
	Server int    // number of the host that keeps it
	InSync bool   // it has everything that was acknowledged
	Lag    uint64 // bytes of the log that it is not known to have
	Failed string // why the last session with it ended, "" if none has
}

// Sent returns how many bytes of log and checkpoints the server has sent to copies.
func (s *Server) Sent() uint64 {
	if s.durable == nil || s.durable.group == nil {
		return 0
	}
	return s.durable.group.sent.Load()
}

// Copies returns the state of the copies of the server's log that are in sync or
// wanted. It is nil if the server can have no copies.
func (s *Server) Copies() (all []CopyStatus) {
	if s.durable == nil || s.durable.group == nil {
		return nil
	}
	g := s.durable.group
	g.mu.Lock()
	defer g.mu.Unlock()
	end := uint64(s.durable.log.End())
	for _, l := range g.links {
		if inSync := g.home.Set().Members.Has(l.k); inSync || l.wantedLocked() {
			all = append(all, CopyStatus{
				Server: l.host, InSync: inSync, Lag: end - min(end, uint64(g.home.Known(l.k))), Failed: l.failed,
			})
		}
	}
	return all
}
