package provide

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Nodes come out in the order in which each goroutine has pushed its own, each
// once, and only the pusher to an empty queue has to wake the poller.
func TestQueue(t *testing.T) {
	const pushers, each = 4, 10_000
	var q Queue[[2]int]
	if q.Take() != nil || !q.Empty() {
		t.Fatal("the zero value is not empty")
	}
	var nodes [pushers][each]Node[[2]int]
	wake := make(chan struct{}, pushers*each)
	var all sync.WaitGroup
	for i := range nodes {
		all.Go(func() {
			for j := range nodes[i] {
				nodes[i][j].Value = [2]int{i, j}
				if q.Push(&nodes[i][j]) {
					wake <- struct{}{}
				}
			}
		})
	}
	var next [pushers]int
	for taken := 0; taken < pushers*each; {
		<-wake
		for n := q.Take(); n != nil; n = n.Next() {
			i, j := n.Value[0], n.Value[1]
			if j != next[i] {
				t.Fatalf("node %d of goroutine %d, want %d", j, i, next[i])
			}
			next[i]++
			taken++
		}
	}
	all.Wait()
	if !q.Empty() {
		t.Error("more nodes than were pushed")
	}
}

func TestEndpoint(t *testing.T) {
	r, err := mem.New(mem.Options{SegmentBytes: 4096, MaxBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	var e Endpoint
	e.Init("trial", "here", 2)
	if e.Addr() != "here" || e.Handler() != nil {
		t.Error("a new endpoint")
	}
	for want := rdma.RKey(1); want <= 2; want++ {
		if k, err := e.Register(r, rdma.AccessAtomic); k != want || err != nil {
			t.Errorf("key %d, %v", k, err)
		}
	}
	if _, err := e.Register(r, 0); !errors.Is(err, rdma.ErrTooLarge) {
		t.Errorf("a third region: %v", err)
	}
	for _, c := range []struct {
		k  rdma.RKey
		ok bool
	}{{0, false}, {1, true}, {2, true}, {3, false}, {1 << 31, false}} {
		g, ok := e.Region(c.k)
		if ok != c.ok || ok && (g.Region != r || g.Access != rdma.AccessRead|rdma.AccessAtomic) {
			t.Errorf("key %d: %+v, %v", c.k, g, ok)
		}
	}
	started := false
	if err := e.Start(func(*rdma.Request) {}, func() { started = true }); err != nil || !started || e.Handler() == nil {
		t.Error(err)
	}
	if err := e.Start(func(*rdma.Request) {}, func() { t.Error("started again") }); !errors.Is(err, ErrServed) {
		t.Error(err)
	}
	if !e.Shut() || e.Shut() || !e.Closed() {
		t.Error("Shut")
	}
	if _, err := e.Register(r, 0); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if err := e.Start(func(*rdma.Request) {}, func() { t.Error("started again") }); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
}

// A connection moves down once, from whichever goroutine.
func TestLink(t *testing.T) {
	var l Link
	if !l.Up() || l.Err("trial", "there") != nil {
		t.Error("a new link")
	}
	if from, moved := l.Move(Broken); from != Up || !moved || !errors.Is(l.Err("trial", "there"), rdma.ErrPeerDown) {
		t.Error(from, moved)
	}
	if _, moved := l.Move(Broken); moved || l.Up() {
		t.Error("broken twice")
	}
	if from, moved := l.Move(Closed); from != Broken || !moved || !errors.Is(l.Err("trial", "there"), rdma.ErrClosed) {
		t.Error(from, moved)
	}
	if _, moved := l.Move(Broken); moved || !errors.Is(l.Err("trial", "there"), rdma.ErrClosed) {
		t.Error("a closed link moved")
	}
}

// A side spins while most waits end soon, gives it up after failures, and tries
// again once in a while.
func TestSpinner(t *testing.T) {
	const limit = 80 * time.Microsecond
	var never, s Spinner
	never.Init(-1)
	s.Init(limit)
	if never.Budget() != 0 || s.Budget() != limit {
		t.Error(never.Budget(), s.Budget())
	}
	for range spinScoreMax {
		s.Miss()
	}
	tries := 0
	for range 10 * spinRetryEvery {
		if s.Budget() > 0 {
			tries++
		}
	}
	if tries != 10 {
		t.Errorf("%d tries after %d failures, want 10", tries, spinScoreMax)
	}
	s.Hit(limit)
	if s.Budget() == 0 {
		t.Error("no spinning after a success")
	}
}

// A side whose waits end as often as not while it spins gives it up.
func TestSpinnerNeedsMoreHitsThanMisses(t *testing.T) {
	var s Spinner
	s.Init(time.Millisecond)
	for range 2 * spinScoreMax {
		s.Hit(time.Microsecond)
		s.Miss()
	}
	if b := s.Budget(); b != 0 {
		t.Errorf("half of the tries fail, and the budget is %v", b)
	}
}

// The budget follows the waits, up at once and down slowly, within its bounds.
func TestSpinnerLearns(t *testing.T) {
	const limit = 100 * time.Microsecond
	var s Spinner
	s.Init(limit)
	last := s.Budget()
	for range 100 {
		s.Hit(time.Microsecond)
		if b := s.Budget(); b > last {
			t.Fatalf("shorter waits, and the budget grows from %v to %v", last, b)
		} else {
			last = b
		}
	}
	if want := limit / spinSlack; last != want {
		t.Errorf("budget %v after short waits, want %v", last, want)
	}
	for range 2 {
		s.Hit(last)
	}
	if b := s.Budget(); b <= last {
		t.Errorf("waits as long as the budget of %v, and it stays %v", last, b)
	}
	for range 10 {
		s.Hit(time.Hour) // the machine was busy
	}
	if b := s.Budget(); b != limit {
		t.Errorf("budget %v, want %v", b, limit)
	}
}

func TestNeed(t *testing.T) {
	const most = rdma.MaxReadBytes / mem.WordBytes
	for _, c := range []struct {
		op    rdma.Op
		words int
		need  rdma.Access
		want  int
	}{
		{0, 1, 0, 0},
		{rdma.OpFAA + 1, 1, 0, 0},
		{rdma.OpRead, most, rdma.AccessRead, most},
		{rdma.OpRead, most + 1, rdma.AccessRead, 0},
		{rdma.OpWrite, 0, rdma.AccessWrite, 0},
		{rdma.OpCAS, 8, rdma.AccessAtomic, 1},
		{rdma.OpFAA, 0, rdma.AccessAtomic, 0},
	} {
		if need, words := Need(c.op, c.words); need != c.need || words != c.want {
			t.Errorf("%v of %d words: access %d, %d words", c.op, c.words, need, words)
		}
	}
}

// Accept goes on after a failure and ends when the listener is closed.
func TestAccept(t *testing.T) {
	tries, handled := 0, 0
	Accept(func() (net.Conn, error) {
		switch tries++; tries {
		case 1:
			return nil, errors.New("no descriptors")
		case 2:
			return nil, nil
		}
		return nil, net.ErrClosed
	}, func(net.Conn) { handled++ })
	if tries != 3 || handled != 1 {
		t.Errorf("%d tries, %d handled", tries, handled)
	}
}

// Ended waits for a context whose deadline has passed.
func TestEnded(t *testing.T) {
	if err := Ended(context.Background()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	if err := Ended(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
