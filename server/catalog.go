package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// hosted is an index of a partition.
type hosted struct {
	index.Server
	def    *tables.Index
	trains index.Maintainer // nil if it has no background work
	demand atomic.Uint32    // fallbacks of clients since the trainer's last turn
	gaveUp atomic.Uint64    // all fallbacks of clients
	leaves *leafRegion      // nil if the index is in the partition's region
}

// holdings are the indexes of a partition in one version of the catalogue.
// Immutable.
type holdings struct {
	catalog *tables.Catalog
	indexes []*hosted // by index number
	trained []*hosted // those with background work
	apart   bool      // one of them has leaves in a region of its own
}

// index returns an index of the present version.
func (p *partition) index(id int) index.Server { return p.has.Load().indexes[id].Server }

// makeIndexes makes the indexes that a version of the catalogue adds to the present
// one. They are invisible before use. Indexes left by an earlier version that never
// came into use are reused if they fit.
func (p *partition) makeIndexes(c *tables.Catalog) error {
	for i, def := range c.Indexes[len(p.has.Load().indexes):] {
		if i < len(p.spare) {
			was := p.spare[i].def
			if was.Ordered == def.Ordered && was.Strings == def.Strings && was.RowBytes == def.RowBytes && was.Engine == def.Engine {
				p.spare[i].def = def
				continue
			}
			p.spare = p.spare[:i]
		}
		h, err := p.newIndex(def)
		if err != nil {
			return fmt.Errorf("server: partition %d: index %s: %w", p.id, def.Name, err)
		}
		p.spare = append(p.spare, h)
	}
	return nil
}

// use makes a version of the catalogue the present one. The caller has called
// makeIndexes.
func (p *partition) use(c *tables.Catalog) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.has.Load()
	n := len(c.Indexes) - len(was.indexes)
	next := &holdings{catalog: c, indexes: append(slices.Clip(was.indexes), p.spare[:n]...), trained: slices.Clone(was.trained), apart: was.apart}
	for _, h := range p.spare[:n] {
		next.apart = next.apart || h.leaves != nil
		if h.trains != nil {
			next.trained = append(next.trained, h)
		}
	}
	for id, h := range was.indexes {
		if h.leaves != nil && c.Indexes[id].Table.ChangedIn() > was.catalog.Version() {
			h.written().Fence() // rows of another version of the table may be there from now on
		}
	}
	p.spare = nil
	p.has.Store(next)
	p.ticks.advance() // what is committed from now on comes after what the indexes of before had
	p.control.Store(epochWord, p.control.Load(epochWord)&fenceBit|p.word())
	if p.requests.runner != nil {
		p.requests.tellWriters(p.requests.held) // also those of the new indexes
		p.requests.runner.Use(c)
	}
}

// catalogue is the version of the catalogue that a server uses, and the changes of it
// that are being made.
type catalogue struct {
	atomic.Pointer[tables.Catalog]
	s        *Server
	altering sync.Mutex // at the orderer: held during a change
	versions sync.Mutex // held while a version is made or taken into use
	builds   struct {
		sync.Mutex
		of map[int]*build // by index number
	}
}

// describe sets what a hello says of the catalogue and of the partitions.
func (cat *catalogue) describe(h *wire.Hello) (err error) {
	c := cat.Load()
	if h.Catalog, err = json.Marshal(c); err != nil {
		return err
	}
	h.CatalogVersion, h.Hosted = c.Version(), nil
	for _, p := range cat.s.parts.here {
		at := wire.Hosted{Partition: p.id, RKey: uint32(p.rkey)}
		for _, ix := range p.has.Load().indexes {
			at.Roots = append(at.Roots, ix.Root())
			if ix.leaves != nil {
				at.Leaves = append(at.Leaves, make([]uint32, len(at.Roots)-1-len(at.Leaves))...)
				at.Leaves = append(at.Leaves, uint32(ix.leaves.key))
			}
		}
		h.Hosted = append(h.Hosted, at)
	}
	return nil
}

// A version of the catalogue comes into use in two steps, so that a server that has no
// memory for it can refuse it. First all servers make its indexes, which nobody sees.
// Then the orderer takes it into use, which decides it, and tells the other servers to
// use it until all have answered. Meanwhile a client may know a version that a server
// lacks: the server refuses writes to its new indexes as a conflict.
const (
	stepMake byte = iota
	stepUse
	stepBuild // not of the two: see build.go
)

