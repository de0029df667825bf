package read

import (
	"drtmx/index"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// Bounds of one round of rows: a number, and 1 MiB or one row.
const (
	rowsPerRoundMax     = 1024
	rowWordsPerRoundMax = 128 << 10
)

// scanRows are the blocks of rows that a scan READs when it knows which rows are in
// the range.
type scanRows struct {
	rows []rowRead
	mem  []uint64 // of all
	free []uint64 // the rest of mem
}

// rowRead is the block of one row.
type rowRead struct {
	addr   uint64
	buf    []uint64
	wr     int32 // in the batch under way, -1 if it is not READ there
	locked uint8
	done   bool
}

// clear empties the list and makes room for blocks of so many words in all.
func (r *scanRows) clear(words int) {
	r.rows, r.mem = r.rows[:0], grow(r.mem, words)
	r.free = r.mem
}

// list adds a block. It returns false if the address or the size is not valid.
func (r *scanRows) list(addr uint64, words int) bool {
	n := len(r.rows)
	if n < cap(r.rows) {
		r.rows = r.rows[:n+1]
	} else {
		r.rows = append(r.rows, rowRead{})
	}
	b := &r.rows[n]
	b.addr, b.buf, b.locked, b.done = addr, r.free[:words:words], 0, false
	r.free = r.free[words:]
	return model.ValidAddr(addr)
}

// rows READs the rows that are not in leaves, all together, and ends the scan.
func (o *scanOp) rows(next *rdma.Batch) bool {
	o.res.More = o.more
	o.apart.clear(0)
	if !o.kind.list() {
		if o.past.lost {
			return o.answer(index.Gone)
		}
		return o.fallback()
	}
	return o.readRows(next)
}

// readRows appends READs of the rows that are still missing, within the bounds of a
// round.
func (o *scanOp) readRows(next *rdma.Batch) bool {
	n, words := 0, 0
	for i := range o.apart.rows {
		r := &o.apart.rows[i]
		if r.wr = -1; r.done || n == rowsPerRoundMax || n > 0 && words+len(r.buf) > rowWordsPerRoundMax {
			continue
		}
		n, words = n+1, words+len(r.buf)
		r.wr = int32(next.Read(o.c.rkey, r.addr, r.buf))
	}
	if n == 0 {
		return o.kind.assemble(next)
	}
	if o.stalls++; o.stalls > readsMax {
		return o.giveUp()
	}
	o.state = scanReadsRows
	o.reads += n
	o.rounds++
	return false
}

func (o *scanOp) onRows(done, next *rdma.Batch) bool {
	for i := range o.apart.rows {
		r := &o.apart.rows[i]
		if r.wr < 0 {
			continue
		}
		wr := &done.WRs[r.wr]
		switch o.kind.judge(i, wr) {
		case rowHere:
			r.done = true
			o.stalls = 0
		case rowLocked:
			o.busy = true
			if r.locked++; r.locked >= lockedMax {
				return o.finish(index.Locked)
			}
			o.n.retries.Add(1)
		case rowTorn:
			o.n.retries.Add(1)
		case rowAgain:
		case rowReused:
			return o.answer(index.Gone)
		case rowGone, rowOther:
			return o.restart(next)
		case rowNowhere:
			return o.fallback()
		case rowDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		}
	}
	return o.readRows(next)
}

// restart begins the scan again: a row was moved or deleted since its leaf was READ,
// so the leaves have changed.
func (o *scanOp) restart(next *rdma.Batch) bool {
	o.clear()
	return o.again(next)
}
