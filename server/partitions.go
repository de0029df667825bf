package server

import (
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/tables"
)

// partitions are the partitions of the cluster, as one server knows them: those that it
// holds, and the servers that hold the others.
type partitions struct {
	self        placement.Server // this one
	incarnation uint64           // of this server
	addrs       []string         // of all servers
	placement   placement.Map
	of          []*partition // by partition; nil if elsewhere
	here        []*partition // ascending
}

// get returns a partition of this server, nil if the partition is elsewhere
// or does not exist.
func (ps *partitions) get(part placement.Partition) *partition {
	if part < 0 || int(part) >= len(ps.of) {
		return nil
	}
	return ps.of[part]
}

// at returns the partition of a party, nil if the party is at another server or is of
// a former incarnation.
func (ps *partitions) at(p twophase.Party) *partition {
	if p.Incarnation != ps.incarnation {
		return nil
	}
	return ps.get(p.Partition)
}

// party returns the party of a partition of this server.
func (ps *partitions) party(p *partition) twophase.Party {
	return twophase.Party{Partition: p.id, Incarnation: ps.incarnation}
}

// isAt reports whether the partition of a party exists, and is at a server.
func (ps *partitions) isAt(p twophase.Party, server placement.Server) bool {
	at, ok := ps.placement.Primary(p.Partition)
	return ok && at == server
}

// known reports whether all partitions named by a message exist.
func (ps *partitions) known(m *twophase.Message) bool {
	exists := func(p twophase.Party) bool {
		_, ok := ps.placement.Primary(p.Partition)
		return ok
	}
	ok := exists(m.ID.Coordinator) || m.Kind == twophase.Settled || m.Kind == twophase.Noted
	for _, p := range m.Parties {
		ok = ok && exists(p)
	}
	return ok && (m.Agent == twophase.Party{} || exists(m.Agent))
}

// restarted is the error of a partition whose memory is gone.
func (ps *partitions) restarted(part placement.Partition) error {
	return &tables.Error{
		Err: exec.ErrUnavailable, Partition: int(part), Server: ps.addrs[ps.placement.At(part)], Cause: exec.ErrRestarted,
	}
}

// records is the number of transactions that the machines have records of.
func (ps *partitions) records() (n int) {
	for _, p := range ps.here {
		p.protocol.mu.Lock()
		n += p.protocol.machine.Records()
		p.protocol.mu.Unlock()
	}
	return n
}

// highestTick returns the highest present tick of the partitions here.
func (ps *partitions) highestTick() (tick clock.Tick) {
	for _, p := range ps.here {
		tick = max(tick, p.ticks.present())
	}
	return tick
}

// fence makes every validation against the partitions here fail.
func (ps *partitions) fence() {
	for _, p := range ps.here {
		p.fence()
	}
}

// closeTicks moves the clocks of all partitions on, so that those without
// commits close ticks too. It does not wait for an executor: a busy one moves
// its clock on with every request. It reports whether the log lacks a record.
func (ps *partitions) closeTicks() (owes bool) {
	for _, p := range ps.here {
		if p.mu.TryLock() {
			p.ticks.advance()
			if len(p.records.debts) > 0 {
				_ = p.records.pay() // or with the next record
				owes = owes || len(p.records.debts) > 0
			}
			p.mu.Unlock()
		}
	}
	return owes
}

func (ps *partitions) settleSteps() {
	for _, p := range ps.here {
		p.protocol.settle()
	}
}
