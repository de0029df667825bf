package wire

// Failure is the error of a procedure's body. It follows the code RolledBack.
type Failure struct {
	Code    uint32 // chosen by the procedure
	Cause   uint8  // an error of the engine that it matches; 0 if none
	Name    []byte // of a registered error that it matches; empty if none
	Fault   []byte // what it concerns, in JSON; empty if it does not say
	Payload []byte
	Text    string
}

// AppendFailure appends the encoding of a failure.
func AppendFailure(b []byte, f *Failure) []byte {
	b = append(le.AppendUint32(b, f.Code), f.Cause)
	for _, field := range [][]byte{f.Payload, f.Name, f.Fault} {
		b = AppendBytes(b, field)
	}
	return append(b, f.Text...)
}

// DecodeFailure decodes the output of AppendFailure. Its slices are views of b.
func DecodeFailure(b []byte) (Failure, error) {
	d := NewDecoder(b)
	f := Failure{Code: d.U32(), Cause: d.U8(), Payload: d.Bytes(), Name: d.Bytes(), Fault: d.Bytes()}
	f.Text = string(d.Rest())
	return f, d.End()
}
