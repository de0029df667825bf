package exec

import (
	"fmt"
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
	case t.reuses && t.reading.Began.Age() <= t.s.db.cfg.BodyAge: // the body itself has not run for so long
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

// validator proves that everything an attempt has read was true at one moment. It lets
// the answer go once that is certain: the commits behind it are durable, and each
// server had its place.
type validator struct {
	db         *DB
	net        *network
	round      *round
	lines      *controlLines
	leases     *leases
	proofs     []proof               // of the attempt being validated
	words      []uint64              // into which they are re-read
	controlled []rested              // partitions whose control words are among them
	late       []placement.Partition // those of them that have yet to reach a horizon
}

// validate ends a read-only attempt: it checks the proofs, and then waits until the
// answers may be returned.
func (v *validator) validate(t *Txn) error {
	if err := v.prove(t); err != nil {
		return err
	}
	return v.settleReads(t)
}

// settleReads waits until the commits that an attempt depends on are durable, and
// until the servers at which it has read have confirmed that they had their places
// meanwhile.
func (v *validator) settleReads(t *Txn) error {
	if err := v.awaitDurable(t); err != nil {
		return err
	}
	return v.awaitTrust(t)
}

// prove checks a read-only attempt in one round. A scan whose quick proof
// fails is checked exactly in a second round: its rows may be unchanged
// although its leaf has changed.
func (v *validator) prove(t *Txn) error {
	v.controlled = v.controlled[:0]
	if t.reads.n() == 0 {
		return nil
	}
	if t.where.local != nil {
		if err := v.meetRead(t); err != nil {
			return t.fail(err)
		}
	}
	inexact, err := v.check(t, false)
	if err == nil && inexact {
		_, err = v.check(t, true)
	}
	if err == nil {
		t.proved = clock.Fast() // the trust must cover the validation, too
		err = t.checkAge(max(t.proved-t.reading.Began.Time(), 0))
	}
	return err
}

// meetRead connects to the servers in this process, at which an attempt may have read
// without a connection.
func (v *validator) meetRead(t *Txn) error {
	for _, part := range t.partitions(nil) {
		if v.net.life(part) == nil {
			if _, err := v.net.link(t.ctx, v.db.placement.At(part)); err != nil {
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
func (v *validator) check(t *Txn, exact bool) (again bool, err error) {
	v.list(t, exact)
	for at := 0; at < len(v.proofs); at += maxProofsARound {
		chunk := v.proofs[at:min(at+maxProofsARound, len(v.proofs))]
		if err := v.reread(t, chunk); err != nil {
			v.words = nil // a connection with pending answers may still write to them
			return false, t.fail(err)
		}
		for i := range chunk {
			p := &chunk[i]
			switch got := v.words[i*controlWords]; {
			case p.Addr == block.ControlAddr:
				if cause, ok := t.allowed(got, uint32(p.Word)); !ok {
					return false, t.abandon(cause)
				}
				v.restedIn(p.part).horizon = block.CSN(v.words[i*controlWords+horizonWord])
				v.db.seen.Saw(clock.Tick(v.words[i*controlWords+tickWord]))
			case got == p.Word:
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

// NeedsShift is the position, in a partition's epoch word, of the version of the catalogue that
// readers of the partition need.
const NeedsShift = 32

const needsMask = 1<<31 - 1

// allowed reports whether a partition's epoch word allows the transaction to read there, in an epoch
// of the server; otherwise it gives the cause. A partition that is fenced, or is of another epoch, is not
// served any more. One whose version of the catalogue does not maintain an index may have no entries
// in it, so a transaction of an earlier version must not have read it.
func (t *Txn) allowed(word uint64, epoch uint32) (cause Cause, ok bool) {
	switch {
	case word>>63 != 0 || uint32(word) != epoch:
		return CauseFence, false
	case int(word>>NeedsShift&needsMask) > t.catalog.Version():
		return CauseCatalog, false
	}
	return 0, true
}

// proof is a proof of the attempt being validated.
type proof struct {
	index.Proof
	part    placement.Partition
	cause   Cause
	changed *bool // of a quick proof: set if it fails, so that the scan is checked exactly
}

// reread posts a READ for each proof: one round.
func (v *validator) reread(t *Txn, chunk []proof) error {
	defer v.round.end()
	if need := len(chunk) * controlWords; cap(v.words) < need || v.net.pendingLinks > 0 { // a pending answer may still be written to the old ones
		v.words = make([]uint64, need+need/2)
	}
	v.words = v.words[:cap(v.words)]
	var rkey rdma.RKey
	var l *link
	for i := range chunk {
		p := &chunk[i]
		if i == 0 || p.part != chunk[i-1].part {
			var err error
			if l, err = v.round.join(t.ctx, v.db.placement.At(p.part)); err != nil {
				return err
			}
			rkey = v.net.life(p.part).parts[p.part].rkey
		}
		n := 1
		if p.Addr == block.ControlAddr {
			n = controlWords
		}
		key, addr := rkey, p.Addr
		if number, _ := index.RegionOf(addr); number != 0 {
			var ok bool
			if key, addr, ok = v.net.life(p.part).parts[p.part].region(addr); !ok {
				return fmt.Errorf("%w: a proof names region %d of partition %d", ErrProtocol, number, p.part)
			}
		}
		l.next.Read(key, addr, v.words[i*controlWords:i*controlWords+n])
	}
	before := v.net.stats.Rounds
	err := v.round.exchange(t.ctx)
	v.net.stats.Proving += v.net.stats.Rounds - before
	return err
}

// list gathers the proofs to check.
func (v *validator) list(t *Txn, exact bool) {
	v.proofs = v.proofs[:0]
	if !exact {
		v.controlled = v.controlled[:0]
	}
	for r := range t.reads.answered {
		if r.sub != nil {
			v.listScan(r.sub, exact)
		} else if !exact {
			v.listGet(r.get)
		}
	}
	for k := range t.reads.keptPages {
		v.listKept(k, exact)
	}
}

func (v *validator) listGet(g *Get) {
	v.control(g.part, g.res.Rests)
	cause := CauseRow
	if g.res.Status != index.Found {
		cause = CauseGap
	}
	v.add(g.res.Proofs, g.part, cause, nil)
}

// add adds proofs of one partition.
func (v *validator) add(proofs []index.Proof, part placement.Partition, cause Cause, changed *bool) {
	for _, p := range proofs {
		v.proofs = append(v.proofs, proof{p, part, cause, changed})
	}
}

func (v *validator) listScan(sub *subScan, exact bool) {
	if !exact {
		v.control(sub.part, sub.res.Rests)
		sub.changed = false
		v.add(sub.res.Quick, sub.part, CauseGap, &sub.changed)
		return
	}
	if !sub.changed {
		return
	}
	v.add(sub.res.Gaps, sub.part, CauseGap, nil)
	for i := range sub.res.Entries {
		e := &sub.res.Entries[i]
		v.proofs = append(v.proofs, proof{index.Proof{Addr: e.Addr, Word: uint64(e.Header)}, sub.part, CauseRow, nil})
	}
}

func (v *validator) listKept(k *keptProofs, exact bool) {
	if !exact {
		v.control(k.part, k.rests)
		k.changed = false
		v.add(k.quick, k.part, CauseGap, &k.changed)
	}
	if exact && k.changed || !exact && k.points {
		v.add(k.gaps, k.part, CauseGap, nil)
		v.add(k.rows, k.part, CauseRow, nil)
	}
}

// control adds a partition's control words to the proofs, once per validation, and
// notes the commit that an answer depends on. Address and epoch form a proof, which
// allowed checks.
func (v *validator) control(part placement.Partition, rests block.CSN) {
	if have := v.restedIn(part); have != nil {
		have.rests = max(have.rests, rests)
		return
	}
	v.controlled = append(v.controlled, rested{part: part, rests: rests})
	word := uint64(v.net.life(part).epoch)
	v.proofs = append(v.proofs, proof{index.Proof{Addr: block.ControlAddr, Word: word}, part, CauseFence, nil})
}
