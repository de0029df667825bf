package server

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/clock"
	"drtmx/internal/vfstest"
)

// goAhead moves the clocks of a server's partitions far ahead of the machine's, and
// returns the tick that they have closed.
func goAhead(t *testing.T, s *Server) (closed clock.Tick) {
	t.Helper()
	for _, p := range s.parts.here {
		p.mu.Lock()
		p.ticks.adopt(s.clocks.ticks.Now() + 100_000)
		closed = max(closed, p.ticks.closedTick())
		p.unlock()
	}
	return closed
}

// above checks that the partitions of a server commit nothing at a tick any more.
func above(t *testing.T, s *Server, closed clock.Tick) {
	t.Helper()
	for _, p := range s.parts.here {
		if now := p.ticks.present(); now <= closed {
			t.Errorf("partition %d begins at tick %d, and %d was closed before", p.id, now, closed)
		}
	}
}

// TestLastTickOutlivesAStop: a server that has stopped begins above all ticks that it had
// published, although no commit has one of them and its clock is behind by then.
func TestLastTickOutlivesAStop(t *testing.T) {
	fs := vfs.NewMem()
	cl, _, _ := openBank(t, fs, 1, 2)
	closed := goAhead(t, cl.Servers[0])
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	cl, _, _ = openBank(t, fs, 1, 2)
	defer cl.Close()
	above(t, cl.Servers[0], closed)
}

// TestLastTickGoesToTheCopies: a copy that takes the place of a server that has stopped
// begins above all ticks that the server had published, as in a planned move.
func TestLastTickGoesToTheCopies(t *testing.T) {
	disk, o := vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2, patience: time.Hour, keeper: true}
	c := mustOpenCopied(t, disk, o)
	if err := c.put(t.Context(), c.at(t, 0), 1); err != nil {
		t.Fatal(err)
	}
	c.inSync(t)
	closed := goAhead(t, c.Servers[0])
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := disk.RemoveAll(ServerDir("data", 0)); err != nil {
		t.Fatal(err)
	}
	c = mustOpenCopied(t, disk, o)
	defer c.Close()
	above(t, c.Servers[0], closed)
}
