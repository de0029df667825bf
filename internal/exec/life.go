package exec

import (
	"fmt"
	"slices"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/engine"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// life is a data server in one epoch: its regions, and the client halves of its
// indexes. A durable server that recovers keeps its incarnation and begins another
// epoch. Addresses, caches and proofs are valid in one life only. A session uses the
// life that its connection leads to; the sessions of a DB share lives.
type life struct {
	server      placement.Server
	epoch       uint32
	incarnation uint64   // of the server's state
	parts       []hosted // by partition; those of other servers are empty
	trust       trust
	reading     atomic.Pointer[clockReading] // the latest
	expecting   *question                    // a request to keep versions, under way; under DB.mu
	silent      bool                         // the last one was not answered; under DB.mu
}

// hosted is a partition in one life of its server.
type hosted struct {
	rkey    rdma.RKey
	leaves  atomic.Pointer[[]rdma.RKey] // of regions with the leaves of one index, by index number; it changes under DB.mu
	clients []index.Client              // by index number, as many as are in the server's hello; under DB.mu
	before  []index.ClientStats         // counters of the client halves of earlier lives; under DB.mu
}

// bind returns the life that a server's hello describes, with client halves for the
// indexes in the hello. The caller holds db.mu.
func (db *DB) bind(h *wire.Hello, inOrder bool) (*life, error) {
	was := db.lives[h.Server]
	if was != nil && h.Epoch < was.epoch {
		return nil, db.Unavailable(h.Server, fmt.Errorf("it answers in epoch %d, and has begun epoch %d", h.Epoch, was.epoch))
	}
	lf := was
	if was == nil || h.Epoch > was.epoch {
		lf = &life{server: h.Server, epoch: h.Epoch, incarnation: h.Incarnation, parts: make([]hosted, db.Partitions())}
		lf.trust.leased = h.Leased
	}
	lf.readClock(h.Now)
	indexes := db.Catalog().Indexes
	for _, hp := range h.Hosted {
		if db.placement.At(hp.Partition) != h.Server {
			continue
		}
		p := &lf.parts[hp.Partition]
		if len(hp.Roots) == 0 || len(hp.Roots) > len(indexes) || len(hp.Roots) < len(indexes) && h.CatalogVersion == db.Catalog().Version() {
			return nil, fmt.Errorf("%w: server %s has another catalogue", ErrProtocol, db.servers[h.Server])
		}
		if p.clients == nil {
			p.rkey = rdma.RKey(hp.RKey)
		}
		keys := p.leafKeys()
		for id := len(p.clients); id < len(hp.Roots); id++ {
			leaves := rdma.RKey(hp.LeavesOf(id))
			keys = append(slices.Clip(keys), leaves)
			p.clients = append(p.clients, newClient(&db.cfg, indexes[id], hp.Roots[id], p.rkey, leaves, inOrder))
		}
		p.leaves.Store(&keys)
	}
	for id := range db.placement.Of(h.Server) {
		if lf.parts[id].clients == nil {
			return nil, fmt.Errorf("%w: server %s does not hold partition %d", ErrProtocol, db.servers[h.Server], id)
		}
	}
	if was != nil && lf != was {
		for id := range lf.parts {
			lf.parts[id].before = was.parts[id].counts()
		}
	}
	db.lives[h.Server] = lf
	return lf, nil
}

// leafKeys returns the keys of the regions with the leaves of one index, by index number.
func (h *hosted) leafKeys() []rdma.RKey {
	if keys := h.leaves.Load(); keys != nil {
		return *keys
	}
	return nil
}

func newClient(cfg *Config, ix *tables.Index, root uint64, rkey, leaves rdma.RKey, inOrder bool) index.Client {
	d := engine.Def{Ordered: ix.Ordered, Strings: ix.Strings, RowWords: ix.RowBytes / mem.WordBytes, Rolex: ix.Engine == tables.Rolex, FineStore: ix.Engine == tables.FineStore}
	o := engine.ClientOptions{InOrder: inOrder, Cache: cfg.Cache, Locations: max(cfg.LocationCache, 0)}
	if d.Rolex {
		o.Leaves, o.Number = leaves, wire.RegionOf(ix.ID)
	}
	return engine.NewClient(d, root, rkey, o)
}

// counts returns the sums of the counters of client halves over this life and earlier
// ones. Sizes are those of this life. The caller holds DB.mu.
func (h *hosted) counts() []index.ClientStats {
	all := make([]index.ClientStats, len(h.clients))
	for i, c := range h.clients {
		st := c.Stats()
		if i < len(h.before) {
			b := &h.before[i]
			st.Lookups, st.Rounds, st.Reads, st.Chases = st.Lookups+b.Lookups, st.Rounds+b.Rounds, st.Reads+b.Reads, st.Chases+b.Chases
			st.Fallbacks, st.Retries, st.Refreshes = st.Fallbacks+b.Fallbacks, st.Retries+b.Retries, st.Refreshes+b.Refreshes
		}
		all[i] = st
	}
	return all
}

// client returns the client half of an index in a life, nil if the index is not in
// the server's hello.
func (db *DB) client(lf *life, ix int, part placement.Partition) index.Client {
	db.mu.Lock()
	defer db.mu.Unlock()
	if clients := lf.parts[part].clients; ix < len(clients) {
		return clients[ix]
	}
	return nil
}

// region returns the key of the region that a proof names, and the address in it. ok is false if the
// server has announced no such region.
func (h *hosted) region(at uint64) (key rdma.RKey, addr uint64, ok bool) {
	number, addr := index.RegionOf(at)
	if number == 0 {
		return h.rkey, addr, true
	}
	if keys, id := h.leafKeys(), wire.IndexOf(number); id < len(keys) && keys[id] != 0 {
		return keys[id], addr, true
	}
	return 0, 0, false
}

// life returns the life of a partition's server that the session uses. The session
// must have been connected to the server.
func (n *network) life(part placement.Partition) *life { return n.lives[n.db.placement.At(part)] }

// rebind makes the session use a life of a server: see Session.rebound.
func (n *network) rebind(server placement.Server, lf *life) {
	was := n.lives[server]
	if n.lives[server] = lf; was != nil && was != lf {
		n.rebound(server)
	}
}

// hasRead reports whether the attempt has read at a server, or has begun to.
func (t *Txn) hasRead(server placement.Server) bool {
	if t.mode == closed {
		return false
	}
	for _, p := range t.used {
		if p.server == server {
			return true
		}
	}
	at := t.s.db.placement.At
	for r := range t.reads.answered {
		if at(r.part()) == server {
			return true
		}
	}
	for k := range t.reads.keptPages {
		if at(k.part) == server {
			return true
		}
	}
	return false
}

// nameLives adds to each part the life of the partition's server that the transaction
// has read or would write, if it is known.
func (n *network) nameLives(c *wire.Commit) {
	for i := range c.Parts {
		p := &c.Parts[i]
		server := n.db.placement.At(p.Partition)
		p.Incarnation = n.db.incarnation[server].Load()
		if lf := n.lives[server]; lf != nil {
			p.Memory = lf.epoch
		}
	}
}
