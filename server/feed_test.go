package server

import (
	"testing"

	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestClosedTickOutlivesTheServer: a server that has said that a tick is closed begins
// above it when it starts again, although its clock is behind.
func TestClosedTickOutlivesTheServer(t *testing.T) {
	fs := vfstest.NewCrashableMem()
	cl, _, _ := openBank(t, fs, 1, 2)
	s := cl.Servers[0]
	for _, p := range s.parts.here {
		p.mu.Lock()
		p.ticks.adopt(p.srv.clocks.now() + 100_000) // of a peer whose clock is ahead
		p.unlock()
	}
	closed, at, v := s.durable.mark()
	if !v.ok() || closed < s.clocks.ticks.Now()+50_000 {
		t.Fatalf("tick %d is closed, the clock is at %d: %v", closed, s.clocks.ticks.Now(), v)
	}
	if err := s.durable.wait(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if again, end, v := s.durable.mark(); !v.ok() || again != closed || end < at {
		t.Errorf("tick %d is closed up to %d, and then tick %d up to %d: %v", closed, at, again, end, v)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{}) // a server that stops logs its last tick
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	cl, _, _ = openBank(t, crashed, 1, 2)
	defer cl.Close()
	for _, p := range cl.Servers[0].parts.here {
		if p.ticks.present() <= closed {
			t.Errorf("tick %d is the present one of partition %d, tick %d was closed", p.ticks.present(), p.id, closed)
		}
	}
}

// TestOldestTickWaitsForShares: while a share from before a checkpoint may commit, the
// log after it is not said to have everything after a tick. Later it is, also by a
// server that has started again.
func TestOldestTickWaitsForShares(t *testing.T) {
	fs := vfs.NewMem()
	cl, _, _ := openBank(t, fs, 1, 2)
	s := cl.Servers[0]
	if tick, ok := s.durable.oldestTick(); !ok || tick != 0 {
		t.Errorf("a new log has all after tick %d, known: %v", tick, ok)
	}
	p := s.parts.of[1]
	p.mu.Lock()
	p.ticks.advance()
	vote := p.ticks.own.Vote()
	p.unlock()
	if err := s.durable.checkpoints.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the clock stands still", func() bool { return s.clocks.now() > vote+2 })
	if tick, ok := s.durable.oldestTick(); ok {
		t.Errorf("that the log has all after tick %d is known, while a share with the vote %d is in doubt", tick, vote)
	}
	p.mu.Lock()
	p.ticks.settle(vote)
	p.unlock()
	tick, ok := s.durable.oldestTick()
	if !ok || tick < vote {
		t.Errorf("the log has all after tick %d, known: %v, want at least %d", tick, ok, vote)
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	cl, _, _ = openBank(t, fs, 1, 2)
	defer cl.Close()
	if again, ok := cl.Servers[0].durable.oldestTick(); !ok || again == 0 {
		t.Errorf("after a start the log has all after tick %d, known: %v", again, ok)
	}
}

// TestFeedPinsTheLog: a checkpoint does not cut the log that a feed needs, although the
// feed has read it, until the feed says so.
func TestFeedPinsTheLog(t *testing.T) {
	fs, net, cat := vfs.NewMem(), inproc.New(inproc.Options{}), bank(t)
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Network: net, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	s := cl.Servers[0]
	put := func() {
		for i := range uint64(200) {
			if err := cl.DB.Update(t.Context(), func(t *txn.Txn) error {
				return t.Put(cat.MustTable("entry"), tables.Num(i), cat.MustTable("entry").NewRow())
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put()
	c := &backupClient{t: t}
	if c.conn, err = net.Dial(t.Context(), s.Addr()); err != nil {
		t.Fatal(err)
	}
	number := func(n uint64) []byte { return wire.AppendID(nil, wire.ID{Client: n})[:8] }
	var m wire.BackupPinned
	if err := m.Decode(c.call(wire.OK, append([]byte{byte(wire.OpBackup), wire.BackupPin}, number(0)...))); err != nil || m.Log != m.First {
		t.Fatal(m, err)
	}
	c.BackupBegun = m.BackupBegun
	next := m.Log
	for range 2 {
		put()
		var r wire.BackupRecords
		if err := r.Decode(c.step(wire.OK, wire.BackupLog, append(number(next), 0, 0, 0, 0)...)); err != nil || r.Next <= next {
			t.Fatal(r.Next, err)
		}
		next = r.Next
		if err := s.durable.checkpoints.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if first := s.durable.log.First(); first > wal.LSN(m.Log) {
			t.Fatalf("the log begins at %d, a feed needs it from %d on", first, m.Log)
		}
	}
	c.step(wire.OK, wire.BackupLook, number(next)...)
	put()
	if err := s.durable.checkpoints.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log is still pinned", func() bool { return s.durable.log.First() > wal.LSN(m.Log) })
	c.step(wire.Unavailable, wire.BackupChunk, number(0)...)
	c.step(wire.OK, wire.BackupEnd)
	c.step(wire.NotFound, wire.BackupLook, number(next)...)
}
