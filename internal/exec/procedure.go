package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// Runner runs procedures inside one partition of a data server. The caller holds the
// partition exclusively during the run. A Runner is for one goroutine at a time.
type Runner struct {
	t      Txn
	commit wire.Commit
}

// NewRunner returns a runner for a server with nparts partitions in the cluster.
func NewRunner(c *tables.Catalog, nparts int, local Local) *Runner {
	r := &Runner{}
	r.t.init(c, nparts, local)
	return r
}

// Use sets the version of the catalogue for the next Run.
func (r *Runner) Use(c *tables.Catalog) { r.t.catalog = c }

// Run runs a procedure on one partition. leaves reports that the procedure needs
// another partition: the caller runs it again with DB.RunProcedure. abandoned reports
// that it met a row that is locked. Otherwise commit has the writes, valid until the next Run, or
// err is the error of the body. In both cases commit has the proofs of what clients may change
// although the partition is held: the result, or the error, counts only if they hold.
func (r *Runner) Run(ctx context.Context, p *Procedure, part placement.Partition, args []byte) (result []byte, commit *wire.Commit, leaves, abandoned bool, err error) {
	t := &r.t
	t.where.only = part
	m := update
	if p.ReadOnly {
		m = view
	}
	t.begin(ctx, m)
	defer func() {
		t.mode = closed
		t.giveBack(keptBytes)
	}()
	result, err = callBody(ctx, p, t, args)
	switch err = t.verdict(err); t.err {
	case errRemote:
		return nil, nil, true, false, nil
	case errAbandoned:
		return nil, nil, false, true, nil
	}
	if err == nil {
		err = t.gather(&r.commit, clientWritten)
	} else {
		t.writes.reset()
		_ = t.gather(&r.commit, clientWritten) // cannot fail without writes
	}
	if err != nil {
		return nil, &r.commit, false, false, err
	}
	return result, &r.commit, false, false, nil
}

// BlockedBy returns the name of the row whose lock ended the last run, if it is known.
func (r *Runner) BlockedBy() (row wire.RowName, known bool) {
	g := r.t.met
	if g == nil {
		return 0, false
	}
	return wire.NameRow(uint16(g.ix.ID), g.key), true
}

// HeldByClient reports whether a client has the lock that ended the last run.
func (r *Runner) HeldByClient() bool { return r.t.metClient }

// checkResult returns an error for a result that does not fit the answer, before its
// transaction commits.
func checkResult(result []byte) error {
	if len(result) > MaxResultBytes {
		return tooLarge("bytes of a procedure's result", len(result), MaxResultBytes, "MaxResultBytes")
	}
	return nil
}

// callBody runs a procedure's body and checks the result. It turns a panic into an
// error, so that the data server survives it. The end of the goroutine cannot be stopped:
// nobody would answer this request, or the next ones of the poller, so the process ends.
func callBody(ctx context.Context, p *Procedure, t *Txn, args []byte) (result []byte, err error) {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		} else if !returned {
			panic(fmt.Sprintf("txn: the body of procedure %q has ended its goroutine, which serves others too: want a return or a panic", p.Name))
		}
	}()
	if result, err = p.Body(ctx, t, args); err == nil {
		err = checkResult(result)
	}
	returned = true
	return result, err
}

// localAttempts bounds the attempts of a procedure at a data server, beside its time
// there. Its client repeats the call for as long as it wants.
const localAttempts = 1000

// OpenLocal opens the DB that a data server itself uses for procedures that need
// several partitions. It reads the partitions of local directly.
func OpenLocal(ctx context.Context, c Config, local Local) (*DB, error) {
	if c.Retry.Attempts == 0 {
		c.Retry.Attempts = localAttempts
	}
	db, err := Open(ctx, c)
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.local = local
	for s := range db.mu.all {
		s.txn.where.set(local)
	}
	return db, nil
}

// ErrAbandoned is returned by the finish function of RunProcedure for an
// attempt that must be retried.
type ErrAbandoned struct {
	Cause     Cause
	Elsewhere bool // a server other than the home may have refused the attempt
}

func (e ErrAbandoned) Error() string { return "txn: attempt abandoned: " + e.Cause.String() }

// Finish commits an attempt of a procedure, which has the given result.
type Finish func(s *Session, c *wire.Commit, result []byte) error

// RunProcedure runs a procedure that touches several servers, at its home. finish
// commits an attempt, whose parts carry proofs, or only validates it if it has no
// writes. await is called after an attempt that met a lock: it waits until the lock
// may be gone and returns true, or returns false if it does not know the lock. After
// an attempt that lost, the session waits for its turn at home through turns.
func (db *DB) RunProcedure(
	ctx context.Context, p *Procedure, home placement.Partition, args []byte, finish Finish, await func() bool, turns Turns,
) (result []byte, err error) {
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	s.await, s.reservations.turns, s.reservations.home = await, turns, home
	m := update
	if p.ReadOnly {
		m = view
	}
	s.kept.forget()
	s.kept.on = m == update
	defer func() {
		s.await, s.reservations.turns, s.kept.on = nil, nil, false
		s.kept.forget()
	}()
	body := BodyFunc(func(t *Txn) (err error) {
		result, err = callBody(ctx, p, t, args)
		return err
	})
	err = s.run(ctx, m, math.MaxInt, body, func(t *Txn, bodyErr error) error {
		if bodyErr == nil {
			return s.finishWith(t, false, result, finish)
		}
		// An error is the answer only if the rows behind it were a consistent snapshot.
		return cmp.Or(s.finishWith(t, true, nil, finish), bodyErr)
	})
	return result, err
}

// finishWith passes an attempt to finish, without its writes if validate is set.
func (s *Session) finishWith(t *Txn, validate bool, result []byte, finish Finish) error {
	if t.scouts {
		return t.abandon(CauseLocked)
	}
	if err := t.gather(&s.commit, everything); err != nil {
		return err
	}
	if validate {
		for i := range s.commit.Parts {
			s.commit.Parts[i].Writes = s.commit.Parts[i].Writes[:0]
		}
	}
	if err := s.checkShares(&s.commit); err != nil {
		return t.fail(err)
	}
	s.commit.ID, s.commit.Seen = wire.ID{Client: s.outcomes.id}, s.db.seen.Tick()
	t.sent = true
	err := finish(s, &s.commit, result)
	s.reservations.ended(t, &s.commit, err == nil, false)
	var again ErrAbandoned
	if errors.As(err, &again) {
		t.elsewhere = again.Elsewhere
		return t.abandon(again.Cause)
	}
	return err
}

// checkShares returns an error if a transaction's share for another server does not
// fit a message.
func (s *Session) checkShares(c *wire.Commit) error {
	for i := range c.Parts {
		server, bytes := s.db.placement.At(c.Parts[i].Partition), 0
		if s.db.local == nil || s.db.local.Index(c.Parts[i].Partition, 0) != nil {
			continue // it is not sent
		}
		for j := range c.Parts {
			if s.db.placement.At(c.Parts[j].Partition) == server {
				bytes += c.Parts[j].Bytes()
			}
		}
		if bytes > MaxCommitBytes {
			return commitTooLarge(bytes)
		}
	}
	return nil
}
