package changes

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/twophase"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// memoryDefault bounds what a feed keeps of transactions whose ticks are not closed.
const memoryDefault = 64 << 20

// writeOverhead is about what a write takes in memory beside its key and its row.
const writeOverhead = 200

const noPlace = wal.LSN(math.MaxUint64)

// feed assembles transactions from the records of all logs. It is for one goroutine.
type feed struct {
	streams []stream
	catalog *tables.Catalog
	cluster uint32
	memory  int // bound of bytes

	from  clock.Tick // all changes up to this tick were delivered, except
	after uint32     // those after the first after transactions of from; all: no exception
	// most bounds the ticks whose changes are kept, because later ones would take too much
	// memory. They are read again.
	most  clock.Tick
	ticks map[clock.Tick]*tick
	bytes int // in ticks, and in shares
	rec   redo.Record
}

// stream is the log of one server.
type stream struct {
	next   wal.LSN // all records before it were taken
	shares map[share]*held
	marked clock.Tick // the highest closed tick in what was taken
	seen   clock.Tick // about how far in time the stream is
	// late: records from here on are of ticks after from.
	late    wal.LSN
	dropped wal.LSN // least position of a record that was not kept, noPlace if there is none
}

// share is a partition's part of a transaction.
type share struct {
	partition placement.Partition
	id        twophase.ID
}

// held is a share that is prepared.
type held struct {
	at     wal.LSN
	vote   clock.Tick
	writes []write
	bytes  int
}

// write is a row that was written.
type write struct {
	index     int
	partition placement.Partition
	kind      Kind
	key       index.Key
	row       []byte
}

// tick has the transactions of one tick.
type tick struct {
	all   []*transaction
	byID  map[twophase.ID]*transaction // those of the commit protocol
	bytes int
	low   []wal.LSN // by server: least position of a record that the transactions need
}

// transaction is one of them, or the part of it that was taken so far.
type transaction struct {
	loaded bool
	parts  []applied
}

// applied is what a transaction did in one partition.
type applied struct {
	server         placement.Server
	partition      placement.Partition
	prepared, done wal.LSN // records
	writes         []write
}

func newFeed(c *tables.Catalog, servers, memory int) *feed {
	f := &feed{catalog: c, memory: memory, most: block.MaxTick, ticks: map[clock.Tick]*tick{}, streams: make([]stream, servers)}
	if f.memory <= 0 {
		f.memory = memoryDefault
	}
	for i := range f.streams {
		f.streams[i] = stream{shares: map[share]*held{}, dropped: noPlace, late: noPlace}
	}
	return f
}

// take takes the next record of a server's log.
func (f *feed) take(server placement.Server, start, end wal.LSN, payload []byte) error {
	s, r := &f.streams[server], &f.rec
	if err := r.Decode(payload); err != nil {
		return fmt.Errorf("%w: data server %d, at %d: %w", ErrLog, server, start, err)
	}
	err := f.record(server, start, r)
	if err != nil {
		return fmt.Errorf("%w: data server %d, at %d: %w", ErrLog, server, start, err)
	}
	s.next = end
	if f.bytes > f.memory {
		f.shrink()
	}
	return nil
}

func (f *feed) record(server placement.Server, start wal.LSN, r *redo.Record) error {
	s := &f.streams[server]
	switch r.Kind {
	case redo.Commit:
		for i := range r.Parts {
			p := &r.Parts[i]
			if err := f.add(server, p.CSN, applied{server: server, partition: p.Partition, prepared: start, done: start}, r.Step.ID, p.Writes); err != nil {
				return err
			}
		}
	case redo.Prepared:
		if len(r.Parts) == 1 {
			return f.prepare(s, start, r)
		}
	case redo.Decided:
		return f.decide(server, start, r)
	case redo.Load:
		return f.load(server, start, r)
	case redo.Catalog:
		c, err := f.catalog.Follow(r.Catalog)
		if err != nil {
			return err
		}
		f.catalog = c
	case redo.Closed:
		s.marked, s.seen = max(s.marked, r.Tick), max(s.seen, r.Tick)
	}
	return nil
}

