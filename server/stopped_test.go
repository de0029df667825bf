package server

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/clock/clocktest"
	"drtmx/internal/hosting"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
)

// TestCommitsInTheQueueOfAStoppedServer: a server is stopped for longer than
// every timeout, with commits in its queue. It finds them when it runs again, and
// before it comes to them it carries out others, whose rows move to memory that was
// freed before the stop. No proof of a changed row may hold there, although the rows
// of one commit have the same version. When the memory has other rows at last, the
// server knows that the proofs are too old.
func TestCommitsInTheQueueOfAStoppedServer(t *testing.T) {
	var c clocktest.Clock
	s, err := New(Config{
		Addrs: []string{"a"}, Catalog: bank(t), Provider: inproc.New(inproc.Options{}), MemoryBytes: 1 << 26,
		hosted: hosting.Options{Work: hosting.Work{ManualTraining: true}}, clock: c.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // not started: nothing but the test looks at the clock
	p, entry := s.parts.of[0], s.cfg.Catalog.MustTable("entry")
	commit := func(part wire.Part) wire.Code {
		sh, _ := shareOf(s, &wire.Commit{Parts: []wire.Part{part}})
		return sh.commit().code
	}
	run := func(d time.Duration) {
		for ; d > 0; d -= runningStep / 2 {
			c.Advance(runningStep / 2)
			s.clocks.running.Now()
		}
	}
	insert := func(keys, step, from uint64) {
		t.Helper()
		var part wire.Part
		for k := range keys {
			part.Writes = append(part.Writes, writeOf(entry, wire.Insert, k*step+from))
		}
		if code := commit(part); code != wire.OK {
			t.Fatalf("inserting: code %d", code)
		}
	}
	const rows = 1000
	insert(rows, 10, 0) // of one commit, so of one version
	var queued []wire.Part
	for k := uint64(rows / 2); k < rows; k++ {
		queued = append(queued, wire.Part{
			Read:   s.clocks.running.Last(),
			Rows:   proofsOf(t, p, entry, k*10, index.Found),
			Writes: []wire.Write{writeOf(entry, wire.Put, 1<<30+k)},
		})
	}
	run(time.Second)
	for k := uint64(rows / 2); k < rows; k++ { // their leaves run empty and are freed
		if code := commit(wire.Part{Writes: []wire.Write{writeOf(entry, wire.Delete, k*10)}}); code != wire.OK {
			t.Fatalf("deleting: code %d", code)
		}
	}
	c.Advance(time.Hour) // the server is stopped
	insert(rows/2, 10, 5)
	for i := range queued {
		if code := commit(queued[i]); code != wire.Conflict {
			t.Errorf("a commit that read row %d, since deleted, is answered %d", rows*5+10*i, code)
		}
	}
	run(2 * index.Quarantine) // the memory is used again at last
	held := 0
	insert(rows, 10, 1)
	for i := range queued {
		if commit(queued[i]) != wire.Conflict {
			t.Errorf("a commit that read row %d, since deleted, succeeds as late as this", rows*5+10*i)
		}
		queued[i].Read = s.clocks.running.Last()
		if commit(queued[i]) == wire.OK {
			held++
		}
	}
	if held == 0 {
		t.Error("no proof holds again after the quarantine: the test tells nothing")
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
