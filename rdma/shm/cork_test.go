package shm

import (
	"context"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// TestCork: while an endpoint is corked, clients that sleep are not woken for
// each reply, and Uncork wakes them for all.
func TestCork(t *testing.T) {
	const callers = wakeEvery/2 + 1
	var mu sync.Mutex
	var held []*rdma.Request
	all := make(chan struct{})
	e := serve(t, newProvider(t, Options{}), func(r *rdma.Request) {
		mu.Lock()
		defer mu.Unlock()
		if held = append(held, r); len(held) == callers {
			close(all)
		}
	})
	p := newProvider(t, Options{}) // a client with a link of its own
	answered := make(chan error, callers)
	for range callers {
		c, err := p.Dial(testContext(t), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			_, err := rdma.Call(context.Background(), c, []byte("?"), nil)
			answered <- err
		}()
	}
	<-all
	for deadline := time.Now().Add(testseed.Patience()); p.hub.sleep.Load(0) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the client does not sleep")
		}
	}
	e.Cork()
	e.Cork()
	e.Uncork()
	for _, r := range held {
		if err := r.Reply(nil); err != nil {
			t.Error(err)
		}
	}
	for _, l := range *e.pollers[0].links.Load() {
		if n := l.unwoken.Load(); n < callers-1 { // the last handler may not have returned: its poller wakes the client
			t.Errorf("%d of %d replies left the wake-up to Uncork", n, callers)
		}
	}
	e.Uncork()
	for range callers {
		select {
		case err := <-answered:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testseed.Patience()):
			t.Fatal("an answer does not arrive")
		}
	}
}
