package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// An index is built online in three versions of the catalogue. In the first the
// table does not have it. In the second, transactions that write keep it up to
// date for the rows that they change, and none reads it. In the third it is
// read. A row belongs to one partition, and that partition takes writes of one
// version of the table only (see partition.allows): so there is one moment for
// each row after which every change of it maintains the index. The build begins
// when all servers have the second version, and reads every row later than that.

// build is the state of building an index over the rows of this server.
type build struct {
	done bool
	v    verdict
}

const (
	buildRows = 64 // per transaction
	buildWait = 20 * time.Millisecond
	// emptyRows bounds the entries of a withdrawn index that one step of the
	// executor removes.
	emptyRows = 64
)

// pollBuild starts the build of an index if it has not started, and returns its state:
// InDoubt while it is in progress, OK with the highest tick of the partitions, or why
// it has failed.
func (cat *catalogue) pollBuild(id int) verdict {
	c := cat.Load()
	if id >= len(c.Indexes) || !c.Indexes[id].IsMaintained() {
		return verdict{code: wire.Bad, text: "no such index"}
	}
	cat.builds.Lock()
	defer cat.builds.Unlock()
	b := cat.builds.of[id]
	if c.Indexes[id].IsLeaving() {
		b = &build{done: cat.drained(c)} // and all servers know of it when they answer
	} else if b == nil {
		b = &build{}
		cat.builds.of[id] = b
		cat.s.workers.background(func() {
			v := cat.build(c.Indexes[id])
			cat.builds.Lock()
			defer cat.builds.Unlock()
			b.done, b.v = true, v
		})
	}
	switch {
	case !b.done:
		return verdict{code: wire.InDoubt, text: "the index is being built, or transactions that have read it are not decided"}
	case !b.v.ok():
		return b.v
	}
	tick := clock.Tick(0)
	for _, p := range cat.s.parts.here {
		p.mu.Lock()
		tick = max(tick, p.ticks.own.Tick())
		p.mu.Unlock()
	}
	return verdict{text: strconv.FormatUint(uint64(tick), 10)}
}

// drained reports whether no transaction here is prepared that may have read an index which a version
// of the catalogue has made unreadable.
func (cat *catalogue) drained(c *tables.Catalog) bool {
	for _, p := range cat.s.parts.here {
		p.mu.Lock()
		ok := p.drained(c.ReadersNeed())
		p.mu.Unlock()
		if !ok {
			return false
		}
	}
	return true
}

func (cat *catalogue) build(ix *tables.Index) verdict {
	start, rows := time.Now(), 0
	for _, p := range cat.s.parts.here {
		err := p.eachKeys(cat.s.workers.ctx, ix.Table.Primary(), func(keys []tables.Key) error {
			rows += len(keys)
			return cat.buildEntries(ix, keys)
		})
		if err != nil {
			cat.s.log.Warn("index not built", "index", ix.Name, "partition", p.id, "reason", err.Error())
			return buildVerdict(err)
		}
	}
	cat.s.log.Info("index built", "index", ix.Name, "rows", rows, "took", time.Since(start))
	return verdict{}
}

func buildVerdict(err error) verdict {
	text := exec.EncodeFault(err)
	switch {
	case errors.Is(err, exec.ErrExists):
		return verdict{code: wire.Exists, text: text}
	case errors.Is(err, exec.ErrOutOfMemory):
		return verdict{code: wire.OutOfMemory, text: text}
	case errors.Is(err, context.Canceled):
		return verdict{code: wire.Unavailable, text: text}
	}
	return verdict{code: wire.Bad, text: text}
}

// buildEntries adds the entries of some rows in one transaction. It retries after
// conflicts and while servers do not answer.
func (cat *catalogue) buildEntries(ix *tables.Index, keys []tables.Key) error {
	body := exec.BodyFunc(func(t *exec.Txn) error {
		for _, key := range keys {
			if err := t.Build(ix, key); err != nil {
				return err
			}
		}
		return nil
	})
	for {
		db, err := cat.s.client.get(cat.s.workers.ctx)
		if err == nil {
			err = db.Update(cat.s.workers.ctx, body)
		}
		var lost *exec.UnknownOutcome
		if errors.Is(err, tables.ErrCatalog) && cat.Load().Indexes[ix.ID].IsBuilding() {
			err = cmp.Or(db.Refresh(cat.s.workers.ctx), exec.ErrUnavailable) // the server builds the index, and its client has not heard
		}
		if !errors.Is(err, exec.ErrConflict) && !errors.Is(err, exec.ErrUnavailable) && !errors.As(err, &lost) || cat.s.workers.ctx.Err() != nil {
			return err
		}
		if err := cat.s.workers.rest(buildWait); err != nil {
			return err
		}
	}
}

