package exec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/index"
	"drtmx/index/learned/read"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// flush performs all queued reads together: the one-sided ones in shared
// rounds, then the others by one RPC to each server.
func (t *Txn) flush() {
	if t.err == nil && t.where.local != nil {
		getLocal(t.reads.gets[t.reads.flushed:t.reads.nGet])
		getLocal(t.reads.group)
	}
	if t.err == nil && t.s != nil {
		if err := t.s.reader.flush(t); err != nil {
			t.fail(err)
		}
	}
	if t.err == nil && t.s != nil && t.s.kept.on {
		t.s.kept.keepAll(t)
	}
	from := t.reads.flushed
	t.reads.flushed = t.reads.nGet
	t.settle(t.reads.gets[from:t.reads.nGet])
	t.settle(t.reads.group)
	for _, sc := range t.reads.scans[:t.reads.nScan] {
		if !sc.done {
			sc.done = true
			if t.err != nil {
				sc.err = t.err
				continue
			}
			sc.settle()
		}
	}
}

func (t *Txn) settle(gets []*Get) {
	for _, g := range gets {
		if g.done {
			continue
		}
		if g.done = true; t.err != nil && g.res == nil {
			g.err = t.err
			continue
		}
		g.settle()
	}
}

// reader performs the reads of attempts: by READs in rounds that the operations share,
// and by an RPC those that must go to a server.
type reader struct {
	db       *DB
	net      *network
	round    *round
	snap     *snapshotTime
	pools    []*opPool // by index number × partition
	active   []activeOp
	requests []wire.Read // in the RPC under way
}

type activeOp struct {
	op index.Op
	l  *link
}

// maxOpsARound bounds the operations that share rounds, so that their requests
// fit a batch: a scan posts a few at a time, other reads one.
const maxOpsARound = 512

// flush fills in the results of a transaction's queued reads.
func (rd *reader) flush(t *Txn) error {
	defer rd.end() // also if a link fails before the first round
	if t.at != 0 {
		for r := range t.reads.queued {
			if ix := r.index(); !ix.KeepsVersions() {
				return &SnapshotTooOld{Table: ix.Table.Name(), MadeBy: ix.MadeBy(), Partition: int(r.part())}
			}
		}
		if err := rd.snap.enter(t); err != nil {
			return err
		}
	}
	if t.mode == view {
		t.reading.Locks = 1 // see awaitLocks
	}
	for r := range t.reads.queued {
		if r.hasAnswer() || rd.byRPC(r.index().Ordered) {
			continue
		}
		p, err := rd.pool(t.ctx, r.index().ID, r.part())
		if err != nil {
			return err
		}
		if err := rd.activate(t, r.start(t, p), p); err != nil {
			return err
		}
	}
	if len(rd.active) > 0 {
		if err := rd.run(t.ctx); err != nil {
			return err
		}
	}
	if t.at != 0 {
		if err := rd.snap.leave(t); err != nil {
			return err
		}
	} else if err := rd.awaitLocks(t); err != nil {
		return err
	}
	return rd.collect(t)
}

// lockWait bounds how long an attempt of a View waits for the locks that one flush
// met. It is longer than most commits of several partitions take, and so short that a
// View whose rows stay locked goes on as a Snapshot after some attempts.
const lockWait = clock.TickLength / 4

// awaitLocks repeats reads of a View that met a lock, after pauses. Abandoning the
// attempt would repeat all others, too, which are valid unless their rows change
// meanwhile. A View holds nothing for which others wait.
//
// Lookups end at the first lock, because the others of the attempt wait for each round
// in which one of them READs a locked row again. When a lookup is repeated it ends at
// the second lock: a row at a remembered place may be locked because it has moved, and
// then the index has the new place.
func (rd *reader) awaitLocks(t *Txn) error {
	if t.mode != view {
		return nil
	}
	var end time.Duration
	t.reading.Locks = 2
	for n := 0; ; n++ {
		met := false
		for r := range t.reads.queued {
			if met = r.metLock(); met {
				break
			}
		}
		now := clock.Fast()
		if n == 0 {
			end = now + lockWait
		}
		if !met || now > end {
			return nil
		}
		if err := t.s.backoff(t.ctx, n); err != nil {
			return err
		}
		for r := range t.reads.queued {
			if !r.metLock() {
				continue
			}
			p, err := rd.pool(t.ctx, r.index().ID, r.part())
			if err != nil {
				return err
			}
			if err := rd.activate(t, r.start(t, p), p); err != nil {
				return err
			}
		}
		if err := rd.run(t.ctx); err != nil {
			return err
		}
	}
}

// activate adds an operation to the next rounds, and runs the rounds when there
// are enough operations.
func (rd *reader) activate(t *Txn, op index.Op, p *opPool) error {
	l, err := rd.round.join(t.ctx, p.server)
	if err != nil {
		return err
	}
	rd.active = append(rd.active, activeOp{op, l})
	if len(rd.active) >= maxOpsARound {
		return rd.run(t.ctx)
	}
	return nil
}

