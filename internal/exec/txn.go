package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// Bounds of one transaction.
const (
	// MaxReads bounds the lookups and scans that a transaction makes.
	MaxReads = 1 << 16
	// MaxWrites bounds the changes of rows, and of entries of secondary indexes and twins, in a
	// transaction.
	MaxWrites = wire.MaxWrites
	// MaxScanRows bounds the rows that one scan returns, over all partitions.
	MaxScanRows = 1 << 15
	// MaxProofs bounds, for a transaction that writes, the rows and the gaps
	// between rows that it reads in one partition.
	MaxProofs = wire.MaxProofs
	// MaxCommitBytes bounds a commit message, and a procedure's share for any
	// other server.
	MaxCommitBytes = wire.MaxCommitBytes
	// MaxResultBytes bounds the result of a procedure.
	MaxResultBytes = wire.MaxResultBytes
	// MaxBodyAge bounds the time from a body's first read to its validation.
	MaxBodyAge = index.MaxProofAge
)

// errAbandoned ends an attempt that met a concurrent writer. Bodies get it as
// an error and should return it; Session never returns it.
var errAbandoned = errors.New("txn: attempt abandoned: concurrent writer")

// errRemote ends the run of a procedure in one partition when it needs another one.
var errRemote = errors.New("txn: procedure leaves its partition")

// Local gives procedures direct access to the partitions of the server that runs
// them.
type Local interface {
	// Index returns the server half of an index in a partition, nil if the partition
	// is at another server.
	Index(part placement.Partition, ix int) index.Server
	// Clock returns the time of the server's clock: see wire.Part.Read. here is false
	// if the partition is at another server.
	Clock(part placement.Partition) (now time.Duration, here bool)
}

// Txn is a running transaction, for the goroutine of its body. Rows that it
// returns are valid until the body returns.
type Txn struct {
	ctx     context.Context
	s       *Session // nil in a procedure that stays in its partition
	catalog *tables.Catalog
	where   locality

	mode mode
	// noVersions says that a read was of a table that no Snapshot can read.
	noVersions bool
	at         clock.Tick // of a snapshot: the time as of which it reads; 0 otherwise
	reading    index.Attempt
	// proved is a moment, by clock.Fast, after the last READ of the validation; 0
	// means now.
	proved time.Duration
	// recheck is the age at which an iterator checks the attempt's reads; 0: only at
	// the end.
	recheck time.Duration
	err     error // the reason why the attempt is over: errAbandoned, errRemote, or a failure
	doomed  error // the error of the transaction, if the rows that it read are a consistent snapshot
	cause   Cause
	reads   readSet
	used    []*opPool
	attempt uint64
	volume  int // bytes of rows read and written, and of earlier attempts: see footprint
	held    int // the largest footprint since buffers were dropped
	writes  writeSet
	keys    keyArena
	entryOf entryBuffers

	losses   int           // earlier attempts, all lost
	patience time.Duration // when the session gives up, by clock.Fast; 0: not yet known
	reserved bool          // the rows are reserved for the next attempt
	gated    bool          // it has passed the gate
	sent     bool          // for commit, which ends reservations
	ships    bool          // for commit at its data server, which may send entries of twins: see byServer
	overdue  bool          // its reads were too old when it ended: see checkAge
	outlived bool          // a server has begun another life since the attempt read there
	reuses   bool          // it uses reads of an earlier attempt
	scouts   bool          // it has met a lock and goes on only to read at other servers: see keptReads
	// elsewhere says that other servers were asked to commit the attempt. One of them
	// may have refused it.
	elsewhere bool
	// wasOverdue says that the attempt before was overdue.
	wasOverdue bool
	met        *Get // the read whose lock ended the attempt; nil: not known
	metClient  bool // the lock of a client, which no decision at a server ends
}

type mode uint8

const (
	closed mode = iota
	view
	update
	snapshot
)

func (t *Txn) init(c *tables.Catalog, nparts int, local Local) {
	t.catalog, t.where.nparts, t.where.only = c, nparts, -1
	t.where.set(local)
	t.writes.init()
}

// locality says which partitions a transaction may use, and which of them are in its
// process.
type locality struct {
	nparts int
	local  Local
	only   placement.Partition // ≥ 0: the one partition this procedure may touch, held exclusively
	near   placement.Partition // ≥ 0: a partition of local, whose copies of replicated tables are read
}

