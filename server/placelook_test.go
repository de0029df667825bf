package server

import (
	"sync/atomic"
	"testing"

	"drtmx/internal/vfstest"
	"drtmx/rdma/inproc"
)

// TestPlaceIsLookedAtLast: an answer that waits is not released if the lease of the server
// ends after pass has looked at it for the first time: what came in between may rest on old
// memory. It is released when the server has its place again.
func TestPlaceIsLookedAtLast(t *testing.T) {
	var looks atomic.Int64 // left that find the place; below 0: all do
	looks.Store(-1)
	cfg := Config{Addrs: []string{"a"}, Catalog: bank(t), Provider: inproc.New(inproc.Options{}), Durability: Disk, Dir: "data", FS: vfstest.NewMem(), MemoryBytes: 1 << 26}
	cfg.hosted.Holds = func() bool {
		for {
			n := looks.Load()
			if n <= 0 || looks.CompareAndSwap(n, n-1) {
				return n != 0
			}
		}
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d := s.durable
	await(t, "the log is at rest", func() bool { return d.log.Stats().AtRest })
	var released atomic.Bool
	d.mu.Lock() // hold would let another goroutine look
	d.held = append(d.held, answer{at: d.safe(), do: func(durable bool) { released.Store(durable) }})
	d.mu.Unlock()
	looks.Store(1)
	d.pass()
	if n := looks.Load(); n != 0 {
		t.Fatalf("pass has not looked: %d", n)
	}
	if released.Load() {
		t.Error("an answer was released after the place was lost")
	}
	looks.Store(-1)
	d.pass()
	await(t, "the answer is released", released.Load)
}
