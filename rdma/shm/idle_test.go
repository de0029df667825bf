package shm

import (
	"context"
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// A poller that has had work sleeps in the kernel when there is no more, and
// stays asleep.
func TestIdlePollerSleeps(t *testing.T) {
	p := newProvider(t, Options{})
	e := serve(t, p, rdmatest.Echo)
	c := dial(t, p, e.Addr())
	for range 3 {
		for range 500 {
			echo(t, c, "work")
		}
		asleep := e.pollers[0].asleep
		eventually(t, "sleep of a poller without requests", func() bool { return asleep.Load(0)&1 == 1 })
		seq := asleep.Load(0)
		time.Sleep(20 * time.Millisecond)
		if now := asleep.Load(0); now != seq {
			t.Errorf("sleep %d of the poller ended without a request: %d", seq, now)
		}
	}
}

// A client whose answer does not come sleeps in the kernel, and is woken by it.
func TestWaitingClientSleeps(t *testing.T) {
	p := newProvider(t, Options{})
	requests := make(chan *rdma.Request, 1)
	e := serve(t, p, func(q *rdma.Request) { requests <- q })
	c := dial(t, p, e.Addr())
	for range 20 {
		answered := make(chan error, 1)
		go func() {
			_, err := rdma.Call(context.Background(), c, []byte("x"), nil)
			answered <- err
		}()
		q := <-requests
		eventually(t, "sleep of a client that waits", func() bool { return p.hub.sleep.Load(0) == 1 })
		if err := q.Reply(nil); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
}
