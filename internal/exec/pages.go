package exec

import (
	"fmt"
	"iter"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/tables"
)

// Bounds of a page of an iterator, in rows. The first is small, because the
// loop may break; each page is twice as large as the one before.
const (
	pageRowsMin = 32
	pageRowsMax = 512
	// pageRowsSnapshot is the bound in snapshots, in which every page takes a round
	// to check that its versions were still kept.
	pageRowsSnapshot = 2048
	// partRowsMin is the least number of rows of a page that a partition is asked
	// for.
	partRowsMin = 8
	// guessMax bounds the rows asked for when a reverse scan guesses where to begin,
	// after guesses with too few rows.
	guessMax = 1 << 40
)

// keptProofs are proofs of earlier pages of an iterator, or of earlier groups of lookups,
// in one partition.
type keptProofs struct {
	points            bool // of lookups, which have no quick proofs
	part              placement.Partition
	quick, gaps, rows []index.Proof
	rests             block.CSN // the newest commit that the pages depend on
	changed           bool      // a quick proof failed
}

// keptMax bounds the proofs of a finished iterator whose memory is reused.
const keptMax = 1 << 16

// Rows returns an iterator over the rows with lo ≤ key ≤ hi of an ordered index,
// in ascending or descending order of their keys. It reads them page by page.
func (t *Txn) Rows(ix *tables.Index, lo, hi tables.Key, reverse bool) iter.Seq2[tables.Entry, error] {
	attempt := t.attempt
	return func(yield func(tables.Entry, error) bool) {
		p := pager{t: t, attempt: attempt, n: pageRowsMin}
		if p.sc = t.newScan(ix, lo, hi); p.sc.err != nil {
			yield(tables.Entry{}, p.sc.err)
			return
		}
		p.lo, p.hi = p.sc.lo, p.sc.hi
		if p.sc.done {
			return // an empty range
		}
		p.sc.paged, p.sc.done = true, true
		if p.sc.rows != nil {
			p.sc.lookups = t.Lookups(p.sc.rows)
		}
		if reverse {
			p.backward(yield)
		} else {
			p.forward(yield)
		}
	}
}

// pager is an iterator under way. lo and hi bound the rest of its range.
type pager struct {
	t            *Txn
	attempt      uint64
	sc           *Scan
	lo, hi       index.Key
	loBuf, hiBuf []byte
	cutBuf       []byte
	n            int // rows of the next page
}

// page reads rows from lo on, in ascending order, and returns the key up to which it
// has read all rows: hi, or the key of the last row.
func (p *pager) page(lo, hi index.Key) (covered index.Key, err error) {
	t, sc := p.t, p.sc
	if p.over() {
		return covered, ErrClosed
	}
	if err := t.usable(); err != nil {
		return covered, err
	}
	sc.spoilPage()
	sc.keep()
	if t.recheck > 0 && len(sc.kept) > 0 && t.reading.Began.Age() >= t.recheck {
		t.recheck *= recheckGrowth
		if err := t.s.validator.prove(t); err != nil {
			return covered, err
		}
	}
	if end, ok := sc.ix.Partition.Bound(userKey(sc.ix, lo), t.where.nparts); ok { // one partition at a time
		bound := index.Str(mem.String(end.Bytes()))
		if sc.ix.Key == tables.NumberKey {
			bound, p.cutBuf = numberKey(sc.ix, end.Num(), p.cutBuf)
		}
		if bound.Compare(hi) <= 0 {
			hi, p.cutBuf, _ = before(sc.ix, bound, p.cutBuf)
		}
	}
	sc.lo, sc.hi, sc.limit = lo, hi, p.n
	sc.nsubs, sc.out, sc.done = 0, sc.out[:0], false
	if sc.start(); !sc.done {
		t.flush()
	}
	if sc.rows != nil && sc.err == nil {
		sc.err = sc.takePage()
	}
	return sc.covered, sc.err
}

// over reports whether the attempt in which the iterator began has ended.
func (p *pager) over() bool { return p.t.attempt != p.attempt || p.t.mode == closed }