// eachKeys calls fn with keys of a primary index, a few at a time: with those of all
// rows that exist during the whole call, and of some others.
func (p *partition) eachKeys(ctx context.Context, ix *tables.Index, fn func([]tables.Key) error) error {
	if srv, ok := p.index(ix.ID).(index.OrderedServer); ok {
		return eachOrdered(ctx, newEntries(srv, ix, buildRows), fn)
	}
	srv, ok := p.index(ix.ID).(*hash.Server)
	if !ok {
		return fmt.Errorf("server: index %s cannot be enumerated", ix.Name)
	}
	var raw []index.Key
	for bucket, more := uint64(0), true; more && ctx.Err() == nil; {
		raw = raw[:0]
		p.mu.Lock()
		for err := error(nil); more && len(raw) < buildRows; bucket++ {
			if raw, more, err = srv.Keys(bucket, raw); err != nil {
				p.mu.Unlock()
				return err
			}
		}
		p.mu.Unlock()
		if err := inBatches(ix, raw, fn); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// eachOrdered is eachKeys for an ordered index.
func eachOrdered(ctx context.Context, e *entries, fn func([]tables.Key) error) error {
	var raw []index.Key
	for {
		found, err := e.next(ctx)
		if err != nil || len(found) == 0 {
			return err
		}
		raw = raw[:0]
		for i := range found {
			raw = append(raw, found[i].Key)
		}
		if err := inBatches(e.ix, raw, fn); err != nil {
			return err
		}
	}
}

func inBatches(ix *tables.Index, raw []index.Key, fn func([]tables.Key) error) error {
	keys := make([]tables.Key, 0, buildRows)
	for len(raw) > 0 {
		n := min(len(raw), buildRows)
		keys = keys[:0]
		for _, k := range raw[:n] {
			keys = append(keys, keyOf(ix, k).Clone())
		}
		if err := fn(keys); err != nil {
			return err
		}
		raw = raw[n:]
	}
	return nil
}

// keyOf returns an index key in the form that users of the index know.
func keyOf(ix *tables.Index, key index.Key) tables.Key {
	if n, ok := index.NumOf(key.Str); ix.Strings && ix.Key == tables.NumberKey && ok {
		return tables.Num(n)
	} else if ix.Strings {
		return tables.Str(key.Str)
	}
	return tables.Num(key.Num)
}

// last is the highest key of an index.
func last(ix *tables.Index) index.Key {
	if !ix.Strings {
		return index.Num(^uint64(0))
	}
	b := make([]byte, index.MaxKeyBytes)
	for i := range b {
		b[i] = 0xff
	}
	return index.Str(string(b))
}

// empty removes the entries of an index that was withdrawn. No transaction adds
// any.
func (cat *catalogue) empty(id int) {
	for _, p := range cat.s.parts.here {
		ix := cat.Load().Indexes[id]
		srv, ok := p.index(id).(index.OrderedServer)
		for more := ok; more && cat.s.workers.ctx.Err() == nil; {
			var res index.ScanResult
			part := wire.Part{Partition: p.id}
			p.mu.Lock()
			p.ticks.advance()
			srv.Scan(index.Key{}, last(ix), emptyRows, &res, nil)
			part.Catalog = uint32(p.has.Load().catalog.Version())
			for i := range res.Entries {
				part.Writes = append(part.Writes, wire.Write{Index: uint16(id), Op: wire.Delete, Strings: ix.Strings, Key: res.Entries[i].Key})
			}
			v := p.carryOut(&part)
			p.mu.Unlock()
			more = res.Status == index.Locked || !v.ok() || len(res.Entries) > 0
			if (res.Status == index.Locked || !v.ok()) && cat.s.workers.rest(buildWait) != nil {
				return
			}
		}
	}
}

// withdrawn returns the indexes that version was maintains and version is does not.
func withdrawn(was, is *tables.Catalog) (ids []int) {
	for id, ix := range was.Indexes {
		if !ix.IsWithdrawn() && is.Indexes[id].IsWithdrawn() {
			ids = append(ids, id)
		}
	}
	return ids
}

// resumeChanges continues, after a restart, the changes that the last process had not
// finished: the orderer makes the other servers use its version of the catalogue and
// completes builds of indexes, and each server empties withdrawn indexes.
func (cat *catalogue) resumeChanges() {
	if cat.s.durable == nil || cat.s.durable.dir.New {
		return
	}
	c := cat.Load()
	var builds []*tables.Index
	for _, t := range c.Tables {
		builds = append(builds, t.Building()...)
	}
	if cat.s.parts.self == placement.Orderer {
		cat.s.workers.background(func() { cat.completeChanges(builds) })
	}
	for _, ix := range c.Indexes {
		if ix.IsWithdrawn() {
			cat.s.workers.background(func() { cat.empty(ix.ID) })
		}
	}
}

// completeChanges makes all servers use the orderer's version, and completes builds
// of indexes.
func (cat *catalogue) completeChanges(builds []*tables.Index) {
	cat.altering.Lock()
	defer cat.altering.Unlock()
	nobody := func(verdict) {}
	if cat.s.durable.awaitRecovered(cat.s.workers.ctx) != nil {
		return // the server stops, or its log has failed
	}
	if v := cat.spread(cat.Load(), nobody); !v.ok() {
		return // the server stops
	}
	for _, ix := range builds {
		if v := cat.buildIndex(ix.Table.Name(), ix.NameInTable(), nobody); !v.ok() && cat.s.workers.ctx.Err() == nil {
			cat.s.log.Warn("the build of an index was not completed", "index", ix.Name, "reason", v.text)
		}
	}
}

// takeAway completes what earlier changes have begun to take away.
func (cat *catalogue) takeAway(answer func(verdict)) (v verdict) {
	for _, t := range cat.Load().Tables {
		if twin := t.Twin(); twin != nil && twin.IsLeaving() && v.ok() {
			v = cat.buildIndex(t.Name(), tables.TwinName, answer)
		}
	}
	return v
}

// awaitBuild waits until all servers have built an index, and returns a tick at which
// the index has all entries, or the verdict of a failure. If a server does not answer
// for alterPatience, it calls answer and goes on waiting.
func (cat *catalogue) awaitBuild(id int, answer func(verdict)) (tick uint64, v verdict) {
	req := wire.AppendBuild(nil, stepBuild, id)
	silent := time.Duration(0)
	for again := true; ; { // one more round when all are done: the last entries may have later ticks
		waits := false
		tick = 0
		for _, p := range cat.s.peers {
			if p.server == cat.s.parts.self {
				v = cat.pollBuild(id)
			} else {
				v = p.ask(req)
			}
			switch v.code {
			case wire.OK:
				n, err := strconv.ParseUint(v.text, 10, 64)
				if err != nil {
					return 0, verdict{code: wire.Bad, text: "malformed tick of a data server"}
				}
				tick = max(tick, n)
				continue
			case wire.InDoubt:
				silent = 0
			case wire.Unavailable:
				if silent += buildWait; silent > alterPatience {
					answer(verdict{code: wire.InDoubt, text: fmt.Sprintf("data server %s does not build the index: %s", cat.s.cfg.Addrs[p.server], v.text)})
				}
			default:
				return 0, v
			}
			waits = true
		}
		if !waits && !again {
			return tick, verdict{}
		}
		if again = waits; again && cat.s.workers.rest(buildWait) != nil {
			return 0, verdict{code: wire.Unavailable, text: "the data server stops"}
		}
	}
}

// buildIndex builds an index that a change has added to a table, or its twin, and publishes
// or withdraws it. It withdraws a twin that is being taken away.
func (cat *catalogue) buildIndex(table, index string, answer func(verdict)) verdict {
	t, err := cat.Load().Table(table)
	if err != nil {
		return versionVerdict(err)
	}
	for _, ix := range t.Building() {
		if ix.NameInTable() != index {
			continue
		}
		tick, v := cat.awaitBuild(ix.ID, answer)
		if cat.s.workers.ctx.Err() != nil {
			return v
		}
		end := tables.Change{Built: &tables.BuiltIndex{Table: table, Index: index, Failed: !v.ok() || ix.IsLeaving(), Tick: tick}}
		c, ended := cat.decide(end)
		if !ended.ok() {
			return ended
		}
		if ended = cat.spread(c, answer); !ended.ok() {
			return ended
		}
		return v
	}
	return verdict{}
}