// maxRounds bounds the rounds of one read; operations fall back long before.
const maxRounds = 4096

// run drives the active operations until all have finished. Requests to
// several servers, and of several operations to one, share each round.
func (rd *reader) run(ctx context.Context) error {
	defer rd.end()
	for range maxRounds {
		n := 0
		for i := range rd.active {
			a := &rd.active[i]
			if a.op.Next(a.l.done, a.l.next) {
				continue
			}
			if n < i {
				rd.active[n] = *a
			}
			n++
		}
		if rd.active = rd.active[:n]; n == 0 {
			return nil
		}
		if err := rd.round.exchange(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: a read did not end after %d rounds", ErrProtocol, maxRounds)
}

// end ends the operations under way, and their round.
func (rd *reader) end() {
	rd.round.end()
	rd.active = rd.active[:0]
}

func (rd *reader) byRPC(ordered bool) bool { return ordered && rd.db.cfg.Reads == OrderedByRPC }

// collect takes the results of the operations. It sends the operations that fell
// back, and those that always go by RPC, to the servers.
func (rd *reader) collect(t *Txn) error {
	rest := 0
	for r := range t.reads.queued {
		if !r.take(t) {
			rest++
		}
	}
	if rest == 0 {
		return nil
	}
	var patience time.Duration
	for again := true; again; {
		for server := range placement.Server(len(rd.db.servers)) {
			for more := true; more; {
				var err error
				if more, err = rd.ask(t, server); err != nil {
					return err
				}
			}
		}
		err := rd.askRest(t)
		if err != nil || t.at == 0 {
			return err
		}
		if again, err = rd.snap.reopen(t, &patience); err != nil {
			return err
		}
	}
	return nil
}

// askRest continues scans of which a server has sent only the part that fitted its
// answer.
func (rd *reader) askRest(t *Txn) error {
	for _, sc := range t.reads.scans[:t.reads.nScan] {
		for i := range sc.nsubs {
			sub := &sc.subs[i]
			for !sc.done && sub.res == &sub.own && sub.own.More && len(sub.own.Entries) > 0 && len(sub.own.Entries) < sc.partLimit() {
				if err := rd.askMore(t, sc, sub); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (rd *reader) askMore(t *Txn, sc *Scan, sub *subScan) error {
	have := len(sub.own.Entries)
	rd.net.req = wire.AppendReads(rd.net.req[:0], []wire.Read{{
		Partition: sub.part, Index: uint16(sc.ix.ID), Scan: true, Strings: sc.ix.Strings,
		Lo: after(sub.own.Entries[have-1].Key, sc.ix.Strings), Hi: sc.hi, Limit: uint32(sc.partLimit() - have), At: t.at,
	}})
	answer, err := rd.net.request(t.ctx, rd.db.placement.At(sub.part), rd.net.req)
	if err != nil {
		return err
	}
	var page index.ScanResult
	d := wire.NewDecoder(answer)
	d.Scan(&page, nil)
	if err := d.End(); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrProtocol, err)
	}
	sub.own.Quick = append(sub.own.Quick, page.Quick...)
	sub.own.Gaps = append(sub.own.Gaps, page.Gaps...)
	sub.own.Entries = append(sub.own.Entries, page.Entries...)
	sub.own.Rests = max(sub.own.Rests, page.Rests)
	sub.own.More = page.More && len(page.Entries) > 0
	if page.Status == index.Locked || page.Status == index.Gone {
		sub.own.Status = page.Status
	}
	return nil
}

// ask sends one RPC with the reads that a server must answer, as many as fit a
// message. The server answers in order as many as fit its message. more reports that
// reads remain for another RPC.
func (rd *reader) ask(t *Txn, server placement.Server) (more bool, err error) {
	rd.requests = rd.requests[:0]
	for r := range t.reads.queued {
		if len(rd.requests) < wire.MaxReads && rd.isAsked(server, r) {
			rd.requests = append(rd.requests, r.request(t))
		}
	}
	if len(rd.requests) == 0 {
		return false, nil
	}
	rd.net.req = wire.AppendReads(rd.net.req[:0], rd.requests)
	answers, err := rd.net.request(t.ctx, server, rd.net.req)
	if err != nil {
		return false, err
	}
	return true, rd.takeAnswers(t, server, answers)
}

// isAsked reports whether a read still needs an answer from a server.
func (rd *reader) isAsked(server placement.Server, r partRead) bool {
	return !r.hasAnswer() && rd.db.placement.At(r.part()) == server
}

// takeAnswers decodes answers in the order in which ask listed the reads: at
// least one, and perhaps not all.
func (rd *reader) takeAnswers(t *Txn, server placement.Server, resp []byte) error {
	d, left := wire.NewDecoder(resp), len(rd.requests)
	next := func() bool {
		take := left > 0 && (d.Left() > 0 || left == len(rd.requests))
		if take {
			left--
		}
		return take
	}
	for r := range t.reads.queued {
		if rd.isAsked(server, r) && next() {
			r.decode(&d)
		}
	}
	if err := d.End(); err != nil {
		return fmt.Errorf("%w: read answer: %w", ErrProtocol, err)
	}
	return nil
}

// opPool keeps the read operations of one index in one partition. Their buffers hold
// the rows of a transaction, so a transaction uses each once.
type opPool struct {
	client       index.Client
	gets         []index.GetOp
	scans        []index.ScanOp
	nGet, nScan  int
	spare        []index.GetOp // of gets, which the transaction uses no more
	server       placement.Server
	attempt      *index.Attempt
	usedThisTime bool
}

// pool returns the operations for one index in one partition. It connects to
// the server if it has to, and refreshes a client half that a transaction has
// found stale, or loads it on its first use.
func (rd *reader) pool(ctx context.Context, ix int, part placement.Partition) (*opPool, error) {
	p, server := rd.poolAt(ix, part), rd.db.placement.At(part)
	if p == nil || rd.net.pendingLinks > 0 || rd.net.links[server] == nil {
		l, err := rd.net.link(ctx, server)
		if err == nil {
			if p = rd.poolAt(ix, part); p == nil { // or it was dropped with its life
				p, err = rd.newPool(ctx, l, ix, part)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if !p.usedThisTime {
		p.usedThisTime = true
		rd.net.txn.used = append(rd.net.txn.used, p)
	}
	if p.client.Stale() {
		return p, rd.maintain(ctx, p)
	}
	return p, nil
}

func (rd *reader) poolAt(ix int, part placement.Partition) *opPool {
	if at := ix*rd.db.Partitions() + int(part); at < len(rd.pools) {
		return rd.pools[at]
	}
	return nil
}

// newPool makes the pool of an index in a partition. If the index is newer than the
// hello of the partition's server, it asks for another hello. If the server does not
// have the index yet, the attempt is aborted.
func (rd *reader) newPool(ctx context.Context, l *link, ix int, part placement.Partition) (*opPool, error) {
	c := rd.db.client(rd.net.life(part), ix, part)
	if c == nil {
		if err := rd.net.helloAgain(ctx, l); err != nil {
			return nil, err
		}
		if c = rd.db.client(rd.net.life(part), ix, part); c == nil {
			return nil, rd.net.txn.abandon(CauseCatalog)
		}
	}
	if all := rd.db.Catalog().Indexes; ix < len(all) {
		if err := rd.db.cacheable(all[ix]); err != nil {
			return nil, err
		}
	}
	n := rd.db.Partitions()
	if most := max(len(rd.db.Catalog().Indexes), ix+1) * n; most > len(rd.pools) {
		rd.pools = append(rd.pools, make([]*opPool, most-len(rd.pools))...)
	}
	p := &opPool{client: c, server: l.server, attempt: &rd.net.txn.reading}
	rd.pools[ix*n+int(part)] = p
	return p, nil
}

// drop drops the pools of a server, which is in another life.
func (rd *reader) drop(server placement.Server) {
	for i, p := range rd.pools {
		if p != nil && p.server == server {
			rd.pools[i] = nil
		}
	}
}

// maintain refreshes a stale client half, or loads one that is not loaded yet.
func (rd *reader) maintain(ctx context.Context, p *opPool) error {
	l, err := rd.net.link(ctx, p.server)
	if err != nil {
		return err
	}
	switch err := p.client.Maintain(ctx, l.conn); {
	case errors.Is(err, read.ErrNoInner):
		return fmt.Errorf("%w: data server %s does not publish them (drtmx serve --publish-inner)", ErrCache, rd.db.servers[p.server])
	case err != nil && !errors.Is(err, index.ErrCorrupt):
		return rd.net.broken(ctx, l, err)
	}
	return nil // a corrupt index is being rewritten; reads fall back to the server until the next refresh
}

// outdate fetches again what the client halves of a server's indexes hold and the server has
// replaced. Where that fails, the next read tries it again.
func (rd *reader) outdate(ctx context.Context, server placement.Server) {
	lf := rd.net.lives[server]
	for part := range rd.db.placement.Of(server) {
		for ix := range rd.db.Catalog().Indexes {
			c := rd.db.client(lf, ix, part)
			if o, ok := c.(index.Outdating); ok && o.Outdate() {
				_ = rd.maintain(ctx, &opPool{client: c, server: server})
			}
		}
	}
}

func (p *opPool) get() index.GetOp {
	if n := len(p.spare); n > 0 {
		op := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return op
	}
	if p.nGet == len(p.gets) {
		op := p.client.NewGet()
		if s, ok := op.(index.Serving); ok {
			s.Serve(p.attempt)
		}
		p.gets = append(p.gets, op)
	}
	p.nGet++
	return p.gets[p.nGet-1]
}

func (p *opPool) scan() index.ScanOp {
	if p.nScan == len(p.scans) {
		p.scans = append(p.scans, p.client.NewScan())
	}
	p.nScan++
	return p.scans[p.nScan-1]
}
