package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// Bounds of one transaction.
const (
	// MaxReads bounds the lookups and scans that a transaction makes.
	MaxReads = 1 << 16
	// MaxWrites bounds the changes of rows and of secondary entries in a transaction.
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
)

// errAbandoned ends an attempt that met a concurrent writer. Bodies get it as
// an error and should return it; Session never returns it.
var errAbandoned = errors.New("txn: attempt abandoned: concurrent writer")

// errRemote ends the first try of a procedure that needs another server.
var errRemote = errors.New("txn: procedure leaves its partition")

// Local gives a procedure at its home server direct access to the partitions of
// that server.
type Local interface {
	// Index is the server half of an index in a partition, nil if the
	// partition is elsewhere.
	Index(part, ix int) index.Server
}

// Txn is a running transaction, for the goroutine of its body. Rows that it
// returns are valid until the body returns.
type Txn struct {
	ctx     context.Context
	s       *Session // nil in a procedure that stays in its partition
	catalog *tables.Catalog
	nparts  int
	local   Local
	only    int // ≥ 0: the one partition this procedure may touch, held exclusively
	near    int // ≥ 0: a partition of local, whose copies of replicated tables are read

	mode    mode
	began   clock.Mark // before the first read
	err     error      // the reason why the attempt is over: errAbandoned, errRemote, or a failure
	doomed  error      // the error of the transaction, if the rows it read are a consistent snapshot
	cause   Cause
	gets    []*Get
	scans   []*Scan
	nGet    int
	nScan   int
	flushed int // gets before it are done
	reads   readsByKey
	used    []*opPool
	writes  writeSet
	keys    keyArena
}

type mode uint8

const (
	closed mode = iota
	view
	update
)

func (t *Txn) init(c *tables.Catalog, nparts int, local Local) {
	t.catalog, t.nparts, t.only = c, nparts, -1
	t.setLocal(local)
	t.writes.init()
}

// setLocal gives a transaction direct access to partitions of its process.
func (t *Txn) setLocal(local Local) {
	t.local, t.near = local, -1
	for p := 0; local != nil && t.near < 0 && p < t.nparts; p++ {
		if local.Index(p, 0) != nil {
			t.near = p
		}
	}
}

// partition returns the partition that holds a key. For a replicated table it
// returns the partition with the nearest copy: any other would add its server
// to the transaction.
func (t *Txn) partition(ix *tables.Index, key index.Key) int {
	if ix.Partition.Kind == tables.Replicated {
		if t.only >= 0 {
			return t.only
		}
		if t.near >= 0 {
			return t.near
		}
	}
	return partitionOf(ix, key, t.nparts)
}

// begin starts an attempt.
func (t *Txn) begin(ctx context.Context, m mode) {
	t.ctx, t.mode, t.err, t.doomed, t.began = ctx, m, nil, nil, clock.Start()
	t.nGet, t.nScan, t.flushed = 0, 0, 0
	t.reads.reset()
	for _, p := range t.used {
		p.nGet, p.nScan, p.usedThisTime = 0, 0, false
	}
	t.used = t.used[:0]
	t.writes.reset()
	t.keys.reset()
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

// doom ends the body with an error that depends on the rows it read. Unlike a
// failure, it is the answer only if the attempt validates.
func (t *Txn) doom(err error) error {
	if t.err != nil {
		return t.err
	}
	if t.doomed == nil {
		t.doomed = err
	}
	return t.doomed
}

// usable returns the error of every operation once the attempt is over.
func (t *Txn) usable() error {
	if t.err != nil {
		return t.err
	}
	if t.doomed != nil {
		return t.doomed
	}
	if t.mode == closed {
		return ErrClosed
	}
	if t.nGet+t.nScan >= MaxReads {
		return t.fail(fmt.Errorf("%w: more than %d reads in one transaction", ErrTooLarge, MaxReads))
	}
	return nil
}

// Get is an announced point read; see Txn.GetLater.
type Get struct {
	t    *Txn
	ix   *tables.Index
	part int
	key  index.Key
	done bool
	err  error
	row  tables.Row
	op   index.GetOp  // one-sided
	srv  index.Server // this process holds the partition
	own  index.GetResult
	res  *index.GetResult // nil if the row is the transaction's own
	buf  []uint64
}

// Scan is an announced range read; see Txn.ScanLater.
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
}

