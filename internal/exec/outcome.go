package exec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// outcomes sends the requests that may commit, so that each takes effect at most once,
// and learns their outcomes. A server remembers the last one of an identity. So there is
// one at a time, under ascending numbers, and one of unknown outcome is the last.
type outcomes struct {
	db  *DB
	net *network
	rng *rand.Rand // for new identities
	id  uint64     // the identity: client half of transaction IDs
	seq uint64
}

// next returns the ID of the next request.
func (o *outcomes) next() wire.ID {
	o.seq++
	return wire.ID{Client: o.id, Seq: o.seq}
}

// decide sends a request that may commit to the primary of a partition and returns the
// answer. If the connection breaks, it asks for the outcome over a new connection.
// The question also makes the server refuse the request if it has not yet received
// it.
func (o *outcomes) decide(ctx context.Context, part placement.Partition, req []byte, id wire.ID, sent wire.Sent) ([]byte, error) {
	server := o.db.placement.At(part)
	l, err := o.net.link(ctx, server)
	if err != nil {
		return nil, err
	}
	l.decides = true
	switch never, err := o.net.send(ctx, l, req); {
	case never:
		return nil, err
	case err != nil:
		return o.askAfter(ctx, part, id, sent, err)
	}
	resp, err := o.answer(ctx, l)
	if err == nil && wire.Code(resp[0]) == wire.InDoubt {
		err = codeError(wire.Unavailable, resp[1:]) // the server has stopped before the decision
		if !o.db.durable {
			return nil, o.unknown(part, id, sent, err)
		}
	}
	if err == nil && wire.Code(resp[0]) == wire.Forgotten {
		return nil, o.unknown(part, id, sent, errForgotten)
	}
	if err == nil {
		return resp, nil
	}
	return o.askAfter(ctx, part, id, sent, err)
}

// askAfter asks for the outcome of a transaction whose connection broke, or
// returns that it is unknown. It asks a server that may come back until the
// caller's time is over.
func (o *outcomes) askAfter(ctx context.Context, part placement.Partition, id wire.ID, sent wire.Sent, err error) ([]byte, error) {
	var patience time.Duration
	for n := 0; ctx.Err() == nil && !errors.Is(err, ErrClosed); n++ {
		resp, oerr := o.outcome(ctx, part, id, sent)
		switch {
		case oerr == nil && wire.Code(resp[0]) == wire.Forgotten:
			return nil, o.unknown(part, id, sent, errForgotten)
		case oerr == nil && (wire.Code(resp[0]) == wire.Unknown || wire.Code(resp[0]) == wire.Aborted):
			return nil, err // certainly not committed: the server refuses it since this question, or an earlier one
		case oerr == nil && wire.Code(resp[0]) != wire.InDoubt:
			return resp, nil
		}
		if !o.db.durable || oerr != nil && !o.db.Returns(oerr) || o.net.awaitReturn(ctx, n, err, &patience) != nil {
			break
		}
	}
	return nil, o.unknown(part, id, sent, err)
}

// unknown returns the error of a transaction that may or may not have committed, and
// notes that the session must settle it.
func (o *outcomes) unknown(part placement.Partition, id wire.ID, sent wire.Sent, cause error) error {
	o.net.unsettled = append(o.net.unsettled, unsettled{o.db.placement.At(part), id, sent})
	o.id, o.seq = o.rng.Uint64(), 0 // a new identity: the server keeps the outcome of the old one
	return &UnknownOutcome{ID: ID{id.Client, id.Seq, int(part), sent.Incarnation, sent.Epoch, sent.At}, Cause: cause}
}

// errForgotten is the cause of an outcome that will stay unknown.
var errForgotten = errors.New("its server has forgotten the outcome")

// outcome asks the home of a transaction for its outcome. If the home does not know
// the transaction, it refuses it from now on.
func (o *outcomes) outcome(ctx context.Context, part placement.Partition, id wire.ID, sent wire.Sent) ([]byte, error) {
	l, err := o.net.reach(ctx, o.db.placement.At(part))
	if err != nil {
		return nil, err
	}
	if _, err := o.net.send(ctx, l, wire.AppendOutcome(nil, id, sent, wire.OutcomeWait)); err != nil {
		return nil, err
	}
	return o.answer(ctx, l)
}

// answer waits for the response to a request that may have committed, which has a tick.
func (o *outcomes) answer(ctx context.Context, l *link) ([]byte, error) {
	resp, err := o.net.answer(ctx, l)
	if err != nil {
		return nil, err
	}
	resp, tick, err := wire.CutTick(resp)
	if err != nil {
		return nil, fmt.Errorf("%w: an answer without its tick", ErrProtocol)
	}
	o.db.seen.Saw(tick)
	return resp, nil
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
		err := s.outcomes.askOutcome(ctx, id)
		if err == nil || !db.Returns(err) {
			return err
		}
		if err = s.net.awaitReturn(ctx, n, err, &patience); err != nil {
			return err
		}
	}
}

// askOutcome asks for the outcome of a transaction once.
func (o *outcomes) askOutcome(ctx context.Context, id ID) error {
	home := placement.Partition(id.Home)
	server, ok := o.db.placement.Primary(home)
	if !ok {
		return fmt.Errorf("%w: transaction %v, want a home from 0 to %d", ErrProtocol, id, o.db.Partitions()-1)
	}
	sent := wire.Sent{Incarnation: id.Incarnation, Epoch: id.Epoch, At: id.Sent}
	resp, err := o.outcome(ctx, home, wire.ID{Client: id.Client, Seq: id.Seq}, sent)
	if err != nil {
		return err
	}
	switch c := wire.Code(resp[0]); c {
	case wire.OK, wire.ResultLost:
		return nil
	case wire.InDoubt:
		return o.db.Unavailable(server, errors.New("it does not know the outcome yet"))
	case wire.Forgotten:
		return &UnknownOutcome{ID: id, Cause: errForgotten}
	case wire.Bad, wire.Forbidden:
		return codeError(c, resp[1:])
	}
	return ErrConflict // refused, for any reason
}

// goodbye notifies the servers that have run transactions for the session that they
// need not keep the last answer. It is best effort: a server forgets a session after
// a while anyway.
func (o *outcomes) goodbye(ctx context.Context) {
	if o.net.closed.Load() {
		return
	}
	req := binary.LittleEndian.AppendUint64([]byte{byte(wire.OpGoodbye)}, o.id)
	for _, l := range o.net.links {
		if l != nil && l.decides && l.conn.StartCall(ctx, req) != nil {
			o.net.drop(l)
		}
	}
	for _, l := range o.net.links {
		if l == nil || !l.decides {
			continue
		}
		resp, err := l.conn.FinishCall(ctx, o.net.resp)
		if err != nil {
			o.net.drop(l)
			continue
		}
		o.net.resp = resp
	}
}
