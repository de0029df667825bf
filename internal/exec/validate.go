package exec

import (
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/rdma"
)

// checkAge ends an attempt whose proofs are too old to be validated: their memory may
// have been freed and reused for other rows. It aborts the attempt, so that another
// one follows, if the machine slept meanwhile.
func (t *Txn) checkAge(age time.Duration) error {
	switch {
	case age <= t.s.db.cfg.BodyAge:
		return nil
	case t.firstRead().Awake() <= t.s.db.cfg.BodyAge:
		return t.abandon(CauseRow)
	case t.reuses && t.began.Age() <= t.s.db.cfg.BodyAge: // the body itself has not run for so long
		return t.abandon(CauseRow)
	case !t.wasOverdue && t.losses+1 != t.s.db.cfg.Retry.Attempts:
		t.overdue = true
		return t.abandon(CauseRow)
	}
	what := "the body has run for this many ms since its first read"
	if t.wasOverdue {
		what += ", after an attempt that ran too long as well"
	}
	e := tooLarge(what, int(age.Milliseconds()), int(t.s.db.cfg.BodyAge.Milliseconds()), "Config.BodyAge")
	return t.fail(e)
}

// validate ends a read-only attempt: it checks the proofs, and then waits until the
// answers may be returned.
func (s *Session) validate(t *Txn) error {
	if err := s.prove(t); err != nil {
		return err
	}
	return s.settleReads(t)
}

// settleReads waits until the commits that an attempt depends on are durable, and
// until the servers at which it has read have confirmed that they had their places
// meanwhile.
func (s *Session) settleReads(t *Txn) error {
	if err := s.awaitDurable(t); err != nil {
		return err
	}
	return s.awaitTrust(t)
}

// prove checks a read-only attempt in one round. A scan whose quick proof
// fails is checked exactly in a second round: its rows may be unchanged
// although its leaf has changed.
func (s *Session) prove(t *Txn) error {
	s.controlled = s.controlled[:0]
	if t.nGet+t.nScan == 0 {
		return nil
	}
	if t.local != nil {
		if err := s.meetRead(t); err != nil {
			return t.fail(err)
		}
	}
	inexact, err := s.check(t, false)
	if err == nil && inexact {
		_, err = s.check(t, true)
	}
	if err == nil {
		t.proved = clock.Fast() // the trust must cover the validation, too
		err = t.checkAge(max(t.proved-t.began.Time(), 0))
	}
	return err
}

// meetRead connects to the servers in this process, at which an attempt may have read
// without a connection.
func (s *Session) meetRead(t *Txn) error {
	for _, part := range t.partitions(nil) {
		if s.life(part) == nil {
			if _, err := s.link(t.ctx, s.db.placement.At(part)); err != nil {
				return err
			}
		}
	}
	return nil
}

// check re-reads proofs: the quick ones of all reads and the partitions' control
// words, or with exact set the exact ones of the scans whose quick ones failed. It
// reports whether there are such scans.
//
// More proofs than a batch holds take several rounds. All rounds come after the
// last read, so proofs that pass show a consistent snapshot at that moment.
func (s *Session) check(t *Txn, exact bool) (again bool, err error) {
	s.list(t, exact)
	for at := 0; at < len(s.proofs); at += maxProofsARound {
		chunk := s.proofs[at:min(at+maxProofsARound, len(s.proofs))]
		if err := s.reread(t, chunk); err != nil {
			s.words = nil // a connection with pending answers may still write to them
			return false, t.fail(err)
		}
		for i := range chunk {
			p := &chunk[i]
			switch got := s.words[i*controlWords]; {
			case got == p.Word:
				if p.Addr == block.ControlAddr {
					s.restedIn(p.part).horizon = block.CSN(s.words[i*controlWords+horizonWord])
					s.db.seen.Saw(clock.Tick(s.words[i*controlWords+tickWord]))
				}
			case p.Addr == block.ControlAddr:
				return false, t.abandon(CauseFence)
			case p.changed != nil:
				*p.changed, again = true, true
			default:
				return false, t.abandon(p.cause)
			}
		}
	}
	return again, nil
}

