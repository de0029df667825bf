package read

import (
	"drtmx/index"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// Bounds of one round of rows: a number, and 1 MiB or one row.
const (
	maxRowsPerRound  = 1024
	rowWordsPerRound = 128 << 10
)

// scanRows are the blocks of rows that a scan READs once it knows which rows are
// in the range.
type scanRows struct {
	rows  []rowRead
	words int      // of all
	mem   []uint64 // of all
}

// rowRead is the block of one row.
type rowRead struct {
	addr   uint64
	words  int
	buf    []uint64
	wr     int // in the batch under way, -1 if it is not READ there
	locked int
	done   bool
}

func (r *scanRows) clear() { r.rows, r.words = r.rows[:0], 0 }

// list adds a block; false if there cannot be such a block.
func (r *scanRows) list(addr uint64, words int) bool {
	r.rows = append(r.rows, rowRead{addr: addr, words: words})
	r.words += words
	return model.ValidAddr(addr)
}

// rows READs the rows that are not in leaves, all together, and ends the scan.
func (o *scanOp) rows(next *rdma.Batch) bool {
	o.res.More = o.more
	if !o.kind.list() {
		return o.fallback()
	}
	o.apart.mem = grow(o.apart.mem, o.apart.words)
	buf := o.apart.mem
	for i := range o.apart.rows {
		r := &o.apart.rows[i]
		r.buf, buf = buf[:r.words:r.words], buf[r.words:]
	}
	return o.readRows(next)
}

// readRows appends READs of the rows still missing, within the bounds of a round.
func (o *scanOp) readRows(next *rdma.Batch) bool {
	n, words := 0, 0
	for i := range o.apart.rows {
		r := &o.apart.rows[i]
		if r.wr = -1; r.done || n == maxRowsPerRound || n > 0 && words+r.words > rowWordsPerRound {
			continue
		}
		n, words = n+1, words+r.words
		r.wr = next.Read(o.c.rkey, r.addr, r.buf)
	}
	if n == 0 {
		return o.kind.assemble(next)
	}
	if o.stalls++; o.stalls > maxReads {
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
			if r.locked++; r.locked >= maxLocked {
				return o.finish(index.Locked)
			}
			o.n.retries.Add(1)
		case rowTorn:
			o.n.retries.Add(1)
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

// restart begins again: a row was moved or deleted since its leaf was READ, so
// the leaves have changed.
func (o *scanOp) restart(next *rdma.Batch) bool {
	o.clear()
	return o.again(next)
}
