package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/redo"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/internal/wal"
	"drtmx/txn"
)

// fillLog appends records until the log has no room, and returns the error that says why.
func fillLog(t *testing.T, s *Server) error {
	t.Helper()
	r := redo.Record{Kind: redo.Closed}
	for until := time.Now().Add(testseed.Patience()); time.Now().Before(until); {
		if _, err := s.durable.log.Append(r.Append(nil)); err != nil {
			return err
		}
	}
	t.Fatal("the log does not become full")
	return nil
}

// TestSeenTickWaitsForRoom: a tick that a client has seen counts although the disk is
// behind the log at that moment.
func TestSeenTickWaitsForRoom(t *testing.T) {
	var g gatedSyncs
	cat := bank(t)
	cl, err := crashBank(g.wrap(vfs.NewMem()), cat, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	defer g.set(false, nil)
	s, acct := cl.Servers[0], cat.MustTable("account")
	if err := put(cl.DB, acct, 1, true); err != nil {
		t.Fatal(err)
	}
	g.set(true, nil)
	if err := fillLog(t, s); !errors.Is(err, wal.ErrBehind) {
		t.Fatalf("the disk is held up, and the log is not behind: %v", err)
	}
	seen := s.clocks.now() + 3000
	noted := make(chan verdict, 1)
	go func() { noted <- s.clocks.saw(seen) }()
	select {
	case v := <-noted:
		if v.ok() && s.clocks.now() < seen {
			t.Fatalf("tick %d was seen and forgotten: the clock is at %d", seen, s.clocks.now())
		}
	case <-time.After(50 * time.Millisecond): // it waits
	}
	g.set(false, nil)
	if v := <-noted; !v.ok() || s.clocks.now() < seen {
		t.Errorf("the clock is at %d after tick %d was seen: %+v", s.clocks.now(), seen, v)
	}
}

// TestSeenTickOnAFullDisk: what comes with a tick that the log cannot take is refused,
// with an error that names the disk. A commit of the tick's client would get a lower one.
func TestSeenTickOnAFullDisk(t *testing.T) {
	disk := vfstest.New(vfs.NewMem())
	cfg := crashConfig(disk, bank(t), 1, 1)
	body := func(context.Context, *txn.Txn, []byte) ([]byte, error) { return nil, nil }
	cfg.Procedures = []txn.Procedure{{Name: "may write", Body: body}, {Name: "reads", Body: body, ReadOnly: true}}
	cl, err := Embedded(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	s, acct := cl.Servers[0], cfg.Catalog.MustTable("account")
	if err := put(cl.DB, acct, 1, true); err != nil {
		t.Fatal(err)
	}
	disk.SetSpace(0)
	await(t, "a full disk", func() bool { return errors.Is(fillLog(t, s), wal.ErrNoSpace) })
	seen := s.clocks.now() + 3000
	cl.DB.Observe(txn.Token(seen))
	call := func(name string) error {
		_, err := cl.DB.Call(t.Context(), 0, name, nil)
		return err
	}
	if err := put(cl.DB, acct, 1, false); !errors.Is(err, txn.ErrNoSpace) {
		t.Errorf("a commit on a full disk: %v", err)
	}
	if err := call("may write"); !errors.Is(err, txn.ErrNoSpace) {
		t.Errorf("a call on a full disk: %v", err)
	}
	if err := call("reads"); err != nil {
		t.Errorf("a call on a full disk that only reads: %v", err)
	}
	if now := s.clocks.now(); now >= seen {
		t.Errorf("the clock is at %d, and the log does not have tick %d", now, seen)
	}
	disk.AddSpace(1 << 30)
	await(t, "a commit", func() bool { return put(cl.DB, acct, 1, false) == nil })
	if now := s.parts.highestTick(); now < seen {
		t.Errorf("a commit at tick %d, and its client has seen %d", now, seen)
	}
}
