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
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// View runs a read-only transaction by one-sided reads. It is strictly
// serializable: when fn has returned, one round re-reads every header and leaf
// version the attempt relied on, and the control word of each partition; if any
// changed, fn runs again. View returns an error of fn unchanged, after the same
// validation.
func (s *Session) View(ctx context.Context, fn Body) error {
	return s.run(ctx, view, math.MaxInt, fn, nil)
}

// TryView is View with a separate bound, at least one, on the attempts that
// writers invalidate: those whose rows or ranges had changed when they were
// validated. On ErrConflict a caller can use another way, such as a read-only
// procedure at the home server. Otherwise reads of many frequently written rows
// may never return a consistent snapshot.
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
	return s.run(ctx, update, math.MaxInt, fn, nil)
}

// run makes attempts until one is not aborted. After the body, finish ends an
// attempt; a nil finish means the validation or commit of m. invalidated bounds
// the attempts that did not end at a lock.
func (s *Session) run(ctx context.Context, m mode, invalidated int, fn Body, finish func(*Txn) error) error {
	t := &s.txn
	if t.mode != closed {
		return fmt.Errorf("%w: a transaction runs inside another of the same session", ErrClosed)
	}
	defer func() { t.mode = closed }()
	var patience time.Duration
	var last Cause // of the attempt before
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return late(ctx, err, n, last)
		}
		if s.closed.Load() {
			return ErrClosed
		}
		t.begin(ctx, m)
		err := s.attempt(t, fn, finish)
		if t.err != errAbandoned {
			if err == nil {
				s.stats.Commits++
			}
			return late(ctx, err, n, last)
		}
		last = t.cause
		s.stats.Aborts[t.cause]++
		if t.cause != CauseLocked {
			invalidated--
		}
		if invalidated <= 0 {
			return gaveUp(n+1, t.cause)
		}
		if t.cause == CauseLocked && s.await != nil && n+1 < s.db.cfg.Retry.Attempts && s.await() {
			continue
		}
		if err := s.again(ctx, n, n, t.cause, &patience); err != nil {
			return err
		}
	}
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
	return late(ctx, s.backoff(ctx, wait), n+1, cause)
}

// late adds to an expired deadline of ctx why the attempts before were aborted:
// the deadline may end a wait or the next attempt, and a caller cannot tell
// which. An unknown outcome stays what it is.
func late(ctx context.Context, err error, attempts int, cause Cause) error {
	if attempts == 0 || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", gaveUp(attempts, cause), err)
}

func gaveUp(attempts int, cause Cause) error {
	return fmt.Errorf("%w: gave up after %d attempts, the last one: %v", ErrConflict, attempts, cause)
}

// checkAge ends an attempt whose proofs are too old to be validated: their
// memory may have been freed and reused for other rows. If the machine slept
// meanwhile another attempt may do better.
func (t *Txn) checkAge(age time.Duration) error {
	switch {
	case age <= index.MaxProofAge:
		return nil
	case t.began.Awake() <= index.MaxProofAge:
		return t.abandon(CauseRow)
	}
	return t.fail(fmt.Errorf("%w: the body ran for more than %v", ErrTooLarge, index.MaxProofAge))
}

// attempt runs the body once and ends the attempt. Once t.err is set the
// attempt is over, whatever the body returns.
func (s *Session) attempt(t *Txn, fn Body, finish func(*Txn) error) error {
	err := fn.Run(t)
	if t.err != nil {
		return t.err
	}
	if t.doomed != nil && finish == nil { // RunProcedure handles it itself
		err = t.doomed // whatever the body returned
	}
	switch {
	case finish != nil && err == nil:
		err = finish(t)
	case finish != nil:
	case err != nil:
		// An error counts only if the rows behind it were a consistent
		// snapshot.
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

// validate checks a read-only attempt in one round. A scan whose quick proof
// fails is checked exactly in a second round: its rows may be unchanged
// although its leaf has changed.
func (s *Session) validate(t *Txn) error {
	if t.nGet+t.nScan == 0 {
		return nil
	}
	inexact, err := s.check(t, false)
	if err == nil && inexact {
		_, err = s.check(t, true)
	}
	if err == nil {
		err = t.checkAge(t.began.Age()) // checked last, so that the time of the validation counts
	}
	return err
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
			return false, t.fail(err)
		}
		for i := range chunk {
			p := &chunk[i]
			switch got := s.words[i*controlWords]; {
			case got == p.Word:
			case p.Addr == block.ControlAddr:
				return false, t.abandon(CauseFence)
			case p.sub != nil:
				p.sub.changed, again = true, true
			default:
				return false, t.abandon(p.cause)
			}
		}
	}
	return again, nil
}

