package exec

import (
	"drtmx/index"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// proofsOf says which proofs a commit needs.
type proofsOf uint8

const (
	// clientWritten are those of indexes that clients change. The partition is held, which keeps
	// all others from changing, until the commit. A commit that waits for a twin in another
	// partition needs all of them: the partition is held no more when it is decided.
	clientWritten proofsOf = iota
	everything
)

// gather fills in the parts of a commit with the attempt's reads and writes by
// partition, the home first. If it includes all proofs it fails if they are too old.
func (t *Txn) gather(c *wire.Commit, which proofsOf) error {
	c.Parts, c.Age, c.Catalog = c.Parts[:0], 0, uint32(t.catalog.Version())
	if which == everything {
		c.Age = t.firstRead().Age()
		if err := t.checkAge(c.Age); err != nil {
			return err
		}
	}
	shipped := false
	add := func(w *write) {
		p := partOf(c, partitionOf(w.ix, w.key, t.where.nparts))
		p.Writes = append(p.Writes, wire.Write{Index: uint16(w.ix.ID), Op: w.op, Strings: w.ix.Strings, Key: w.key, Hint: w.hint, Row: w.row})
	}
	for _, w := range t.writes.list[:t.writes.n] {
		if ships := t.byServer(w); !w.dropped && !ships {
			add(w)
		} else if ships {
			shipped = shipped || !w.dropped
		}
	}
	if which == clientWritten && !shipped {
		t.gatherApart(c)
		return nil
	}
	t.gatherAll(c)
	if which == everything && shipped && (len(c.Parts) > 1 || !t.ships) {
		for _, w := range t.writes.list[:t.writes.n] {
			if t.byServer(w) && !w.dropped {
				add(w)
			}
		}
	}
	for i := range c.Parts {
		if p := &c.Parts[i]; len(p.Rows) > wire.MaxProofs || len(p.Gaps) > wire.MaxProofs {
			e := tooLarge("rows, or gaps between rows, that a transaction which writes has read", max(len(p.Rows), len(p.Gaps)), MaxProofs, "MaxProofs")
			e.Partition = int(p.Partition)
			return t.fail(e)
		}
	}
	if which == clientWritten {
		return nil
	}
	t.s.net.nameLives(c)
	return t.s.leases.stamp(t, c)
}

// needsNoProofs reports whether what is read of an index cannot change before the commit: the
// transaction is a procedure that holds its partition, no client writes there, and it does not
// wait for a twin without holding it.
func (t *Txn) needsNoProofs(ix *tables.Index) bool {
	return t.where.only >= 0 && !ix.ClientWritten() && !t.catalog.ShipsTwins()
}

// gatherAll adds the proofs of all reads.
func (t *Txn) gatherAll(c *wire.Commit) {
	for r := range t.reads.answered {
		p := partOf(c, r.part())
		switch {
		case r.sub != nil:
			p.Gaps = append(p.Gaps, r.sub.res.Gaps...)
			for i := range r.sub.res.Entries {
				e := &r.sub.res.Entries[i]
				p.Rows = append(p.Rows, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
			}
		case r.get.res.Status == index.Found:
			p.Rows = append(p.Rows, r.get.res.Proofs...)
		default:
			p.Gaps = append(p.Gaps, r.get.res.Proofs...)
		}
	}
	for k := range t.reads.keptPages {
		p := partOf(c, k.part)
		p.Gaps, p.Rows = append(p.Gaps, k.gaps...), append(p.Rows, k.rows...)
	}
}

// gatherApart adds the proofs of the reads of indexes that clients change. They have regions of
// their own.
func (t *Txn) gatherApart(c *wire.Commit) {
	if !t.noVersions {
		return
	}
	add := func(part placement.Partition, to func(*wire.Part) *[]index.Proof, proofs []index.Proof) {
		for _, pr := range proofs {
			if number, _ := index.RegionOf(pr.Addr); number != 0 {
				list := to(partOf(c, part))
				*list = append(*list, pr)
			}
		}
	}
	rows := func(p *wire.Part) *[]index.Proof { return &p.Rows }
	gaps := func(p *wire.Part) *[]index.Proof { return &p.Gaps }
	for r := range t.reads.answered {
		switch {
		case r.sub != nil:
			add(r.part(), gaps, r.sub.res.Gaps)
		case r.get.res.Status == index.Found:
			add(r.part(), rows, r.get.res.Proofs)
		default:
			add(r.part(), gaps, r.get.res.Proofs)
		}
	}
	for k := range t.reads.keptPages {
		add(k.part, gaps, k.gaps)
		add(k.part, rows, k.rows)
	}
}

func partOf(c *wire.Commit, part placement.Partition) *wire.Part {
	for i := range c.Parts {
		if c.Parts[i].Partition == part {
			return &c.Parts[i]
		}
	}
	return c.NextPart(part)
}

// sendCommit sends the attempt to its home server: one RPC.
func (s *Session) sendCommit(t *Txn) error {
	t.ships = true
	if err := t.gather(&s.commit, everything); err != nil {
		return err
	}
	if len(s.commit.Parts) == 0 {
		return s.validator.validate(t) // the body has undone every write
	}
	if done, err := s.writers.commit(t, &s.commit); done {
		return err
	}
	id, home := s.outcomes.next(), s.commit.Parts[0].Partition
	sent, err := s.leases.sent(t.ctx, s.db.placement.At(home))
	if err != nil {
		return t.fail(err)
	}
	s.commit.ID, s.commit.Sent, s.commit.Seen = id, sent, s.db.seen.Tick()
	s.reservations.ask(t, &s.commit)
	s.net.req = wire.AppendCommit(s.net.req[:0], wire.OpCommit, &s.commit, nil)
	if len(s.net.req) > MaxCommitBytes {
		return t.fail(commitTooLarge(len(s.net.req)))
	}
	t.sent = true
	resp, err := s.outcomes.decide(t.ctx, home, s.net.req, id, sent)
	if err != nil {
		return t.fail(err)
	}
	s.reservations.ended(t, &s.commit, wire.Code(resp[0]) == wire.OK, isReserved(resp))
	switch c := wire.Code(resp[0]); c {
	case wire.OK:
		return nil
	case wire.Conflict:
		return t.abandon(causeOf(resp))
	default:
		return t.fail(codeError(c, resp[1:]))
	}
}

func commitTooLarge(bytes int) error {
	return tooLarge("bytes of a commit", bytes, MaxCommitBytes, "MaxCommitBytes")
}

func causeOf(resp []byte) Cause {
	if len(resp) > 1 && Cause(resp[1]) < CauseCount {
		return Cause(resp[1])
	}
	return CauseRemote
}
