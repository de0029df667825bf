package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// backupClient is a client that makes a backup of one server, step by step.
type backupClient struct {
	t    *testing.T
	conn rdma.Conn
	wire.BackupBegun
}

func beginBackup(t *testing.T, net *inproc.Network, addr string) *backupClient {
	t.Helper()
	c := &backupClient{t: t}
	var err error
	if c.conn, err = net.Dial(t.Context(), addr); err != nil {
		t.Fatal(err)
	}
	if err := c.Decode(c.call(wire.OK, []byte{byte(wire.OpBackup), wire.BackupBegin})); err != nil {
		t.Fatal(err)
	}
	return c
}

// call makes a request that must be answered with a code, and returns the rest of
// the answer.
func (c *backupClient) call(want wire.Code, req []byte) []byte {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), testseed.Patience())
	defer cancel()
	resp, err := rdma.Call(ctx, c.conn, req, nil)
	if err != nil || len(resp) == 0 || wire.Code(resp[0]) != want {
		c.t.Fatalf("step %d of a backup is answered %q, %v", req[1], resp, err)
	}
	return resp[1:]
}

func (c *backupClient) step(want wire.Code, step byte, args ...byte) []byte {
	c.t.Helper()
	return c.call(want, append(wire.AppendID([]byte{byte(wire.OpBackup), step}, wire.ID{Client: c.ID})[:10], args...))
}

// base waits for the base.
func (c *backupClient) base() (s wire.BackupBaseState) {
	c.t.Helper()
	for s.Bytes == 0 {
		if err := s.Decode(c.step(wire.OK, wire.BackupBase)); err != nil {
			c.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	return s
}

// eventually waits until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(began) > testseed.Patience() {
			t.Fatal(what)
		}
	}
}

// TestBackupPinsTheLog: a checkpoint does not cut the log that a backup needs, until
// the backup ends, by itself, with its client, or because its client asks for
// nothing. Nothing of it remains then.
func TestBackupPinsTheLog(t *testing.T) {
	for how, end := range map[string]func(s *Server, c *backupClient){
		"ended":          func(_ *Server, c *backupClient) { c.step(wire.OK, wire.BackupEnd) },
		"client is gone": func(_ *Server, c *backupClient) { _ = c.conn.Close() },
		"lease is over": func(s *Server, c *backupClient) {
			s.durable.backups.mu.Lock()
			defer s.durable.backups.mu.Unlock()
			s.durable.backups.of[c.ID].lease.Reset(time.Millisecond)
		},
	} {
		t.Run(how, func(t *testing.T) {
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
			c := beginBackup(t, net, s.Addr())
			c.base()
			for range 2 {
				put()
				if err := s.durable.checkpoints.run(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if first := s.durable.log.First(); first > wal.LSN(c.Log) {
				t.Fatalf("the log begins at %d, a backup needs it from %d on", first, c.Log)
			}
			var m wire.BackupRecords
			if err := m.Decode(c.step(wire.OK, wire.BackupLog, append(wire.AppendID(nil, wire.ID{Client: c.Log})[:8], 0, 0, 0, 0)...)); err != nil || len(m.Records) == 0 {
				t.Fatalf("%d records of the log, %v", len(m.Records), err)
			}
			end(s, c)
			eventually(t, "the log is still pinned", func() bool { return s.durable.log.First() > wal.LSN(c.Log) })
			eventually(t, "the base is still there", func() bool {
				names, err := fs.List("data/server-0")
				return err == nil && !strings.Contains(strings.Join(names, " "), backupPrefix)
			})
			if how == "lease is over" {
				c.step(wire.NotFound, wire.BackupClose)
			}
		})
	}
}

// TestClosedTickWaitsForShares: a tick is not closed while a share is prepared that
// may commit at it.
func TestClosedTickWaitsForShares(t *testing.T) {
	cl, _, _ := openBank(t, vfs.NewMem(), 1, 2)
	defer cl.Close()
	s := cl.Servers[0]
	p := s.parts.of[1]
	p.mu.Lock()
	p.ticks.advance()
	vote := p.ticks.own.Vote()
	p.mu.Unlock()
	closed := func() clock.Tick {
		tick, _, v := s.durable.closedEverywhere()
		if !v.ok() {
			t.Fatal(v)
		}
		return tick
	}
	eventually(t, "the clock stands still", func() bool { return s.clocks.now() > vote+2 })
	if tick := closed(); tick >= vote {
		t.Errorf("tick %d is closed, a share that is prepared may commit at tick %d", tick, vote)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.durable.awaitSettled(ctx); err == nil {
		t.Error("a base begins while a share from before is prepared")
	}
	p.mu.Lock()
	p.ticks.settle(vote)
	p.mu.Unlock()
	if tick := closed(); tick < vote {
		t.Errorf("tick %d is closed, nothing keeps tick %d open", tick, vote)
	}
}

// TestBackupsAreBounded: more backups than the bound are refused, and a server that
// starts removes what the last one has left of them.
func TestBackupsAreBounded(t *testing.T) {
	fs, net := vfs.NewMem(), inproc.New(inproc.Options{})
	open := func() *Cluster {
		cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: bank(t), Network: net, Durability: Disk, Dir: "data", FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	cl := open()
	for range backupsMax {
		beginBackup(t, net, cl.Servers[0].Addr()).base()
	}
	c, err := net.Dial(t.Context(), cl.Servers[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	(&backupClient{t: t, conn: c}).call(wire.Bad, []byte{byte(wire.OpBackup), wire.BackupBegin})
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll("data/server-0/"+backupPrefix+"left", 0o755); err != nil {
		t.Fatal(err)
	}
	cl = open()
	defer cl.Close()
	names, err := fs.List("data/server-0")
	if err != nil || strings.Contains(strings.Join(names, " "), backupPrefix) {
		t.Errorf("%q, %v", names, err)
	}
}
