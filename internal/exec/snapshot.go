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
	Table       string // set if an index of the table keeps no versions at all
	MadeBy      string // what that index is: see tables.Index.MadeBy
	Partition   int
	Time        time.Time     // as of which the snapshot reads, by the cluster's clock
	Age         time.Duration // of the snapshot
	Retain      time.Duration // how long versions are kept; 0 means that none are
	RetainBytes uint64        // bound on the bytes of versions in a partition
}

func (e *SnapshotTooOld) Error() string {
	if e.Table != "" {
		return fmt.Sprintf("%v: table %s of %s keeps no versions", ErrSnapshotTooOld, e.Table, e.MadeBy)
	}
	if e.Retain == 0 {
		return fmt.Sprintf("%v: partition %d keeps no versions (--retain 0)", ErrSnapshotTooOld, e.Partition)
	}
	return fmt.Sprintf("%v: it reads %s, %v ago; partition %d keeps versions for %v (--retain) in %d bytes (--retain-bytes), whichever ends first",
		ErrSnapshotTooOld, e.Time.Format("15:04:05.00"), e.Age, e.Partition, e.Retain, e.RetainBytes)
}

// Unwrap matches ErrSnapshotTooOld.
func (e *SnapshotTooOld) Unwrap() error { return ErrSnapshotTooOld }

