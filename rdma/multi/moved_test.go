package multi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// where is the present address of a server.
type where struct {
	sync.Mutex
	at string
}

func (w *where) resolve(string) string {
	w.Lock()
	defer w.Unlock()
	return w.at
}

func (w *where) move(to string) (from string) {
	w.Lock()
	defer w.Unlock()
	from, w.at = w.at, to
	return from
}

// TestAbandon: when a server is elsewhere, a client that waits for an answer of the
// process that was in its place, which is paused, gets an error, and so does a
// client that posts a READ there. The next dial leads to the server.
func TestAbandon(t *testing.T) {
	ctx, local := patience(t), inproc.New(inproc.Options{})
	w := &where{at: "shm:@former"}
	p := &Provider{Shm: local, Resolve: w.resolve}
	listen(t, p, "shm:@former")
	listen(t, p, "shm:@present")
	dial := func() rdma.Conn {
		c, err := p.Dial(ctx, "shm:@former")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	asks, idle, closed := dial(), dial(), dial()
	if err := errors.Join(closed.Close(), local.Pause("@former")); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	if err := asks.StartCall(ctx, nil); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := asks.FinishCall(ctx, nil)
		waits <- err
	}()
	p.Abandon("shm:@present") // where nobody is connected
	select {
	case err := <-waits:
		t.Fatalf("the wait for an answer ended with %v, and the server was where it was", err)
	case <-time.After(10 * time.Millisecond):
	}
	p.Abandon(w.move("shm:@present"))
	if err := <-waits; err == nil || ctx.Err() != nil {
		t.Errorf("the wait for an answer: %v", err)
	}
	if err := idle.StartCall(ctx, nil); err == nil {
		t.Error("a request to the former place is sent")
	}
	b := &rdma.Batch{}
	b.Read(1, 0, make([]uint64, 1))
	if err := idle.Post(b); err == nil {
		t.Error("a READ at the former place is posted")
	}
	c := dial()
	if addr, err := sayAddr(ctx, c); err != nil || addr != "shm:@present" {
		t.Errorf("the server is at %q, %v", addr, err)
	}
	if err := errors.Join(c.Close(), asks.Close(), idle.Close(), local.Resume("@former")); err != nil && !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	if n := len(p.mu.visits); n != 0 {
		t.Errorf("%d connections are remembered that are closed", n)
	}
}

// slowDials is a provider whose dials wait.
type slowDials struct {
	rdma.Provider
	began, proceed chan struct{}
}

func (s *slowDials) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	s.began <- struct{}{}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.proceed:
	}
	return s.Provider.Dial(context.WithoutCancel(ctx), addr)
}

// TestAbandonedDials: a dial to where a server is no more ends, whether it gets a
// connection or not.
func TestAbandonedDials(t *testing.T) {
	ctx, local := patience(t), inproc.New(inproc.Options{})
	w := &where{at: "shm:@former"}
	s := &slowDials{Provider: local, began: make(chan struct{}), proceed: make(chan struct{}, 1)}
	p := &Provider{Shm: s, Resolve: w.resolve}
	listen(t, p, "shm:@former")
	for _, connects := range []bool{false, true} {
		w.move("shm:@former")
		failed := make(chan error)
		go func() {
			c, err := p.Dial(ctx, "shm:@former")
			if err == nil {
				c.Close()
			}
			failed <- err
		}()
		<-s.began
		if connects {
			s.proceed <- struct{}{}
		}
		p.Abandon(w.move("shm:@present"))
		// A connection that was there before is closed by its owner.
		if err := <-failed; !errors.Is(err, rdma.ErrPeerDown) && !(connects && err == nil) {
			t.Errorf("a dial to where the server was: %v", err)
		}
		if n := len(p.mu.visits); n != 0 {
			t.Errorf("%d dials are remembered that have ended", n)
		}
		select {
		case <-s.proceed:
		default:
		}
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	defer cancel()
	go func() { <-s.began }()
	if _, err := p.Dial(short, "shm:@present"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a dial with a deadline: %v", err)
	}
}