// subScan is the part of a scan in one partition.
type subScan struct {
	part int
	op   index.ScanOp
	own  index.ScanResult
	res  *index.ScanResult
	buf  []uint64

	changed bool // a quick proof failed
}

// GetLater announces a Get. When the body waits for the first result, all
// announced reads run together, in the same network rounds.
func (t *Txn) GetLater(tab *tables.Table, key tables.Key) *Get {
	ix := tab.Primary()
	if err := ix.CheckKey(key); err != nil {
		return &Get{t: t, done: true, err: err}
	}
	return t.getLater(ix, t.keys.keep(ix, key))
}

func (t *Txn) getLater(ix *tables.Index, key index.Key) *Get {
	if t.nGet == len(t.gets) {
		t.gets = append(t.gets, &Get{})
	}
	g := t.gets[t.nGet]
	g.t, g.ix, g.key, g.done, g.err, g.row, g.res, g.op, g.srv = t, ix, key, false, nil, nil, nil, nil, nil
	if err := t.usable(); err != nil {
		g.done, g.err = true, err
		return g
	}
	t.nGet++
	if w := t.writes.find(ix.ID, key); w != nil {
		g.done, g.row = true, w.row
		if w.gone() {
			g.row, g.err = nil, ErrNotFound
		}
		return g
	}
	g.part = t.partition(ix, key)
	if t.only >= 0 && g.part != t.only {
		g.done, g.err = true, t.fail(errRemote)
		return g
	}
	if t.local != nil {
		g.srv = t.local.Index(g.part, ix.ID)
	}
	return g
}

// getLocal answers announced reads of this server's memory. It prefetches the
// rows together, because a transaction that reads many rows spends most of its
// time waiting for memory.
func (t *Txn) getLocal() {
	gets := t.gets[t.flushed:t.nGet]
	if len(gets) > 1 {
		for stage := range index.PrefetchStages {
			for _, g := range gets {
				if g.srv == nil || g.done {
					continue
				}
				if p, ok := g.srv.(index.Prefetcher); ok {
					p.Prefetch(g.key, stage)
				}
			}
		}
	}
	for _, g := range gets {
		if g.srv == nil || g.done {
			continue
		}
		g.srv.Lookup(g.key, &g.own)
		g.res, g.done = &g.own, true
		g.settle()
	}
}

// settle converts the index's result to the caller's.
func (g *Get) settle() {
	switch g.res.Status {
	case index.Found:
		g.row = mem.Bytes(g.res.Row)
	case index.NotFound:
		g.err = ErrNotFound
	case index.Locked:
		g.err = g.t.abandon(CauseLocked)
	default:
		g.err = g.t.fail(readFailed(g.ix, g.res.Status, g.res.Err))
	}
}

func readFailed(ix *tables.Index, st index.Status, err error) error {
	if err == nil {
		return fmt.Errorf("%w: read of %s ended as %v", ErrProtocol, ix.Name, st)
	}
	return fmt.Errorf("read of %s: %w", ix.Name, err)
}

// Row waits for the result. It returns ErrNotFound if there is no row.
func (g *Get) Row() (tables.Row, error) {
	if !g.done {
		g.t.flush()
	}
	return g.row, g.err
}

// Get reads a row by primary key. It returns ErrNotFound if there is none.
func (t *Txn) Get(tab *tables.Table, key tables.Key) (tables.Row, error) {
	return t.GetLater(tab, key).Row()
}

