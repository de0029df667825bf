package server

import (
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
)

// A decision of two-phase commit cannot be refused when its record does not fit into
// the log. So a server sets room aside before it votes, and refuses a transaction for
// which there is none. For shares that recovery has restored, and for parties that are
// gone, no room was set aside: their records are debts until there is room.

// aside is the room that is set aside in the log for the records of a share, or
// of a coordinator without one. The executor guards it.
type aside struct{ prepared, decided wal.LSN }

// take returns the room for a record, and removes it from a. It is 0 if none was set
// aside.
func (a *aside) take(kind twophase.RecordKind) (room wal.LSN) {
	if a == nil {
		return 0
	}
	if kind == twophase.Prepared {
		room, a.prepared = a.prepared, 0
		return room
	}
	room = a.prepared + a.decided
	*a = aside{}
	return room
}

// Bounds of what records of the commit protocol take beside rows, keys and
// results.
const (
	stepBytesMax  = 160
	partyBytesMax = 24
	writeBytesMax = 40
)

// setAside sets room aside for a transaction with that many parties and a result of
// that many bytes for its session, and for the writes of a share.
func (d *durable) setAside(a *aside, parties, result int, writes []wire.Write) verdict {
	small := stepBytesMax + parties*partyBytesMax + result
	large := small
	for i := range writes {
		large += writeBytesMax + len(writes[i].Key.Str) + len(writes[i].Row)
	}
	var err error
	if a.prepared, err = d.log.SetAside(large); err != nil {
		return logVerdict(err)
	}
	if a.decided, err = d.log.SetAside(small); err != nil {
		d.log.GiveUp(a.take(twophase.Decided))
		return logVerdict(err)
	}
	return verdict{}
}

// setAside sets room aside for the shares of a transaction that are locked. If there is
// none, or a partition cannot pay its debts, it releases the shares.
func (b *batch) setAside(held []*prepared, id twophase.ID) (v verdict) {
	d := b.driver.durable
	if d == nil {
		return verdict{}
	}
	for _, t := range held {
		p := t.p
		p.protocol.mu.Lock()
		parties, result := p.protocol.machine.Members(id), len(p.protocol.origins[id].result)
		p.protocol.mu.Unlock()
		p.mu.Lock()
		if err := d.payDebts(p); err != nil {
			v = heavier(v, logVerdict(err))
		}
		p.mu.Unlock()
		if v.ok() {
			v = d.setAside(&t.aside, parties, result, t.writes)
		}
	}
	if !v.ok() {
		for _, t := range held {
			t.decide(false, 0)
		}
	}
	return v
}

// debt is a record for which the log had no room.
type debt struct {
	record  []byte
	commit  bool        // the horizon waits for it
	waiters []chan bool // coordinators to notify of the commit when the log has it
}

// payAll pays the debts of partitions.
func (d *durable) payAll(at []*partition) error {
	for _, p := range at {
		if err := d.payDebts(p); err != nil {
			return err
		}
	}
	return nil
}

// payDebts appends the records for which the log had no room, the oldest first, until
// one does not fit. The caller holds p.mu.
func (d *durable) payDebts(p *partition) error {
	for len(p.debts) > 0 {
		first := &p.debts[0]
		lsn, err := d.log.AppendWait(first.record)
		if err != nil {
			return err
		}
		p.logged = lsn
		if first.commit {
			p.horizon.paid(lsn)
			d.kick() // it may be durable already
		}
		for _, c := range first.waiters {
			c <- true
		}
		p.debts = p.debts[1:]
	}
	return nil
}

// tell notifies a waiting coordinator here of a decision. It notifies of a commit when
// the log has the partition's debts, and closes the channel if it never will.
func (p *partition) tell(c chan bool, commit bool) {
	d := p.durable
	if !commit || d == nil {
		c <- commit
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch n := len(p.debts); {
	case n == 0:
		c <- true
	case d.failed.Load():
		close(c)
	default:
		p.debts[n-1].waiters = append(p.debts[n-1].waiters, c)
	}
}

// defaultOnDebts closes the channels of coordinators that wait for debts: the log has
// failed.
func (d *durable) defaultOnDebts() {
	for _, p := range d.s.parts.here {
		p.mu.Lock()
		for i := range p.debts {
			for _, c := range p.debts[i].waiters {
				close(c)
			}
			p.debts[i].waiters = nil
		}
		p.mu.Unlock()
	}
}

// oblige appends a record that cannot be refused any more. It returns the end of the
// record, or unloggedLSN if the record has become a debt. The caller holds p.mu.
func (p *partition) oblige(r *redo.Record, room wal.LSN) wal.LSN {
	lsn, v := p.durable.note(r, room, p)
	if !v.ok() {
		p.debts = append(p.debts, debt{record: append([]byte(nil), p.encoded...), commit: r.Kind == redo.Decided && len(r.Parts) > 0})
		lsn = unloggedLSN
	}
	return lsn
}
