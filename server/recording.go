package server

import (
	"drtmx/internal/block"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
)

// recording makes the records of a partition of a durable server, and knows which the log
// does not have yet. The horizon has a lock of its own, the executor guards the rest.
type recording struct {
	p       *partition
	horizon horizon
	origin  origin  // of the commit that is being carried out
	logged  wal.LSN // of the last record of this partition
	encoded []byte  // buffer of a record
	debts   []debt  // records for which the log had no room yet
}

// noteStep appends a record of the commit protocol, with the share if it is the first
// record that needs it. If the log has no room, the record becomes a debt: it comes
// before the next one of the partition, and messages that rest on it wait. A nil record
// is none. The caller holds p.mu.
func (rc *recording) noteStep(step *twophase.Record, t *prepared, o origin) (lsn wal.LSN) {
	if step == nil {
		return 0
	}
	r, room := stepRecord(rc.p.id, step, t, o), o.aside
	if t != nil {
		room = &t.aside
	}
	switch {
	case t == nil:
	case step.Kind == twophase.Prepared:
		t.logged = true
		r.Parts[0].Held = t.held
	case step.Kind == twophase.Decided && step.Commit && len(t.writes) > 0:
		r.Parts = []redo.Part{{Partition: rc.p.id, CSN: t.csn}}
		if !t.logged {
			r.Parts[0].Writes, r.Parts[0].Held = t.writes, t.held
		}
	}
	return rc.oblige(&r, room.take(step.Kind))
}

// noteDecided appends the record of a share whose transaction commits, unless its
// share has been logged as one commit, and lowers the horizon. The caller holds
// p.mu.
func (rc *recording) noteDecided(t *prepared) {
	if t.record != nil {
		rc.pend(rc.noteStep(t.record, t, t.origin), t.csn)
	}
}

// noteAgent appends the record of a last agent's commit that writes nothing.
func (rc *recording) noteAgent() verdict {
	o := rc.origin
	if o.step == nil {
		return verdict{}
	}
	o.step.Tick = rc.p.ticks.own.Tick()
	_, v := rc.p.durable.note(&redo.Record{Kind: redo.Decided, Partition: rc.p.id, Step: *o.step}, 0, rc.p)
	return v
}

// oblige appends a record that cannot be refused any more. It returns the end of the
// record, or unloggedLSN if the record has become a debt. The caller holds p.mu.
func (rc *recording) oblige(r *redo.Record, room wal.LSN) wal.LSN {
	lsn, v := rc.p.durable.note(r, room, rc.p)
	if !v.ok() {
		rc.debts = append(rc.debts, debt{record: append([]byte(nil), rc.encoded...), commit: r.Kind == redo.Decided && len(r.Parts) > 0})
		lsn = unloggedLSN
	}
	return lsn
}

// pend lowers the horizon for a commit whose record ends at a position. If the log is
// durable up to there already, the horizons may have been raised before, and must be
// once more.
func (rc *recording) pend(at wal.LSN, csn block.CSN) {
	rc.horizon.lower(rc.p.control, at, csn)
	if at <= rc.p.durable.safe() {
		rc.p.durable.kick()
	}
}

// pay appends the records for which the log had no room, the oldest first, until one
// does not fit. The caller holds p.mu.
func (rc *recording) pay() error {
	d := rc.p.durable
	for len(rc.debts) > 0 {
		first := &rc.debts[0]
		lsn, err := d.log.AppendWait(first.record)
		if err != nil {
			return err
		}
		rc.logged = lsn
		if first.commit {
			rc.horizon.paid(lsn)
			d.kick() // it may be durable already
		}
		for _, c := range first.waiters {
			c <- true
		}
		rc.debts = rc.debts[1:]
	}
	return nil
}

// tell notifies a waiting coordinator here of a decision. It notifies of a commit when
// the log has the partition's debts, and closes the channel if it never will.
func (rc *recording) tell(c chan bool, commit bool) {
	d := rc.p.durable
	if !commit || d == nil {
		c <- commit
		return
	}
	rc.p.mu.Lock()
	defer rc.p.mu.Unlock()
	switch n := len(rc.debts); {
	case n == 0:
		c <- true
	case d.failed.Load():
		close(c)
	default:
		rc.debts[n-1].waiters = append(rc.debts[n-1].waiters, c)
	}
}
