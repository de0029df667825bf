package provide

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/rdma"
)

// Errors of callers that break the contract of rdma.
var (
	ErrEmptyBatch = errors.New("rdma: empty batch")
	ErrCallBusy   = errors.New("rdma: a call is outstanding on this connection")
	ErrNoCall     = errors.New("rdma: no call is outstanding on this connection")
	ErrReplied    = errors.New("rdma: the request was already answered")
	ErrServed     = errors.New("rdma: Serve was already called")
)

// CheckBatch refuses a batch that cannot be posted.
func CheckBatch(b *rdma.Batch) error {
	if n := len(b.WRs); n == 0 || n > rdma.MaxBatch {
		return badBatch(n)
	}
	return nil
}

func badBatch(n int) error {
	if n == 0 {
		return ErrEmptyBatch
	}
	return fmt.Errorf("rdma: batch of %d work requests: %w", n, rdma.ErrTooLarge)
}

// CheckCall refuses a request that is too large, or that follows a request
// without an answer.
func CheckCall(outstanding bool, req []byte) error {
	if outstanding {
		return ErrCallBusy
	}
	return checkMessage("request", req)
}

func checkMessage(what string, b []byte) error {
	if len(b) > rdma.MaxMessageBytes {
		return fmt.Errorf("rdma: %s of %d bytes: %w", what, len(b), rdma.ErrTooLarge)
	}
	return nil
}

// CheckReply refuses a response that is too large, that comes after the end of
// the connection, or that answers nothing.
func CheckReply(peer rdma.PeerID, up, outstanding bool, body []byte) error {
	if err := checkMessage("response", body); err != nil {
		return err
	}
	if !up {
		return fmt.Errorf("rdma: reply to peer %d: %w", peer, rdma.ErrPeerDown)
	}
	if !outstanding {
		return ErrReplied
	}
	return nil
}

// PollersOf returns the number of pollers that an option asks for; 0 means 1.
func PollersOf(n, most int) (int, error) {
	if n < 0 || n > most {
		return 0, fmt.Errorf("%d pollers (want 1 to %d): %w", n, most, rdma.ErrTooLarge)
	}
	return max(n, 1), nil
}

// Ended returns the error of a context that has ended. Package net watches
// deadlines itself, and its dials may end a moment before their context does.
func Ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err()
}

// Health is the state of a connection.
type Health uint32

// A connection only moves down this list.
const (
	Up     Health = iota
	Broken        // the peer is down, or a context ended
	Closed
)

// Link is the state of the client's side of a connection. Any goroutine may
// change it.
type Link struct{ health atomic.Uint32 }

// Up reports whether the connection can be used.
func (l *Link) Up() bool { return l.health.Load() == uint32(Up) }

// Move moves the connection down to a state, and reports from which. It reports
// false if the connection was there, or further down.
func (l *Link) Move(to Health) (from Health, moved bool) {
	for {
		old := l.health.Load()
		if old >= uint32(to) {
			return Health(old), false
		}
		if l.health.CompareAndSwap(old, uint32(to)) {
			return Health(old), true
		}
	}
}

// Err returns the error of using the connection to an address, nil while it is
// up.
func (l *Link) Err(provider, addr string) error {
	what := rdma.ErrPeerDown
	switch Health(l.health.Load()) {
	case Up:
		return nil
	case Closed:
		what = rdma.ErrClosed
	}
	return fmt.Errorf("%s: connection to %q: %w", provider, addr, what)
}
