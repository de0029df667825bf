package server

import (
	"context"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// TickEvery is the time between ticks of the commit protocol.
const TickEvery = tickEvery

// ForgetDeadline makes the next request to another server begin a deadline of its
// own: in a test whose timers are simulated, the one that requests share may be of
// an earlier time, since clock.Fast is real.
func (s *Server) ForgetDeadline() {
	s.workers.shared.Lock()
	defer s.workers.shared.Unlock()
	s.workers.shared.ctx = nil
}

// HomeOf is DB.Home for keys that fit their table.
func HomeOf(db *txn.DB, t *tables.Table, key tables.Key) txn.Home {
	h, err := db.Home(t, key)
	if err != nil {
		panic(err)
	}
	return h
}

// SmallLeaves sets the slots of a leaf of an ordered index; 0 means the default.
func (c *Config) SmallLeaves(slots int) { c.slots = slots }

// SmallMemory bounds the memory of a partition below what is the default unit of its
// growth.
func (c *Config) SmallMemory(bytes uint64) { c.MemoryBytes, c.segment = bytes, 128<<10 }

// LimitTables bounds the tables of the commit protocol of a server that has not
// started. Zero limits keep their defaults.
func (s *Server) LimitTables(l twophase.Limits) {
	l.AskAfter = askAfter
	for _, p := range s.parts.here {
		p.protocol.machine = twophase.New(s.parts.party(p), l)
	}
}

// Checkpoint makes a checkpoint now.
func (s *Server) Checkpoint(ctx context.Context) error { return s.durable.checkpoints.run(ctx) }

// LogRange is from where and to where the server has its log.
func (s *Server) LogRange() (first, end uint64) {
	return uint64(s.durable.log.First()), uint64(s.durable.log.End())
}

// LogRoom is how much the log takes although the disk is full, and how much of it
// is set aside besides.
func (s *Server) LogRoom() (room, aside uint64) {
	st := s.durable.log.Stats()
	return st.Room, st.Aside
}

// Fence makes a partition one that is no longer served; its memory answers on.
func (s *Server) Fence(part int) { s.parts.of[part].fence() }

// InDoubt is the number of transactions prepared here and not decided.
func (s *Server) InDoubt() (n int) {
	for _, p := range s.parts.here {
		p.protocol.mu.Lock()
		n += p.protocol.machine.InDoubt()
		p.protocol.mu.Unlock()
	}
	return n
}

// Parked is the number of requests that have waited for a transaction in doubt.
func (s *Server) Parked() (n int) {
	for _, p := range s.Stats().Partitions {
		n += int(p.Parked)
	}
	return n
}

// anyRole is a peer that may make every request.
var anyRole = rdma.Identity{Role: rdma.RoleServer}

// SetHorizon sets the durable horizon of a partition: to the newest commit, so
// that what comes is not durable, or to what it is in memory.
func (s *Server) SetHorizon(part int, lowered bool) {
	p := s.parts.of[part]
	p.mu.Lock()
	defer p.mu.Unlock()
	horizon := ^uint64(0)
	if lowered {
		horizon = uint64(p.arena.LastCSN())
	}
	p.control.Store(horizonWord, horizon)
}

// SayDurable makes the server's hello that of a durable one, and its memory of former
// lives complete.
func (s *Server) SayDurable() error {
	s.outcomes.forgotten.restored = true
	return s.acquainted.change(func(h *wire.Hello) error {
		h.Durable = true
		return nil
	})
}

// OnClock gives a server a clock of its own, on which it measures the ages of proofs and
// the quarantine of memory.
func (c *Config) OnClock(now func() time.Duration) { c.clock = now }

// RunningStep is how far one look moves that clock on, at most.
const RunningStep = runningStep

// LookAtClock moves the clock on.
func (s *Server) LookAtClock() { s.clocks.running.Now() }

// Present is a time at which a request may say that it was sent.
func (s *Server) Present() wire.Sent { return s.clocks.present() }

// HoldGaps prepares a transaction that has read the keys lo to hi of an index in a partition here. It
// returns what ends the transaction.
func (s *Server) HoldGaps(t *testing.T, ix *tables.Index, lo, hi uint64) (end func()) {
	t.Helper()
	p := s.parts.here[0]
	p.mu.Lock()
	var res index.ScanResult
	p.index(ix.ID).(index.OrderedServer).Scan(index.Num(lo), index.Num(hi), 100, &res, nil)
	p.mu.Unlock()
	prepared, v := p.prepare(&wire.Part{Partition: p.id, Gaps: res.Gaps})
	if !v.ok() {
		t.Fatal(v)
	}
	return func() { prepared.decide(false, 0) }
}

// Shipping returns how many transactions of the first partition here wait for a twin.
func (s *Server) Shipping() int {
	p := s.parts.here[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.shipments.queue)
}

// AtAnswers calls f after each answer to keys of twins of the first partition here, before it counts.
func (s *Server) AtAnswers(f func()) {
	p := s.parts.here[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shipments.atAnswer = f
}

// Tick returns the time of the first partition here.
func (s *Server) Tick() clock.Tick {
	p := s.parts.here[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ticks.advance()
	return p.ticks.own.Tick()
}

// TickOf returns the tick at which a row of the first partition here was committed.
func (s *Server) TickOf(ix *tables.Index, key uint64) clock.Tick {
	var res index.GetResult
	s.parts.here[0].has.Load().indexes[ix.ID].Lookup(index.Num(key), &res)
	return res.Header.CSN().Tick()
}

// RefuseKeys makes an index of the first partition here one without memory for a key, until restore.
func (s *Server) RefuseKeys(t *testing.T, ix *tables.Index, key uint64) (restore func()) {
	t.Helper()
	p := s.parts.here[0]
	return p.replaceIndex(ix, func(s index.OrderedServer) index.Server { return fullFor{s, key} })
}

// replaceIndex puts an index that wraps the present one in its place, until restore.
func (p *partition) replaceIndex(ix *tables.Index, wrap func(index.OrderedServer) index.Server) (restore func()) {
	own := p.has.Load().indexes[ix.ID]
	set := func(h *hosted) {
		p.mu.Lock()
		defer p.mu.Unlock()
		next := *p.has.Load()
		next.indexes = slices.Clone(next.indexes)
		next.indexes[ix.ID] = h
		p.has.Store(&next)
	}
	set(&hosted{Server: wrap(own.Server.(index.OrderedServer)), def: own.def, leaves: own.leaves})
	return func() { set(own) }
}

// WatchLoads calls f, until restore, after each row that is loaded into an index of the first partition
// here, with the place of its header and the header.
func (s *Server) WatchLoads(ix *tables.Index, f func(key, addr uint64, h block.Header)) (restore func()) {
	return s.parts.here[0].replaceIndex(ix, func(own index.OrderedServer) index.Server { return watched{own, f} })
}

// Load loads rows into the first partition here, as they stand in a message.
func (s *Server) Load(ix *tables.Index, rows []byte) error {
	p := s.parts.here[0]
	if v := p.load(ix.ID, p.has.Load().catalog.Version(), rows); !v.ok() {
		return v
	}
	return nil
}

// watched tells of rows that are loaded.
type watched struct {
	index.OrderedServer
	f func(key, addr uint64, h block.Header)
}

// Load implements index.Server.
func (w watched) Load(key index.Key, row []uint64, h block.Header) error {
	err := w.OrderedServer.Load(key, row, h)
	if err == nil {
		var res index.GetResult
		w.Lookup(key, &res)
		w.f(key.Num, res.Proofs[0].Addr, res.Header)
	}
	return err
}

// fullFor has no memory for a key.
type fullFor struct {
	index.OrderedServer
	key uint64
}

// LockWrite implements index.Server.
func (f fullFor) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	if key.Num == f.key {
		return nil, index.ErrFull
	}
	return f.OrderedServer.LockWrite(o, key, hint)
}

// TakeShipment gives the first partition here a shipment of a key of a twin, from another partition. It
// returns the number of the last one that is taken.
func (s *Server) TakeShipment(from int, number uint64, ix *tables.Index, key uint64, gone bool) (upTo uint64, err error) {
	msg := wire.AppendShipping(nil, &wire.Shipping{From: placement.Partition(from), To: s.parts.here[0].id, Incarnation: 1, First: number, Tick: s.Tick()})
	msg = wire.AppendShipped(msg, &wire.ShippedEntry{Index: uint16(ix.ID), Gone: gone, Last: true, Key: index.Num(key)})
	a, err := s.takeShipping(msg[1:], &wire.Shipping{})
	return a.UpTo, err
}
