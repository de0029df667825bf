package server

import (
	"errors"
	"iter"
	"testing"
	"time"

	"drtmx/internal/vfstest"
	"drtmx/rdma/inproc"
	"drtmx/txn"
)

// TestFeedMissesNothingAtACopy: a feed pins the log of the server that it reads, and not
// the copies of that log. If a copy takes the place of the server and has cut what the feed
// has not read, the feed ends with an error and skips nothing. So does one that goes on
// from a cursor.
func TestFeedMissesNothingAtACopy(t *testing.T) {
	disk, net := vfstest.NewCrashableMem(), inproc.New(inproc.Options{})
	o := copyOptions{servers: 2, replicas: 2, patience: time.Hour, keeper: true, checkpoint: 16 << 10, net: net}
	c := mustOpenCopied(t, disk, o)
	defer func() { _ = c.Close() }()
	id, value := c.at(t, 0), int64(0)
	put := func() {
		t.Helper()
		value++
		if err := c.put(t.Context(), id, value); err != nil {
			t.Fatal(err)
		}
	}
	put()
	c.inSync(t)
	db, err := txn.Open(t.Context(), txn.Config{Servers: []string{"server-0", "server-1"}, Dial: net.Dial, Retry: patient().Retry})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	begin, err := db.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next, stop := iter.Pull2(db.Changes(t.Context(), begin))
	defer stop()
	last := value
	take := func(next func() (txn.Change, error, bool), last *int64) error {
		ch, err, ok := next()
		if !ok || err != nil {
			return err
		}
		if *last++; ch.Writes[0].Row.Int(c.acct.Field("balance")) != *last {
			t.Fatalf("the feed has %d after %d", ch.Writes[0].Row.Int(c.acct.Field("balance")), *last-1)
		}
		begin = ch.Cursor
		return nil
	}
	put()
	if err := take(next, &last); err != nil {
		t.Fatal(err)
	}
	from, at := last, c.Servers[0].durable.log.End()
	await(t, "the copy has cut its log", func() bool {
		for range 50 {
			put()
		}
		k := c.kept(0, 1)
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.log.First() > at+1<<20 // files that were cut just before are found again
	})
	if first := c.Servers[0].durable.log.First(); first > at {
		t.Fatalf("the log begins at %d, the feed is at %d", first, at)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := disk.RemoveAll(ServerDir("data", 0)); err != nil {
		t.Fatal(err)
	}
	cursor := begin
	c = mustOpenCopied(t, disk, o)
	for err = nil; err == nil && last < value; {
		err = take(next, &last)
	}
	if !errors.Is(err, txn.ErrChangesTooOld) {
		t.Errorf("a feed that has %d of %d: %v", last, value, err)
	}
	again, end := iter.Pull2(db.Changes(t.Context(), cursor))
	defer end()
	if err := take(again, &from); !errors.Is(err, txn.ErrChangesTooOld) {
		t.Errorf("a feed that goes on after %d: %v", from, err)
	}
}
