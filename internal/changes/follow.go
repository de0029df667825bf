package changes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// Cluster is what a feed needs of a cluster.
type Cluster interface {
	// Servers returns the addresses of all data servers.
	Servers() []string
	// Durable reports whether they have logs.
	Durable() bool
	// Catalog returns the latest version of the catalogue that is known, and Refresh asks
	// for the present one.
	Catalog() *tables.Catalog
	Refresh(ctx context.Context) error
	// Connect connects to a data server, and checks that it is the one known before.
	Connect(ctx context.Context, server placement.Server) (rdma.Conn, error)
	// Incarnations returns those of the data servers, 0 for one that is not known yet.
	Incarnations() []uint64
	// Returns reports whether the data server that err concerns may come back with all
	// that it has acknowledged.
	Returns(err error) bool
	// Refused returns the error for an answer with a code that is no result.
	Refused(server placement.Server, code wire.Code, text []byte) error
	// Unavailable returns the error for a data server that does not answer.
	Unavailable(server placement.Server, cause error) error
	// Patience returns how long to wait for a data server if the context has no deadline.
	Patience() time.Duration
}

// Options of a feed.
type Options struct {
	// UntilNow ends the feed after all that had committed when it began.
	UntilNow bool
	// Memory bounds the bytes that are kept of changes not yet delivered; 0 means the
	// default.
	Memory int
}

const (
	// callTimeout bounds the wait for an answer. A server may wait for its disk, and for
	// copies of its log.
	callTimeout = 10 * time.Second
	// Waits between two looks at the logs, if there is nothing new.
	pollMin = clock.TickLength
	pollMax = 5 * clock.TickLength
	// Waits between two attempts to reach a data server.
	returnMin = time.Millisecond
	returnMax = 32 * time.Millisecond
)

// follower is a feed under way. One goroutine owns it, and has others help.
type follower struct {
	c       Cluster
	f       *feed
	sources []source
	until   clock.Tick // the feed ends after this tick; 0: never
}

// source is the log of one server.
type source struct {
	server placement.Server
	conn   rdma.Conn
	id     uint64 // of the feed at the server, while there is a connection
	pinned bool
	pin    wal.LSN // the least position that is still needed
	begun  wire.BackupPinned
	began  bool // the stream has a position to go on from
	seen   wire.BackupSeen
	closed wire.BackupClosed
	end    wal.LSN // durable up to here, wherever the server recovers
	req    []byte
	resp   []byte
	part   []byte // of the record at which the stream is
}

