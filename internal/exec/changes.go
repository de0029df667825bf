package exec

import (
	"context"
	"errors"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// The methods that package changes needs of a DB, see changes.Cluster.

// Durable reports whether the data servers keep logs.
func (db *DB) Durable() bool { return db.durable }

// Patience returns Retry.Patience.
func (db *DB) Patience() time.Duration { return db.cfg.Retry.Patience }

// Connect connects to a data server, and checks that it is the one known before. The
// caller owns the connection.
func (db *DB) Connect(ctx context.Context, server placement.Server) (rdma.Conn, error) {
	db.mu.Lock()
	closed := db.mu.closed
	db.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	g := db.dial(ctx, server)
	if g.err != nil {
		return nil, g.err
	}
	if _, err := db.check(g, server); err != nil {
		return nil, err
	}
	return g.conn, nil
}

// Incarnations returns the incarnations of the data servers, 0 for a server that has
// not answered yet.
func (db *DB) Incarnations() []uint64 {
	all := make([]uint64, len(db.incarnation))
	for i := range all {
		all[i] = db.incarnation[i].Load()
	}
	return all
}

// Refused returns the error for an answer whose code is no result.
func (db *DB) Refused(server placement.Server, code wire.Code, text []byte) error {
	err := codeError(code, text)
	var e *tables.Error
	if errors.As(err, &e) && e.Server == "" {
		e.Server = db.servers[server]
	}
	return err
}