// set gives a transaction direct access to partitions of its process.
func (lc *locality) set(local Local) {
	lc.local, lc.near = local, -1
	for p := placement.Partition(0); local != nil && lc.near < 0 && int(p) < lc.nparts; p++ {
		if local.Index(p, 0) != nil {
			lc.near = p
		}
	}
}

// partition returns the partition that holds a key. For a replicated table it
// returns the partition with the nearest copy: any other would add its server
// to the transaction.
func (lc *locality) partition(ix *tables.Index, key index.Key) placement.Partition {
	if ix.Partition.Kind == tables.Replicated {
		if lc.only >= 0 {
			return lc.only
		}
		if lc.near >= 0 {
			return lc.near
		}
	}
	return partitionOf(ix, key, lc.nparts)
}

// begin starts an attempt.
func (t *Txn) begin(ctx context.Context, m mode) {
	t.ctx, t.mode, t.at, t.err, t.doomed, t.reading, t.proved = ctx, m, 0, nil, nil, index.Attempt{Began: clock.Start()}, 0
	if t.s != nil {
		t.catalog = t.s.db.Catalog()
	}
	t.reserved, t.sent, t.outlived, t.met, t.metClient = false, false, false, nil, false
	t.reuses, t.scouts, t.elsewhere, t.overdue, t.noVersions, t.ships = false, false, false, false, false, false
	t.attempt++
	t.reads.reset()
	for _, p := range t.used {
		p.nGet, p.nScan, p.usedThisTime = 0, 0, false
		p.spare = p.spare[:0]
	}
	t.used = t.used[:0]
	t.writes.reset()
	t.keys.reset()
}

// end closes the transaction. Its rows are not valid any more. Under the race
// detector end overwrites them, so that tests detect their use.
func (t *Txn) end() {
	t.mode = closed
	if !invariants.Spoils {
		return
	}
	for _, g := range t.reads.gets[:t.reads.nGet] {
		spoil(g.row)
	}
	for _, l := range t.reads.groups[:t.reads.nGroups] {
		l.spoil()
	}
	for _, sc := range t.reads.scans[:t.reads.nScan] {
		for i := range sc.out {
			spoil(sc.out[i].Row)
		}
	}
}

// spoil overwrites a row.
func spoil(row tables.Row) {
	for i := range row {
		row[i] = 0xdb
	}
}

// abandon aborts the attempt because of a concurrent writer.
func (t *Txn) abandon(c Cause) error {
	if t.err == nil {
		t.err, t.cause = errAbandoned, c
	}
	return t.err
}

func (t *Txn) fail(err error) error {
	if t.err == nil {
		t.err = err
	}
	return t.err
}

// doom ends the attempt with an error that depends on the rows it read. Unlike an
// error passed to fail, it is the answer only if the attempt validates.
func (t *Txn) doom(err error) error {
	if t.err != nil {
		return t.err
	}
	if t.doomed == nil {
		t.doomed = err
	}
	return t.doomed
}

// verdict returns the error with which an attempt ends whose body has returned
// bodyErr. The reason why the attempt is over comes first, because then nothing that
// it read is proved. An error that rows have caused comes before the body's error.
func (t *Txn) verdict(bodyErr error) error {
	switch {
	case t.err != nil:
		return t.err
	case t.doomed != nil:
		return t.doomed
	}
	return bodyErr
}

// usable returns the error that every operation returns once the attempt is over, and
// nil before.
func (t *Txn) usable() error {
	if err := t.verdict(nil); err != nil {
		return err
	}
	if t.mode == closed {
		return ErrClosed
	}
	if t.reads.n() >= MaxReads {
		return t.fail(tooLarge("reads of one transaction", t.reads.n()+1, MaxReads, "MaxReads"))
	}
	return nil
}

// Get is a queued point read; see Txn.QueueGet.
type Get struct {
	t    *Txn
	ix   *tables.Index
	part placement.Partition
	key  index.Key
	done bool
	err  error
	row  tables.Row
	as   *tables.Table // the earlier definition of the table that the body uses, or nil
	made []byte        // memory for a row converted to that definition
	at   uint64        // where the row was, as a twin says; 0: not known
	op   index.GetOp   // one-sided,
	pool *opPool       // of which it is
	srv  index.Server  // not nil: this process has the partition
	own  index.GetResult
	res  *index.GetResult // nil if the row is one that the transaction writes
	buf  []uint64
}

