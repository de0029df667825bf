package txn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/wire"
)

// View runs a read-only transaction by one-sided reads. It is strictly
// serializable: when fn has returned, one round re-reads every header and leaf
// version the attempt relied on, and the control word of each partition; if
// any changed, fn runs anew. An error of fn is returned as it is, after the
// same validation.
func (s *Session) View(ctx context.Context, fn func(*Txn) error) error {
	return s.run(ctx, view, fn, nil)
}

// Update runs a transaction that may write. Reads are one-sided, writes
// buffered; commit is one RPC to the home server, which is the primary of the
// first row written. If fn returns an error nothing is written.
//
// If the home server goes away between the commit request and its answer, and
// does not come back to be asked, the error is an *UnknownOutcome.
func (s *Session) Update(ctx context.Context, fn func(*Txn) error) error {
	return s.run(ctx, update, fn, nil)
}

// run makes attempts until one is not abandoned. What ends an attempt, once
// the body has returned, is finish, or if that is nil what the API promises.
func (s *Session) run(ctx context.Context, m mode, fn, finish func(*Txn) error) error {
	t := &s.txn
	if t.mode != closed {
		return fmt.Errorf("%w: a transaction runs inside another of the same session", ErrClosed)
	}
	defer func() { t.mode = closed }()
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
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
			return err
		}
		s.stats.Aborts[t.cause]++
		if n+1 >= s.db.cfg.Retry.Attempts {
			return fmt.Errorf("%w: gave up after %d attempts, the last one: %v", ErrConflict, n+1, t.cause)
		}
		if err := s.backoff(ctx, n); err != nil {
			return err
		}
	}
}

// maxAttemptAge bounds the time between an attempt's first read and its
// validation: a freed leaf is used again only after longer than that (package
// xtree), so that no proof can come to hold for another row.
const maxAttemptAge = 15 * time.Second

