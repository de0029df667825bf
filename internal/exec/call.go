package exec

import (
	"context"
	"fmt"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// Call runs a procedure at the primary of h: see txn.Session.Call. Its result is valid
// until the session is used again.
func (s *Session) Call(ctx context.Context, h placement.Partition, proc string, args []byte) ([]byte, error) {
	if h < 0 || int(h) >= s.db.Partitions() {
		return nil, fmt.Errorf("txn: home partition %d, want 0 to %d", h, s.db.Partitions()-1)
	}
	if s.nested() {
		return nil, errNested // it would give away connections of the transaction in progress
	}
	var patience, absence time.Duration
	var absent error
	defer s.net.yield()
	for n := 0; ; n++ {
		resp, err := s.callOnce(ctx, h, s.db.cfg.Retry.patience(ctx, n, patience), proc, args)
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
				s.leases.asksClock = cause == CauseLate
				if err := s.again(ctx, n, n+callBackoff, cause, &patience); err != nil {
					return nil, err
				}
				continue
			default:
				err = codeError(c, resp[1:])
			}
		}
		err = s.net.inPartition(err, []placement.Partition{h})
		if s.net.lacks != nil && lacksRoom(err) {
			if err = s.net.awaitRoom(ctx, err, &absence); err != nil {
				return nil, err
			}
			continue
		}
		if !s.db.Returns(err) {
			return nil, stillAbsent(ctx, absent, err)
		}
		absent = err
		if err = s.net.awaitReturn(ctx, n, err, &absence); err != nil {
			return nil, err
		}
	}
}

// callOnce sends one attempt of a Call, and returns its answer.
func (s *Session) callOnce(ctx context.Context, h placement.Partition, wait time.Duration, proc string, args []byte) ([]byte, error) {
	id := s.outcomes.next()
	sent, err := s.leases.sent(ctx, s.db.placement.At(h))
	if err != nil {
		return nil, err
	}
	s.net.req = wire.AppendCall(s.net.req[:0], id, sent, wait, timeForCall(ctx), s.db.seen.Tick(), h, proc, args)
	return s.outcomes.decide(ctx, h, s.net.req, id, sent)
}

// timeForCall returns how long a procedure may run at its home, 0 without a deadline.
// It is less than the caller's time, by an eighth or answerTime, so that the answer
// arrives in time that the procedure has ended at its deadline and committed nothing.
func timeForCall(ctx context.Context) time.Duration {
	at, bounded := ctx.Deadline()
	if !bounded {
		return 0
	}
	left := time.Until(at)
	return max(left-min(left/8, answerTime), time.Microsecond)
}

// answerTime is many times the latency of an answer.
const answerTime = 10 * time.Millisecond

// callBackoff is the number of doublings of the backoff that Call skips. A procedure
// has its partition to itself, so only a transaction in doubt, which waits for
// another server, can block it. Attempts before that server has answered would cost
// more time than they might save.
const callBackoff = 5