// Follow returns all changes that commit after a cursor. It asks the servers only while
// its caller waits for the next change. An error ends it.
func Follow(ctx context.Context, c Cluster, from Cursor, o Options) iter.Seq2[*Change, error] {
	return func(yield func(*Change, error) bool) {
		w := newFollower(c, o)
		defer w.close()
		err := w.begin(ctx, from)
		if err == nil && o.UntilNow {
			err = w.aim(ctx)
		}
		if err == nil {
			more := true
			err = w.run(ctx, func(ch *Change) bool {
				more = yield(ch, nil)
				return more
			})
			if !more {
				return
			}
		}
		var cut *cutError
		if errors.As(err, &cut) {
			err = w.tooOld(ctx, cut.s, w.f.from)
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// Now returns the cursor of the present: changes that commit from now on come after it,
// and changes that had committed before the call come before it.
func Now(ctx context.Context, c Cluster) (Cursor, error) {
	w := newFollower(c, Options{})
	defer w.close()
	if err := w.begin(ctx, Cursor{}); err != nil {
		return Cursor{}, err
	}
	at := Cursor{from: fromPlace, tick: w.f.from, n: all, cluster: w.f.cluster}
	for i := range w.sources {
		at.at = append(at.at, uint64(w.f.streams[i].next))
	}
	return at, nil
}

func newFollower(c Cluster, o Options) *follower {
	w := &follower{c: c, f: newFeed(c.Catalog(), len(c.Servers()), o.Memory), sources: make([]source, len(c.Servers()))}
	for i := range w.sources {
		w.sources[i].server = placement.Server(i)
	}
	return w
}

func (w *follower) close() {
	for i := range w.sources {
		w.sources[i].drop()
	}
}

func (s *source) drop() {
	if s.conn != nil {
		_ = s.conn.Close() // which ends the feed at the server
	}
	s.conn, s.pinned = nil, false
}

// each calls fn for all sources at once.
func (w *follower) each(fn func(*source) error) error {
	errs := make([]error, len(w.sources))
	var wg sync.WaitGroup
	for i := range w.sources {
		wg.Go(func() { errs[i] = fn(&w.sources[i]) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// begin pins the logs where the cursor needs them.
func (w *follower) begin(ctx context.Context, from Cursor) error {
	if !w.c.Durable() {
		return ErrNoLog
	}
	if from.from == fromPlace && len(from.at) != len(w.sources) {
		return fmt.Errorf("%w: it is of a cluster of %d data servers, this one has %d", ErrCursor, len(from.at), len(w.sources))
	}
	for i := range w.sources {
		s := &w.sources[i]
		switch from.from {
		case fromNow:
			s.pin = noPlace
		case fromPlace:
			s.pin = wal.LSN(from.at[i])
		}
	}
	if err := w.each(func(s *source) error {
		return w.ask(ctx, s, wire.BackupLook, func() []uint64 { return []uint64{0} }, s.seen.Decode)
	}); err != nil {
		return err
	}
	if err := w.refresh(ctx); err != nil {
		return err
	}
	w.f.catalog, w.f.cluster = w.c.Catalog(), clusterOf(w.c.Incarnations())
	for i := range w.sources {
		s := &w.sources[i]
		s.pin = wal.LSN(s.begun.Log)
		w.f.streams[i].next, s.began = s.pin, true
	}
	switch from.from {
	case fromNow:
		return w.beginNow(ctx)
	case fromPlace:
		return w.beginAt(ctx, from)
	}
	return w.beginAfter(ctx, from)
}

// beginAt checks that the logs have what follows the cursor.
func (w *follower) beginAt(ctx context.Context, from Cursor) error {
	if from.cluster != w.f.cluster {
		return fmt.Errorf("%w: it is of another cluster, or of other data", ErrCursor)
	}
	for i := range w.sources {
		switch s := &w.sources[i]; {
		case from.at[i] > s.begun.End:
			return fmt.Errorf("%w: the log of data server %s ends at %d, before %d", ErrCursor, w.c.Servers()[i], s.begun.End, from.at[i])
		case from.at[i] < s.begun.First:
			// The place is gone, but the log may have all that is needed.
			oldest, _, err := w.oldest(ctx)
			switch {
			case err != nil:
				return err
			case oldest > from.tick || oldest == from.tick && from.n != all:
				return w.tooOld(ctx, s, from.tick)
			}
		}
	}
	w.f.from, w.f.after = from.tick, from.n
	return nil
}

// tooOld returns the error for a log that begins too late.
func (w *follower) tooOld(ctx context.Context, s *source, after clock.Tick) error {
	for i := range w.sources {
		w.sources[i].began = false // another attempt may begin elsewhere, here or at another server
	}
	oldest, _, err := w.oldest(ctx)
	if err != nil {
		return err
	}
	return &TooOld{Server: w.c.Servers()[s.server], After: uint64(after), Oldest: uint64(oldest)}
}

// oldest returns the least tick after which all logs have everything, and the source
// whose log begins last.
func (w *follower) oldest(ctx context.Context) (tick clock.Tick, of *source, err error) {
	of = &w.sources[0]
	for i := range w.sources {
		s := &w.sources[i]
		for s.seen.Oldest = wire.NoTick; s.seen.Oldest == wire.NoTick; {
			if err := w.look(ctx, s); err != nil {
				return 0, nil, err
			}
			if s.seen.Oldest == wire.NoTick {
				if err := sleep(ctx, clock.TickLength); err != nil {
					return 0, nil, err
				}
			}
		}
		if t := clock.Tick(s.seen.Oldest); t > tick {
			tick, of = t, s
		}
	}
	return tick, of, nil
}

// beginAfter begins after a tick, or where the logs begin.
func (w *follower) beginAfter(ctx context.Context, from Cursor) error {
	oldest, of, err := w.oldest(ctx)
	if err != nil {
		return err
	}
	switch {
	case from.from == fromOldest:
		from.tick = oldest
	case from.tick < oldest:
		return &TooOld{Server: w.c.Servers()[of.server], After: uint64(from.tick), Oldest: uint64(oldest)}
	}
	w.f.from, w.f.after = from.tick, all
	return nil
}

// beginNow begins with what commits from now on. The logs are pinned. When each server
// has closed the tick that it had then, all shares that were prepared before are
// decided, and what was decided has a tick that it shows now. When all have closed the
// highest of these, nothing commits at or before it any more, and all that commits later
// is in the logs after the pins, with all shares.
func (w *follower) beginNow(ctx context.Context) error {
	least := make([]clock.Tick, len(w.sources))
	if err := w.each(func(s *source) error {
		err := w.look(ctx, s)
		least[s.server] = clock.Tick(s.seen.Present)
		return err
	}); err != nil {
		return err
	}
	for settled, to := false, clock.Tick(0); ; {
		if err := w.closeTicks(ctx); err != nil {
			return err
		}
		closed, present := clock.Tick(block.MaxTick), clock.Tick(0)
		all := true
		for i := range w.sources {
			c := &w.sources[i].closed
			closed, present = min(closed, clock.Tick(c.Tick)), max(present, clock.Tick(c.Present))
			all = all && clock.Tick(c.Tick) >= least[i]
		}
		if !settled && all {
			settled, to = true, present
		}
		if settled && closed >= to {
			w.setFrom(to)
			return nil
		}
		if err := sleep(ctx, clock.TickLength); err != nil {
			return err
		}
	}
}

// setFrom records that nothing up to a tick is wanted.
func (w *follower) setFrom(to clock.Tick) { w.f.from, w.f.after = to, all }

// aim makes the feed end after what has committed so far.
func (w *follower) aim(ctx context.Context) error {
	err := w.each(func(s *source) error { return w.look(ctx, s) })
	for i := range w.sources {
		w.until = max(w.until, clock.Tick(w.sources[i].seen.Present))
	}
	return err
}

// run delivers changes until fn returns false or the feed ends.
func (w *follower) run(ctx context.Context, fn func(*Change) bool) error {
	wait := pollMin
	for to := clock.Tick(0); ; {
		if w.until > 0 && w.f.from >= w.until && w.f.after == all {
			return nil
		}
		if err := w.each(func(s *source) error { return w.look(ctx, s) }); err != nil {
			return err
		}
		news := w.until > w.f.from
		for i := range w.sources {
			s := &w.sources[i]
			if wal.LSN(s.seen.Log) > w.f.streams[i].next {
				news, to = true, max(to, clock.Tick(s.seen.Present))
			}
		}
		// What was read with what is delivered may be of a later tick. Nothing need commit
		// after it.
		if !news && len(w.f.ticks) == 0 && w.f.from >= to {
			if err := sleep(ctx, wait); err != nil {
				return err
			}
			wait = min(2*wait, pollMax)
			continue
		}
		wait = pollMin
		if more, err := w.advance(ctx, fn); err != nil || !more {
			return err
		}
		if len(w.f.ticks) > 0 || w.f.from < to || w.f.from < w.until {
			if err := sleep(ctx, clock.TickLength); err != nil {
				return err
			}
		}
	}
}

// advance delivers the ticks that all servers have closed.
func (w *follower) advance(ctx context.Context, fn func(*Change) bool) (more bool, err error) {
	if err := w.closeTicks(ctx); err != nil {
		return false, err
	}
	closed := clock.Tick(block.MaxTick)
	for i := range w.sources {
		closed = min(closed, clock.Tick(w.sources[i].closed.Tick))
	}
	if closed < w.f.from || closed == w.f.from && w.f.after == all {
		return true, nil
	}
	for {
		if err := w.read(ctx); err != nil {
			return false, err
		}
		if !w.f.deliver(min(closed, w.f.most), fn) {
			return false, nil
		}
		again := w.f.rewind()
		for i := range w.sources {
			w.f.streams[i].late = w.sources[i].end
			w.sources[i].pin = w.f.pin(w.sources[i].server)
			if again {
				w.sources[i].part = w.sources[i].part[:0]
			}
		}
		if w.f.from >= closed {
			return true, nil
		}
	}
}

// closeTicks asks the servers to close ticks.
func (w *follower) closeTicks(ctx context.Context) error {
	return w.each(func(s *source) error {
		err := w.ask(ctx, s, wire.BackupClose, func() []uint64 { return nil }, s.closed.Decode)
		if err == nil {
			s.end = max(s.end, wal.LSN(s.closed.Log))
		}
		return err
	})
}

// look moves the pin on, and asks how far a log is.
func (w *follower) look(ctx context.Context, s *source) error {
	return w.ask(ctx, s, wire.BackupLook, func() []uint64 { return []uint64{uint64(s.pin)} }, s.seen.Decode)
}

// read takes the logs up to where they are durable, or as far as their changes can be
// kept. The log that is furthest behind comes first.
func (w *follower) read(ctx context.Context) error {
	for {
		var s *source
		for i := range w.sources {
			st := &w.f.streams[i]
			if st.next < w.sources[i].end && st.marked < w.f.most && (s == nil || st.seen < w.f.streams[s.server].seen) {
				s = &w.sources[i]
			}
		}
		if s == nil {
			return nil
		}
		if err := w.fetch(ctx, s); err != nil {
			return err
		}
	}
}

// fetch takes a piece of a log. It leaves what is after the durable end: that may be
// lost, and replaced by other records.
func (w *follower) fetch(ctx context.Context, s *source) error {
	st := &w.f.streams[s.server]
	var m wire.BackupRecords
	var skip int
	req := func() []uint64 {
		skip = len(s.part)
		return []uint64{uint64(st.next), uint64(skip)}
	}
	if err := w.ask(ctx, s, wire.BackupLog, req, m.Decode); err != nil {
		return err
	}
	next := wal.LSN(m.Next)
	if next < st.next || next == st.next && int(m.Skip) <= skip {
		return fmt.Errorf("%w: that of data server %s does not go on at %d", ErrLog, w.c.Servers()[s.server], st.next)
	}
	for i := range m.Records {
		r := &m.Records[i]
		if wal.LSN(r.End) > s.end {
			s.part = s.part[:0]
			st.next = s.end
			return nil
		}
		payload := r.Piece
		if len(s.part) > 0 {
			s.part = append(s.part, r.Piece...)
			payload = s.part
		}
		switch n := uint32(len(payload)); {
		case n == r.Bytes:
			if err := w.f.take(s.server, wal.LSN(r.Start), wal.LSN(r.End), payload); err != nil {
				return err
			}
			s.part = s.part[:0]
		case i == len(m.Records)-1 && n == m.Skip:
			if len(s.part) == 0 {
				s.part = append(s.part, r.Piece...)
			}
		default:
			return fmt.Errorf("%w: data server %s sent %d bytes of a record of %d", ErrLog, w.c.Servers()[s.server], n, r.Bytes)
		}
	}
	if len(s.part) == 0 {
		st.next = min(max(st.next, next), s.end)
	}
	return nil
}

// ask sends a step of the feed to a server. It waits for a server that may come back,
// as transactions do. args is called for each attempt.
func (w *follower) ask(ctx context.Context, s *source, step byte, args func() []uint64, decode func([]byte) error) error {
	var p patience
	for n := 0; ; n++ {
		err := w.try(ctx, s, step, args, decode)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errNoFeed):
			s.pinned = false
			if n == 0 {
				continue
			}
		case !w.c.Returns(err):
			return err
		default:
			s.drop()
		}
		if err := p.wait(ctx, w.c, err); err != nil {
			return err
		}
	}
}

// refresh follows the catalogue, at servers that may come back.
func (w *follower) refresh(ctx context.Context) error {
	var p patience
	for {
		err := w.c.Refresh(ctx)
		if err == nil || !w.c.Returns(err) {
			return err
		}
		if err := p.wait(ctx, w.c, err); err != nil {
			return err
		}
	}
}

// patience is the patience with a data server that does not answer.
type patience struct {
	n     int // waits
	until time.Time
}

// wait waits before the next attempt. When the patience is over it returns the error of
// the attempt. Without a deadline of ctx the patience is that of transactions.
func (p *patience) wait(ctx context.Context, c Cluster, err error) error {
	if _, ok := ctx.Deadline(); !ok {
		if p.until.IsZero() {
			p.until = time.Now().Add(c.Patience())
		} else if time.Now().After(p.until) {
			return err
		}
	}
	p.n++
	return sleep(ctx, min(returnMin<<min(p.n-1, 10), returnMax))
}

// errNoFeed reports a feed that its server has ended.
var errNoFeed = errors.New("the data server has ended the feed")

// try makes one attempt at a step. It first connects and begins the feed if necessary.
func (w *follower) try(ctx context.Context, s *source, step byte, args func() []uint64, decode func([]byte) error) (err error) {
	if s.conn == nil {
		if s.conn, err = w.c.Connect(ctx, s.server); err != nil {
			s.conn = nil
			return err
		}
	}
	if !s.pinned {
		if err := w.pinLog(ctx, s); err != nil {
			return err
		}
	}
	req := binary.LittleEndian.AppendUint64(append(s.req[:0], byte(wire.OpBackup), step), s.id)
	for i, a := range args() {
		if step == wire.BackupLog && i == 1 {
			req = binary.LittleEndian.AppendUint32(req, uint32(a))
			continue
		}
		req = binary.LittleEndian.AppendUint64(req, a)
	}
	b, err := w.call(ctx, s, req)
	if err == nil {
		err = decode(b)
	}
	return err
}

// pinLog begins the feed at a server. If the feed had begun before, the log must have
// what follows.
func (w *follower) pinLog(ctx context.Context, s *source) error {
	b, err := w.call(ctx, s, binary.LittleEndian.AppendUint64(append(s.req[:0], byte(wire.OpBackup), wire.BackupPin), uint64(s.pin)))
	if err != nil {
		return err
	}
	var m wire.BackupPinned
	if err := m.Decode(b); err != nil {
		return err
	}
	again := s.began
	s.begun, s.id, s.pinned = m, m.ID, true
	next := w.f.streams[s.server].next
	switch {
	case !again:
	case wal.LSN(m.End) < s.end:
		return fmt.Errorf("%w: that of data server %s ends at %d, and was durable up to %d", ErrLog, w.c.Servers()[s.server], m.End, s.end)
	case wal.LSN(m.First) > next:
		return &cutError{s}
	default:
		s.pin = max(s.pin, wal.LSN(m.First))
	}
	return nil
}

// cutError reports a log that no longer has what comes next.
type cutError struct{ s *source }

func (e *cutError) Error() string { return ErrTooOld.Error() }

// call sends a request, and returns the answer behind its code, valid until the next
// call.
func (w *follower) call(ctx context.Context, s *source, req []byte) ([]byte, error) {
	s.req = req
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := rdma.Call(ctx, s.conn, req, s.resp[:0])
	if err != nil {
		return nil, w.c.Unavailable(s.server, err)
	}
	s.resp = resp
	switch {
	case len(resp) == 0:
		return nil, w.c.Refused(s.server, wire.Bad, nil)
	case wire.Code(resp[0]) == wire.NotFound:
		return nil, errNoFeed
	case wire.Code(resp[0]) == wire.NoSpace, wire.Code(resp[0]) == wire.InDoubt:
		return nil, w.c.Unavailable(s.server, errors.New(string(resp[1:])))
	case wire.Code(resp[0]) != wire.OK:
		return nil, w.c.Refused(s.server, wire.Code(resp[0]), resp[1:])
	}
	return resp[1:], nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
