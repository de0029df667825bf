package server_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// copyFirst has a copy of the next request of a kind arrive, and be answered,
// before the request itself. sent reports whether there was one.
func (d *doubts) copyFirst(t *testing.T, op wire.Op, copied func([]byte) []byte) (sent func() bool) {
	done := false
	d.peers.mu.Lock()
	defer d.peers.mu.Unlock()
	d.peers.request = func(to string, req []byte) {
		d.peers.mu.Lock()
		first := wire.Op(req[0]) == op && !done
		done = done || first
		d.peers.mu.Unlock()
		if !first {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
		defer cancel()
		c, err := d.net.Dial(ctx, to)
		if err == nil {
			_, err = rdma.Call(ctx, c, copied(req), nil)
			c.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}
	return func() bool {
		d.peers.mu.Lock()
		defer d.peers.mu.Unlock()
		return done
	}
}

// TestCopiesThatArriveFirst: a participant that has seen a copy of a request
// turns the request itself away. The client is told what it would be told of
// any conflict, and its next attempt has the outcome it should have.
func TestCopiesThatArriveFirst(t *testing.T) {
	t.Run("prepare", func(t *testing.T) {
		d := newDoubts(t)
		copied := d.copyFirst(t, wire.OpPrepare, bytes.Clone)
		if err := d.write(5, doubtKeys...); err != nil || !copied() {
			t.Errorf("copied %v: %v", copied(), err)
		}
		d.survivors(t, 5, doubtKeys...)
	})
	t.Run("hand-over of what is carried out", func(t *testing.T) {
		d := newHandovers(t)
		copied := d.copyFirst(t, wire.OpHandOver, bytes.Clone)
		if err := d.hash(context.Background(), 5, handKeys...); err != nil || !copied() {
			t.Errorf("copied %v: %v", copied(), err)
		}
		d.left(t, 5, recoveryBound, handKeys...)
	})
	t.Run("hand-over of what is refused", func(t *testing.T) {
		d := newHandovers(t)
		copied := d.copyFirst(t, wire.OpHandOver, func(req []byte) []byte {
			dec := wire.NewDecoder(req[1:])
			ms := dec.Messages(nil)
			var c wire.Commit
			if err := c.DecodeParts(&dec); err != nil {
				t.Error(err)
			}
			c.Age = time.Hour // proofs too old to be believed
			return wire.AppendParts(wire.AppendMessages([]byte{req[0]}, ms), &c, nil)
		})
		if err := d.hash(context.Background(), 5, handKeys...); err != nil || !copied() {
			t.Errorf("copied %v: %v", copied(), err)
		}
		d.left(t, 5, recoveryBound, handKeys...)
	})
}
