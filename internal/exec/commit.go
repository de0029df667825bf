package exec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// View runs a read-only transaction by one-sided reads. It is strictly
// serializable: when fn has returned, one round re-reads every header and leaf
// version the attempt relied on, and the control word of each partition. If any
// changed, fn runs again. If writers have ended many attempts, or a long one, the
// next reads a Snapshot. View returns an error of fn unchanged, after the same
// validation.
func (s *Session) View(ctx context.Context, fn Body) error {
	return s.run(ctx, view, math.MaxInt, fn, nil)
}

// TryView is View with a bound, at least one, on the attempts that writers
// invalidate: those whose rows or ranges had changed when they were validated. It
// then returns ErrConflict, and does not go on as a Snapshot.
//
// Attempts that met a lock do not count. TryView waits for a lock as View does;
// a lock lasts as long as a two-phase commit.
func (s *Session) TryView(ctx context.Context, invalidated int, fn Body) error {
	return s.run(ctx, view, invalidated, fn, nil)
}

// Update runs a transaction that may write. Reads are one-sided, writes
// buffered; commit is one RPC to the home server, which is the primary of the
// first row written. If fn returns an error nothing is written.
//
// If the connection to the home server is lost between the commit request and
// its answer, and the server cannot be asked for the outcome, the error is an
// *UnknownOutcome.
func (s *Session) Update(ctx context.Context, fn Body) error {
	return s.update(ctx, fn)
}

// run makes attempts until one is not aborted, and meets no server that is absent
// and may come back. After the body, finish ends an attempt; a nil finish means the
// validation or commit of m. invalidated bounds the attempts that did not end at a
// lock.
func (s *Session) run(ctx context.Context, m mode, invalidated int, fn Body, finish func(*Txn) error) error {
	t := &s.txn
	if s.lent || t.mode != closed {
		return errNested
	}
	defer s.ended(ctx)
	var absent error
	var patience time.Duration
	for n := 0; ; n++ {
		err := s.attempts(ctx, m, invalidated, fn, finish)
		if err == nil {
			return nil
		}
		if t.mode != closed {
			err = s.inPartition(err, t.partitions(nil))
		}
		if finish == nil && s.lacks != nil && lacksRoom(err) { // else it is an error of the body's own
			if err = s.awaitRoom(ctx, err, &patience); err != nil {
				return err
			}
			continue
		}
		if finish != nil || !s.db.returns(err) {
			return stillAbsent(ctx, absent, err)
		}
		absent = err
		if err = s.awaitReturn(ctx, n, err, &patience); err != nil {
			return err
		}
	}
}

// attempts is run until a server is absent.
func (s *Session) attempts(ctx context.Context, m mode, invalidated int, fn Body, finish func(*Txn) error) error {
	t := &s.txn
	var patience time.Duration
	var last Cause // of the attempt before
	outdated := 0
	s.snap.begin()
	over := overtaking{possible: m == view && finish == nil && invalidated == math.MaxInt}
	for n := 0; ; n++ {
		gated := n == 0 && m == update && s.passGate(ctx)
		if err := ctx.Err(); err != nil {
			return late(ctx, err, n, last)
		}
		if s.closed.Load() {
			return ErrClosed
		}
		s.kept.tooOld(s.db.cfg.BodyAge)
		t.begin(ctx, over.next(s, m))
		t.losses, t.patience, t.gated = n, patience, gated && s.db.gate.on.Load()
		if t.recheck = 0; over.possible && t.mode == view {
			t.recheck = clock.TickLength
		}
		err := s.attempt(t, fn, finish)
		over.ended(t)
		if n == 0 && m == update {
			s.firstEnded(t, gated)
		}
		if over.wider { // as often as there are partitions, at most
			n--
			continue
		}
		if t.err != errAbandoned {
			if err == nil {
				s.stats.Commits++
				return nil
			}
			if s.mayRefresh(ctx, err) {
				continue
			}
			return late(ctx, err, n, last)
		}
		last = t.cause
		s.kept.lostWith(t)
		t.volume = t.footprint()
		s.stats.Aborts[t.cause]++
		switch t.cause {
		case CauseLocked:
		case CauseFence:
			s.renew(ctx, t)
			invalidated--
		case CauseCatalog:
			if outdated++; outdated&15 != 1 { // the server is behind, not this DB
			} else if _, err := s.refresh(ctx); err != nil {
				return late(ctx, err, n, last)
			}
		case CauseLate:
			s.asksClock = true
			invalidated--
		default:
			invalidated--
		}
		if invalidated <= 0 {
			return gaveUp(n+1, t.cause)
		}
		wait := n
		switch { // if the rows are reserved, no one else can take them
		case t.reserved:
			wait = noWait
		case s.keepTurn(t):
			wait = s.keptTurns
		case s.takeTurn(t, n+1, patience):
			wait = noWait
		case t.cause == CauseFence:
			wait = n + fenceBackoff
		}
		if t.cause == CauseLocked && wait != noWait && s.await != nil && n+1 < s.db.cfg.Retry.Attempts && s.await() {
			continue
		}
		if err := s.again(ctx, n, wait, t.cause, &patience); err != nil {
			return err
		}
	}
}

