package server

import (
	"context"
	"errors"
	"strings"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// runElsewhere runs a procedure that leaves its home partition. A lock that it
// meets at home is mostly held by another such transaction, so it waits for the
// decision of that one before it retries.
func (s *Server) runElsewhere(ctx context.Context, home *partition, proc *exec.Procedure, args []byte) (result []byte, v verdict) {
	db, err := s.clientDB(ctx)
	if err != nil {
		return nil, verdict{code: wire.Unavailable, text: err.Error()}
	}
	result, err = db.RunProcedure(ctx, proc, args, func(_ *exec.Session, c *wire.Commit) error {
		v := s.commit(ctx, c)
		switch {
		case v.ok():
			return nil
		case v.code == wire.Conflict:
			return exec.ErrAbandoned{Cause: v.cause}
		}
		return v
	}, func() bool { return home.awaitDecision(ctx) })
	return result, verdictOf(err)
}

// verdictOf returns the answer to a call for the error of its body or its
// commit.
func verdictOf(err error) verdict {
	var v verdict
	switch {
	case err == nil:
		return verdict{}
	case errors.As(err, &v):
		return v
	case errors.Is(err, exec.ErrConflict):
		return conflict(exec.CauseRemote)
	case errors.Is(err, exec.ErrUnavailable):
		return verdict{code: wire.Unavailable, text: err.Error()}
	case errors.Is(err, exec.ErrTooLarge):
		return verdict{code: wire.TooLarge, text: strings.TrimPrefix(textOf(err), exec.ErrTooLarge.Error()+": ")}
	}
	return verdict{code: wire.RolledBack, text: exec.Failure(err)}
}

// errorBytesMax bounds the text of an error in an answer.
const errorBytesMax = 16 << 10

func textOf(err error) string {
	text := err.Error()
	if len(text) > errorBytesMax {
		return text[:errorBytesMax] + " … (cut)"
	}
	return text
}

// Error makes a verdict an error, for use within the server.
func (v verdict) Error() string { return "server: " + v.text }
