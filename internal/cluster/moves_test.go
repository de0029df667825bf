package cluster

import (
	"errors"
	"strings"
	"testing"
)

// TestMovesAreRefused: a client that has only addresses of data servers which may move is
// told so.
func TestMovesAreRefused(t *testing.T) {
	t.Parallel()
	h := startHosts(t, 2)
	a, err := ParseAddress("drtmx://" + h.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []ConnectOptions{{Address: a}, {Addrs: h.addrs}} {
		c, err := Connect(h.ctx, o)
		if c != nil {
			err = errors.Join(err, c.Close())
		}
		if !errors.Is(err, ErrMoves) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