const (
	// controlWords of a partition's control block are part of every validation:
	// epoch (with the fence bit), durable horizon, and the present tick, which is no
	// lower than that of anything that was read.
	controlWords    = 4
	horizonWord     = 1
	tickWord        = lineTick
	maxProofsARound = rdma.MaxBatch
)

// proof is a proof of the attempt being validated.
type proof struct {
	index.Proof
	part    placement.Partition
	cause   Cause
	changed *bool // of a quick proof: set if it fails, so that the scan is checked exactly
}

// reread posts a READ for each proof: one round.
func (s *Session) reread(t *Txn, chunk []proof) error {
	defer s.untouchAll()
	if need := len(chunk) * controlWords; cap(s.words) < need || s.pendingLinks > 0 { // a pending answer may still be written to the old ones
		s.words = make([]uint64, need+need/2)
	}
	s.words = s.words[:cap(s.words)]
	var rkey rdma.RKey
	var l *link
	for i := range chunk {
		p := &chunk[i]
		if i == 0 || p.part != chunk[i-1].part {
			var err error
			if l, err = s.join(t.ctx, s.db.placement.At(p.part)); err != nil {
				return err
			}
			rkey = s.life(p.part).parts[p.part].rkey
		}
		n := 1
		if p.Addr == block.ControlAddr {
			n = controlWords
		}
		l.next.Read(rkey, p.Addr, s.words[i*controlWords:i*controlWords+n])
	}
	return s.exchange(t.ctx)
}

// list gathers the proofs to check.
func (s *Session) list(t *Txn, exact bool) {
	s.proofs = s.proofs[:0]
	if !exact {
		s.controlled = s.controlled[:0]
	}
	for r := range t.answered {
		if r.sub != nil {
			s.listScan(r.sub, exact)
		} else if !exact {
			s.listGet(r.get)
		}
	}
	for k := range t.keptPages {
		s.listKept(k, exact)
	}
}

func (s *Session) listGet(g *Get) {
	s.control(g.part, g.res.Rests)
	cause := CauseRow
	if g.res.Status != index.Found {
		cause = CauseGap
	}
	for _, p := range g.res.Proofs {
		s.proofs = append(s.proofs, proof{p, g.part, cause, nil})
	}
}

func (s *Session) listScan(sub *subScan, exact bool) {
	if !exact {
		s.control(sub.part, sub.res.Rests)
		sub.changed = false
		for _, p := range sub.res.Quick {
			s.proofs = append(s.proofs, proof{p, sub.part, CauseGap, &sub.changed})
		}
		return
	}
	if !sub.changed {
		return
	}
	for _, p := range sub.res.Gaps {
		s.proofs = append(s.proofs, proof{p, sub.part, CauseGap, nil})
	}
	for i := range sub.res.Entries {
		e := &sub.res.Entries[i]
		s.proofs = append(s.proofs, proof{index.Proof{Addr: e.Addr, Word: uint64(e.Header)}, sub.part, CauseRow, nil})
	}
}

func (s *Session) listKept(k *keptProofs, exact bool) {
	add := func(proofs []index.Proof, cause Cause, changed *bool) {
		for _, p := range proofs {
			s.proofs = append(s.proofs, proof{p, k.part, cause, changed})
		}
	}
	switch {
	case !exact && len(k.quick) > 0:
		s.control(k.part, k.rests)
		k.changed = false
		add(k.quick, CauseGap, &k.changed)
	case exact && k.changed:
		add(k.gaps, CauseGap, nil)
		add(k.rows, CauseRow, nil)
	}
}

// control adds a partition's control words to the proofs, once per validation, and
// notes the commit that an answer depends on. Address and epoch form a proof like any
// other.
func (s *Session) control(part placement.Partition, rests block.CSN) {
	if have := s.restedIn(part); have != nil {
		have.rests = max(have.rests, rests)
		return
	}
	s.controlled = append(s.controlled, rested{part: part, rests: rests})
	word := uint64(s.life(part).epoch)
	s.proofs = append(s.proofs, proof{index.Proof{Addr: block.ControlAddr, Word: word}, part, CauseFence, nil})
}
