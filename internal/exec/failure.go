package exec

import (
	"errors"
	"fmt"

	"drtmx/internal/wire"
)

// ProcedureError is a procedure's error as its body returns it and as its
// caller gets it.
type ProcedureError struct {
	Procedure string
	Code      uint32
	Payload   []byte
	Text      string
	// Cause is the error of this package that the body's error matched.
	Cause error
}

func (e *ProcedureError) Error() string { return "procedure " + e.Procedure + ": " + e.Text }

// MaxPayloadBytes bounds the payload of a procedure's error, and textBytesMax
// its text.
const (
	MaxPayloadBytes = 64 << 10
	textBytesMax    = 16 << 10
)

// causes are the errors of this package that a body's error may match at its
// caller, by the number that stands for them in messages.
var causes = [...]error{
	1: ErrNotFound, 2: ErrExists, 3: ErrReadOnly, 4: ErrOutOfMemory, 5: ErrClosed, 6: ErrProtocol,
}

// Failure is the message of a body's error.
func Failure(err error) string {
	var f wire.Failure
	var typed *ProcedureError
	if errors.As(err, &typed) {
		f.Code, f.Payload = typed.Code, typed.Payload
	}
	for i, cause := range causes {
		if cause != nil && errors.Is(err, cause) {
			f.Cause = uint8(i)
			break
		}
	}
	f.Text = err.Error()
	if len(f.Payload) > MaxPayloadBytes {
		f.Text = fmt.Sprintf("payload of %d bytes, limit %d (MaxPayloadBytes); %s", len(f.Payload), MaxPayloadBytes, f.Text)
		f.Payload = nil
	}
	if len(f.Text) > textBytesMax {
		f.Text = f.Text[:textBytesMax] + " … (cut)"
	}
	return string(wire.AppendFailure(nil, &f))
}

// failed is the error of a procedure, from its message.
func failed(procedure string, b []byte) error {
	f, err := wire.DecodeFailure(b)
	if err != nil {
		return fmt.Errorf("%w: error of procedure %s: %w", ErrProtocol, procedure, err)
	}
	e := &ProcedureError{Procedure: procedure, Code: f.Code, Text: f.Text}
	if len(f.Payload) > 0 {
		e.Payload = append([]byte(nil), f.Payload...)
	}
	if int(f.Cause) < len(causes) {
		e.Cause = causes[f.Cause]
	}
	return e
}