// prepare keeps a share until it is decided.
func (f *feed) prepare(s *stream, start wal.LSN, r *redo.Record) error {
	if r.Step.Tick > f.most { // and so is its commit
		s.dropped = min(s.dropped, start)
		return nil
	}
	h := &held{at: start, vote: r.Step.Tick}
	var err error
	if h.writes, h.bytes, err = f.writes(r.Partition, r.Parts[0].Writes); err != nil {
		return err
	}
	f.bytes += h.bytes
	s.shares[share{r.Partition, r.Step.ID}] = h
	return nil
}

// decide ends a share with its decision.
func (f *feed) decide(server placement.Server, start wal.LSN, r *redo.Record) error {
	s := &f.streams[server]
	of := share{r.Partition, r.Step.ID}
	h := s.shares[of]
	if h != nil {
		delete(s.shares, of)
		f.bytes -= h.bytes
	}
	if len(r.Parts) == 0 {
		return nil
	}
	p := &r.Parts[0]
	a := applied{server: server, partition: p.Partition, prepared: start, done: start}
	if len(p.Writes) > 0 {
		return f.add(server, p.CSN, a, of.id, p.Writes)
	}
	if h != nil {
		a.prepared, a.writes = h.at, h.writes
		return f.put(server, p.CSN.Tick(), a, of.id, h.bytes)
	}
	at := p.CSN.Tick()
	if wanted, err := f.wants(s, at, start, start); !wanted || err != nil {
		return err
	}
	if t := f.ticks[at]; t == nil || !t.has(of) {
		return fmt.Errorf("the decision of a share of tick %d that is not in the log", at)
	}
	return nil
}

// has reports whether the share of a transaction was taken.
func (t *tick) has(of share) bool {
	x := t.byID[of.id]
	return x != nil && slices.ContainsFunc(x.parts, func(a applied) bool { return a.partition == of.partition })
}

// wants reports whether a commit of a tick is still to be delivered and can be kept.
// need is the position of the first record that it needs.
func (f *feed) wants(s *stream, at clock.Tick, start, need wal.LSN) (bool, error) {
	s.seen = max(s.seen, at)
	switch {
	case at < f.from || at == f.from && f.after == all:
		if start >= s.late {
			return false, fmt.Errorf("a commit of tick %d, after that tick was closed", at)
		}
		return false, nil
	case at > f.most:
		s.dropped = min(s.dropped, need)
		return false, nil
	}
	return true, nil
}

// add adds writes of a record to their transaction.
func (f *feed) add(server placement.Server, csn block.CSN, a applied, id twophase.ID, writes []wire.Write) error {
	if wanted, err := f.wants(&f.streams[server], csn.Tick(), a.done, a.prepared); !wanted || err != nil {
		return err
	}
	ws, bytes, err := f.writes(a.partition, writes)
	if err != nil {
		return err
	}
	a.writes = ws
	return f.put(server, csn.Tick(), a, id, bytes)
}

// put adds a part to its transaction, if it changes rows.
func (f *feed) put(server placement.Server, at clock.Tick, a applied, id twophase.ID, bytes int) error {
	if wanted, err := f.wants(&f.streams[server], at, a.done, a.prepared); !wanted || err != nil {
		return err
	}
	t := f.tick(at)
	t.low[server] = min(t.low[server], a.prepared) // a reader of the decision needs the share
	if len(a.writes) == 0 {
		return nil
	}
	t.bytes += bytes
	f.bytes += bytes
	if id == (twophase.ID{}) { // all of it is in this record
		if n := len(t.all); n > 0 && t.all[n-1].parts[0].server == server && t.all[n-1].parts[0].done == a.done {
			t.all[n-1].parts = append(t.all[n-1].parts, a)
			return nil
		}
		t.all = append(t.all, &transaction{parts: []applied{a}})
		return nil
	}
	x := t.byID[id]
	if x == nil {
		x = &transaction{}
		t.byID[id], t.all = x, append(t.all, x)
	}
	x.parts = append(x.parts, a)
	return nil
}

