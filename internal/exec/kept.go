package exec

import (
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/tables"
)

// keptReads are the reads at other servers of a procedure's earlier attempts. A
// procedure that uses several servers loses its first attempt if other transactions
// have changed the rows of its home meanwhile. It then waits until those rows are
// reserved for it; no one else writes them while the next attempt runs. That attempt
// makes no rounds, because it uses the reads that its predecessor made at other
// servers. The proofs of these reads are validated like all others.
//
// An attempt that meets a lock at its home is lost. If it is the first, it goes on
// nevertheless, with the row's last committed value, and commits nothing. Its purpose
// is to make the procedure's reads at other servers before the wait for its turn.
//
// Reads that another server may have refused are not used again. A transaction that
// has lost at another server with kept reads keeps none from then on.
type keptReads struct {
	on    bool       // the session runs a procedure at its home
	all   bool       // the body of an attempt has run to its end
	began clock.Mark // when the attempt began that made the first of the reads
	gets  []keptGet
	scans []keptScan
}

// keptGet is a lookup at another server.
type keptGet struct {
	ix   *tables.Index
	key  index.Key
	life *life
	res  index.GetResult
}

// keptScan is the part of a scan in a partition of another server.
type keptScan struct {
	ix     *tables.Index
	part   placement.Partition
	lo, hi index.Key
	limit  int
	life   *life
	res    index.ScanResult
}

const (
	// keptReadsMax bounds the reads that are kept, keptRowsMax the rows of a scan.
	keptReadsMax = 64
	keptRowsMax  = 256
	// keptFor is how long reads are kept: the longer, the more likely that other
	// transactions have changed the rows.
	keptFor = 2 * time.Second
)

// forget drops all reads.
func (k *keptReads) forget() {
	clear(k.gets)
	clear(k.scans)
	k.gets, k.scans, k.all = k.gets[:0], k.scans[:0], false
}

// room reports whether another read, made by t, can be kept.
func (k *keptReads) room(t *Txn) bool {
	if !k.on || len(k.gets)+len(k.scans) >= keptReadsMax {
		return false
	}
	if len(k.gets)+len(k.scans) == 0 {
		k.began = t.reading.Began
	}
	return true
}

// keepGet keeps the answer to a lookup, before the body sees it.
func (k *keptReads) keepGet(t *Txn, g *Get) {
	if g.res.Status != index.Found && g.res.Status != index.NotFound || !k.room(t) {
		return
	}
	kept := keptGet{ix: g.ix, key: g.key.Clone(), life: t.s.net.life(g.part), res: *g.res}
	kept.res.Proofs, kept.res.Row = slices.Clone(g.res.Proofs), slices.Clone(g.res.Row)
	k.gets = append(k.gets, kept)
}

// keepScan keeps the answer to a part of a scan.
func (k *keptReads) keepScan(t *Txn, sc *Scan, sub *subScan) {
	res := sub.res
	if res.Status != index.Found && res.Status != index.NotFound || len(res.Entries) > keptRowsMax || !k.room(t) {
		return
	}
	k.scans = append(k.scans, keptScan{
		ix: sc.ix, part: sub.part, lo: sc.lo.Clone(), hi: sc.hi.Clone(), limit: sc.partLimit(), life: t.s.net.life(sub.part), res: copyOf(res),
	})
}

// copyOf returns a deep copy of an answer.
func copyOf(res *index.ScanResult) index.ScanResult {
	own := *res
	own.Quick, own.Gaps, own.Entries = slices.Clone(res.Quick), slices.Clone(res.Gaps), slices.Clone(res.Entries)
	for i := range own.Entries {
		e := &own.Entries[i]
		e.Key, e.Row = e.Key.Clone(), slices.Clone(e.Row)
	}
	return own
}

// answerGet answers a lookup at another server from a kept read, if there is one. The
// body gets a copy, which it may change.
func (k *keptReads) answerGet(t *Txn, g *Get) {
	for i := range k.gets {
		had := &k.gets[i]
		if g.srv != nil || had.ix != g.ix || had.key != g.key || had.life != t.s.net.life(g.part) {
			continue
		}
		proofs := append(g.own.Proofs[:0], had.res.Proofs...)
		g.buf = append(g.buf[:0], had.res.Row...)
		g.own = had.res
		g.own.Proofs, g.own.Row = proofs, g.buf
		g.res, g.done, t.reuses = &g.own, true, true
		g.settle()
		return
	}
}

// answerScan answers a part of a scan from a kept read, and reports whether there was
// one.
func (k *keptReads) answerScan(t *Txn, sc *Scan, sub *subScan) bool {
	if sc.paged {
		return false
	}
	for i := range k.scans {
		had := &k.scans[i]
		if had.ix == sc.ix && had.part == sub.part && had.lo == sc.lo && had.hi == sc.hi && had.limit == sc.partLimit() && had.life == t.s.net.life(sub.part) {
			sub.own = copyOf(&had.res)
			sub.res, t.reuses = &sub.own, true
			return true
		}
	}
	return false
}

// keepAll keeps the reads of a flush at other servers.
func (k *keptReads) keepAll(t *Txn) {
	for r := range t.reads.queued {
		switch {
		case !r.hasAnswer():
		case r.get != nil:
			k.keepGet(t, r.get)
		case !r.scan.paged && r.sub.elsewhere:
			k.keepScan(t, r.scan, r.sub)
		}
	}
}

// lostWith decides, after an attempt that has lost, whether the next one may use the
// kept reads, and drops them if not.
func (k *keptReads) lostWith(t *Txn) {
	if !k.on {
		return
	}
	k.all = k.all || t.sent || t.scouts
	atHome := t.cause == CauseRow || t.cause == CauseGap || t.cause == CauseLocked
	if !atHome || t.elsewhere || t.outlived {
		k.on = !t.reuses
		k.forget()
	}
}

// scout lets a first attempt go on past a lock at its home: see keptReads.
func (g *Get) scout() {
	t := g.t
	s := t.s
	if g.srv == nil || s == nil || !s.kept.on || s.kept.all || len(s.reservations.held) > 0 {
		return
	}
	g.srv.LookupAt(g.key, block.MaxTick, &g.own)
	if st := g.own.Status; st != index.Found && st != index.NotFound {
		g.own.Status = index.Locked
		return
	}
	t.scouts = true
}

// tooOld drops the reads if they are old.
func (k *keptReads) tooOld(age time.Duration) {
	if k.on && len(k.gets)+len(k.scans) > 0 && k.began.Age() > min(keptFor, age/2) {
		k.forget()
	}
}

// firstRead returns a time before the first of the attempt's reads, including kept
// ones.
func (t *Txn) firstRead() *clock.Mark {
	if t.reuses {
		return &t.s.kept.began
	}
	return &t.reading.Began
}