// makeVersion carries out the first step at this server. It does nothing if the server
// has the version.
func (cat *catalogue) makeVersion(c *tables.Catalog) error {
	cat.versions.Lock()
	defer cat.versions.Unlock()
	if c.Version() <= cat.Load().Version() {
		return nil
	}
	for _, p := range cat.s.parts.here {
		if err := p.makeIndexes(c); err != nil {
			return err
		}
	}
	return nil
}

// useVersion carries out the second step at this server. The hello announces the
// version when all partitions have it.
func (cat *catalogue) useVersion(c *tables.Catalog) error {
	if err := cat.s.durable.awaitRecovered(cat.s.workers.ctx); err != nil { // this version, perhaps
		return err
	}
	if err := cat.makeVersion(c); err != nil {
		return err
	}
	cat.versions.Lock()
	defer cat.versions.Unlock()
	if c.Version() <= cat.Load().Version() {
		return nil
	}
	if cat.s.durable != nil {
		b, err := json.Marshal(c)
		if err != nil {
			return err
		}
		r := redo.Record{Kind: redo.Catalog, Catalog: b}
		at, err := cat.s.durable.log.AppendWait(r.Append(nil))
		if err == nil {
			err = cat.s.durable.wait(cat.s.workers.ctx, at)
		}
		if err != nil {
			return err
		}
	}
	if v := cat.s.clocks.saw(clock.Tick(c.EndedAt())); !v.ok() {
		return v
	}
	for _, p := range cat.s.parts.here {
		p.use(c)
	}
	was := cat.Swap(c)
	for id, ix := range was.Indexes {
		if ix.IsBuilding() && !c.Indexes[id].IsBuilding() {
			cat.s.fetchPlaces(c.Indexes[id]) // if it is a twin
		}
	}
	for _, id := range withdrawn(was, c) {
		cat.s.workers.background(func() { cat.empty(id) })
	}
	cat.s.log.Info("catalogue changed", "version", c.Version(), "tables", len(c.Tables))
	return cat.s.acquainted.change(cat.describe)
}

// handleCatalog serves a step that the orderer sends.
func (cat *catalogue) handleCatalog(r *rdma.Request, d *wire.Decoder) {
	step := d.U8()
	if step == stepBuild {
		id := int(d.U16())
		if d.End() != nil {
			cat.s.answers.refuse(r, "malformed question about the build of an index")
			return
		}
		cat.s.answers.reply(r, cat.pollBuild(id).append(nil))
		return
	}
	body := d.Rest()
	c, err := cat.Load().Follow(body)
	if d.Err() != nil || step > stepUse {
		cat.s.answers.refuse(r, "malformed version of the catalogue")
		return
	}
	cat.s.workers.background(func() {
		if err == nil && step == stepMake {
			err = cat.makeVersion(c)
		} else if err == nil {
			err = cat.useVersion(c)
		}
		cat.s.answers.reply(r, versionVerdict(err).append(nil))
	})
}

func versionVerdict(err error) verdict {
	var e *tables.Error
	var v verdict
	switch {
	case err == nil:
		return verdict{}
	case errors.As(err, &v):
		return v
	case errors.Is(err, index.ErrFull):
		e = &tables.Error{Err: exec.ErrOutOfMemory}
	case errors.Is(err, tables.ErrSchema):
		e = &tables.Error{Err: tables.ErrSchema}
	case errors.Is(err, wal.ErrNoSpace), errors.Is(err, wal.ErrFailed), errors.Is(err, wal.ErrClosed):
		return logVerdict(err)
	default:
		return verdict{code: wire.Bad, text: err.Error()}
	}
	e.Partition, e.Detail = -1, err.Error()
	return verdict{code: wire.Bad, text: exec.EncodeFault(e)}
}

// handleAlter makes the next version of the catalogue. One change is made at a time; a
// client repeats a change that finds another in progress.
func (cat *catalogue) handleAlter(r *rdma.Request, d *wire.Decoder) {
	var ch tables.Change
	if err := json.Unmarshal(d.Rest(), &ch); err != nil || cat.s.parts.self != placement.Orderer || ch.Built != nil {
		cat.s.answers.refuse(r, "malformed change of the catalogue, or not at the first data server")
		return
	}
	if !cat.altering.TryLock() {
		cat.s.answers.reply(r, verdict{code: wire.InDoubt, text: "another change is in progress"}.append(nil))
		return
	}
	cat.s.workers.background(func() {
		defer cat.altering.Unlock()
		cat.alter(ch, func(v verdict) { cat.s.answers.reply(r, v.append(nil)) })
	})
}

