package exec

import (
	"errors"
	"fmt"
	"time"

	"drtmx/index"
	"drtmx/index/engine"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// An Update whose writes are all of one index in one partition, and whose reads are of that
// partition, commits without the data server if clients write the leaves of the index: see package
// rolex. The client locks the leaves, looks at what it has read, and changes them: two rounds after
// the reads. Whatever keeps it from doing so (a lock, a change, transactions that wait at the data
// server) makes the attempt a commit at the server instead, which knows who comes first.
//
// A data server's clock does not move with such a commit. So the partition must show a tick that is
// no lower than all that the DB has seen: transactions that read the rows read that clock, too, and
// so get no lower tick than what the rows depend on.

// oneSidedMax bounds the writes and the proofs of a commit without the data server.
const oneSidedMax = 1 << 10

// writerRest is how long a session does without a writer after the data server has refused one.
const writerRest = time.Second

// writers commits without the data servers, for a session.
type writers struct {
	s      *Session
	txn    engine.WriterTxn
	words  [controlWords]uint64
	rows   []uint64 // memory of the rows that are written
	lacks  []int    // writes whose leaves were not READ
	looks  []index.GetOp
	epoch  uint32
	seen   clock.Tick
	during *Txn
}

// writerKey is an index in a partition.
type writerKey struct {
	part placement.Partition
	ix   int
}

// linkWriter is a writer of an index over a connection; it goes with the connection.
type linkWriter struct {
	w       *engine.Writer // nil if the data server has refused
	name    uint64         // client half of the IDs of its transactions
	version int            // of the catalogue in which it was opened
	fenced  bool           // it must be opened again
	rest    time.Duration  // by clock.Fast: not asked before
}

// errAtServer reports that the data server must commit an attempt.
var errAtServer = errors.New("txn: the data server must commit")

// takes returns the index that an attempt can write without the data server, nil if there is none.
func (ws *writers) takes(t *Txn, c *wire.Commit) *tables.Index {
	db := ws.s.db
	if db.cfg.ServerWrites || db.durable || len(c.Parts) != 1 || t.losses > 0 || len(ws.s.reservations.held) > 0 {
		return nil
	}
	p := &c.Parts[0]
	if len(p.Writes) == 0 || len(p.Writes)+len(p.Rows)+len(p.Gaps) > oneSidedMax {
		return nil
	}
	id := p.Writes[0].Index
	ix := t.catalog.Indexes[id]
	if !ix.ClientWritten() {
		return nil
	}
	for i := range p.Writes {
		if p.Writes[i].Index != id {
			return nil
		}
	}
	return ix
}

// commit commits an attempt without the data server. done is false if that was not possible, and
// nothing has happened.
func (ws *writers) commit(t *Txn, c *wire.Commit) (done bool, err error) {
	ix := ws.takes(t, c)
	if ix == nil {
		return false, nil
	}
	s, part := ws.s, c.Parts[0].Partition
	server := s.db.placement.At(part)
	l, err := s.net.link(t.ctx, server)
	if err != nil {
		return true, t.fail(err)
	}
	lf := s.net.lives[server]
	if lf.trust.leased {
		return false, nil
	}
	lw := ws.open(t, l, ix, part)
	if lw == nil {
		return false, nil
	}
	if ok, err := ws.describe(t, l, lf, ix, c); !ok || err != nil {
		return err != nil, err
	}
	sent, err := s.leases.sent(t.ctx, server)
	if err != nil {
		return true, t.fail(err)
	}
	if s.net.links[server] != l {
		return false, nil // it was replaced meanwhile, and its writer with it
	}
	before := lw.w.Rounds()
	err = lw.w.Commit(t.ctx, &ws.txn)
	if errors.Is(err, engine.ErrNoLeaf) && ws.extend(t, l, lw, ix, part) {
		err = lw.w.Commit(t.ctx, &ws.txn)
	}
	s.stats.Rounds += lw.w.Rounds() - before
	switch {
	case err == nil:
		s.db.seen.Saw(clock.Tick(ws.words[tickWord]))
		s.stats.OneSided++
		s.db.oneSided.Add(1)
		return true, nil
	case errors.Is(err, engine.ErrUnknown):
		t.sent = true
		err = s.net.broken(t.ctx, l, err)
		id := wire.ID{Client: lw.name, Seq: lw.w.Last()}
		resp, err := s.outcomes.askAfter(t.ctx, part, id, sent, err)
		if err != nil {
			return true, t.fail(err)
		}
		if code := wire.Code(resp[0]); code != wire.OK {
			return true, t.fail(codeError(code, resp[1:]))
		}
		return true, nil
	case errors.Is(err, rdma.ErrPeerDown), errors.Is(err, rdma.ErrClosed):
		return true, t.fail(s.net.broken(t.ctx, l, err)) // the data server undoes the locks
	case errors.Is(err, engine.ErrFenced):
		lw.fenced = true
	}
	return false, nil
}

// open returns the writer of an index over a connection, nil if there is none.
func (ws *writers) open(t *Txn, l *link, ix *tables.Index, part placement.Partition) *linkWriter {
	key := writerKey{part, ix.ID}
	lw := l.writers[key]
	switch {
	case lw == nil:
		lw = &linkWriter{name: max(ws.s.rng.Uint64(), 1)}
		if l.writers == nil {
			l.writers = map[writerKey]*linkWriter{}
		}
		l.writers[key] = lw
	case lw.w != nil && !lw.fenced && ix.Table.ChangedIn() <= lw.version:
		return lw
	case clock.Fast() < lw.rest:
		return nil
	}
	q := wire.WriterRequest{Step: wire.WriterOpen, Partition: part, Index: ix.ID, Catalog: t.catalog.Version(), Name: lw.name}
	resp, err := ws.ask(t, l, &q)
	if err != nil {
		lw.rest = clock.Fast() + writerRest
		return nil
	}
	var o wire.Opened
	d := wire.NewDecoder(resp)
	if o.Decode(&d) != nil {
		lw.rest = clock.Fast() + writerRest
		return nil
	}
	at := engine.Opened{ID: o.ID, Owner: engine.Owner(o.Owner), Key: rdma.RKey(o.Key), Fence: o.Fence, First: o.First}
	if lw.w != nil {
		err = lw.w.Again(at)
	} else {
		opts := engine.WriterOptions{RowWords: ix.RowBytes / mem.WordBytes, SlotsPerLeaf: int(o.SlotsPerLeaf), Writers: int(o.Writers), Checksums: o.Checksums}
		lw.w, err = engine.NewWriter(l.conn, opts, at)
	}
	if err != nil {
		lw.w, lw.rest = nil, clock.Fast()+writerRest
		return nil
	}
	lw.version, lw.fenced = t.catalog.Version(), false
	return lw
}

// extend gets leaves for splits, and reports whether there are some.
func (ws *writers) extend(t *Txn, l *link, lw *linkWriter, ix *tables.Index, part placement.Partition) bool {
	q := wire.WriterRequest{Step: wire.WriterExtend, Partition: part, Index: ix.ID, Catalog: lw.version, Name: lw.name, Owner: uint16(lw.w.Opened().Owner)}
	resp, err := ws.ask(t, l, &q)
	if err != nil {
		if l.pending.call { // the leaves in the answer would be nobody's, and not free, while the connection lasts
			ws.s.net.drop(l)
		}
		return false
	}
	d := wire.NewDecoder(resp)
	got := d.Spares()
	if d.End() != nil {
		return false
	}
	spares := make([]engine.Spare, len(got))
	for i, s := range got {
		spares[i] = engine.Spare{Addr: s.Addr, Header: engine.LeafHeader(s.Header)}
	}
	lw.w.Supply(spares)
	return len(spares) > 0
}

// ask sends a request of a writer. The answer is valid until the next call.
func (ws *writers) ask(t *Txn, l *link, q *wire.WriterRequest) ([]byte, error) {
	net := &ws.s.net
	net.req = q.Append(net.req[:0])
	resp, err := net.call(t.ctx, l, net.req)
	if err != nil {
		return nil, err
	}
	if c := wire.Code(resp[0]); c != wire.OK {
		return nil, codeError(c, resp[1:])
	}
	return resp[1:], nil
}

// conditions of writes by their operation.
var conditions = map[wire.WriteOp]engine.Must{
	wire.Insert: engine.MustNotExist, wire.Put: engine.MustNothing, wire.Update: engine.MustExist, wire.Delete: engine.MustExist,
}

// describe fills in the transaction of the writer. Leaves that the body has not read are READ in one
// round. ok is false if the data server must commit.
func (ws *writers) describe(t *Txn, l *link, lf *life, ix *tables.Index, c *wire.Commit) (ok bool, err error) {
	p := &c.Parts[0]
	x := &ws.txn
	x.Writes, x.Proofs = x.Writes[:0], x.Proofs[:0]
	ws.rows, ws.lacks = ws.rows[:0], ws.lacks[:0]
	words := ix.RowBytes / mem.WordBytes
	if need := words * len(p.Writes); cap(ws.rows) < need {
		ws.rows = make([]uint64, 0, need)
	}
	for i := range p.Writes {
		w := &p.Writes[i]
		e := engine.Write{Key: w.Key.Num, Must: conditions[w.Op]}
		if w.Op != wire.Delete {
			n := len(ws.rows)
			ws.rows = ws.rows[:n+words]
			e.Row = ws.rows[n:]
			copy(mem.Bytes(e.Row), w.Row)
		}
		if e.Hint, e.Leaf = leafOf(t.reads.find(ix, w.Key)); e.Leaf == nil {
			ws.lacks = append(ws.lacks, i)
		}
		x.Writes = append(x.Writes, e)
	}
	if ok, err := ws.look(t, ix, p); !ok || err != nil {
		return ok, err
	}
	var last index.Proof
	for _, proofs := range [][]index.Proof{p.Rows, p.Gaps} {
		for _, pr := range proofs {
			if pr == last {
				continue // of the same leaf
			}
			last = pr
			key, addr, ok := lf.parts[p.Partition].region(pr.Addr)
			if !ok {
				return false, nil
			}
			x.Proofs = append(x.Proofs, engine.WordProof{Key: key, Addr: addr, Word: pr.Word})
		}
	}
	x.Words, x.At, x.Into = lf.parts[p.Partition].rkey, block.ControlAddr, ws.words[:]
	ws.epoch, ws.seen, ws.during = lf.epoch, ws.s.db.seen.Tick(), t
	if x.Judge == nil {
		x.Judge = ws.judge
	}
	return true, nil
}

// judge says whether the attempt may commit without the data server, when its leaves are locked.
func (ws *writers) judge() error {
	t := ws.during
	_, allowed := t.allowed(ws.words[0], ws.epoch)
	switch {
	case !allowed:
		return fmt.Errorf("%w: the partition is fenced, or has another version of the catalogue", errAtServer)
	case clock.Tick(ws.words[tickWord]) < ws.seen:
		return fmt.Errorf("%w: its clock is behind", errAtServer)
	case t.firstRead().Age() > ws.s.db.cfg.BodyAge:
		return fmt.Errorf("%w: the proofs are old", errAtServer)
	}
	return nil
}

// leafOf returns the leaf that a read has READ, nil if it has not.
func leafOf(g *Get) (addr uint64, words []uint64) {
	if g == nil || g.op == nil || g.res != g.op.Result() {
		return 0, nil
	}
	return leafIn(g.op)
}

func leafIn(op index.GetOp) (addr uint64, words []uint64) {
	g, ok := op.(index.LeafGetter)
	if st := op.Result().Status; !ok || st != index.Found && st != index.NotFound {
		return 0, nil
	}
	return g.Leaf()
}

// look READs the leaves that the body has not read. ok is false if one was not found.
func (ws *writers) look(t *Txn, ix *tables.Index, p *wire.Part) (ok bool, err error) {
	if len(ws.lacks) == 0 {
		return true, nil
	}
	rd := &ws.s.reader
	defer rd.end()
	ws.looks = ws.looks[:0]
	for _, i := range ws.lacks {
		pool, err := rd.pool(t.ctx, ix.ID, p.Partition)
		if err != nil {
			return false, t.fail(err)
		}
		op := pool.get()
		op.Start(p.Writes[i].Key)
		ws.looks = append(ws.looks, op)
		if err := rd.activate(t, op, pool); err != nil {
			return false, t.fail(err)
		}
	}
	if err := rd.run(t.ctx); err != nil {
		return false, t.fail(err)
	}
	for n, i := range ws.lacks {
		e := &ws.txn.Writes[i]
		if e.Hint, e.Leaf = leafIn(ws.looks[n]); e.Leaf == nil {
			return false, nil
		}
	}
	return true, nil
}
