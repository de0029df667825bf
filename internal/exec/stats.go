package exec

import (
	"context"
	"fmt"

	"drtmx/internal/wire"
	"drtmx/rdma"
)

// AskStats asks the server at an address for its statistics, over a new
// connection. It needs no DB, so it works while other servers are down. It
// returns ErrUnavailable if the server does not answer, and ErrProtocol if the
// answer cannot be decoded.
func AskStats(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*wire.ServerStats, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("%w: server %s: %w", ErrUnavailable, addr, err)
	}
	defer c.Close()
	var st wire.ServerStats
	var resp []byte
	for more := true; more; more = st.Next != 0 {
		if resp, err = rdma.Call(ctx, c, wire.AppendStatsRequest(nil, st.Next), resp); err != nil {
			return nil, fmt.Errorf("%w: server %s: %w", ErrUnavailable, addr, err)
		}
		if err := wire.DecodeStats(resp, &st); err != nil {
			return nil, fmt.Errorf("%w: server %s: %w", ErrProtocol, addr, err)
		}
	}
	return &st, nil
}

// serverStats is AskStats over the session's connection.
func (s *Session) serverStats(ctx context.Context, server int, st *wire.ServerStats) error {
	l, err := s.link(ctx, server)
	if err != nil {
		return err
	}
	for more := true; more; more = st.Next != 0 {
		resp, err := s.call(ctx, l, wire.AppendStatsRequest(nil, st.Next))
		if err != nil {
			return err
		}
		if err := wire.DecodeStats(resp, st); err != nil {
			return fmt.Errorf("%w: server %s: %w", ErrProtocol, s.db.servers[server], err)
		}
	}
	return nil
}