// Scan is a queued range read; see Txn.QueueScan.
type Scan struct {
	t      *Txn
	ix     *tables.Index
	lo, hi index.Key
	limit  int
	done   bool
	err    error
	subs   []subScan
	nsubs  int
	out    []tables.Entry
	as     *tables.Table // the earlier definition of the table that the body uses, or nil
	made   []byte        // memory for rows converted to that definition

	// Of a scan of a twin; ix is the twin.
	rows     *tables.Table // whose rows are wanted; nil: it is no such scan
	asked    bool          // for the rows
	found    bool          // the rows are in out
	gets     []*Get
	lookups  *Lookups     // of an iterator
	pageKeys []tables.Key // memory

	// Of an iterator; see pager.
	paged   bool
	covered index.Key
	kept    proofsByPart // of earlier pages
}

// subScan is the part of a scan in one partition.
type subScan struct {
	part placement.Partition
	op   index.ScanOp
	own  index.ScanResult
	res  *index.ScanResult
	buf  []uint64

	changed   bool // a quick proof failed
	elsewhere bool // the part is read at another server

	here  index.OrderedServer // not nil if the part was read in this process, at once,
	limit int                 // with this limit
}

// QueueGet queues a Get and returns at once. When the body asks for the first
// result, all queued reads run together, in the same network rounds.
func (t *Txn) QueueGet(tab *tables.Table, key tables.Key) *Get {
	own, err := t.catalog.Resolve(tab)
	if err != nil {
		return &Get{t: t, done: true, err: err}
	}
	ix := own.Primary()
	if err := ix.CheckKey(key); err != nil {
		return &Get{t: t, done: true, err: err}
	}
	g := t.queueGet(ix, t.keys.keep(ix, key))
	if own.EarlierFormat(tab) {
		g.as = tab
	}
	return g
}

func (t *Txn) queueGet(ix *tables.Index, key index.Key) *Get {
	if t.reads.nGet == len(t.reads.gets) {
		t.reads.gets = append(t.reads.gets, &Get{})
	}
	g := t.reads.gets[t.reads.nGet]
	if g.open(t, ix, key) {
		t.reads.nGet++
		t.startGet(g)
	}
	return g
}

// open makes g a read of a key. It returns false, with the error in g, if the attempt is
// over.
func (g *Get) open(t *Txn, ix *tables.Index, key index.Key) bool {
	g.t, g.ix, g.key, g.done, g.err, g.row, g.as, g.res, g.op, g.pool, g.srv, g.at = t, ix, key, false, nil, nil, nil, nil, nil, nil, nil, 0
	t.noVersions = t.noVersions || !ix.KeepsVersions()
	if err := t.usable(); err != nil {
		g.done, g.err = true, err
		return false
	}
	return true
}

// startGet answers a read at once if it can, and otherwise finds where the row is.
func (t *Txn) startGet(g *Get) {
	ix, key := g.ix, g.key
	t.reads.ixs |= ixBit(ix)
	if w := t.writes.find(ix.ID, key); w != nil {
		g.done, g.row = true, w.row
		if w.gone() {
			g.row, g.err = nil, ErrNotFound
		}
		return
	}
	g.part = t.where.partition(ix, key)
	if t.where.only >= 0 && g.part != t.where.only {
		g.done, g.err = true, t.fail(errRemote)
		return
	}
	if t.where.local != nil {
		g.srv = t.where.local.Index(g.part, ix.ID)
	}
	if t.s != nil {
		t.s.kept.answerGet(t, g)
	}
}

// settle converts the index's result to the caller's.
func (g *Get) settle() {
	if g.res.Status == index.Locked {
		g.scout()
	}
	switch g.res.Status {
	case index.Found:
		g.row = mem.Bytes(g.res.Row)
		if g.ix.HasEarlierRows() {
			g.made, g.row = g.ix.Table.Upgrade(g.made[:0], g.row)
		}
		g.t.volume += len(g.row)
	case index.NotFound:
		g.err = ErrNotFound
	case index.Locked:
		if g.t.met == nil {
			g.t.met = g
		}
		g.t.metClient = g.t.metClient || errors.Is(g.res.Err, index.ErrHeldByClient)
		g.err = g.t.abandon(CauseLocked)
	default:
		g.err = g.t.fail(readFailed(g.ix, g.res.Status, g.res.Err))
	}
}

