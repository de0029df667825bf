package server

import (
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
		if err := p.records.pay(); err != nil {
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
		if err := p.records.pay(); err != nil {
			return err
		}
	}
	return nil
}

// defaultOnDebts closes the channels of coordinators that wait for debts: the log has
// failed.
func (d *durable) defaultOnDebts() {
	for _, p := range d.s.parts.here {
		p.mu.Lock()
		for i := range p.records.debts {
			for _, c := range p.records.debts[i].waiters {
				close(c)
			}
			p.records.debts[i].waiters = nil
		}
		p.mu.Unlock()
	}
}