// alter makes a change and calls answer once. It returns when all servers have
// the change, or none does.
func (cat *catalogue) alter(ch tables.Change, answer func(verdict)) {
	answered := false
	once := func(v verdict) {
		if !answered {
			answered = true
			answer(v)
		}
	}
	v := cat.takeAway(once)
	if !v.ok() {
		once(v)
		return
	}
	c, v := cat.decide(ch)
	if v.ok() {
		v = cat.spread(c, once)
	}
	if v.ok() && ch.Index != nil {
		v = cat.buildIndex(ch.Index.Table, ch.Index.Index.Name, once)
	}
	if v.ok() && ch.Twin != nil {
		v = cat.buildIndex(ch.Twin.Table, tables.TwinName, once)
	}
	once(v)
}

// decide makes the version with a change at all servers, and takes it into use
// at this one.
func (cat *catalogue) decide(ch tables.Change) (*tables.Catalog, verdict) {
	now := cat.Load()
	c, err := now.With(ch)
	if err == nil && c == now {
		err = cat.s.durable.awaitRecovered(cat.s.workers.ctx)
	}
	if err != nil || c == now {
		return c, versionVerdict(err)
	}
	b, err := json.Marshal(c)
	if err == nil && len(b) > maxCatalogBytes {
		return nil, tooLarge("catalogue", len(b), maxCatalogBytes)
	}
	if err == nil {
		err = cat.makeVersion(c)
	}
	v := versionVerdict(err)
	if v.ok() {
		_, v = cat.tellVersion(stepMake, b)
	}
	if v.ok() {
		v = versionVerdict(cat.useVersion(c))
	}
	return c, v
}

// spread tells the other servers to use a version until all have answered. If
// one does not, spread answers that the change is not complete, and goes on.
func (cat *catalogue) spread(c *tables.Catalog, answer func(verdict)) verdict {
	b, err := json.Marshal(c)
	if err != nil {
		return versionVerdict(err)
	}
	for start := time.Now(); ; {
		silent, v := cat.tellVersion(stepUse, b)
		if v.ok() {
			return v
		}
		if time.Since(start) > alterPatience {
			answer(verdict{code: wire.InDoubt, text: fmt.Sprintf("data server %s has to follow: %s", cat.s.cfg.Addrs[silent], v.text)})
		}
		if cat.s.workers.rest(acquaintMin) != nil {
			return verdict{code: wire.Unavailable, text: "the data server stops"}
		}
	}
}

const (
	// maxCatalogBytes bounds a catalogue in JSON, which is part of the hello.
	maxCatalogBytes = rdma.MaxMessageBytes / 2
	// alterPatience bounds the time for which a client waits for servers that
	// do not answer. The orderer goes on without the client.
	alterPatience = time.Second
)

// tellVersion carries out a step at all other servers. It returns the first server that
// refuses or does not answer, and the verdict. A failed stepMake ends there; stepUse
// goes on, because clients of the others may know the version already.
func (cat *catalogue) tellVersion(step byte, catalog []byte) (server placement.Server, v verdict) {
	req := append([]byte{byte(wire.OpCatalog), step}, catalog...)
	for _, p := range cat.s.peers {
		if p.server == cat.s.parts.self {
			continue
		}
		w := p.ask(req)
		if !w.ok() && step == stepMake {
			return p.server, w
		}
		if v.ok() && !w.ok() {
			server, v = p.server, w
		}
	}
	return server, v
}

// ask sends a request and returns the verdict of the peer. The request must be
// idempotent, because it may be sent twice.
func (p *peer) ask(req []byte) verdict {
	ctx, cancel := context.WithTimeout(p.s.workers.ctx, peerTimeout)
	defer cancel()
	for {
		l, err := p.idle()
		idle := l != nil // it may lead to a server that is gone
		if l == nil && err == nil {
			l, err = p.dial(ctx)
		}
		if err == nil && l.replaced {
			err = errors.New("it was restarted without its memory")
		}
		var resp []byte
		if err == nil {
			resp, err = rdma.Call(ctx, l.conn, req, l.resp)
		}
		if err == nil && len(resp) > 0 {
			l.resp = resp
			v := verdict{code: wire.Code(resp[0]), text: string(resp[1:])}
			l.release()
			return v
		}
		if l != nil {
			l.drop()
		}
		if !idle || ctx.Err() != nil {
			return verdict{code: wire.Unavailable, text: fmt.Sprintf("no answer: %v", err)}
		}
	}
}
