package exec

import (
	"context"
	"fmt"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// AskStats asks the server at an address for its statistics, over a new
// connection. It needs no DB, so it works while other servers are down. It
// returns ErrUnavailable if the server does not answer, and ErrProtocol if the
// answer cannot be decoded.
func AskStats(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*wire.ServerStats, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, &tables.Error{Err: ErrUnavailable, Partition: -1, Server: addr, Cause: err}
	}
	defer c.Close()
	var st wire.ServerStats
	var resp []byte
	for more := true; more; more = st.Next != 0 {
		if resp, err = rdma.Call(ctx, c, wire.AppendStatsRequest(nil, placement.Partition(st.Next)), resp); err != nil {
			return nil, &tables.Error{Err: ErrUnavailable, Partition: -1, Server: addr, Cause: err}
		}
		if err := wire.DecodeStats(resp, &st); err != nil {
			return nil, &tables.Error{Err: ErrProtocol, Partition: -1, Server: addr, Cause: err}
		}
	}
	return &st, nil
}

// serverStats does the same as AskStats over the session's connection.
func (s *Session) serverStats(ctx context.Context, server placement.Server, st *wire.ServerStats) error {
	l, err := s.net.link(ctx, server)
	if err != nil {
		return err
	}
	for more := true; more; more = st.Next != 0 {
		resp, err := s.net.call(ctx, l, wire.AppendStatsRequest(nil, placement.Partition(st.Next)))
		if err != nil {
			return err
		}
		if err := wire.DecodeStats(resp, st); err != nil {
			return &tables.Error{Err: ErrProtocol, Partition: -1, Server: s.db.servers[server], Cause: err}
		}
	}
	return nil
}

// AskStats asks a server of the DB, by its number, as the function AskStats does.
func (db *DB) AskStats(ctx context.Context, server placement.Server) (*wire.ServerStats, error) {
	if server < 0 || int(server) >= len(db.servers) {
		return nil, fmt.Errorf("txn: server %d, want 0 to %d", server, len(db.servers)-1)
	}
	return AskStats(ctx, db.cfg.Dial, db.servers[server])
}