// ended ends a transaction, with or without a panic of its body.
func (s *Session) ended(ctx context.Context) {
	s.txn.end()
	s.giveUpTurns(ctx, false)
	s.asked = s.asked[:0]
	if !s.visit.pooled {
		s.db.gate.leave(&s.visit, false) // after a panic
	}
	s.loses(false)
	s.giveBack()
	s.yield()
}

// again waits before attempt n+2, with the backoff of attempt wait+2, or gives
// up: after Retry.Attempts if they are bounded, at the deadline of ctx, or if
// ctx has none after Retry.Patience, which begins with the first failure.
func (s *Session) again(ctx context.Context, n, wait int, cause Cause, patience *time.Duration) error {
	if s.db.cfg.Retry.Attempts > 0 && n+1 >= s.db.cfg.Retry.Attempts {
		return gaveUp(n+1, cause)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		switch now := clock.Fast(); {
		case *patience == 0:
			*patience = now + s.db.cfg.Retry.Patience
		case now > *patience:
			return fmt.Errorf("%w, for %v (Retry.Patience)", gaveUp(n+1, cause), s.db.cfg.Retry.Patience)
		}
	}
	if wait == noWait {
		return nil
	}
	return late(ctx, s.backoff(ctx, wait), n+1, cause)
}

// noWait is the wait before an attempt whose rows are reserved.
const noWait = -1

// late adds to an expired deadline of ctx why the attempts before were aborted:
// the deadline may end a wait or the next attempt, and a caller cannot tell
// which. An unknown outcome stays what it is.
func late(ctx context.Context, err error, attempts int, cause Cause) error {
	if attempts == 0 || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", gaveUp(attempts, cause), err)
}

// gaveUp is the error of a transaction that was aborted too often. A partition
// that stays fenced is no conflict: nobody serves it.
func gaveUp(attempts int, cause Cause) error {
	kind := ErrConflict
	if cause == CauseFence {
		kind = ErrUnavailable
	}
	return fmt.Errorf("%w: gave up after %d attempts, the last one: %v", kind, attempts, cause)
}

// checkAge ends an attempt whose proofs are too old to be validated: their
// memory may have been freed and reused for other rows. If the machine slept
// meanwhile another attempt may do better.
func (t *Txn) checkAge(age time.Duration) error {
	switch {
	case age <= t.s.db.cfg.BodyAge:
		return nil
	case t.firstRead().Awake() <= t.s.db.cfg.BodyAge:
		return t.abandon(CauseRow)
	case t.reuses && t.began.Age() <= t.s.db.cfg.BodyAge: // the body alone has not run for so long
		return t.abandon(CauseRow)
	}
	e := tooLarge("the body has run for this many ms since its first read", int(age.Milliseconds()), int(t.s.db.cfg.BodyAge.Milliseconds()), "Config.BodyAge")
	return t.fail(e)
}

