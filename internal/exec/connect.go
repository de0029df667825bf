package exec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// openGrace is how long Open waits for the other servers after the first has
// answered. A server that answers later is connected when a transaction first
// needs it.
const openGrace = 250 * time.Millisecond

// connect dials all servers at once and takes the topology from the first answer. One
// server suffices. It checks the others that answer within openGrace.
func (db *DB) connect(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan greeting, len(db.cfg.Servers))
	for _, addr := range db.cfg.Servers {
		go func() { answers <- greet(ctx, db.cfg.Dial, addr) }()
	}
	var all []greeting
	defer func() {
		cancel()
		for range len(db.cfg.Servers) - len(all) { // they end soon, because ctx has ended
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
			if _, err := db.meet(g.hello, g.conn.InOrder()); err != nil {
				return err
			}
		case <-grace:
			return nil
		case <-ctx.Done():
			for len(all) < len(db.cfg.Servers) { // they end soon, and may say more than ctx.Err()
				g := <-answers
				all = append(all, g)
				if g.err != nil {
					errs = append(errs, g.err)
				}
			}
			return noAnswer(append(errs, ctx.Err()))
		}
	}
	if db.Catalog() == nil {
		return noAnswer(errs)
	}
	return nil
}

// dialsMax bounds the connections to one server that are being made at the same time.
// A server closes sockets when too many peers are in their handshakes.
const dialsMax = 256

// dial connects to a server for a session. It waits while dialsMax others are
// connecting.
func (db *DB) dial(ctx context.Context, server placement.Server) greeting {
	select {
	case db.dials[server] <- struct{}{}:
	case <-ctx.Done():
		return greeting{err: &tables.Error{Err: ErrUnavailable, Partition: -1, Server: db.servers[server], Cause: ctx.Err()}}
	}
	defer func() { <-db.dials[server] }()
	return greet(ctx, db.cfg.Dial, db.servers[server])
}

// noAnswer returns the error for a list of servers none of which answered.
func noAnswer(errs []error) error {
	if len(errs) == 1 && errors.Is(errs[0], ErrUnavailable) {
		return errs[0]
	}
	for i, err := range errs {
		var e *tables.Error
		if errors.As(err, &e) {
			errs[i] = fmt.Errorf("server %s: %w", e.Server, e.Cause)
		}
	}
	return &tables.Error{Err: ErrUnavailable, Partition: -1, Cause: errors.Join(errs...)}
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
	db.servers = servers
	db.catalog.Store(cat)
	db.incarnation = make([]atomic.Uint64, len(db.servers))
	db.lives, db.durable = make([]*life, len(db.servers)), h.Durable
	db.room.open = make([]atomic.Int32, len(db.servers))
	db.dials = make([]chan struct{}, len(db.servers))
	for i := range db.dials {
		db.dials[i] = make(chan struct{}, dialsMax)
	}
	db.placement = h.Placement
	return nil
}

