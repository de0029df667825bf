package server

import (
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// TestWorkers: work that follows other work reuses its goroutine, a burst leaves
// a bounded number of idle goroutines, none is left after Close, and work
// arriving later still runs.
func TestWorkers(t *testing.T) {
	cl, _, _ := startBank(t, 1)
	s := cl.Servers[0]
	idle := func() int {
		s.workers.idle.Lock()
		defer s.workers.idle.Unlock()
		return len(s.workers.idle.workers)
	}
	settled := func(want int) {
		t.Helper()
		for end := time.Now().Add(testseed.Patience()); idle() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%d idle workers, want %d", idle(), want)
			}
		}
	}
	for range 1000 {
		done := make(chan bool)
		s.workers.background(func() { close(done) })
		<-done
		settled(1)
	}
	const burst = 4 * workersIdleMax
	var all, done sync.WaitGroup
	all.Add(burst)
	for range burst {
		done.Add(1)
		s.workers.background(func() {
			defer done.Done()
			all.Done()
			all.Wait() // until all of them run at the same time
		})
	}
	done.Wait()
	settled(workersIdleMax)
	if err := s.Close(); err != nil { // waits for the workers
		t.Fatal(err)
	}
	settled(0)
	late := make(chan bool)
	s.workers.background(func() { close(late) })
	<-late
	settled(0)
}

// TestDeadlineIsShared: requests of the same moment share a deadline, later ones
// have their own, and none ends before peerTimeout.
func TestDeadlineIsShared(t *testing.T) {
	cl, _, _ := startBank(t, 1)
	s := cl.Servers[0]
	before := time.Now()
	first := s.workers.deadline()
	if end, ok := first.Deadline(); !ok || end.Before(before.Add(peerTimeout)) {
		t.Fatalf("the deadline is %v after the request, want at least %v", end.Sub(before), peerTimeout)
	}
	time.Sleep(2 * deadlineShared)
	before = time.Now()
	second := s.workers.deadline()
	if end, _ := second.Deadline(); second == first || end.Before(before.Add(peerTimeout)) {
		t.Fatalf("a later request has a deadline %v after it, want at least %v", end.Sub(before), peerTimeout)
	}
	n := testing.AllocsPerRun(100, func() { s.workers.deadline() })
	for range 20 { // the server's own work allocates now and then
		n = min(n, testing.AllocsPerRun(100, func() { s.workers.deadline() }))
	}
	if n > 0 {
		t.Errorf("%v allocations for a deadline, want none on average", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if second.Err() == nil {
		t.Error("the deadline did not end with the server")
	}
}
