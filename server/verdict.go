package server

import (
	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// verdict is the result of a step that may refuse.
type verdict struct {
	code  wire.Code
	cause exec.Cause
	text  string

	// byClient says, of CauseLocked, that a client which writes the index itself has the lock. It is
	// not part of messages.
	byClient bool
}

func (v verdict) ok() bool { return v.code == wire.OK }

// weight orders the votes of several participants: the refusal of a write is
// the answer only if no participant refuses a proof.
func (v verdict) weight() int {
	switch v.code {
	case wire.OK:
		return 0
	case wire.Exists, wire.NotFound:
		return 1
	}
	return 2
}

func (v verdict) append(b []byte) []byte {
	b = append(b, byte(v.code))
	if v.code == wire.Conflict {
		return append(b, byte(v.cause))
	}
	return append(b, v.text...)
}

func conflict(c exec.Cause) verdict { return verdict{code: wire.Conflict, cause: c} }

// appendVerdict appends a verdict that other fields may follow.
func appendVerdict(b []byte, v verdict) []byte {
	return wire.AppendBytes(append(b, byte(v.code), byte(v.cause)), []byte(v.text))
}

// verdictIn decodes the output of appendVerdict.
func verdictIn(d *wire.Decoder) verdict {
	v := verdict{code: wire.Code(d.U8()), cause: exec.Cause(d.U8())}
	if v.cause >= exec.CauseCount {
		v.cause = exec.CauseRemote
	}
	v.text = string(d.Bytes())
	return v
}
