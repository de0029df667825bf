package exec

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"drtmx/internal/wire"
	"drtmx/tables"
)

// ProcedureError is an error that a procedure's body returns and that its caller
// receives.
type ProcedureError struct {
	Procedure string
	Code      uint32
	Payload   []byte
	Text      string
	// Cause has the errors that the body's error matched: one of this package or of
	// package tables, with the object that it concerns, and a registered one.
	Cause error
}

func (e *ProcedureError) Error() string { return "procedure " + e.Procedure + ": " + e.Text }

// MaxPayloadBytes bounds the payload of a procedure's error, and textBytesMax
// its text.
const (
	MaxPayloadBytes = 64 << 10
	textBytesMax    = 16 << 10
)

// EncodeFailure encodes a body's error for its caller.
func EncodeFailure(err error) string {
	var f wire.Failure
	var typed *ProcedureError
	if errors.As(err, &typed) {
		f.Code, f.Payload = typed.Code, typed.Payload
	}
	f.Cause, f.Name = kindOf(err), []byte(registeredName(err))
	var concerns *tables.Error
	if errors.As(err, &concerns) {
		f.Fault = []byte(EncodeFault(concerns))
	}
	f.Text = err.Error()
	if len(f.Payload) > MaxPayloadBytes {
		f.Text = fmt.Sprintf("payload of %d bytes, limit %d (MaxPayloadBytes); %s", len(f.Payload), MaxPayloadBytes, f.Text)
		f.Payload = nil
	}
	if len(f.Text) > textBytesMax {
		n := textBytesMax
		for n > textBytesMax-utf8.UTFMax && !utf8.RuneStart(f.Text[n]) {
			n-- // a character is kept whole
		}
		f.Text = f.Text[:n] + " … (cut)"
	}
	return string(wire.AppendFailure(nil, &f))
}

// IsForCaller reports whether a procedure has made an error for its caller to see:
// it is a ProcedureError, or matches a registered error.
func IsForCaller(err error) bool {
	var typed *ProcedureError
	return errors.As(err, &typed) || registeredName(err) != ""
}

// failed decodes the output of EncodeFailure to a *ProcedureError.
func failed(procedure string, b []byte) error {
	f, err := wire.DecodeFailure(b)
	if err != nil {
		return fmt.Errorf("%w: error of procedure %s: %w", ErrProtocol, procedure, err)
	}
	e := &ProcedureError{Procedure: procedure, Code: f.Code, Text: f.Text}
	if len(f.Payload) > 0 {
		e.Payload = append([]byte(nil), f.Payload...)
	}
	if int(f.Cause) < len(kinds) {
		e.Cause = kinds[f.Cause]
	}
	if concerns := faultIn(e.Cause, f.Fault); concerns != nil {
		e.Cause = concerns
	}
	if own := registeredError(string(f.Name)); own != nil && e.Cause != nil {
		e.Cause = errors.Join(own, e.Cause)
	} else if own != nil {
		e.Cause = own
	}
	return e
}
