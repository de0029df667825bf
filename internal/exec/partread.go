package exec

import (
	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// partRead is one read of an attempt in one partition: a lookup, or a part of a scan.
type partRead struct {
	get  *Get     // of a lookup
	scan *Scan    // of a part of a scan,
	sub  *subScan // which this is
}

func (r partRead) part() placement.Partition {
	if r.get != nil {
		return r.get.part
	}
	return r.sub.part
}

func (r partRead) index() *tables.Index {
	if r.get != nil {
		return r.get.ix
	}
	return r.scan.ix
}

func (r partRead) hasAnswer() bool {
	if r.get != nil {
		return r.get.res != nil
	}
	return r.sub.res != nil
}

// start starts the read, or starts it again, with an operation of a pool.
func (r partRead) start(t *Txn, p *opPool) index.Op {
	if g := r.get; g != nil {
		if g.op == nil {
			g.op, g.pool = p.get(), p
		}
		g.op.StartAt(g.key, t.at)
		if g.at != 0 {
			if op, ok := g.op.(index.PlacedGetter); ok {
				op.Place(g.at)
			}
		}
		return g.op
	}
	if r.sub.op == nil {
		r.sub.op = p.scan()
	}
	r.sub.op.StartAt(r.scan.lo, r.scan.hi, r.scan.partLimit(), t.at)
	return r.sub.op
}

// metLock reports whether the operation has ended at a lock.
func (r partRead) metLock() bool {
	switch {
	case r.hasAnswer():
		return false
	case r.get != nil:
		return r.get.op != nil && r.get.op.Result().Status == index.Locked
	}
	return r.sub.op != nil && r.sub.op.Result().Status == index.Locked
}

// take takes the answer of the operation, and reports whether there is one. Otherwise
// the server must be asked.
func (r partRead) take(t *Txn) bool {
	if r.hasAnswer() {
		return true
	}
	if g := r.get; g != nil && g.op != nil {
		if res := g.op.Result(); !t.mustAsk(res.Status) && !r.reportsLock(t, res.Status) {
			g.res = res
		}
	} else if sub := r.sub; sub != nil && sub.op != nil {
		if res := sub.op.Result(); !t.mustAsk(res.Status) && !r.reportsLock(t, res.Status) {
			sub.res = res
		}
	}
	return r.hasAnswer()
}

// reportsLock reports whether the server must be asked because of a lock: its owner may be a client
// that has stopped, and the server then settles what that client has begun. An attempt before has
// met a lock, too, or has lost.
func (r partRead) reportsLock(t *Txn, st index.Status) bool {
	return st == index.Locked && t.losses > 0 && t.at == 0 && r.index().ClientWritten()
}

// request returns the read as a request to the server.
func (r partRead) request(t *Txn) wire.Read {
	ix := r.index()
	q := wire.Read{Partition: r.part(), Index: uint16(ix.ID), Strings: ix.Strings, At: t.at}
	if g := r.get; g != nil {
		q.Lo, q.GaveUp = g.key, g.op != nil && !r.metLock()
		return q
	}
	q.Scan, q.Lo, q.Hi, q.Limit, q.GaveUp = true, r.scan.lo, r.scan.hi, uint32(r.scan.partLimit()), r.sub.op != nil && !r.metLock()
	return q
}

// decode decodes the answer of the server.
func (r partRead) decode(d *wire.Decoder) {
	if g := r.get; g != nil {
		g.buf = d.Get(&g.own, g.buf)
		g.res = &g.own
		return
	}
	r.sub.buf = d.Scan(&r.sub.own, r.sub.buf)
	r.sub.res = &r.sub.own
}

// reopen drops an answer by which the server says that it could not answer yet, and
// reports whether there was one.
func (r partRead) reopen(t *Txn) bool {
	if g := r.get; g != nil {
		if g.res != &g.own || !t.mustAsk(g.own.Status) {
			return false
		}
		g.res = nil
		return true
	}
	if r.sub.res != &r.sub.own || !t.mustAsk(r.sub.own.Status) {
		return false
	}
	r.sub.res = nil
	return true
}