func readFailed(ix *tables.Index, st index.Status, err error) error {
	if err == nil {
		return ix.Concerns(fmt.Errorf("%w: a read ended as %v", ErrProtocol, st), tables.Key{})
	}
	return ix.Concerns(err, tables.Key{})
}

// Row waits for the result. It returns ErrNotFound if there is no row. The row is
// valid until the body returns.
func (g *Get) Row() (tables.Row, error) {
	row, err := g.await()
	if g.as != nil && err == nil {
		_, row = g.ix.Table.ToEarlier(g.as, nil, row)
	}
	return row, g.t.named(err, g.ix, g.key)
}

// await does the same as Row for use within the package: its ErrNotFound does not
// name the row.
func (g *Get) await() (tables.Row, error) {
	if !g.done {
		g.t.flush()
	}
	return g.row, g.err
}

// Get reads a row by primary key. It returns ErrNotFound if there is none.
func (t *Txn) Get(tab *tables.Table, key tables.Key) (tables.Row, error) {
	return t.QueueGet(tab, key).Row()
}

// QueueScan queues a Scan, as QueueGet does a Get.
func (t *Txn) QueueScan(ix *tables.Index, lo, hi tables.Key, limit int) *Scan {
	sc := t.newScan(ix, lo, hi)
	if sc.limit = limit; !sc.done {
		sc.start()
	}
	return sc
}

// newScan returns a scan that has yet to be started, or a done one that has an error
// or an empty range.
func (t *Txn) newScan(ix *tables.Index, lo, hi tables.Key) *Scan {
	seen := ix
	ix, err := t.catalog.ResolveIndex(ix)
	if err == nil {
		ix = ix.Ranges()
		err = ix.CheckBound(lo)
	}
	if err == nil {
		err = ix.CheckBound(hi)
	}
	if err == nil {
		err = ix.Readable()
	}
	if err != nil {
		return &Scan{t: t, done: true, err: err}
	}
	if t.reads.nScan == len(t.reads.scans) {
		t.reads.scans = append(t.reads.scans, &Scan{})
	}
	sc := t.reads.scans[t.reads.nScan]
	sc.t, sc.ix, sc.done, sc.err, sc.paged, sc.as = t, ix, false, nil, false, nil
	if ix.HasEarlierRows() && ix.Table.EarlierFormat(seen.Table) {
		sc.as = seen.Table
	}
	sc.rows, sc.asked, sc.found, sc.lookups = nil, false, false, nil
	if ix.IsTwin() {
		sc.rows = seen.Table
	}
	sc.kept.forget()
	for i := range sc.subs {
		sc.subs[i].op = nil
	}
	sc.lo, sc.hi = t.keys.bound(ix, lo), t.keys.bound(ix, hi)
	sc.nsubs, sc.out = 0, sc.out[:0]
	if err := t.usable(); err != nil {
		sc.done, sc.err = true, err
		return sc
	}
	t.reads.nScan++
	t.noVersions = t.noVersions || !ix.KeepsVersions()
	switch {
	case !ix.Ordered:
		sc.done, sc.err = true, ix.Concerns(errNoRanges, tables.Key{})
	case sc.lo.Compare(sc.hi) > 0, lo == tables.Last, hi == tables.First:
		sc.done = true
	}
	return sc
}

// span returns the first and the last partition in which a scan reads.
func (lc *locality) span(ix *tables.Index, lo, hi index.Key) (first, last placement.Partition) {
	if ix.Partition.Kind == tables.Replicated {
		part := lc.partition(ix, lo)
		return part, part
	}
	from, to := ix.Partition.Span(userKey(ix, lo), userKey(ix, hi), lc.nparts)
	return placement.Partition(from), placement.Partition(to)
}

// start starts a scan: it reads the partitions of this process at once.
func (sc *Scan) start() {
	t := sc.t
	first, last := t.where.span(sc.ix, sc.lo, sc.hi)
	if sc.paged {
		sc.limit = max(sc.limit/int(last-first+1), partRowsMin)
	}
	remote := false
	for p := first; p <= last; p++ {
		if sc.nsubs == len(sc.subs) {
			sc.subs = append(sc.subs, subScan{})
		}
		sub := &sc.subs[sc.nsubs]
		sc.nsubs++
		if sub.part != p {
			sub.op = nil
		}
		sub.part, sub.res, sub.elsewhere, sub.here = p, nil, false, nil
		if t.where.local == nil {
			remote = true
			continue
		}
		if t.where.only >= 0 && p != t.where.only {
			sc.done, sc.err = true, t.fail(errRemote)
			return
		}
		srv, ok := t.where.local.Index(p, sc.ix.ID).(index.OrderedServer)
		if !ok {
			if t.s == nil || !t.s.kept.answerScan(t, sc, sub) {
				remote, sub.elsewhere = true, true
			}
			continue
		}
		sub.readHere(sc, srv)
	}
	if remote {
		return
	}
	sc.done = true
	sc.settle()
}