// Snapshot runs a read-only transaction on all data as of one moment: see
// txn.Session.Snapshot. With a staleness above 0 the moment may be up to that long
// before the call, and there is no wait.
func (s *Session) Snapshot(ctx context.Context, staleness time.Duration, fn Body) error {
	if s.nested() {
		return errNested // the transaction in progress may be a Snapshot
	}
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

// Words of a partition's control line.
const (
	lineEpoch       = 0
	lineHorizon     = horizonWord
	lineClosed      = 2
	lineTick        = 3
	lineFloor       = 4
	lineRetain      = 5
	lineRetainBytes = 6
	lineUntil       = 7
	lineWords       = 8
)

type controlLine [lineWords]uint64

func (cl *controlLine) closed() clock.Tick  { return clock.Tick(cl[lineClosed]) }
func (cl *controlLine) present() clock.Tick { return clock.Tick(cl[lineTick]) }
func (cl *controlLine) floor() clock.Tick   { return clock.Tick(cl[lineFloor]) }
func (cl *controlLine) horizon() block.CSN  { return block.CSN(cl[lineHorizon]) }

// keeps reports whether the partition, if it retains versions at all, will have those
// that a snapshot of its present tick needs, until the retention ends.
func (cl *controlLine) keeps() bool {
	return cl[lineRetain] == 0 || cl[lineUntil] >= cl[lineTick]+cl[lineRetain]
}

// controlLines are the control lines of partitions, as read last, and empty if that was
// in another life of their server.
type controlLines struct {
	round *round
	of    []controlLine // by partition; nil before the first READ
}

// drop forgets the lines of a server, which is in another life.
func (cl *controlLines) drop(server placement.Server) {
	if len(cl.of) > 0 {
		for p := range cl.round.net.db.placement.Of(server) {
			cl.of[p] = controlLine{}
		}
	}
}

// read reads the control lines of partitions, in one round.
func (cl *controlLines) read(ctx context.Context, t *Txn, parts []placement.Partition) error {
	defer cl.round.end()
	n := cl.round.net
	if cl.of == nil {
		cl.of = make([]controlLine, n.db.Partitions())
	}
	for _, p := range parts {
		l, err := cl.round.join(ctx, n.db.placement.At(p))
		if err != nil {
			return err
		}
		l.next.Read(n.life(p).parts[p].rkey, block.ControlAddr, cl.of[p][:])
	}
	if err := cl.round.exchange(ctx); err != nil {
		cl.of = nil // a connection with pending answers may still write to them
		return err
	}
	for _, p := range parts {
		if cause, ok := t.allowed(cl.of[p][lineEpoch], n.life(p).epoch); !ok {
			return t.abandon(cause)
		}
	}
	return nil
}

// snapshotTime chooses the time of a snapshot, and waits until the partitions that the
// snapshot reads apply no more commits up to that time.
type snapshotTime struct {
	db        *DB
	net       *network
	lines     *controlLines
	leases    *leases
	validator *validator
	stale     time.Duration
	touched   []placement.Partition // partitions of the reads under way
	list      []placement.Partition // partitions whose lines are read in this round

	partial bool                  // not all servers can be reached: the time is that of asked
	asked   []placement.Partition // partitions that the transaction has touched, so far
	wider   bool                  // the attempt touched a partition that had not been asked for its time, or is in unkept
	unkept  []placement.Partition // partitions that may keep no versions for the snapshot
}

// begin resets the state for a transaction.
func (sn *snapshotTime) begin() { sn.partial, sn.asked, sn.wider = false, sn.asked[:0], false }

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
func (sn *snapshotTime) takeTime(t *Txn) error {
	if !sn.partial {
		sn.list = sn.list[:0]
		for p := range placement.Partition(sn.db.Partitions()) {
			sn.list = append(sn.list, p)
		}
		err := sn.askAll(t)
		if err == nil {
			t.at = sn.timeOf(t, sn.list)
			sn.db.seen.Saw(t.at)
			return nil
		}
		if t.ctx.Err() != nil || t.err != nil && t.cause != CauseFence || t.err == nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		t.err, sn.partial, sn.unkept = nil, true, sn.unkept[:0]
	}
	if t.at = notYet; len(sn.asked) > 0 {
		return sn.takeTimeOfAsked(t)
	}
	return nil
}

// askAll reads the control lines of all partitions, and asks those for versions that
// keep none, or soon will not. It fails if that takes longer than askingMax. A paused
// server that was replaced has an old time, so all servers must be trusted.
func (sn *snapshotTime) askAll(t *Txn) error {
	for server := range placement.Server(len(sn.db.servers)) {
		if d := sn.net.dial(server); d != nil && len(d.result) == 0 {
			return ErrUnavailable // another transaction is already waiting for it in vain
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, askingMax)
	defer cancel()
	if err := sn.lines.read(ctx, t, sn.list); err != nil {
		return err
	}
	asked, err := sn.expectAll(ctx, t)
	if err != nil {
		return err
	}
	ctx, cancelRest := context.WithTimeout(t.ctx, askingMax)
	defer cancelRest()
	if asked { // the time must be one from which on they keep versions
		if err := sn.lines.read(ctx, t, sn.list); err != nil {
			return err
		}
	}
	return sn.leases.trustTimes(ctx)
}

// takeTimeOfAsked takes the time of a snapshot only from the partitions that it
// touches. If a transaction that was decided before writes in one of them, that
// partition had voted on it. The partition has adopted its tick once all transactions
// on which it had voted by then are decided, that is, once it has closed the tick
// that was present then. A request first makes the partitions advance to their
// clocks. So the snapshot is no older than transactions that ended at other
// partitions, if the clocks agree.
func (sn *snapshotTime) takeTimeOfAsked(t *Txn) error {
	read := func() error {
		if err := sn.lines.read(t.ctx, t, sn.asked); err != nil {
			return err
		}
		t.at = sn.timeOf(t, sn.asked)
		return nil
	}
	for _, p := range sn.asked {
		if err := sn.adopt(t.ctx, p, sn.db.seen.Tick()); err != nil {
			return err
		}
	}
	err := read()
	if err == nil && sn.stale == 0 {
		if err = sn.awaitClosed(t, sn.asked); err == nil {
			err = read()
		}
	}
	sn.db.seen.Saw(t.at)
	return err
}

// timeOf computes the time of a snapshot from the control lines of partitions.
func (sn *snapshotTime) timeOf(t *Txn, parts []placement.Partition) clock.Tick {
	present, closed, floor := clock.Tick(0), block.NoFloor, clock.Tick(0)
	for _, p := range parts {
		present, closed, floor = max(present, sn.lines.of[p].present()), min(closed, sn.lines.of[p].closed()), max(floor, sn.lines.of[p].floor())
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
func (sn *snapshotTime) cover(t *Txn) error {
	had := len(sn.asked)
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
	return sn.takeTimeOfAsked(t)
}

// enter prepares a flush of a snapshot: it waits until the partitions that the
// flush touches have closed its tick.
func (sn *snapshotTime) enter(t *Txn) error {
	sn.touched = sn.touched[:0]
	for r := range t.reads.queued {
		if p := r.part(); !r.hasAnswer() && !slices.Contains(sn.touched, p) {
			sn.touched = append(sn.touched, p)
		}
	}
	if sn.partial {
		if err := sn.cover(t); err != nil {
			return err
		}
	} else if err := sn.expectTouched(t); err != nil {
		return err
	}
	if err := sn.awaitClosed(t, sn.touched); err != nil {
		return err
	}
	t.reading.Began = clock.Start() // only these reads count: earlier ones need no proof
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
func (sn *snapshotTime) awaitClosed(t *Txn, parts []placement.Partition) error {
	var patience time.Duration
	for n := 0; ; n++ {
		sn.list = sn.list[:0]
		for _, p := range parts {
			if sn.lines.of[p].closed() < t.at {
				sn.list = append(sn.list, p)
			}
		}
		if len(sn.list) == 0 {
			return nil
		}
		if n > 0 {
			if err := sn.db.cfg.Retry.pause(t.ctx, closedPoll, &patience); err != nil {
				return fmt.Errorf("snapshot: partition %d has not closed its time: %w", sn.list[0], err)
			}
		}
		if err := sn.lines.read(t.ctx, t, sn.list); err != nil {
			return err
		}
		for _, p := range sn.list {
			var to clock.Tick
			switch {
			case n == 0 && sn.lines.of[p].present()+1 < t.at:
				to = t.at
			case n%adoptEvery == adoptEvery-1 && sn.lines.of[p].closed() < t.at:
				to = t.at + 1
			default:
				continue
			}
			if err := sn.adopt(t.ctx, p, to); err != nil {
				return err
			}
		}
	}
}

// adopt makes a partition advance its clock to the tick, and keep versions from then on
// for about twice as long as it retains them.
func (sn *snapshotTime) adopt(ctx context.Context, part placement.Partition, at clock.Tick) error {
	sn.net.req = wire.AppendAdopt(sn.net.req[:0], part, at)
	_, err := sn.net.request(ctx, sn.db.placement.At(part), sn.net.req)
	return err
}

// leave ends the one-sided reads of a flush with one more round, which reads the
// control lines again. The answers count if the lines show that the partitions are
// still served and still had the versions.
func (sn *snapshotTime) leave(t *Txn) error {
	if err := sn.lines.read(t.ctx, t, sn.touched); err != nil {
		return err
	}
	for _, p := range sn.touched {
		if err := sn.retained(t, p); err != nil {
			return err
		}
		sn.validator.restOnTime(t, p)
	}
	return t.checkAge(t.reading.Began.Age())
}

// retained returns an error if a partition, according to its line, has dropped
// versions that the snapshot may need.
func (sn *snapshotTime) retained(t *Txn, p placement.Partition) error {
	if sn.lines.of[p].floor() <= t.at {
		return nil
	}
	return &SnapshotTooOld{
		Partition: int(p), Time: t.at.Time(), Age: time.Duration(max(sn.lines.of[p].present(), t.at)-t.at) * clock.TickLength,
		Retain: time.Duration(sn.lines.of[p][lineRetain]) * clock.TickLength, RetainBytes: sn.lines.of[p][lineRetainBytes],
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
func (sn *snapshotTime) reopen(t *Txn, patience *time.Duration) (again bool, err error) {
	sn.list = sn.list[:0]
	for r := range t.reads.queued {
		if r.reopen(t) {
			sn.list = append(sn.list, r.part())
		}
	}
	if len(sn.list) == 0 {
		return false, nil
	}
	if err := sn.lines.read(t.ctx, t, sn.list); err != nil {
		return false, err
	}
	for _, p := range sn.list {
		if err := sn.retained(t, p); err != nil {
			return false, err
		}
	}
	return true, sn.db.cfg.Retry.pause(t.ctx, closedPoll, patience)
}
