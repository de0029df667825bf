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

// ErrSnapshotTooOld reports a snapshot that needed versions which a server no longer
// keeps. The error is a *SnapshotTooOld.
var ErrSnapshotTooOld = errors.New("txn: snapshot too old")

// SnapshotTooOld is the error behind ErrSnapshotTooOld.
type SnapshotTooOld struct {
	Partition   int
	Time        time.Time     // as of which the snapshot reads, by the cluster's clock
	Age         time.Duration // of the snapshot
	Retain      time.Duration // how long versions are kept; 0 means that none are
	RetainBytes uint64        // bound on the bytes of versions in a partition
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

// Snapshot runs a read-only transaction on all data as of one moment. Writers never
// abort it, and it validates nothing. By default the moment is after the call began,
// and a Snapshot is strictly serializable as far as the clocks of the servers agree:
// see txn.Session.Snapshot. It waits for about a tick, until no more commits can
// belong to the moment. With a staleness above 0 the moment may be up to that long
// before the call, and there is no wait.
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

// invalidatedMax is how many attempts of a View writers may invalidate before it goes
// on as a Snapshot. It does so earlier if these attempts together took as long as a
// Snapshot waits: if a long attempt was invalidated, the next one probably is, too.
const invalidatedMax = 32

// escalation decides when a View that writers invalidate goes on as a Snapshot.
type escalation struct {
	possible bool
	wider    bool          // the previous attempt was a Snapshot that needs the time of more partitions
	n        int           // attempts invalidated since the last Snapshot
	lost     time.Duration // time of these attempts, and of long ones that met a lock
}

// A View that may go on as a Snapshot checks its reads when it is one tick old, and
// each time that its age has grown by this factor. So it does not read a million rows
// when writers have already invalidated the first thousand.
const recheckGrowth = 8

// next returns the mode of the next attempt.
func (e *escalation) next(s *Session, m mode) mode {
	if e.wider {
		e.wider = false
		return snapshot
	}
	if e.n < invalidatedMax && e.lost < clock.TickLength {
		return m
	}
	e.n, e.lost = 0, 0
	s.snap.stale = 0
	s.stats.Overtaken++
	return snapshot
}

// ended records how an attempt of a View ended. A Snapshot that failed because
// versions are gone, or because a partition did not close its tick, counts as another
// invalidated attempt. A short attempt that met a lock does not count: a Snapshot
// waits for a transaction in doubt just as a View does.
func (e *escalation) ended(t *Txn) {
	if t.mode == snapshot && t.s.snap.wider {
		e.wider, t.s.snap.wider = true, false
		return
	}
	if !e.possible || t.err == nil {
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
		e.n++
		e.lost += t.began.Age()
	case CauseLocked:
		if age := t.began.Age(); age >= clock.TickLength/16 {
			e.lost += age
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

// snapshotState is a session's knowledge about the time of a snapshot.
type snapshotState struct {
	stale   time.Duration
	lines   [][lineWords]uint64   // control lines by partition, as read last
	touched []placement.Partition // partitions of the reads under way
	list    []placement.Partition // partitions whose lines are read in this round

	partial bool                  // not all servers can be reached: the time is that of asked
	asked   []placement.Partition // partitions that the transaction has touched, so far
	wider   bool                  // the attempt touched a partition that had not been asked for its time
}

// begin resets the state for a transaction.
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

// askingMax bounds how long a snapshot waits for the ticks of all partitions. It can
// do without those of partitions that it does not touch.
const askingMax = 10 * clock.TickLength

// notYet is the time of a snapshot that chooses its time at its first reads.
const notYet clock.Tick = 1

// takeTime chooses the time of a snapshot, in one round: the highest present tick of
// all partitions. A transaction that ended before has no higher tick: at least one
// partition has adopted its tick, though perhaps not yet the others that it wrote. If
// a server cannot be reached, takeTimeOfAsked asks only the partitions that the
// transaction touches.
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

// askAll reads the control lines of all partitions. It fails if that takes longer
// than askingMax. A paused server that was replaced has an old time, so all servers
// must be trusted.
func (s *Session) askAll(t *Txn) error {
	for server := range placement.Server(len(s.db.servers)) {
		if d := s.dial(server); d != nil && len(d.result) == 0 {
			return ErrUnavailable // another transaction is already waiting for it in vain
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, askingMax)
	defer cancel()
	if err := s.readLines(ctx, t); err != nil {
		return err
	}
	return s.trustTimes(ctx)
}

// takeTimeOfAsked takes the time of a snapshot only from the partitions that it
// touches. If a transaction that was decided before writes in one of them, that
// partition had voted on it. The partition has adopted its tick once all transactions
// on which it had voted by then are decided, that is, once it has closed the tick
// that was present then. A request first makes the partitions advance to their
// clocks. So the snapshot is no older than transactions that ended at other
// partitions, if the clocks agree.
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

// timeOf computes the time of a snapshot from the control lines of partitions.
func (sn *snapshotState) timeOf(t *Txn, parts []placement.Partition) clock.Tick {
	present, closed, floor := clock.Tick(0), block.NoFloor, clock.Tick(0)
	for _, p := range parts {
		present, closed, floor = max(present, sn.present(p)), min(closed, sn.closed(p)), max(floor, sn.floor(p))
	}
	if sn.stale == 0 {
		return present
	}
	back := min(clock.Tick(sn.stale/clock.TickLength), present-1)
	// A partition that has just been loaded has no earlier versions, nor has a new
	// index.
	return min(max(closed, present-back, floor, clock.Tick(t.catalog.ReadableFrom())), present)
}

// cover adds the touched partitions to those that a partial snapshot has asked. If
// earlier reads used a time chosen without them, the attempt begins again: a
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
		s.snap.lines = nil // a connection with pending answers may still write to them
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
	t.began = clock.Start() // only these reads count: earlier ones need no proof
	return nil
}

// Polls of a partition whose tick is not yet closed, and of a server that cannot
// answer a read yet. If a partition has not closed the tick after adoptEvery polls,
// more than two ticks, the tick may be one of another partition whose clock is ahead.
// Then the session moves the partition's clock: see adopt. Earlier than that, the
// tick after the snapshot's may be ahead of every clock, and commits at it would be
// out of order.
const (
	closedPoll = time.Millisecond
	adoptEvery = 20
)

// awaitClosed waits until partitions, whose lines were read before, have closed the
// snapshot's tick: they will apply no more commits up to that tick.
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

// adopt makes a partition advance its clock to the tick.
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

// leave ends the one-sided reads of a flush with one more round, which reads the
// control lines again. The answers count if the lines show that the partitions are
// still served and still had the versions.
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

// retained returns an error if a partition, according to its line, has dropped
// versions that the snapshot may need.
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

// mustAsk reports whether a read ended without an answer, so that the server must be
// asked. In a snapshot a lock is no answer: it does not concern earlier versions.
func (t *Txn) mustAsk(st index.Status) bool {
	return st == index.Fallback || t.at != 0 && (st == index.Gone || st == index.Locked)
}

// reopen queues again the reads that a server could not answer yet as of the
// snapshot's time. It reports whether there are any, after a pause. It fails if the
// time is too old.
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