const (
	// controlWords of a partition's control block are part of every validation:
	// epoch (with the fence bit) and durable horizon. While data is in memory
	// only, published data counts as durable at once, so the horizon is read
	// and not yet waited for.
	controlWords    = 2
	maxProofsARound = rdma.MaxBatch
)

// proof is a proof of the attempt being validated.
type proof struct {
	index.Proof
	part  int
	cause Cause
	sub   *subScan // of a quick proof: the scan to check exactly if it fails
}

// reread posts a READ for each proof: one round.
func (s *Session) reread(t *Txn, chunk []proof) error {
	defer s.untouchAll()
	if need := len(chunk) * controlWords; cap(s.words) < need {
		s.words = make([]uint64, need+need/2)
	}
	s.words = s.words[:cap(s.words)]
	for i := range chunk {
		p := &chunk[i]
		at := &s.db.parts[p.part]
		l, err := s.link(t.ctx, at.server)
		if err != nil {
			return err
		}
		s.touch(l)
		n := 1
		if p.Addr == block.ControlAddr {
			n = controlWords
		}
		l.next().Read(at.rkey, p.Addr, s.words[i*controlWords:i*controlWords+n])
	}
	return s.exchange(t.ctx)
}

// list gathers the proofs to check.
func (s *Session) list(t *Txn, exact bool) {
	s.proofs, s.controlled = s.proofs[:0], s.controlled[:0]
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			if sub := &sc.subs[i]; sub.res != nil {
				s.listScan(sub, exact)
			}
		}
	}
	if exact {
		return
	}
	for _, g := range t.gets[:t.nGet] {
		if g.res == nil {
			continue
		}
		s.control(g.part)
		cause := CauseRow
		if g.res.Status != index.Found {
			cause = CauseGap
		}
		for _, p := range g.res.Proofs {
			s.proofs = append(s.proofs, proof{p, g.part, cause, nil})
		}
	}
}

