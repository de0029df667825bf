package rdma

import "drtmx/internal/mem"

// Count adds a completed work request: every completion counts as a verb,
// bytes only where they moved. For providers.
func (c *Counters) Count(wr *WR) { c.CountVerb(wr.Op, len(wr.Buf), wr.Status) }

// CountVerb adds a completed verb with a buffer of so many words.
func (c *Counters) CountVerb(op Op, words int, s Status) {
	bytes := uint64(words) * mem.WordBytes
	if s != StatusOK {
		c.Faults++
		bytes = 0
	}
	switch s {
	case StatusAccess:
		c.Denied++
	case StatusPeerDown:
		c.Lost++
	}
	switch op {
	case OpRead:
		c.Reads++
		c.ReadBytes += bytes
	case OpWrite:
		c.Writes++
		c.WriteBytes += bytes
	case OpCAS, OpFAA:
		c.Atomics++
	}
}

// Tally holds the counters of one connection for its provider: added to by
// one goroutine at a time, read by any.
type Tally struct {
	rounds, reads, writes, atomics, readBytes, writeBytes, rpcs, rpcBytes, faults, denied, lost mem.Counter
}

// Add adds the counts of a batch or a call. It has one caller at a time.
func (t *Tally) Add(n *Counters) {
	bump(&t.rounds, n.Rounds)
	bump(&t.reads, n.Reads)
	bump(&t.readBytes, n.ReadBytes)
	if n.Writes|n.Atomics|n.RPCs|n.RPCBytes|n.Faults != 0 { // else there are no bytes of WRITEs and no kinds of faults
		t.addOthers(n)
	}
}

func (t *Tally) addOthers(n *Counters) {
	bump(&t.writes, n.Writes)
	bump(&t.atomics, n.Atomics)
	bump(&t.writeBytes, n.WriteBytes)
	bump(&t.rpcs, n.RPCs)
	bump(&t.rpcBytes, n.RPCBytes)
	bump(&t.faults, n.Faults)
	bump(&t.denied, n.Denied)
	bump(&t.lost, n.Lost)
}

func bump(c *mem.Counter, by uint64) {
	if by != 0 {
		c.Add(by)
	}
}

// Snapshot returns the sum of all additions so far.
func (t *Tally) Snapshot() Counters {
	return Counters{
		Rounds: t.rounds.Load(), Reads: t.reads.Load(), Writes: t.writes.Load(), Atomics: t.atomics.Load(),
		ReadBytes: t.readBytes.Load(), WriteBytes: t.writeBytes.Load(),
		RPCs: t.rpcs.Load(), RPCBytes: t.rpcBytes.Load(), Faults: t.faults.Load(),
		Denied: t.denied.Load(), Lost: t.lost.Load(),
	}
}
