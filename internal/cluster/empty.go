package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// ErrNotEmptied reports a cluster that refused to be emptied, or was not empty
// in time.
var ErrNotEmptied = errors.New("cluster: not emptied")

// emptyPause is how long Empty waits before it asks a data server again.
const emptyPause = 50 * time.Millisecond

// Empty empties the running cluster that o locates: the process that has started
// its data servers replaces them by new ones, at the same addresses. It returns
// their number when all of them serve. Data servers that were started one by one
// refuse; so they do if the client's role is below that of a loader. The error
// then wraps ErrNotEmptied; other errors are those of Connect.
func Empty(ctx context.Context, o ConnectOptions) (int, error) {
	c, err := Connect(ctx, o)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, resetTimeout, fmt.Errorf("%w: no answer within %v", ErrNotEmptied, resetTimeout))
	defer cancel()
	before := make([]uint64, len(c.addrs))
	for i := range placement.Server(len(c.addrs)) {
		if before[i], err = c.incarnation(ctx, i); err != nil {
			return 0, fmt.Errorf("data server %d at %s: %w", i, c.addrs[i], err)
		}
	}
	if err := c.askToEmpty(ctx); err != nil {
		return 0, err
	}
	for i := range placement.Server(len(before)) {
		for {
			now, err := c.incarnation(ctx, i)
			if err == nil && now != before[i] {
				break
			}
			select {
			case <-time.After(emptyPause):
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
	}
	return len(before), nil
}

// incarnation asks a data server for its incarnation.
func (c *Cluster) incarnation(ctx context.Context, server placement.Server) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	conn, err := c.provider.Dial(ctx, c.addrs[server])
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	h, err := sayHello(ctx, conn)
	if err != nil {
		return 0, err
	}
	return h.Incarnation, nil
}

// askToEmpty asks the first data server. It may end before its answer arrives.
func (c *Cluster) askToEmpty(ctx context.Context) error {
	conn, err := c.provider.Dial(ctx, c.addrs[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := sayHello(ctx, conn); err != nil {
		return err
	}
	resp, err := rdma.Call(ctx, conn, []byte{byte(wire.OpEmpty)}, nil)
	switch {
	case errors.Is(err, rdma.ErrPeerDown):
		return nil
	case err != nil:
		return err
	case len(resp) == 0 || wire.Code(resp[0]) != wire.OK:
		return fmt.Errorf("%w: data server 0: %s", ErrNotEmptied, resp[min(1, len(resp)):])
	}
	return nil
}