func (f *feed) tick(at clock.Tick) *tick {
	t := f.ticks[at]
	if t == nil {
		t = &tick{byID: map[twophase.ID]*transaction{}, low: make([]wal.LSN, len(f.streams))}
		for i := range t.low {
			t.low[i] = noPlace
		}
		f.ticks[at] = t
	}
	return t
}

// index returns an index whose changes are delivered, nil for others: changes of
// secondary indexes and twins follow from the rows, and of the copies of a replicated table only
// the first counts.
func (f *feed) index(id int, partition placement.Partition) (*tables.Index, error) {
	if id >= len(f.catalog.Indexes) {
		return nil, fmt.Errorf("a write to index %d of %d", id, len(f.catalog.Indexes))
	}
	ix := f.catalog.Indexes[id]
	if ix.IsMaintained() || ix.Table.Replicated() && partition > 0 {
		return nil, nil
	}
	return ix, nil
}

// writes copies the writes of rows.
func (f *feed) writes(partition placement.Partition, ws []wire.Write) (kept []write, bytes int, err error) {
	for i := range ws {
		w := &ws[i]
		ix, err := f.index(int(w.Index), partition)
		switch {
		case err != nil:
			return nil, 0, err
		case ix == nil:
			continue
		}
		k := write{index: ix.ID, partition: partition, kind: Update, key: w.Key.Clone()}
		switch w.Op {
		case wire.Insert:
			k.kind = Insert
		case wire.Delete:
			k.kind = Delete
		}
		if k.kind != Delete {
			k.row = slices.Clone(w.Row)
		}
		bytes += writeOverhead + len(k.key.Str) + len(k.row)
		kept = append(kept, k)
	}
	return kept, bytes, nil
}

// load takes rows that were loaded in bulk, all rows of a record as one change.
func (f *feed) load(server placement.Server, start wal.LSN, r *redo.Record) error {
	at := r.CSN.Tick()
	if wanted, err := f.wants(&f.streams[server], at, start, start); !wanted || err != nil {
		return err
	}
	ix, err := f.index(int(r.Index), r.Partition)
	if err != nil || ix == nil {
		return err
	}
	a := applied{server: server, partition: r.Partition, prepared: start, done: start}
	bytes := 0
	d := wire.NewDecoder(r.Rows)
	for d.Left() > 0 {
		var key index.Key
		var row []byte
		if ix.Strings {
			key, _ = d.Key()
			row = d.Bytes()
		} else {
			key, row = index.Num(d.U64()), d.Take(ix.RowBytes)
		}
		if d.Err() != nil {
			break // as the server has refused it
		}
		a.writes = append(a.writes, write{index: ix.ID, partition: r.Partition, kind: Load, key: key.Clone(), row: slices.Clone(row)})
		bytes += writeOverhead + len(key.Str) + len(row)
	}
	if len(a.writes) == 0 {
		return nil
	}
	if err := f.put(server, at, a, twophase.ID{}, bytes); err != nil {
		return err
	}
	t := f.ticks[at]
	t.all[len(t.all)-1].loaded = true
	return nil
}

// shrink gives up the latest ticks, but keeps at least one, so that half of the memory
// is free. It also gives up shares that may still commit at those ticks.
func (f *feed) shrink() {
	kept := 0
	for i, at := range slices.Sorted(maps.Keys(f.ticks)) {
		t := f.ticks[at]
		if kept += t.bytes; i == 0 || kept <= f.memory/2 {
			f.most = at
			continue
		}
		break
	}
	if len(f.ticks) == 0 {
		return // all of it are shares that may commit at the next tick
	}
	for at, t := range f.ticks {
		if at > f.most {
			for i := range f.streams {
				f.streams[i].dropped = min(f.streams[i].dropped, t.low[i])
			}
			f.bytes -= t.bytes
			delete(f.ticks, at)
		}
	}
	for i := range f.streams {
		s := &f.streams[i]
		for of, h := range s.shares {
			if h.vote > f.most {
				s.dropped = min(s.dropped, h.at)
				f.bytes -= h.bytes
				delete(s.shares, of)
			}
		}
	}
}

