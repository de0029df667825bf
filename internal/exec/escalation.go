package exec

import (
	"errors"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
)

// invalidatedMax is how many attempts of a View writers may invalidate before it goes
// on as a Snapshot. It does so earlier if these attempts together took as long as a
// Snapshot waits: if a long attempt was invalidated, the next one probably is, too.
const invalidatedMax = 32

// A View that may go on as a Snapshot checks its reads when it is one tick old, or
// earlier if one long attempt in vain is enough, and each time that its age has grown by
// this factor. So it does not read a million rows when writers have already invalidated
// the first thousand.
const recheckGrowth = 8

// escalation decides when a View that writers invalidate goes on as a Snapshot.
type escalation struct {
	possible bool
	wider    bool          // the previous attempt was a Snapshot that needs the time of more partitions
	n        int           // attempts invalidated since the last Snapshot
	lost     time.Duration // time of these attempts, and of long ones that met a lock
	long     bool          // one of these attempts took longAttempt
	again    bool          // long attempts are repeated, whatever other Views have learned
}

// recheck returns at what age an attempt that has begun checks its reads, or 0.
func (e *escalation) recheck(t *Txn) time.Duration {
	switch {
	case !e.possible || t.mode != view:
		return 0
	case !e.again && t.s.db.hopeless.views.Load() > 0:
		return longAttempt
	}
	return clock.TickLength
}

// next returns the mode of the next attempt.
func (e *escalation) next(s *Session, m mode) mode {
	if e.wider {
		e.wider = false
		return snapshot
	}
	if !e.due(&s.db.hopeless) {
		return m
	}
	s.snap.stale = 0
	s.stats.Overtaken++
	return snapshot
}

// due reports whether the View goes on as a Snapshot.
func (e *escalation) due(h *hopeless) bool {
	switch {
	case e.n >= invalidatedMax || e.lost >= clock.TickLength:
		if e.long {
			h.learn()
		}
	case e.long && !e.again && h.use():
	default:
		e.again = e.long
		return false
	}
	e.n, e.lost, e.long = 0, 0, false
	return true
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
	if !e.possible {
		return
	}
	if t.err == nil && t.mode == view && e.long {
		t.s.db.hopeless.forget()
	}
	if t.mode == snapshot && (errors.Is(t.err, ErrSnapshotTooOld) || errors.Is(t.err, ErrUnavailable)) && t.ctx.Err() == nil {
		t.err, t.cause = errAbandoned, CauseRow
	}
	if t.err != errAbandoned {
		return
	}
	if t.noVersions {
		e.possible = false // it has read a table that no Snapshot can read
		return
	}
	switch t.cause {
	case CauseRow, CauseGap:
		age := t.reading.Began.Age()
		e.n++
		e.lost += age
		e.long = e.long || t.mode == view && age >= longAttempt
	case CauseLocked:
		if age := t.reading.Began.Age(); age >= clock.TickLength/16 {
			e.lost += age
		}
	}
}

// longAttempt is how long an attempt of a View takes at least for which it matters
// whether it is repeated in vain.
const longAttempt = clock.TickLength / 8

// hopeless counts the next Views of the DB that do not repeat a long attempt that writers
// have invalidated: they go on as Snapshots at once. The DB learns it from a View that
// lost a tick to writers, with a long attempt among its attempts, and forgets it when a
// repeated one has succeeded. The count falls with each such View, so that later one
// repeats its attempts and finds out whether it still is in vain. It may be used
// concurrently.
type hopeless struct{ views atomic.Int32 }

// hopelessViews is how many Views use what one has learned. To find out costs each
// seventeenth View about a tick at most.
const hopelessViews = 16

func (h *hopeless) learn()  { h.views.Store(hopelessViews) }
func (h *hopeless) forget() { h.views.Store(0) }

// use reports whether it does not pay, for one View.
func (h *hopeless) use() bool {
	for {
		n := h.views.Load()
		if n <= 0 {
			return false
		}
		if h.views.CompareAndSwap(n, n-1) {
			return true
		}
	}
}
