package shm

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/rdma"
)

// A client whose link fails closes the socket, and the server then clears the segment from
// which another goroutine may be copying a response.
func TestClearedResponsesAreNotReturned(t *testing.T) {
	p := newProvider(t, Options{})
	want := bytes.Repeat([]byte{0xa5}, rdma.MaxMessageBytes)
	e := serve(t, p, func(r *rdma.Request) { _ = r.Reply(want) })
	r := rng.New(1)
	var whole, refused int
	resp := make([]byte, 0, rdma.MaxMessageBytes)
	for range 100 {
		rc, err := p.Dial(t.Context(), e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c := rc.(*conn)
		if err := c.StartCall(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		for !c.ready() { // the response is there; its copy begins below
			time.Sleep(10 * time.Microsecond)
		}
		go func(wait time.Duration) {
			time.Sleep(wait)
			c.link.leave()
		}(time.Duration(r.Intn(200)) * time.Microsecond)
		time.Sleep(time.Duration(r.Intn(200)) * time.Microsecond)
		switch resp, err = c.FinishCall(context.Background(), resp); {
		case err == nil && bytes.Equal(resp, want):
			whole++
		case err == nil:
			t.Fatalf("a response of %d bytes with %d of the server's", len(resp), bytes.Count(resp, want[:1]))
		case errors.Is(err, rdma.ErrPeerDown):
			refused++
		default:
			t.Fatal(err)
		}
		c.Close()
	}
	t.Logf("%d responses were whole, %d calls failed", whole, refused)
}