// attempt is one run of the body and what follows it. Once t.err is set the
// attempt is over, whatever the body makes of it.
func (s *Session) attempt(t *Txn, fn, finish func(*Txn) error) error {
	err := fn(t)
	if t.err != nil {
		return t.err
	}
	if time.Since(t.began) > maxAttemptAge {
		return t.fail(fmt.Errorf("%w: the body ran for more than %v", ErrTooLarge, maxAttemptAge))
	}
	switch {
	case finish != nil && err == nil:
		err = finish(t)
	case finish != nil:
	case err != nil:
		// An error counts only if the rows behind it stood together.
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

// validate checks a read-only attempt in one round. A scan whose cheap proof
// fails is checked exactly in a second one: what it returned may be untouched
// although its leaf has changed.
func (s *Session) validate(t *Txn) error {
	if t.nGet+t.nScan == 0 {
		return nil
	}
	inexact, err := s.check(t, false)
	if err == nil && inexact {
		_, err = s.check(t, true)
	}
	return err
}

// check re-reads proofs: the quick ones of all reads and the partitions'
// control words, or (exact) the exact ones of the scans whose quick ones
// failed. It reports whether there are such scans.
func (s *Session) check(t *Txn, exact bool) (again bool, err error) {
	defer s.untouchAll()
	need := s.proofWords(t, exact)
	if cap(s.words) < need {
		s.words = make([]uint64, need+need/2)
	}
	v := verifier{s: s, t: t, words: s.words[:0]}
	if err := v.each(exact, v.post); err != nil {
		return false, err
	}
	if err := s.exchange(t.ctx); err != nil {
		return false, t.fail(err)
	}
	v.words = s.words[:0]
	if err := v.each(exact, v.compare); err != nil {
		return false, err
	}
	return v.again, nil
}

func (s *Session) proofWords(t *Txn, exact bool) int {
	n := len(s.db.parts) * controlWords
	for _, g := range t.gets[:t.nGet] {
		if g.res != nil {
			n += len(g.res.Proofs)
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			if r := sc.subs[i].res; r != nil {
				n += len(r.Quick) + len(r.Gaps) + len(r.Entries)
			}
		}
	}
	return n
}

// controlWords of a partition's control block are part of every validation:
// epoch (with the fence bit) and durable horizon.
const controlWords = 2

// verifier walks all proofs of an attempt twice in the same order: once
// posting a READ for each, once comparing what came back.
type verifier struct {
	s     *Session
	t     *Txn
	words []uint64
	again bool
	parts uint64 // partitions below 64 seen, by bit
	more  []int  // partitions from 64 on
}

func (v *verifier) each(exact bool, visit func(part int, p index.Proof, sc *subScan) error) error {
	v.parts, v.more = 0, v.more[:0]
	t := v.t
	if !exact {
		for _, g := range t.gets[:t.nGet] {
			if g.res == nil {
				continue
			}
			if err := v.control(g.part, visit); err != nil {
				return err
			}
			for _, p := range g.res.Proofs {
				if err := visit(g.part, p, nil); err != nil {
					return err
				}
			}
		}
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			if err := v.scan(&sc.subs[i], exact, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *verifier) scan(sub *subScan, exact bool, visit func(int, index.Proof, *subScan) error) error {
	if sub.res == nil {
		return nil
	}
	if !exact {
		sub.changed = false
		if err := v.control(sub.part, visit); err != nil {
			return err
		}
		for _, p := range sub.res.Quick {
			if err := visit(sub.part, p, sub); err != nil {
				return err
			}
		}
		return nil
	}
	if !sub.changed {
		return nil
	}
	for _, p := range sub.res.Gaps {
		if err := visit(sub.part, p, nil); err != nil {
			return err
		}
	}
	for i := range sub.res.Entries {
		e := &sub.res.Entries[i]
		if err := visit(sub.part, index.Proof{Addr: e.Addr, Word: uint64(e.Header)}, nil); err != nil {
			return err
		}
	}
	return nil
}

// control visits a partition's control words the first time it is met. They
// are read as proofs of addresses no index uses.
func (v *verifier) control(part int, visit func(int, index.Proof, *subScan) error) error {
	if part < 64 {
		if v.parts>>part&1 == 1 {
			return nil
		}
		v.parts |= 1 << part
	} else if slices.Contains(v.more, part) {
		return nil
	} else {
		v.more = append(v.more, part)
	}
	return visit(part, index.Proof{Addr: block.ControlAddr, Word: uint64(v.s.db.parts[part].epoch)}, nil)
}

func (v *verifier) post(part int, p index.Proof, _ *subScan) error {
	l, err := v.s.link(v.t.ctx, v.s.db.parts[part].server)
	if err != nil {
		return v.t.fail(err)
	}
	v.s.touch(l)
	n := 1
	if p.Addr == block.ControlAddr {
		n = controlWords
	}
	at := len(v.words)
	v.words = v.words[:at+n]
	l.next().Read(v.s.db.parts[part].rkey, p.Addr, v.words[at:at+n:at+n])
	return nil
}

func (v *verifier) compare(_ int, p index.Proof, sub *subScan) error {
	got := v.words[:len(v.words)+1][len(v.words)]
	v.words = v.words[:len(v.words)+1]
	if p.Addr == block.ControlAddr {
		v.words = v.words[:len(v.words)+1] // the horizon: everything published is durable while memory is all there is
		if got != p.Word {
			return v.t.abandon(CauseFence)
		}
		return nil
	}
	switch {
	case got == p.Word:
	case sub != nil:
		sub.changed, v.again = true, true
	default:
		return v.t.abandon(CauseRow)
	}
	return nil
}

// gather sorts an attempt's reads and writes by partition, the home first.
func (t *Txn) gather(c *wire.Commit, withProofs bool) error {
	c.Parts = c.Parts[:0]
	for _, w := range t.writes.list[:t.writes.n] {
		if w.dropped {
			continue
		}
		p := partOf(c, w.ix.Partition.Of(w.key, t.nparts))
		p.Writes = append(p.Writes, wire.Write{Index: uint16(w.ix.ID), Op: w.op, Key: w.key, Hint: w.hint, Row: w.row})
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
			return t.fail(fmt.Errorf("%w: more than %d rows read in one partition by a transaction that writes", ErrTooLarge, wire.MaxProofs))
		}
	}
	return nil
}

func partOf(c *wire.Commit, part int) *wire.Part {
	for i := range c.Parts {
		if int(c.Parts[i].Partition) == part {
			return &c.Parts[i]
		}
	}
	return c.NextPart(uint16(part))
}

// sendCommit ships the attempt to its home server: one RPC.
func (s *Session) sendCommit(t *Txn) error {
	if err := t.gather(&s.commit, true); err != nil {
		return err
	}
	if len(s.commit.Parts) == 0 {
		return s.validate(t) // every write was taken back
	}
	s.seq++
	s.commit.ID = wire.ID{Client: s.id, Seq: s.seq}
	s.req = wire.AppendCommit(s.req[:0], wire.OpCommit, &s.commit, nil)
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

func causeOf(resp []byte) Cause {
	if len(resp) > 1 && Cause(resp[1]) < CauseCount {
		return Cause(resp[1])
	}
	return CauseRemote
}

// decide sends s.req, which may commit, to the primary of a partition. If the
// connection breaks it asks once, over a new one, what became of it; asking
// also makes sure that a request not yet seen will never be carried out.
func (s *Session) decide(ctx context.Context, part int, id wire.ID) ([]byte, error) {
	server := s.db.parts[part].server
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	resp, err := s.call(ctx, l, s.req)
	if err == nil {
		return resp, nil
	}
	if errors.Is(err, ErrTooLarge) {
		return nil, err
	}
	if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		if resp, oerr := s.outcome(ctx, server, id); oerr == nil {
			if wire.Code(resp[0]) == wire.Unknown {
				return nil, err // refused from now on: certainly not committed
			}
			return resp, nil
		}
	}
	lost := &UnknownOutcome{ID: ID(id), Cause: err}
	s.id, s.seq = s.rng.Uint64(), 0 // a new identity: the server keeps the fate of the old one
	return nil, lost
}

func (s *Session) outcome(ctx context.Context, server int, id wire.ID) ([]byte, error) {
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, l, wire.AppendID([]byte{byte(wire.OpOutcome)}, id))
}

// Outcome asks what became of a transaction whose outcome was unknown: nil
// means committed, ErrConflict that it did not commit and never will,
// ErrOutcomeUnknown that no server knows, ErrUnavailable that one that might
// know does not answer.
func (db *DB) Outcome(ctx context.Context, id ID) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	for server := range db.servers {
		resp, err := s.outcomeKnown(ctx, server, wire.ID(id))
		if err != nil {
			return err
		}
		switch wire.Code(resp[0]) {
		case wire.OK:
			return nil
		case wire.Aborted, wire.Conflict:
			return ErrConflict
		}
	}
	return ErrOutcomeUnknown
}

// outcomeKnown asks without making the server refuse the transaction.
func (s *Session) outcomeKnown(ctx context.Context, server int, id wire.ID) ([]byte, error) {
	l, err := s.link(ctx, server)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, l, append(wire.AppendID([]byte{byte(wire.OpOutcome)}, id), 1))
}

// Call runs a procedure at the primary of h and returns its result, valid
// until the session is used again. The
// procedure's error comes back as a *ProcedureError, with nothing written. An
// attempt that meets a concurrent writer is repeated as in Update, with the
// same exactly-once guarantee.
func (s *Session) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	if int(h) < 0 || int(h) >= len(s.db.parts) {
		return nil, fmt.Errorf("txn: home partition %d, want 0 to %d", h, len(s.db.parts)-1)
	}
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
			return nil, &ProcedureError{proc, string(resp[1:])}
		case wire.Conflict:
			cause := causeOf(resp)
			s.stats.Aborts[cause]++
			if n+1 >= s.db.cfg.Retry.Attempts {
				return nil, fmt.Errorf("%w: gave up after %d attempts, the last one: %v", ErrConflict, n+1, cause)
			}
		default:
			return nil, codeError(c, resp[1:])
		}
		if err := s.backoff(ctx, n); err != nil {
			return nil, err
		}
	}
}