// attempt runs the body once and ends the attempt. Once t.err is set the
// attempt is over, whatever the body returns.
func (s *Session) attempt(t *Txn, fn Body, finish func(*Txn) error) error {
	if t.mode == snapshot {
		s.stats.Snapshots++
		s.controlled = s.controlled[:0]
		if err := s.takeTime(t); err != nil {
			return t.fail(err)
		}
	}
	err := fn.Run(t)
	if t.err != nil {
		return t.err
	}
	if err := t.ctx.Err(); err != nil {
		return t.fail(err) // nothing is sent, and what the body read is not proved
	}
	if t.doomed != nil && finish == nil { // RunProcedure handles it itself
		err = t.doomed // whatever the body returned
	}
	switch {
	case finish != nil && err == nil:
		err = finish(t)
	case finish != nil:
	case t.mode == snapshot:
		_ = s.settleReads(t)
	case err != nil:
		// An error counts only if the rows behind it were a consistent
		// snapshot, and are durable.
		_ = s.validate(t)
	case t.mode == view || t.writes.empty():
		err = s.validate(t)
	default:
		err = s.sendCommit(t)
	}
	if t.err != nil {
		return t.err
	}
	return err
}

// validate ends a read-only attempt: it checks the proofs, and then whether they
// are good enough to return what was read.
func (s *Session) validate(t *Txn) error {
	if err := s.prove(t); err != nil {
		return err
	}
	return s.settleReads(t)
}

// settleReads waits until what an attempt rests on is durable, and until the
// servers at which it has read are known to have had their places meanwhile.
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
		t.proved = clock.Fast() // at last, so that the time of the validation counts
		err = t.checkAge(max(t.proved-t.began.Time(), 0))
	}
	return err
}

// meetRead connects to the servers at which an attempt has read without a
// connection, because they are in this process.
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