// ScanLater announces a Scan, as GetLater does a Get.
func (t *Txn) ScanLater(ix *tables.Index, lo, hi tables.Key, limit int) *Scan {
	if err := cmp.Or(ix.CheckBound(lo), ix.CheckBound(hi)); err != nil {
		return &Scan{t: t, done: true, err: err}
	}
	if t.nScan == len(t.scans) {
		t.scans = append(t.scans, &Scan{})
	}
	sc := t.scans[t.nScan]
	sc.t, sc.ix, sc.limit, sc.done, sc.err = t, ix, limit, false, nil
	sc.lo, sc.hi = t.keys.bound(ix, lo), t.keys.bound(ix, hi)
	sc.nsubs, sc.out = 0, sc.out[:0]
	if err := t.usable(); err != nil {
		sc.done, sc.err = true, err
		return sc
	}
	t.nScan++
	switch {
	case !ix.Ordered:
		sc.done, sc.err = true, fmt.Errorf("%w: scan of %s, which is a hash index", tables.ErrSchema, ix.Name)
	case sc.lo.Compare(sc.hi) > 0:
		sc.done = true
	default:
		t.startScan(sc)
	}
	return sc
}

func (t *Txn) startScan(sc *Scan) {
	first, last := sc.ix.Partition.Span(userKey(sc.ix, sc.lo), userKey(sc.ix, sc.hi), t.nparts)
	if sc.ix.Partition.Kind == tables.Replicated {
		first = t.partition(sc.ix, sc.lo)
		last = first
	}
	remote := false
	for p := first; p <= last; p++ {
		if sc.nsubs == len(sc.subs) {
			sc.subs = append(sc.subs, subScan{})
		}
		sub := &sc.subs[sc.nsubs]
		sc.nsubs++
		sub.part, sub.op, sub.res = p, nil, nil
		if t.local == nil {
			remote = true
			continue
		}
		if t.only >= 0 && p != t.only {
			sc.done, sc.err = true, t.fail(errRemote)
			return
		}
		srv, ok := t.local.Index(p, sc.ix.ID).(index.OrderedServer)
		if !ok {
			remote = true
			continue
		}
		sub.buf = srv.Scan(sc.lo, sc.hi, t.scanLimit(sc), &sub.own, sub.buf)
		sub.res = &sub.own
	}
	if remote {
		return
	}
	sc.done = true
	sc.settle()
}

// scanLimit returns the limit for each partition: enough rows for the caller's
// limit even if the transaction itself deleted some of them.
func (t *Txn) scanLimit(sc *Scan) int {
	n := sc.limit
	if n <= 0 || n > MaxScanRows {
		n = MaxScanRows
	}
	if !t.writes.empty() {
		n += t.writes.deletes(sc.ix.ID, sc.lo, sc.hi)
	}
	return n
}

// settle merges the partitions' answers and the transaction's own writes.
func (sc *Scan) settle() {
	t := sc.t
	more := false
	for i := range sc.nsubs {
		res := sc.subs[i].res
		switch res.Status {
		case index.Found, index.NotFound:
			more = more || res.More
			for j := range res.Entries {
				e := &res.Entries[j]
				sc.out = append(sc.out, tables.Entry{Key: userKey(sc.ix, e.Key), Row: mem.Bytes(e.Row)})
			}
		case index.Locked:
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
	if !t.writes.empty() {
		sc.out = t.writes.overlay(sc.ix, sc.lo, sc.hi, sc.out, more)
	}
	if sc.limit > 0 && len(sc.out) > sc.limit {
		sc.out = sc.out[:sc.limit]
	}
	if len(sc.out) > MaxScanRows || more && (sc.limit <= 0 || len(sc.out) < sc.limit) {
		sc.err = t.fail(fmt.Errorf("%w: a scan of %s returns more than %d rows; give it a limit", ErrTooLarge, sc.ix.Name, MaxScanRows))
	}
}

// Entries waits for the result, in key order.
func (sc *Scan) Entries() ([]tables.Entry, error) {
	if !sc.done {
		sc.t.flush()
	}
	if sc.err != nil {
		return nil, sc.err
	}
	return sc.out, nil
}

// Scan reads the rows with lo ≤ key ≤ hi of an ordered index (a table's
// primary or a secondary) in key order, at most limit; limit ≤ 0 asks for all,
// up to MaxScanRows. tables.First and tables.Last reach to the ends of the
// index. Entries of a secondary index hold PrimaryKey and the included columns.
func (t *Txn) Scan(ix *tables.Index, lo, hi tables.Key, limit int) ([]tables.Entry, error) {
	return t.ScanLater(ix, lo, hi, limit).Entries()
}
