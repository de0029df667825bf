package exec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// ErrSnapshotTooOld reports a snapshot that needed versions which its servers no
// longer keep. The error is a *SnapshotTooOld.
var ErrSnapshotTooOld = errors.New("txn: snapshot too old")

// SnapshotTooOld is the error behind ErrSnapshotTooOld.
type SnapshotTooOld struct {
	Partition   int
	Time        time.Time     // that the snapshot reads, by the cluster's clock
	Age         time.Duration // of the snapshot
	Retain      time.Duration // how long versions are kept; 0 means that none are
	RetainBytes uint64        // in how many bytes of a partition
}

func (e *SnapshotTooOld) Error() string {
	if e.Retain == 0 {
		return fmt.Sprintf("%v: partition %d keeps no versions (--retain 0)", ErrSnapshotTooOld, e.Partition)
	}
	return fmt.Sprintf("%v: it reads %s, %v ago; partition %d keeps versions for %v (--retain) in %d bytes (--retain-bytes), whichever ends first",
		ErrSnapshotTooOld, e.Time.Format("15:04:05.00"), e.Age, e.Partition, e.Retain, e.RetainBytes)
}

// Unwrap matches ErrSnapshotTooOld.
func (e *SnapshotTooOld) Unwrap() error { return ErrSnapshotTooOld }

// Snapshot runs a read-only transaction on all data as of one moment. Writers
// never abort it, and it validates nothing. By default the moment is one after
// the call began, and a Snapshot is strictly serializable as far as the clocks of
// the servers agree: see txn.Session.Snapshot. It waits for about a
// tick until nothing can happen any more that would belong to the moment. With a
// staleness above 0 the moment may be so long before the call, and there is no
// wait.
//
// It fails with ErrSnapshotTooOld if it runs for longer than the servers keep
// versions.
func (s *Session) Snapshot(ctx context.Context, staleness time.Duration, fn Body) error {
	s.snap.stale = max(staleness, 0)
	return s.run(ctx, snapshot, math.MaxInt, fn, nil)
}

// Snapshot runs a read-only transaction on all data as of one moment. See
// Session.Snapshot.
func (db *DB) Snapshot(ctx context.Context, staleness time.Duration, fn Body) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	return s.Snapshot(ctx, staleness, fn)
}

// overtakenMax is how many invalidated attempts of a View may come before it
// goes on as a Snapshot. It does so earlier if the attempts that writers ended
// took as long, together, as a Snapshot waits: a long one is hardly ever the
// last.
const overtakenMax = 32

// overtaking decides when a View that writers invalidate goes on as a Snapshot.
type overtaking struct {
	possible bool
	wider    bool          // the attempt before was a Snapshot that needs the time of more partitions
	n        int           // attempts invalidated since the last Snapshot
	lost     time.Duration // in these attempts, and in long ones that met a lock
}

// A View that may go on as a Snapshot checks its reads when it is one tick old,
// and each time that its age has grown by this factor: then it does not read a
// million rows, when writers have invalidated the first thousand already.
const recheckGrowth = 8

// next returns the mode of the next attempt.
func (o *overtaking) next(s *Session, m mode) mode {
	if o.wider {
		o.wider = false
		return snapshot
	}
	if o.n < overtakenMax && o.lost < clock.TickLength {
		return m
	}
	o.n, o.lost = 0, 0
	s.snap.stale = 0
	s.stats.Overtaken++
	return snapshot
}

// ended looks at how an attempt of a View ended. A Snapshot that came to nothing
// because versions are gone, or because a partition did not close its tick, counts
// as another attempt invalidated. An attempt that met a lock at once counts for
// nothing: a Snapshot waits for a transaction in doubt as a View does.
func (o *overtaking) ended(t *Txn) {
	if t.mode == snapshot && t.s.snap.wider {
		o.wider, t.s.snap.wider = true, false
		return
	}
	if !o.possible || t.err == nil {
		return
	}
	if t.mode == snapshot && (errors.Is(t.err, ErrSnapshotTooOld) || errors.Is(t.err, ErrUnavailable)) && t.ctx.Err() == nil {
		t.err, t.cause = errAbandoned, CauseRow
	}
	if t.err != errAbandoned {
		return
	}
	switch t.cause {
	case CauseRow, CauseGap:
		o.n++
		o.lost += t.began.Age()
	case CauseLocked:
		if age := t.began.Age(); age >= clock.TickLength/16 {
			o.lost += age
		}
	}
}

