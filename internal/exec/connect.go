package exec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/learned/read"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// openGrace is how long Open waits for the other servers after the first has
// answered. A server that answers later is connected when a transaction first
// needs it.
const openGrace = 250 * time.Millisecond

// greeted is a connection on which a server has said hello, or the reason why
// there is none.
type greeted struct {
	at    int // in Config.Servers
	conn  rdma.Conn
	hello *wire.Hello
	err   error
}

// connect says hello to all servers at once and takes the topology from the
// first answer. It needs one server: the others are checked as far as they
// answer within openGrace.
func (db *DB) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan greeted, len(db.cfg.Servers))
	for i, addr := range db.cfg.Servers {
		go func() {
			g := greeted{at: i}
			g.conn, g.hello, g.err = greet(ctx, db.cfg.Dial, addr)
			answers <- g
		}()
	}
	var all []greeted
	defer func() {
		cancel()
		for range len(db.cfg.Servers) - len(all) { // they end soon: ctx has
			all = append(all, <-answers)
		}
		for _, g := range all {
			if g.conn != nil {
				g.conn.Close()
			}
		}
	}()
	var errs []error
	var grace <-chan time.Time
	for known := false; len(all) < len(db.cfg.Servers); {
		select {
		case g := <-answers:
			all = append(all, g)
			if g.err != nil {
				errs = append(errs, g.err)
				if errors.Is(g.err, ErrProtocol) {
					return g.err
				}
				continue
			}
			if !known {
				known = true
				if err := db.learnTopology(g.hello); err != nil {
					return err
				}
				timer := time.NewTimer(openGrace)
				defer timer.Stop()
				grace = timer.C
			}
			if err := db.meet(g.hello, g.conn.InOrder()); err != nil {
				return err
			}
		case <-grace:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(append(errs, ctx.Err())...))
		}
	}
	if db.catalog == nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(errs...))
	}
	return nil
}

// learnTopology takes the catalogue and the partition map from a server.
func (db *DB) learnTopology(h *wire.Hello) error {
	cat, err := tables.ParseCatalog(h.Catalog)
	if err != nil {
		return fmt.Errorf("%w: catalogue: %w", ErrProtocol, err)
	}
	servers := h.Servers
	if db.cfg.AllServers {
		if len(db.cfg.Servers) != len(h.Servers) {
			return fmt.Errorf("%w: the cluster has %d data servers, %d addresses are given", ErrProtocol, len(h.Servers), len(db.cfg.Servers))
		}
		servers = db.cfg.Servers
	}
	db.catalog, db.servers = cat, servers
	db.incarnation = make([]atomic.Uint64, len(db.servers))
	db.parts = make([]partition, len(h.Primaries))
	for p, srv := range h.Primaries {
		db.parts[p].server = srv
	}
	return nil
}

// meet checks what a server says of itself, and of the others as far as it
// knows them, against what the DB has heard before. Then it makes the client
// halves of the server's partitions.
func (db *DB) meet(h *wire.Hello, inOrder bool) error {
	if len(h.Servers) != len(db.servers) || len(h.Primaries) != len(db.parts) {
		return fmt.Errorf("%w: server %d has another topology", ErrProtocol, h.Server)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.recognize(h.Server, h.Incarnation); err != nil {
		return err
	}
	for server, incarnation := range h.Incarnations {
		if err := db.recognize(server, incarnation); err != nil {
			return err
		}
	}
	if h.Replaced {
		return db.restarted(h.Server)
	}
	return db.bind(h, inOrder)
}

// recognize compares a server's incarnation, 0 if unknown, with the one heard
// before. Under db.mu.
func (db *DB) recognize(server int, incarnation uint64) error {
	switch known := db.incarnation[server].Load(); {
	case incarnation == 0:
	case known == 0:
		db.incarnation[server].Store(incarnation)
	case known != incarnation:
		return db.restarted(server)
	}
	return nil
}

func (db *DB) restarted(server int) error {
	return fmt.Errorf("%w: server %s: %w", ErrUnavailable, db.servers[server], ErrRestarted)
}

// bind makes the client halves of a server's partitions. Under db.mu. A session
// reads what it sets only after the session's own connection to the server has
// called it.
func (db *DB) bind(h *wire.Hello, inOrder bool) error {
	for _, hp := range h.Hosted {
		p := &db.parts[hp.Partition]
		if p.server != h.Server || p.clients != nil {
			continue
		}
		if len(hp.Roots) != len(db.catalog.Indexes) {
			return fmt.Errorf("%w: server %s has another catalogue", ErrProtocol, db.servers[h.Server])
		}
		p.rkey, p.epoch, p.roots = rdma.RKey(hp.RKey), h.Epoch, hp.Roots
		for _, ix := range db.catalog.Indexes {
			p.clients = append(p.clients, db.newClient(ix, p, inOrder))
		}
	}
	for id := range db.parts {
		if p := &db.parts[id]; p.server == h.Server && p.clients == nil {
			return fmt.Errorf("%w: server %s does not hold partition %d", ErrProtocol, db.servers[h.Server], id)
		}
	}
	return nil
}

func (db *DB) newClient(ix *tables.Index, p *partition, inOrder bool) index.Client {
	if ix.Ordered {
		return read.New(p.roots[ix.ID], p.rkey, read.Options{InOrder: inOrder, RowWords: ix.RowBytes / 8, Strings: ix.Strings, Cache: db.cfg.Cache})
	}
	return hash.NewClient(p.roots[ix.ID], p.rkey, hash.ClientOptions{
		InOrder: inOrder, LocationCacheEntries: max(db.cfg.LocationCache, 0),
	})
}

// greet connects to a server and asks it what it is.
func greet(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (rdma.Conn, *wire.Hello, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, nil, fmt.Errorf("server %s: %w", addr, err)
	}
	resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("server %s: %w", addr, err)
	}
	h, err := wire.DecodeHello(resp)
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("%w: server %s: %w", ErrProtocol, addr, err)
	}
	return c, h, nil
}
