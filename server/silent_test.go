package server_test

import (
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

// TestSilentServerFillsNoTables: a server votes for transactions, and then hears of
// no decision and answers nothing for as long as two others commit many more
// transactions than the tables of the commit protocol have room for. Each commits.
func TestSilentServerFillsNoTables(t *testing.T) {
	limits := twophase.Limits{Open: 16, Kept: 64}
	d := newDoubtsIn(t, limits)
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		if op == wire.OpDecide && addr == d.addrs[2] {
			return errCut
		}
		return nil
	})
	// Each of the first two coordinates one, and hands none over to the third.
	for i, keys := range [][]uint64{{0, 8, 4}, {4 + 1, 8 + 1, 0 + 1}} {
		if err := d.write(uint64(10+i), keys...); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.net.Pause(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	pinned := d.Servers[2].InDoubt()
	if pinned == 0 {
		t.Error("the paused server waits for no decision")
	}
	for n := range 4 * limits.Kept {
		keys := []uint64{2, 4 + 2}
		if n%2 == 1 {
			keys[0], keys[1] = keys[1], keys[0]
		}
		if err := d.write(uint64(n), keys...); err != nil {
			t.Fatalf("transaction %d of the other servers: %v", n, err)
		}
	}
	t.Logf("%d transactions of the others beside %d that the paused server has not acknowledged", 4*limits.Kept, pinned)
	d.peers.set(nil)
	if err := d.net.Resume(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testseed.Patience()); d.Servers[2].InDoubt() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server stays in doubt after its pause")
		}
	}
	if err := d.write(1000, doubtKeys...); err != nil {
		t.Error(err)
	}
}
