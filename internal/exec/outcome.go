package exec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// decide sends s.req, which may commit, to the primary of a partition and returns the
// answer. If the connection breaks, it asks for the outcome over a new connection.
// The question also makes the server refuse the request if it has not yet received
// it.
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
		err = codeError(wire.Unavailable, resp[1:]) // the server has stopped before the decision
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
			return nil, err // certainly not committed: the server refuses it since this question, or an earlier one
		case oerr == nil && wire.Code(resp[0]) != wire.InDoubt:
			return resp, nil
		}
		if !s.db.durable || oerr != nil && !s.db.returns(oerr) || s.awaitReturn(ctx, n, err, &patience) != nil {
			break
		}
	}
	return nil, s.unknown(part, id, sent, err)
}

// unknown returns the error of a transaction that may or may not have committed, and
// notes that the session must settle it.
func (s *Session) unknown(part placement.Partition, id wire.ID, sent wire.Sent, cause error) error {
	s.unsettled = append(s.unsettled, unsettled{s.db.placement.At(part), id, sent})
	s.id, s.seq = s.rng.Uint64(), 0 // a new identity: the server keeps the outcome of the old one
	return &UnknownOutcome{ID: ID{id.Client, id.Seq, int(part), sent.Incarnation, sent.Epoch, sent.At}, Cause: cause}
}

// errForgotten is the cause of an outcome that will stay unknown.
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

// Outcome asks the home of a transaction for its outcome, after an UnknownOutcome.
// Nil means that it committed, ErrConflict that it did not commit and never will,
// even if its request is still under way: both are final. ErrOutcomeUnknown means
// that the home has forgotten the outcome, and ErrUnavailable that it does not
// answer. ErrProtocol means that no transaction of this cluster has the id. Outcome
// waits, as transactions do, for a durable server that may come back or be taken
// over.
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
		return fmt.Errorf("%w: transaction %v, want a home from 0 to %d", ErrProtocol, id, db.Partitions()-1)
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
	return ErrConflict // refused, for any reason
}