// pass yields one row to the loop. It returns false if the loop is over.
func (p *pager) pass(e tables.Entry, yield func(tables.Entry, error) bool) bool {
	if p.over() {
		yield(tables.Entry{}, ErrClosed)
		return false
	}
	return yield(e, nil)
}

func (p *pager) forward(yield func(tables.Entry, error) bool) {
	most := pageRowsMax
	if p.t.mode == snapshot {
		most = pageRowsSnapshot
	}
	for {
		covered, err := p.page(p.lo, p.hi)
		if err != nil {
			yield(tables.Entry{}, err)
			return
		}
		for _, e := range p.sc.out {
			if !p.pass(e, yield) {
				return
			}
		}
		more := covered.Compare(p.hi) < 0
		if more {
			p.lo, p.loBuf, more = behind(p.sc.ix, covered, p.loBuf)
		}
		if !more {
			return
		}
		p.n = min(2*p.n, most)
	}
}

// backward reads windows of the range from its end on. It guesses where a window
// begins, and reads it by pages in ascending order. If the window has more rows
// than a page, it notes where its pages begin, and reads all but the last page
// again when it comes to them.
func (p *pager) backward(yield func(tables.Entry, error) bool) {
	var starts []index.Key
	for rows := pageRowsMin; ; {
		got := 0
		p.n = 2 * min(rows, pageRowsMax) // the guess may be off
		starts = append(starts[:0], p.before(rows).Clone())
		for len(starts) > 0 {
			start := starts[len(starts)-1]
			covered, err := p.page(start, p.hi)
			if err != nil {
				yield(tables.Entry{}, err)
				return
			}
			if covered.Compare(p.hi) < 0 {
				if next, _, ok := behind(p.sc.ix, covered, nil); ok {
					starts = append(starts, next)
					// After the read, the client half may have a better guess for the
					// rest.
					if guess := p.before(rows); guess.Compare(next) > 0 {
						starts = append(starts, guess.Clone())
					}
					continue
				}
			}
			got += len(p.sc.out)
			for _, e := range slices.Backward(p.sc.out) {
				if !p.pass(e, yield) {
					return
				}
			}
			starts = starts[:len(starts)-1]
			var more bool
			if p.hi, p.hiBuf, more = before(p.sc.ix, start, p.hiBuf); !more || start.Compare(p.lo) <= 0 {
				return
			}
		}
		if got < rows/4 {
			rows = min(4*rows, guessMax)
		} else {
			rows = min(2*rows, pageRowsMax)
		}
	}
}

// before guesses a key of the range so that about n rows lie from it up to
// p.hi.
func (p *pager) before(n int) index.Key {
	t, ix := p.t, p.sc.ix
	best := p.lo
	first, last := t.where.span(ix, p.lo, p.hi)
	for part := first; part <= last; part++ {
		r := p.ruler(ix, part)
		if r == nil {
			continue
		}
		guess := r.Before(p.hi, n/int(last-first+1))
		if ix.Strings && ix.Key == tables.NumberKey { // a guess may have any length
			b := append([]byte(guess.Str), make([]byte, 8)...)
			guess = index.Str(mem.String(b[:8]))
		}
		if best.Compare(guess) < 0 && guess.Compare(p.hi) <= 0 {
			best = guess
		}
	}
	return best
}

// ruler returns the half of a partition's index that guesses positions of keys, nil
// if there is none.
func (p *pager) ruler(ix *tables.Index, part placement.Partition) index.Ruler {
	t := p.t
	if t.where.local != nil {
		if r, ok := t.where.local.Index(part, ix.ID).(index.Ruler); ok {
			return r
		}
	}
	// An error of pool is ignored: the read of the rows returns it again.
	if t.s == nil || t.s.reader.byRPC(true) {
		return nil
	}
	pool, err := t.s.reader.pool(t.ctx, ix.ID, part)
	if err != nil {
		return nil
	}
	r, _ := pool.client.(index.Ruler)
	return r
}