// Words of a partition's control line.
const (
	lineEpoch       = 0
	lineHorizon     = horizonWord
	lineClosed      = 2
	lineTick        = 3
	lineFloor       = 4
	lineRetain      = 5
	lineRetainBytes = 6
	lineWords       = 8
)

// snapshotState is what a session knows about the time of a snapshot.
type snapshotState struct {
	stale   time.Duration
	lines   [][lineWords]uint64   // control lines by partition, as read last
	touched []placement.Partition // partitions of the reads under way
	list    []placement.Partition // partitions whose lines are read in this round

	partial bool                  // not all servers can be reached: the time is that of asked
	asked   []placement.Partition // partitions that the transaction has touched, so far
	wider   bool                  // the attempt touched one that had not been asked for its time
}

// begin prepares for a transaction.
func (sn *snapshotState) begin() { sn.partial, sn.asked, sn.wider = false, sn.asked[:0], false }

func (sn *snapshotState) closed(p placement.Partition) clock.Tick {
	return clock.Tick(sn.lines[p][lineClosed])
}

func (sn *snapshotState) present(p placement.Partition) clock.Tick {
	return clock.Tick(sn.lines[p][lineTick])
}

func (sn *snapshotState) floor(p placement.Partition) clock.Tick {
	return clock.Tick(sn.lines[p][lineFloor])
}

// askingMax bounds how long a snapshot waits for the ticks of all partitions. It
// need not have those of partitions that it does not touch.
const askingMax = 10 * clock.TickLength

// notYet is the time of a snapshot that takes its time with its first reads.
const notYet clock.Tick = 1

// takeTime chooses the time of a snapshot, in one round: the highest present
// tick of all partitions. A transaction that ended before has no higher one:
// its tick was adopted by at least one partition, though perhaps not yet by the
// others that it wrote. If a server cannot be reached, the partitions that the
// transaction touches are asked instead, by takeTimeOfAsked.
func (s *Session) takeTime(t *Txn) error {
	sn := &s.snap
	if !sn.partial {
		sn.list = sn.list[:0]
		for p := range placement.Partition(s.db.Partitions()) {
			sn.list = append(sn.list, p)
		}
		err := s.askAll(t)
		if err == nil {
			t.at = sn.timeOf(t, sn.list)
			s.db.seen.Saw(t.at)
			return nil
		}
		if t.ctx.Err() != nil || t.err != nil && t.cause != CauseFence || t.err == nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		t.err, sn.partial = nil, true
	}
	if t.at = notYet; len(sn.asked) > 0 {
		return s.takeTimeOfAsked(t)
	}
	return nil
}

