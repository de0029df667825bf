package exec

import (
	"errors"
	"testing"

	"drtmx/internal/wire"
	"drtmx/tables"
)

// TestRestartedCrosses: the error of a data server whose memory is gone keeps its type,
// its place and its text in an answer.
func TestRestartedCrosses(t *testing.T) {
	sent := &tables.Error{Err: ErrUnavailable, Partition: 3, Server: "b:7000", Cause: ErrRestarted}
	got := codeError(wire.Unavailable, []byte(EncodeFault(sent)))
	var e *tables.Error
	switch {
	case !errors.Is(got, ErrUnavailable) || !errors.Is(got, ErrRestarted):
		t.Errorf("%v is not %v and %v", got, ErrUnavailable, ErrRestarted)
	case !errors.As(got, &e) || e.Partition != 3 || e.Server != "b:7000":
		t.Errorf("%v: want partition 3 and server b:7000", got)
	case got.Error() != sent.Error():
		t.Errorf("%q became %q", sent, got)
	}
	other := &tables.Error{Err: ErrUnavailable, Partition: 3, Cause: errors.New("no route")}
	if got := codeError(wire.Unavailable, []byte(EncodeFault(other))); errors.Is(got, ErrRestarted) || got.Error() != other.Error() {
		t.Errorf("%q became %q", other, got)
	}
}