// readHere reads in a partition of this process.
func (sub *subScan) readHere(sc *Scan, srv index.OrderedServer) {
	sub.here, sub.limit = srv, sc.partLimit()
	sub.buf = srv.Scan(sc.lo, sc.hi, sub.limit, &sub.own, sub.buf)
	sub.res = &sub.own
}

// partLimit returns the limit for each partition: enough rows for the caller's
// limit even if the transaction itself deleted some of them.
func (sc *Scan) partLimit() int {
	t, n := sc.t, sc.limit
	if n <= 0 || n > MaxScanRows {
		n = MaxScanRows
	}
	if !t.writes.empty() && !sc.paged {
		n += t.writes.deletes(sc.ix.ID, sc.lo, sc.hi)
	}
	return n
}

// settle merges the partitions' answers and the transaction's own writes.
func (sc *Scan) settle() {
	t := sc.t
	more, aged := false, sc.ix.HasEarlierRows()
	sc.made = sc.made[:0]
	for i := range sc.nsubs {
		if sub := &sc.subs[i]; sub.here != nil && sub.own.More && sub.limit < sc.partLimit() {
			sub.readHere(sc, sub.here) // rows that it has were deleted while the scan waited for other partitions
		}
		res := sc.subs[i].res
		switch res.Status {
		case index.Found, index.NotFound:
			more = more || res.More
			n, words := len(sc.out), 0
			sc.out = slices.Grow(sc.out, len(res.Entries))[:n+len(res.Entries)]
			for j := range res.Entries {
				e, out := &res.Entries[j], &sc.out[n+j]
				row := tables.Row(mem.Bytes(e.Row))
				if aged {
					sc.made, row = sc.ix.Table.Upgrade(sc.made, row)
				}
				out.Key, out.Row = userKey(sc.ix, e.Key), row
				words += len(e.Row)
			}
			t.volume += words*mem.WordBytes + len(res.Entries)*bytesPerEntry
		case index.Locked:
			t.metClient = t.metClient || errors.Is(res.Err, index.ErrHeldByClient)
			sc.err = t.abandon(CauseLocked)
			return
		default:
			sc.err = t.fail(readFailed(sc.ix, res.Status, res.Err))
			return
		}
	}
	if sc.nsubs > 1 {
		slices.SortFunc(sc.out, func(a, b tables.Entry) int { return a.Key.Compare(b.Key) })
	}
	if sc.as != nil {
		defer sc.show()
	}
	if sc.paged {
		sc.settlePage()
		return
	}
	if !t.writes.empty() {
		sc.out = t.writes.overlay(sc.ix, sc.lo, sc.hi, sc.out, more)
	}
	if sc.limit > 0 && len(sc.out) > sc.limit {
		sc.out = sc.out[:sc.limit]
	}
	if len(sc.out) > MaxScanRows || more && (sc.limit <= 0 || len(sc.out) < sc.limit) {
		e := sc.ix.Concerns(ErrTooLarge, tables.Key{})
		e.Detail, e.Limit, e.Max, e.Size = "rows of one scan; give it a limit", "MaxScanRows", MaxScanRows, MaxScanRows+1
		sc.err = t.fail(e)
	}
}

// show converts the rows to the definition that the body uses.
func (sc *Scan) show() {
	for i := range sc.out {
		e := &sc.out[i]
		sc.made, e.Row = sc.ix.Table.ToEarlier(sc.as, sc.made, e.Row)
	}
}

// Entries waits for the result, in key order.
func (sc *Scan) Entries() ([]tables.Entry, error) {
	if !sc.done {
		sc.t.flush()
	}
	if sc.rows != nil && sc.err == nil && !sc.found {
		sc.t.findRows()
		sc.err = sc.takeRows()
	}
	if sc.err != nil {
		return nil, sc.err
	}
	return sc.out, nil
}
