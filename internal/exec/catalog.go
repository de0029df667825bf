package exec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// follow adopts a later version of the catalogue from a server's hello. The caller
// holds db.mu.
func (db *DB) follow(h *wire.Hello) error {
	c := db.Catalog()
	if h.CatalogVersion <= c.Version() {
		return nil
	}
	next, err := c.Follow(h.Catalog)
	if err != nil {
		return fmt.Errorf("%w: catalogue of server %s: %w", ErrProtocol, db.servers[h.Server], err)
	}
	if next.Version() != h.CatalogVersion {
		return fmt.Errorf("%w: server %s has version %d of the catalogue, and says %d", ErrProtocol, db.servers[h.Server], next.Version(), h.CatalogVersion)
	}
	db.catalog.Store(next)
	return nil
}

// helloAgain asks a server for another hello, which lists its present indexes.
func (n *network) helloAgain(ctx context.Context, l *link) error {
	resp, err := n.call(ctx, l, []byte{byte(wire.OpHello)})
	if err != nil {
		return err
	}
	h, err := wire.DecodeHello(resp)
	if err != nil {
		return &tables.Error{Err: ErrProtocol, Partition: -1, Server: n.db.servers[l.server], Cause: err}
	}
	lf, err := n.db.meet(h, l.conn.InOrder())
	if err == nil {
		n.rebind(l.server, lf)
	}
	return err
}

// refresh fetches the present version of the catalogue from a server. newer reports
// that the DB did not have it.
func (n *network) refresh(ctx context.Context) (newer bool, err error) {
	was := n.db.Catalog().Version()
	l, err := n.reach(ctx, placement.Orderer)
	if err == nil {
		err = n.helloAgain(ctx, l)
	}
	return n.db.Catalog().Version() > was, err
}

// errNoRanges is the error of a scan of a table whose primary index is Hash. It may have a twin by now.
var errNoRanges = fmt.Errorf("%w: scan of a hash index", tables.ErrSchema)

// mayRefresh fetches the present version of the catalogue if err may be due to an
// older one. It reports whether another attempt may succeed; else it returns the error of
// the transaction, which is that of the fetch if that has failed: nothing then says that
// the present version lacks what the attempt lacked.
func (s *Session) mayRefresh(ctx context.Context, err error) (again bool, _ error) {
	if !errors.Is(err, tables.ErrCatalog) && !errors.Is(err, errNoRanges) {
		return false, err
	}
	if ended := ctx.Err(); ended != nil { // there is no time to ask
		return false, ended
	}
	if s.db.Catalog().Version() > s.txn.catalog.Version() { // it came with an answer to the attempt
		return true, nil
	}
	newer, rerr := s.net.refresh(ctx)
	if rerr != nil {
		return false, rerr
	}
	return newer, err
}

// Refresh fetches the present version of the catalogue.
func (db *DB) Refresh(ctx context.Context) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	_, err = s.net.refresh(ctx)
	return err
}

// Alter applies a change to the catalogue at all data servers, and returns the
// resulting version or a later one. A change that was applied before has no effect.
func (db *DB) Alter(ctx context.Context, ch tables.Change) (*tables.Catalog, error) {
	if _, err := db.Catalog().With(ch); err != nil { // perhaps of a version that is not the present one
		if rerr := db.Refresh(ctx); rerr != nil {
			return nil, rerr
		}
		if _, err = db.Catalog().With(ch); err != nil {
			return nil, err
		}
	}
	req, err := json.Marshal(ch)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tables.ErrSchema, err)
	}
	req = append([]byte{byte(wire.OpAlter)}, req...)
	if len(req) > rdma.MaxMessageBytes {
		return nil, tooLarge("a change of the catalogue", len(req), rdma.MaxMessageBytes, "rdma.MaxMessageBytes")
	}
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	until := time.Now().Add(db.cfg.Retry.Patience)
	if d, ok := ctx.Deadline(); ok {
		until = d
	}
	for n := 0; ; n++ {
		err := s.alter(ctx, req)
		if err == nil {
			_, err = s.net.refresh(ctx)
			return db.Catalog(), err
		}
		busy := errors.Is(err, errBusy)
		if busy && time.Now().Before(until) && s.backoff(ctx, n) == nil {
			continue
		}
		if ended := ctx.Err(); busy || ended != nil {
			err = db.Unavailable(placement.Orderer, cmp.Or(ended, err))
		}
		return nil, err
	}
}

// errBusy reports a change that waits for another one, or for a data server that
// does not answer.
var errBusy = errors.New("the change is not complete")

func (s *Session) alter(ctx context.Context, req []byte) error {
	l, err := s.net.link(ctx, placement.Orderer)
	if err != nil {
		return err
	}
	resp, err := s.net.call(ctx, l, req)
	if err != nil {
		return err
	}
	switch c := wire.Code(resp[0]); c {
	case wire.OK:
		return nil
	case wire.InDoubt:
		return fmt.Errorf("%w: %s", errBusy, resp[1:])
	default:
		return codeError(c, resp[1:])
	}
}