// check re-reads proofs: the quick ones of all reads and the partitions'
// control words, or (exact) the exact ones of the scans whose quick ones
// failed. It reports whether there are such scans.
//
// More proofs than a batch holds take several rounds. All rounds come after the
// last read, so proofs that pass show a consistent snapshot at that moment.
func (s *Session) check(t *Txn, exact bool) (again bool, err error) {
	s.list(t, exact)
	for at := 0; at < len(s.proofs); at += maxProofsARound {
		chunk := s.proofs[at:min(at+maxProofsARound, len(s.proofs))]
		if err := s.reread(t, chunk); err != nil {
			s.words = nil // a connection that owes answers may still write to them
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
	changed *bool // of a quick proof: to set if it fails, so that the scan is checked exactly
}

// reread posts a READ for each proof: one round.
func (s *Session) reread(t *Txn, chunk []proof) error {
	defer s.untouchAll()
	if need := len(chunk) * controlWords; cap(s.words) < need || s.owing > 0 { // another server's answer may still arrive in the old ones
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

// control adds a partition's control words to the proofs, once in a validation,
// and notes the commit that an answer rests on. Address and epoch form a proof
// like any other.
func (s *Session) control(part placement.Partition, rests block.CSN) {
	if have := s.restedIn(part); have != nil {
		have.rests = max(have.rests, rests)
		return
	}
	s.controlled = append(s.controlled, rested{part: part, rests: rests})
	word := uint64(s.life(part).epoch)
	s.proofs = append(s.proofs, proof{index.Proof{Addr: block.ControlAddr, Word: word}, part, CauseFence, nil})
}

// gather sorts an attempt's reads and writes by partition, the home first. With
// proofs it fails if they are too old.
func (t *Txn) gather(c *wire.Commit, withProofs bool) error {
	c.Parts, c.Age, c.Catalog = c.Parts[:0], 0, uint32(t.catalog.Version())
	if withProofs {
		c.Age = t.firstRead().Age()
		if err := t.checkAge(c.Age); err != nil {
			return err
		}
	}
	for _, w := range t.writes.list[:t.writes.n] {
		if w.dropped {
			continue
		}
		p := partOf(c, partitionOf(w.ix, w.key, t.nparts))
		p.Writes = append(p.Writes, wire.Write{Index: uint16(w.ix.ID), Op: w.op, Strings: w.ix.Strings, Key: w.key, Hint: w.hint, Row: w.row})
	}
	if !withProofs {
		return nil
	}
	for r := range t.answered {
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
	for k := range t.keptPages {
		p := partOf(c, k.part)
		p.Gaps, p.Rows = append(p.Gaps, k.gaps...), append(p.Rows, k.rows...)
	}
	for i := range c.Parts {
		if p := &c.Parts[i]; len(p.Rows) > wire.MaxProofs || len(p.Gaps) > wire.MaxProofs {
			e := tooLarge("rows, or gaps between rows, that a transaction which writes has read", max(len(p.Rows), len(p.Gaps)), MaxProofs, "MaxProofs")
			e.Partition = int(p.Partition)
			return t.fail(e)
		}
	}
	t.s.nameLives(c)
	return t.s.stamp(t, c)
}

// nameLives says which lives of the partitions a transaction has read or would
// write, as far as they are known.
func (s *Session) nameLives(c *wire.Commit) {
	for i := range c.Parts {
		p := &c.Parts[i]
		server := s.db.placement.At(p.Partition)
		p.Incarnation = s.db.incarnation[server].Load()
		if lf := s.lives[server]; lf != nil {
			p.Memory = lf.epoch
		}
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
	if err := t.gather(&s.commit, true); err != nil {
		return err
	}
	if len(s.commit.Parts) == 0 {
		return s.validate(t) // the body undid every write
	}
	s.seq++
	home := s.commit.Parts[0].Partition
	sent, err := s.sent(t.ctx, s.db.placement.At(home))
	if err != nil {
		return t.fail(err)
	}
	s.commit.ID, s.commit.Sent, s.commit.Seen = wire.ID{Client: s.id, Seq: s.seq}, sent, s.db.seen.Tick()
	s.askTurn(t)
	s.req = wire.AppendCommit(s.req[:0], wire.OpCommit, &s.commit, nil)
	if len(s.req) > MaxCommitBytes {
		return t.fail(commitTooLarge(len(s.req)))
	}
	t.sent = true
	resp, err := s.decide(t.ctx, home, s.commit.ID, sent)
	if err != nil {
		return t.fail(err)
	}
	s.endTurns(t, wire.Code(resp[0]) == wire.OK, isReserved(resp))
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

// decide sends s.req, which may commit, to the primary of a partition. If the
// connection breaks, it asks once for the outcome, over a new connection. The
// question also ensures that the server refuses the request if it has not yet
// received it.
func (s *Session) decide(ctx context.Context, part placement.Partition, id wire.ID, sent wire.Sent) ([]byte, error) {
	server := s.db.placement.At(part)
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	l.decides = true
	switch never, err := s.send(ctx, l, s.req); {
	case never:
		return nil, err
	case err != nil:
		return s.askAfter(ctx, part, id, sent, err)
	}
	resp, err := s.answerWithTick(ctx, l)
	if err == nil && wire.Code(resp[0]) == wire.InDoubt {
		err = codeError(wire.Unavailable, resp[1:]) // the server stops before the decision
		if !s.db.durable {
			return nil, s.unknown(part, id, sent, err)
		}
	}
	if err == nil && wire.Code(resp[0]) == wire.Forgotten {
		return nil, s.unknown(part, id, sent, errForgotten)
	}
	if err == nil {
		return resp, nil
	}
	return s.askAfter(ctx, part, id, sent, err)
}

// askAfter asks for the outcome of a transaction whose connection broke, or
// returns that it is unknown. It asks a server that may come back until the
// caller's time is over.
func (s *Session) askAfter(ctx context.Context, part placement.Partition, id wire.ID, sent wire.Sent, err error) ([]byte, error) {
	var patience time.Duration
	for n := 0; ctx.Err() == nil && !errors.Is(err, ErrClosed); n++ {
		resp, oerr := s.outcome(ctx, part, id, sent)
		switch {
		case oerr == nil && wire.Code(resp[0]) == wire.Forgotten:
			return nil, s.unknown(part, id, sent, errForgotten)
		case oerr == nil && (wire.Code(resp[0]) == wire.Unknown || wire.Code(resp[0]) == wire.Aborted):
			return nil, err // the server refuses it from now on, or since an earlier question: certainly not committed
		case oerr == nil && wire.Code(resp[0]) != wire.InDoubt:
			return resp, nil
		}
		if !s.db.durable || oerr != nil && !s.db.returns(oerr) || s.awaitReturn(ctx, n, err, &patience) != nil {
			break
		}
	}
	return nil, s.unknown(part, id, sent, err)
}

// unknown returns the error of a transaction that may or may not have
// committed.
func (s *Session) unknown(part placement.Partition, id wire.ID, sent wire.Sent, cause error) error {
	s.unsettled = append(s.unsettled, unsettled{s.db.placement.At(part), id, sent})
	s.id, s.seq = s.rng.Uint64(), 0 // a new identity: the server keeps the outcome of the old one
	return &UnknownOutcome{ID: ID{id.Client, id.Seq, int(part), sent.Incarnation, sent.Epoch, sent.At}, Cause: cause}
}

// errForgotten is the cause of an unknown outcome that nobody can find out any more.
var errForgotten = errors.New("its server has forgotten the outcome")

// outcome asks the home of a transaction for its outcome. If the home does not know
// the transaction, it refuses it from now on.
func (s *Session) outcome(ctx context.Context, part placement.Partition, id wire.ID, sent wire.Sent) ([]byte, error) {
	l, err := s.reach(ctx, s.db.placement.At(part))
	if err != nil {
		return nil, err
	}
	return s.callWithTick(ctx, l, wire.AppendOutcome(nil, id, sent, wire.OutcomeWait))
}

// Outcome asks the home of a transaction whose outcome was unknown. Nil means that it
// committed, ErrConflict that it did not commit and never will, even if its request is
// still on its way: both are final. ErrOutcomeUnknown means that the home has
// forgotten the outcome, and ErrUnavailable that it does not answer. Outcome waits, as
// transactions do, for a durable server that may come back, or be taken over.
func (db *DB) Outcome(ctx context.Context, id ID) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	var patience time.Duration
	for n := 0; ; n++ {
		err := s.askOutcome(ctx, id)
		if err == nil || !db.returns(err) {
			return err
		}
		if err = s.awaitReturn(ctx, n, err, &patience); err != nil {
			return err
		}
	}
}

// askOutcome asks for the outcome of a transaction once.
func (s *Session) askOutcome(ctx context.Context, id ID) error {
	db := s.db
	home := placement.Partition(id.Home)
	server, ok := db.placement.Primary(home)
	if !ok {
		return fmt.Errorf("txn: transaction %v, want a home from 0 to %d", id, db.Partitions()-1)
	}
	sent := wire.Sent{Incarnation: id.Incarnation, Epoch: id.Epoch, At: id.Sent}
	resp, err := s.outcome(ctx, home, wire.ID{Client: id.Client, Seq: id.Seq}, sent)
	if err != nil {
		return err
	}
	switch c := wire.Code(resp[0]); c {
	case wire.OK, wire.ResultLost:
		return nil
	case wire.InDoubt:
		return db.unavailable(server, errors.New("it does not know the outcome yet"))
	case wire.Forgotten:
		return &UnknownOutcome{ID: id, Cause: errForgotten}
	case wire.Bad, wire.Forbidden:
		return codeError(c, resp[1:])
	}
	return ErrConflict // refused, for whatever reason
}

// callWithTick is call for a request whose answer may carry a tick.
func (s *Session) callWithTick(ctx context.Context, l *link, req []byte) ([]byte, error) {
	resp, err := s.call(ctx, l, req)
	if err != nil {
		return nil, err
	}
	return s.cutTick(resp)
}

// answerWithTick is answer for such a request.
func (s *Session) answerWithTick(ctx context.Context, l *link) ([]byte, error) {
	resp, err := s.answer(ctx, l)
	if err != nil {
		return nil, err
	}
	return s.cutTick(resp)
}

func (s *Session) cutTick(resp []byte) ([]byte, error) {
	resp, tick, err := wire.CutTick(resp)
	if err != nil {
		return nil, fmt.Errorf("%w: an answer without its tick", ErrProtocol)
	}
	s.db.seen.Saw(tick)
	return resp, nil
}

// Call runs a procedure at the primary of h and returns its result, valid until
// the session is used again. The procedure's error comes back as a
// *ProcedureError, with nothing written. An attempt that meets a concurrent
// writer is retried as in Update, with the same exactly-once guarantee.
//
// The deadline of ctx holds at the home too. A procedure that has not begun to commit
// by then commits nothing, and the error is context.DeadlineExceeded; it may come up
// to 10 ms early. If no answer has come by the deadline, the error is an
// *UnknownOutcome. The home does not hear that ctx is cancelled.
func (s *Session) Call(ctx context.Context, h placement.Partition, proc string, args []byte) ([]byte, error) {
	if h < 0 || int(h) >= s.db.Partitions() {
		return nil, fmt.Errorf("txn: home partition %d, want 0 to %d", h, s.db.Partitions()-1)
	}
	var patience, absence time.Duration
	var absent error
	defer s.yield()
	for n := 0; ; n++ {
		s.seq++
		resp, err := s.callOnce(ctx, h, s.patience(ctx, n, patience), proc, args)
		if err == nil {
			switch c := wire.Code(resp[0]); c {
			case wire.OK:
				s.stats.Commits++
				return resp[1:], nil
			case wire.RolledBack:
				return nil, failed(proc, resp[1:])
			case wire.Conflict:
				cause := causeOf(resp)
				s.stats.Aborts[cause]++
				s.asksClock = cause == CauseLate
				if err := s.again(ctx, n, n+callBackoff, cause, &patience); err != nil {
					return nil, err
				}
				continue
			default:
				err = codeError(c, resp[1:])
			}
		}
		err = s.inPartition(err, []placement.Partition{h})
		if s.lacks != nil && lacksRoom(err) {
			if err = s.awaitRoom(ctx, err, &absence); err != nil {
				return nil, err
			}
			continue
		}
		if !s.db.returns(err) {
			return nil, stillAbsent(ctx, absent, err)
		}
		absent = err
		if err = s.awaitReturn(ctx, n, err, &absence); err != nil {
			return nil, err
		}
	}
}

// callOnce sends one attempt of a Call, and returns its answer.
func (s *Session) callOnce(ctx context.Context, h placement.Partition, wait time.Duration, proc string, args []byte) ([]byte, error) {
	sent, err := s.sent(ctx, s.db.placement.At(h))
	if err != nil {
		return nil, err
	}
	id := wire.ID{Client: s.id, Seq: s.seq}
	s.req = wire.AppendCall(s.req[:0], id, sent, wait, timeForCall(ctx), s.db.seen.Tick(), h, proc, args)
	return s.decide(ctx, h, id, sent)
}

// timeForCall is the time that the caller gives a procedure, 0 if it has no deadline. It
// is a little less than it has, an eighth or answerTime, so that it hears in time that
// the procedure ended at its deadline and has committed nothing.
func timeForCall(ctx context.Context) time.Duration {
	at, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	left := time.Until(at)
	return max(left-min(left/8, answerTime), time.Microsecond)
}

// answerTime is many times what an answer takes on its way.
const answerTime = 10 * time.Millisecond

// callBackoff is the number of doublings of the backoff that Call skips. A
// procedure meets no other transaction within its partition, so a transaction
// in doubt, which waits for another server, blocked it. Attempts before that
// server has answered would cost more than the time they might save.
const callBackoff = 5
