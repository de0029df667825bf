package shm

import (
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// counters are the connection's; written by its goroutine, read by any.
type counters struct {
	rounds, reads, writes, atomics, readBytes, writeBytes, rpcs, rpcBytes, faults atomic.Uint64
}

// tally adds a completed work request to n: every completion counts as a
// verb, bytes only where they moved.
func tally(n *rdma.Counters, wr *rdma.WR) {
	bytes := uint64(len(wr.Buf)) * mem.WordBytes
	if wr.Status != rdma.StatusOK {
		n.Faults++
		bytes = 0
	}
	switch wr.Op {
	case rdma.OpRead:
		n.Reads++
		n.ReadBytes += bytes
	case rdma.OpWrite:
		n.Writes++
		n.WriteBytes += bytes
	case rdma.OpCAS, rdma.OpFAA:
		n.Atomics++
	}
}

// add has one caller at a time, so that a load and a store suffice; fields
// that do not change are not stored, which is the dear part.
func (c *counters) add(n *rdma.Counters) {
	bump(&c.rounds, n.Rounds)
	bump(&c.reads, n.Reads)
	bump(&c.writes, n.Writes)
	bump(&c.atomics, n.Atomics)
	bump(&c.readBytes, n.ReadBytes)
	bump(&c.writeBytes, n.WriteBytes)
	bump(&c.rpcs, n.RPCs)
	bump(&c.rpcBytes, n.RPCBytes)
	bump(&c.faults, n.Faults)
}

func bump(v *atomic.Uint64, by uint64) {
	if by != 0 {
		v.Store(v.Load() + by)
	}
}

func (c *counters) snapshot() rdma.Counters {
	return rdma.Counters{
		Rounds: c.rounds.Load(), Reads: c.reads.Load(), Writes: c.writes.Load(), Atomics: c.atomics.Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		RPCs: c.rpcs.Load(), RPCBytes: c.rpcBytes.Load(), Faults: c.faults.Load(),
	}
}

func (c *conn) Counters() rdma.Counters { return c.ctr.snapshot() }