// meet compares a server's hello, which may also describe the other servers, with
// what the DB knows. It returns the life that the server is in.
func (db *DB) meet(h *wire.Hello, inOrder bool) (*life, error) {
	if len(h.Servers) != len(db.servers) || h.Placement.Partitions() != db.Partitions() {
		return nil, fmt.Errorf("%w: server %d has another topology", ErrProtocol, h.Server)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.recognize(h.Server, h.Incarnation); err != nil {
		return nil, err
	}
	for server, incarnation := range h.Incarnations {
		if err := db.recognize(placement.Server(server), incarnation); err != nil {
			return nil, err
		}
	}
	if h.Replaced {
		return nil, db.Unavailable(h.Server, ErrRestarted)
	}
	if !inOrder && !h.Checksums {
		return nil, fmt.Errorf("%w: data server %d keeps no checksums, and connections to it do not read in order (see Checksums of its configuration)", ErrProtocol, h.Server)
	}
	if err := db.follow(h); err != nil {
		return nil, err
	}
	return db.bind(h, inOrder)
}

// recognize compares a server's incarnation, 0 if unknown, with the one known before.
// The caller holds db.mu.
func (db *DB) recognize(server placement.Server, incarnation uint64) error {
	switch known := db.incarnation[server].Load(); {
	case incarnation == 0:
	case known == 0:
		db.incarnation[server].Store(incarnation)
	case known != incarnation:
		return db.Unavailable(server, ErrRestarted)
	}
	return nil
}

// greeting is a new connection and its server's hello, or an error.
type greeting struct {
	conn  rdma.Conn
	hello *wire.Hello
	err   error
}

// greet connects to a server and asks for its hello.
func greet(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) greeting {
	kind := ErrUnavailable
	c, err := dial(ctx, addr)
	if err == nil {
		var h *wire.Hello
		if h, err = helloOf(ctx, c); err == nil {
			return greeting{conn: c, hello: h}
		}
		c.Close()
		if errors.Is(err, wire.ErrMessage) {
			kind = ErrProtocol
		}
	}
	return greeting{err: &tables.Error{Err: kind, Partition: -1, Server: addr, Cause: err}}
}

// helloOf asks for a server's hello, again and again until all other servers know it.
func helloOf(ctx context.Context, c rdma.Conn) (*wire.Hello, error) {
	began, unmet := time.Now(), false
	for {
		resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
		if err != nil && unmet && ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", errUnmet, err)
		}
		if err != nil {
			return nil, err
		}
		// It is wire.ErrKeeper if the data server is at another address, or has not started yet.
		if h, err := wire.DecodeHello(resp); err != nil || h.Unmet == "" || h.Replaced {
			return h, err
		} else if time.Since(began) > unmetMax {
			return nil, fmt.Errorf("%w: %s", errUnmet, h.Unmet)
		}
		unmet = true
		select {
		case <-time.After(unmetPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errUnmet, context.Cause(ctx))
		}
	}
}

const (
	// unmetPoll is how long helloOf waits before it asks a server again that others do
	// not know yet.
	unmetPoll = 5 * time.Millisecond
	// unmetMax is how long helloOf waits for that.
	unmetMax = 5 * time.Second
)

// errUnmet is the cause of an ErrUnavailable for a server that another data server does
// not know yet. It would be unnoticed if such a server lost its memory.
var errUnmet = errors.New("it keeps its data in memory only, and not all other data servers have met it")

// dialing is a connection being made in another goroutine. It goes on when the
// transaction that needs it gives up, because otherwise transactions with short
// deadlines would never get a connection.
type dialing struct {
	cancel context.CancelFunc
	result chan greeting // has room for one
}

// stop cancels the dial, and closes the connection if there is one already.
func (d *dialing) stop() {
	if d != nil {
		d.cancel()
		g := <-d.result
		d.result <- greeting{err: ErrClosed} // for a concurrent greet
		if g.conn != nil {
			g.conn.Close()
		}
	}
}

// greet connects to a server. If ctx ends before the connection is there, a later
// call takes it.
func (n *network) greet(ctx context.Context, server placement.Server) (greeting, error) {
	n.db.gate.dials.Add(1)
	defer n.db.gate.dials.Add(-1)
	if ctx.Done() == nil && n.dial(server) == nil {
		g := n.db.dial(ctx, server)
		return g, g.err
	}
	d, err := n.startDial(ctx, server)
	if err != nil {
		return greeting{}, err
	}
	select {
	case g := <-d.result:
		n.endDial(server)
		return g, g.err
	case <-ctx.Done():
		return greeting{}, ctx.Err()
	}
}

func (n *network) dial(server placement.Server) *dialing {
	if n.dials == nil {
		return nil
	}
	return n.dials[server]
}

// startDial begins to connect to a server, or returns the dial that has begun before.
func (n *network) startDial(ctx context.Context, server placement.Server) (*dialing, error) {
	if d := n.dial(server); d != nil {
		return d, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed.Load() {
		return nil, ErrClosed
	}
	if n.dials == nil {
		n.dials = make([]*dialing, len(n.db.servers))
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(dialTimeout, n.db.cfg.Retry.Patience))
	d := &dialing{cancel: cancel, result: make(chan greeting, 1)}
	n.dials[server] = d
	go func() {
		d.result <- n.db.dial(own, server)
	}()
	return d, nil
}

// endDial forgets a dial whose result was taken.
func (n *network) endDial(server placement.Server) {
	d := n.dials[server]
	d.result <- greeting{err: ErrClosed} // for a concurrent stop
	d.cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials[server] = nil
}

// dialTimeout bounds an attempt to connect that no transaction waits for, unless
// transactions are more patient.
const dialTimeout = 10 * time.Second