// keep moves the proofs of a page out of the buffers, which the next page reuses.
func (sc *Scan) keep() {
	if sc.t.needsNoProofs(sc.ix) {
		return
	}
	for i := range sc.nsubs {
		sub := &sc.subs[i]
		if sub.res == nil || len(sub.res.Quick)+len(sub.res.Gaps) == 0 {
			continue
		}
		k := sc.kept.of(sub.part)
		k.rests = max(k.rests, sub.res.Rests)
		k.quick, k.gaps = append(k.quick, sub.res.Quick...), append(k.gaps, sub.res.Gaps...)
		for j := range sub.res.Entries {
			e := &sub.res.Entries[j]
			k.rows = append(k.rows, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
		}
		sub.res = nil
	}
}

// spoilPage overwrites the rows of the previous page, under the race detector. sc.out
// also has rows that the transaction writes, which must stay.
func (sc *Scan) spoilPage() {
	for i := range sc.nsubs {
		if res := sc.subs[i].res; invariants.Spoils && res != nil {
			for j := range res.Entries {
				spoil(mem.Bytes(res.Entries[j].Row))
			}
		}
	}
}

// proofsByPart are proofs by partition, in the order of their first ones.
type proofsByPart []keptProofs

// of returns the proofs in a partition.
func (all *proofsByPart) of(part placement.Partition) *keptProofs {
	for i := range *all {
		if k := &(*all)[i]; k.part == part {
			return k
		}
	}
	*all = append(*all, keptProofs{part: part})
	return &(*all)[len(*all)-1]
}

// forget empties the proofs kept for an earlier use.
func (all proofsByPart) forget() {
	for i := range all {
		k := &all[i]
		if k.changed, k.rests = false, 0; cap(k.rows) > keptMax {
			*k = keptProofs{part: k.part}
		}
		k.quick, k.gaps, k.rows = k.quick[:0], k.gaps[:0], k.rows[:0]
	}
}

// settlePage ends the page at the last row of the first partition that has more rows
// than it was asked for: rows of other partitions after that belong to a later page.
func (sc *Scan) settlePage() {
	sc.covered = sc.hi
	for i := range sc.nsubs {
		res := sc.subs[i].res
		if !res.More {
			continue
		}
		if len(res.Entries) == 0 {
			sc.err = sc.t.fail(fmt.Errorf("%w: a scan of %s does not go on", ErrProtocol, sc.ix.Name))
			return
		}
		if last := res.Entries[len(res.Entries)-1].Key; last.Compare(sc.covered) < 0 {
			sc.covered = last
		}
	}
	end := userKey(sc.ix, sc.covered)
	n := len(sc.out)
	for n > 0 && sc.out[n-1].Key.Compare(end) > 0 {
		n--
	}
	sc.out = sc.out[:n]
	if !sc.t.writes.empty() {
		sc.out = sc.t.writes.overlay(sc.ix, sc.lo, sc.covered, sc.out, false)
	}
}

// behind returns the next key after key, in the memory of buf; false if there is
// none.
func behind(ix *tables.Index, key index.Key, buf []byte) (index.Key, []byte, bool) {
	if ix.Key == tables.NumberKey {
		n := userKey(ix, key).Num() + 1
		k, buf := numberKey(ix, n, buf)
		return k, buf, n != 0
	}
	if len(key.Str) < index.MaxKeyBytes {
		buf = append(append(buf[:0], key.Str...), 0)
		return index.Str(mem.String(buf)), buf, true
	}
	buf = append(buf[:0], key.Str...)
	for n := len(buf); n > 0; n-- {
		if buf[n-1]++; buf[n-1] != 0 {
			return index.Str(mem.String(buf[:n])), buf, true
		}
	}
	return key, buf, false
}

// before returns the key before key, in the memory of buf; false if there is none.
func before(ix *tables.Index, key index.Key, buf []byte) (index.Key, []byte, bool) {
	if ix.Key == tables.NumberKey {
		n := userKey(ix, key).Num()
		k, buf := numberKey(ix, n-1, buf)
		return k, buf, n != 0
	}
	buf, ok := index.AppendPrevious(buf[:0], key.Str)
	return index.Str(mem.String(buf)), buf, ok
}

// numberKey converts a number to the engine's form of a key of the index.
func numberKey(ix *tables.Index, n uint64, buf []byte) (index.Key, []byte) {
	if !ix.Strings {
		return index.Num(n), buf
	}
	buf = index.AppendNum(buf[:0], n)
	return index.Str(mem.String(buf)), buf
}