// low returns the least position of a server's log that is needed for deliveries after
// all ticks that are here.
func (s *stream) low() wal.LSN {
	low := min(s.next, s.dropped)
	for _, h := range s.shares {
		low = min(low, h.at)
	}
	return low
}

// pin returns the position from which on a server's log is still needed.
func (f *feed) pin(server placement.Server) wal.LSN {
	low := f.streams[server].low()
	for _, t := range f.ticks {
		low = min(low, t.low[server])
	}
	return low
}

// deliver calls fn, in order, for all that has committed up to a tick that all servers
// have closed and whose records were all taken. It returns false if fn has.
func (f *feed) deliver(to clock.Tick, fn func(*Change) bool) bool {
	low := make([]uint64, len(f.streams))
	for i := range f.streams {
		low[i] = uint64(f.streams[i].low())
	}
	order := slices.Sorted(maps.Keys(f.ticks))
	places := make([][]uint64, len(order))
	for i := len(order) - 1; i >= 0; i-- {
		for server, at := range f.ticks[order[i]].low {
			low[server] = min(low[server], uint64(at))
		}
		places[i] = slices.Clone(low)
	}
	for i, at := range order {
		if at > to {
			break
		}
		t := f.ticks[at]
		if !f.deliverTick(at, t, places[i], fn) {
			return false
		}
		f.bytes -= t.bytes
		delete(f.ticks, at)
	}
	if to >= f.from {
		f.from, f.after = to, all
	}
	return true
}

func (f *feed) deliverTick(at clock.Tick, t *tick, places []uint64, fn func(*Change) bool) bool {
	skip := uint32(0)
	if at == f.from {
		skip = f.after
	}
	sorted := inOrder(t.all)
	for n, x := range sorted {
		if uint32(n) < skip {
			continue
		}
		c := f.change(x)
		c.Tick, c.Last = at, n == len(sorted)-1
		c.cursor = Cursor{from: fromPlace, tick: at, n: uint32(n) + 1, cluster: f.cluster, at: places}
		if !fn(c) {
			return false
		}
	}
	return true
}

// change returns the change of a transaction.
func (f *feed) change(x *transaction) *Change {
	c := &Change{Loaded: x.loaded}
	slices.SortStableFunc(x.parts, func(a, b applied) int { return int(a.partition - b.partition) })
	for i := range x.parts {
		for _, w := range x.parts[i].writes {
			ix := f.catalog.Indexes[w.index]
			out := Write{Table: ix.Table, Key: keyOf(ix, w.key), Kind: w.kind, Partition: w.partition}
			if w.kind != Delete {
				_, out.Row = ix.Table.Upgrade(nil, w.row)
			}
			c.Writes = append(c.Writes, out)
		}
	}
	return c
}

// keyOf returns the key of a row in the form that users of the table see.
func keyOf(ix *tables.Index, key index.Key) tables.Key {
	switch {
	case ix.Key == tables.StringKey:
		return tables.Str(key.Str)
	case !ix.Strings:
		return tables.Num(key.Num)
	}
	n, _ := index.NumOf(key.Str)
	return tables.Num(n)
}

// rewind prepares to read again what was not kept: each log from the first record that
// is needed. It reports whether there is any.
func (f *feed) rewind() bool {
	any := false
	for i := range f.streams {
		any = any || f.streams[i].dropped != noPlace
	}
	f.most = block.MaxTick
	if !any {
		return false
	}
	for i := range f.streams {
		s := &f.streams[i]
		s.next = f.pin(placement.Server(i))
		s.dropped, s.marked, s.seen = noPlace, 0, 0
		clear(s.shares)
	}
	clear(f.ticks)
	f.bytes = 0
	return true
}