// askAll reads the lines of all partitions, unless that takes long. A paused server
// that was replaced has an old time, so all servers must be trusted.
func (s *Session) askAll(t *Txn) error {
	for server := range placement.Server(len(s.db.servers)) {
		if d := s.dial(server); d != nil && len(d.result) == 0 {
			return ErrUnavailable // another transaction waits for it in vain
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, askingMax)
	defer cancel()
	if err := s.readLines(ctx, t); err != nil {
		return err
	}
	return s.trustTimes(ctx)
}

// takeTimeOfAsked takes the time of a snapshot from the partitions that it
// touches alone. A transaction that was decided before, and writes in one of
// them, had voted there. So its tick has been adopted there when all that had
// voted by then are decided: the partition has closed the tick that was present
// then. The partitions first move to their own clocks, which a request makes them
// do: so the snapshot is no older than what ended elsewhere, if clocks agree.
func (s *Session) takeTimeOfAsked(t *Txn) error {
	sn := &s.snap
	read := func() error {
		sn.list = append(sn.list[:0], sn.asked...)
		if err := s.readLines(t.ctx, t); err != nil {
			return err
		}
		t.at = sn.timeOf(t, sn.asked)
		return nil
	}
	for _, p := range sn.asked {
		if err := s.adopt(t.ctx, p, s.db.seen.Tick()); err != nil {
			return err
		}
	}
	err := read()
	if err == nil && sn.stale == 0 {
		if err = s.awaitClosed(t, sn.asked); err == nil {
			err = read()
		}
	}
	s.db.seen.Saw(t.at)
	return err
}

// timeOf returns the time of a snapshot by the lines of partitions.
func (sn *snapshotState) timeOf(t *Txn, parts []placement.Partition) clock.Tick {
	present, closed, floor := clock.Tick(0), block.NoFloor, clock.Tick(0)
	for _, p := range parts {
		present, closed, floor = max(present, sn.present(p)), min(closed, sn.closed(p)), max(floor, sn.floor(p))
	}
	if sn.stale == 0 {
		return present
	}
	back := min(clock.Tick(sn.stale/clock.TickLength), present-1)
	// A partition that has just been loaded has no past, nor has a new index.
	return min(max(closed, present-back, floor, clock.Tick(t.catalog.Born())), present)
}

// cover adds the partitions touched to those that a partial snapshot has asked.
// If reads before had the time without them, the attempt begins again: a
// transaction that ended before may have a later tick there.
func (s *Session) cover(t *Txn) error {
	sn, had := &s.snap, len(s.snap.asked)
	for _, p := range sn.touched {
		if !slices.Contains(sn.asked, p) {
			sn.asked = append(sn.asked, p)
		}
	}
	switch {
	case len(sn.asked) == had:
		return nil
	case t.at != notYet:
		sn.wider = true
		return t.abandon(CauseRemote)
	}
	return s.takeTimeOfAsked(t)
}

// readLines reads the control lines of the listed partitions, in one round.
func (s *Session) readLines(ctx context.Context, t *Txn) error {
	defer s.untouchAll()
	if s.snap.lines == nil {
		s.snap.lines = make([][lineWords]uint64, s.db.Partitions())
	}
	for _, p := range s.snap.list {
		l, err := s.join(ctx, s.db.placement.At(p))
		if err != nil {
			return err
		}
		l.next.Read(s.life(p).parts[p].rkey, block.ControlAddr, s.snap.lines[p][:])
	}
	if err := s.exchange(ctx); err != nil {
		s.snap.lines = nil // a connection that owes answers may still write to them
		return err
	}
	for _, p := range s.snap.list {
		if s.snap.lines[p][lineEpoch] != uint64(s.life(p).epoch) {
			return t.abandon(CauseFence)
		}
	}
	return nil
}

// enter prepares a flush of a snapshot: it waits until the partitions that the
// flush touches have closed its tick.
func (s *Session) enter(t *Txn) error {
	sn := &s.snap
	sn.touched = sn.touched[:0]
	add := func(p placement.Partition) {
		for _, have := range sn.touched {
			if have == p {
				return
			}
		}
		sn.touched = append(sn.touched, p)
	}
	for r := range t.queued {
		if !r.hasAnswer() {
			add(r.part())
		}
	}
	if sn.partial {
		if err := s.cover(t); err != nil {
			return err
		}
	}
	if err := s.awaitClosed(t, sn.touched); err != nil {
		return err
	}
	t.began = clock.Start() // of these reads: earlier ones need no proof
	return nil
}

// Polls of a partition whose tick is not yet closed, and of a server that cannot
// answer a read yet. A partition that has not closed the tick after adoptEvery
// polls, more than two ticks, may have it from another partition, whose clock is
// ahead of its own. Before that the tick after the snapshot's may lie ahead of
// every clock, so that commits at it would be out of their order.
const (
	closedPoll = time.Millisecond
	adoptEvery = 20
)

// awaitClosed waits until partitions, whose lines were read before, have closed
// the snapshot's tick: nothing of that tick, or an earlier one, will be applied
// any more.
func (s *Session) awaitClosed(t *Txn, parts []placement.Partition) error {
	sn := &s.snap
	var patience time.Duration
	for n := 0; ; n++ {
		sn.list = sn.list[:0]
		for _, p := range parts {
			if sn.closed(p) < t.at {
				sn.list = append(sn.list, p)
			}
		}
		if len(sn.list) == 0 {
			return nil
		}
		if n > 0 {
			if err := s.pause(t.ctx, closedPoll, &patience); err != nil {
				return fmt.Errorf("snapshot: partition %d has not closed its time: %w", sn.list[0], err)
			}
		}
		if err := s.readLines(t.ctx, t); err != nil {
			return err
		}
		for _, p := range sn.list {
			var to clock.Tick
			switch {
			case n == 0 && sn.present(p)+1 < t.at:
				to = t.at
			case n%adoptEvery == adoptEvery-1 && sn.closed(p) < t.at:
				to = t.at + 1
			default:
				continue
			}
			if err := s.adopt(t.ctx, p, to); err != nil {
				return err
			}
		}
	}
}

// pause waits for d. Without a deadline of ctx it ends with ErrUnavailable after
// Retry.Patience, counted from the first call.
func (s *Session) pause(ctx context.Context, d time.Duration, patience *time.Duration) error {
	if _, bounded := ctx.Deadline(); !bounded {
		switch now := clock.Fast(); {
		case *patience == 0:
			*patience = now + s.db.cfg.Retry.Patience
		case now > *patience:
			return fmt.Errorf("%w for %v (Retry.Patience)", ErrUnavailable, s.db.cfg.Retry.Patience)
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// adopt moves the clock of a partition up to the tick.
func (s *Session) adopt(ctx context.Context, part placement.Partition, at clock.Tick) error {
	l, err := s.link(ctx, s.db.placement.At(part))
	if err != nil {
		return err
	}
	s.req = wire.AppendAdopt(s.req[:0], part, at)
	resp, err := s.call(ctx, l, s.req)
	if err == nil && wire.Code(resp[0]) != wire.OK {
		err = codeError(wire.Code(resp[0]), resp[1:])
	}
	return err
}

// leave ends the one-sided reads of a flush, by one more round. The answers
// count if the lines, read after them, show partitions that are served and still
// had the versions.
func (s *Session) leave(t *Txn) error {
	sn := &s.snap
	sn.list = append(sn.list[:0], sn.touched...)
	if err := s.readLines(t.ctx, t); err != nil {
		return err
	}
	for _, p := range sn.touched {
		if err := s.retained(t, p); err != nil {
			return err
		}
		s.restOnTime(t, p)
	}
	return t.checkAge(t.began.Age())
}

// retained returns an error if a partition, by its line, has given up versions
// that the snapshot may need.
func (s *Session) retained(t *Txn, p placement.Partition) error {
	sn := &s.snap
	if sn.floor(p) <= t.at {
		return nil
	}
	return &SnapshotTooOld{
		Partition: int(p), Time: t.at.Time(), Age: time.Duration(max(sn.present(p), t.at)-t.at) * clock.TickLength,
		Retain: time.Duration(sn.lines[p][lineRetain]) * clock.TickLength, RetainBytes: sn.lines[p][lineRetainBytes],
	}
}

// mustAsk reports whether a read ended without an answer, so that the server
// is asked. In a snapshot a lock is no answer: it does not change the past.
func (t *Txn) mustAsk(st index.Status) bool {
	return st == index.Fallback || t.at != 0 && (st == index.Gone || st == index.Locked)
}

// reopen opens the reads again that a server could not answer as of the
// snapshot's time. It fails if the time is too old. It reports whether there are
// such reads, after a pause.
func (s *Session) reopen(t *Txn, patience *time.Duration) (again bool, err error) {
	sn := &s.snap
	sn.list = sn.list[:0]
	for r := range t.queued {
		if r.reopen(t) {
			sn.list = append(sn.list, r.part())
		}
	}
	if len(sn.list) == 0 {
		return false, nil
	}
	if err := s.readLines(t.ctx, t); err != nil {
		return false, err
	}
	for _, p := range sn.list {
		if err := s.retained(t, p); err != nil {
			return false, err
		}
	}
	return true, s.pause(t.ctx, closedPoll, patience)
}