func (s *Session) listScan(sub *subScan, exact bool) {
	if !exact {
		s.control(sub.part)
		sub.changed = false
		for _, p := range sub.res.Quick {
			s.proofs = append(s.proofs, proof{p, sub.part, CauseGap, sub})
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

// control adds a partition's control words to the proofs, once in a validation.
// Address and epoch form a proof like any other.
func (s *Session) control(part int) {
	for _, have := range s.controlled {
		if have == part {
			return
		}
	}
	s.controlled = append(s.controlled, part)
	word := uint64(s.db.parts[part].epoch)
	s.proofs = append(s.proofs, proof{index.Proof{Addr: block.ControlAddr, Word: word}, part, CauseFence, nil})
}

// gather sorts an attempt's reads and writes by partition, the home first. With
// proofs it fails if they are too old.
func (t *Txn) gather(c *wire.Commit, withProofs bool) error {
	c.Parts, c.Age = c.Parts[:0], 0
	if withProofs {
		c.Age = t.began.Age()
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
	for _, g := range t.gets[:t.nGet] {
		if g.res == nil {
			continue
		}
		p := partOf(c, g.part)
		if g.res.Status == index.Found {
			p.Rows = append(p.Rows, g.res.Proofs...)
		} else {
			p.Gaps = append(p.Gaps, g.res.Proofs...)
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			sub := &sc.subs[i]
			if sub.res == nil {
				continue
			}
			p := partOf(c, sub.part)
			p.Gaps = append(p.Gaps, sub.res.Gaps...)
			for j := range sub.res.Entries {
				e := &sub.res.Entries[j]
				p.Rows = append(p.Rows, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
			}
		}
	}
	for i := range c.Parts {
		if p := &c.Parts[i]; len(p.Rows) > wire.MaxProofs || len(p.Gaps) > wire.MaxProofs {
			return t.fail(fmt.Errorf("%w: a transaction that writes has read %d rows and %d gaps in partition %d, limit %d (MaxProofs)",
				ErrTooLarge, len(p.Rows), len(p.Gaps), p.Partition, MaxProofs))
		}
	}
	t.s.db.nameLives(c)
	return nil
}

// nameLives says which lives of the partitions a transaction has read or would
// write, as far as they are known.
func (db *DB) nameLives(c *wire.Commit) {
	for i := range c.Parts {
		c.Parts[i].Epoch = db.incarnation[db.parts[c.Parts[i].Partition].server].Load()
	}
}

func partOf(c *wire.Commit, part int) *wire.Part {
	for i := range c.Parts {
		if int(c.Parts[i].Partition) == part {
			return &c.Parts[i]
		}
	}
	return c.NextPart(uint16(part))
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
	s.commit.ID = wire.ID{Client: s.id, Seq: s.seq}
	s.req = wire.AppendCommit(s.req[:0], wire.OpCommit, &s.commit, nil)
	if len(s.req) > MaxCommitBytes {
		return t.fail(commitTooLarge(len(s.req)))
	}
	resp, err := s.decide(t.ctx, int(s.commit.Parts[0].Partition), s.commit.ID)
	if err != nil {
		return t.fail(err)
	}
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
	return fmt.Errorf("%w: commit of %d bytes, limit %d (MaxCommitBytes)", ErrTooLarge, bytes, MaxCommitBytes)
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
func (s *Session) decide(ctx context.Context, part int, id wire.ID) ([]byte, error) {
	server := s.db.parts[part].server
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	l.decides = true
	resp, err := s.call(ctx, l, s.req)
	if err == nil && wire.Code(resp[0]) == wire.InDoubt {
		return nil, s.unknown(id, codeError(wire.Unavailable, resp[1:])) // the server stops before the decision
	}
	if err == nil {
		return resp, nil
	}
	if errors.Is(err, ErrTooLarge) {
		return nil, err
	}
	if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		if resp, oerr := s.outcome(ctx, server, id); oerr == nil {
			if wire.Code(resp[0]) == wire.Unknown {
				return nil, err // the server refuses it from now on: certainly not committed
			}
			if wire.Code(resp[0]) != wire.InDoubt {
				return resp, nil
			}
		}
	}
	return nil, s.unknown(id, err)
}

// unknown returns the error of a transaction that may or may not have
// committed.
func (s *Session) unknown(id wire.ID, cause error) error {
	s.id, s.seq = s.rng.Uint64(), 0 // a new identity: the server keeps the outcome of the old one
	return &UnknownOutcome{ID: ID(id), Cause: cause}
}

func (s *Session) outcome(ctx context.Context, server int, id wire.ID) ([]byte, error) {
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, l, wire.AppendID([]byte{byte(wire.OpOutcome)}, id))
}

// Outcome asks for the outcome of a transaction whose outcome was unknown. Nil
// means that it committed, ErrConflict that it did not commit and never will,
// ErrOutcomeUnknown that no server knows the outcome, and ErrUnavailable that a
// server which may know it does not answer.
func (db *DB) Outcome(ctx context.Context, id ID) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	var silent error
	for server := range db.servers {
		resp, err := s.outcomeKnown(ctx, server, wire.ID(id))
		if err != nil {
			silent = errors.Join(silent, err) // another server may know
			continue
		}
		switch wire.Code(resp[0]) {
		case wire.OK, wire.ResultLost:
			return nil
		case wire.Unknown:
		case wire.InDoubt: // the server stopped before the decision
			silent = errors.Join(silent, fmt.Errorf("%w: server %s does not know the outcome yet", ErrUnavailable, db.servers[server]))
		case wire.Bad, wire.Forbidden:
			return codeError(wire.Code(resp[0]), resp[1:])
		default:
			return ErrConflict // refused, for whatever reason
		}
	}
	if silent != nil {
		return silent
	}
	return ErrOutcomeUnknown
}

// outcomeKnown asks for the outcome without making the server refuse the
// transaction.
func (s *Session) outcomeKnown(ctx context.Context, server int, id wire.ID) ([]byte, error) {
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, l, append(wire.AppendID([]byte{byte(wire.OpOutcome)}, id), 1))
}

// Call runs a procedure at the primary of h and returns its result, valid until
// the session is used again. The procedure's error comes back as a
// *ProcedureError, with nothing written. An attempt that meets a concurrent
// writer is retried as in Update, with the same exactly-once guarantee.
func (s *Session) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	if int(h) < 0 || int(h) >= len(s.db.parts) {
		return nil, fmt.Errorf("txn: home partition %d, want 0 to %d", h, len(s.db.parts)-1)
	}
	var patience time.Duration
	for n := 0; ; n++ {
		s.seq++
		id := wire.ID{Client: s.id, Seq: s.seq}
		s.req = wire.AppendCall(s.req[:0], id, int(h), proc, args)
		resp, err := s.decide(ctx, int(h), id)
		if err != nil {
			return nil, err
		}
		switch c := wire.Code(resp[0]); c {
		case wire.OK:
			s.stats.Commits++
			return resp[1:], nil
		case wire.RolledBack:
			return nil, failed(proc, resp[1:])
		case wire.Conflict:
			cause := causeOf(resp)
			s.stats.Aborts[cause]++
			if err := s.again(ctx, n, n+callBackoff, cause, &patience); err != nil {
				return nil, err
			}
		default:
			return nil, codeError(c, resp[1:])
		}
	}
}

// callBackoff is the number of doublings of the backoff that Call skips. A
// procedure meets no other transaction within its partition, so a transaction
// in doubt, which waits for another server, blocked it. Attempts before that
// server has answered would cost more than the time they might save.
const callBackoff = 5
