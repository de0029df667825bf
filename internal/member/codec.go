package member

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Format is the version of the encoding. It changes with every change of the
// encoding.
const Format = 5

// MaxValueBytes bounds an encoded value; etcd refuses requests above 1.5 MB.
const MaxValueBytes = 1 << 20

type encodedMap struct {
	Format int `json:"format"`
	Map
}

type encodedServer struct {
	Format int `json:"format"`
	Server
}

// EncodeMap encodes a map for DecodeMap; the error wraps ErrInput.
func EncodeMap(m *Map) ([]byte, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	e := encodedMap{Format, *m}
	if e.Servers == nil {
		e.Servers = []Server{}
	}
	return encode(e)
}

// EncodeServer encodes a registration for DecodeServer; the error wraps
// ErrInput.
func EncodeServer(s *Server) ([]byte, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return encode(encodedServer{Format, *s})
}

type encodedDurable struct {
	Format int `json:"format"`
	Durable
}

// EncodeDurable encodes a note for DecodeDurable; the error wraps ErrInput.
func EncodeDurable(d *Durable) ([]byte, error) {
	if d.Incarnation == 0 {
		return nil, fmt.Errorf("%w: the log of a server without an incarnation", ErrInput)
	}
	return encode(encodedDurable{Format, *d})
}

// DecodeDurable decodes a value of EncodeDurable and accepts no other form. Its
// errors are those of DecodeMap.
func DecodeDurable(b []byte) (*Durable, error) {
	var e encodedDurable
	return canonical(b, &e, &e.Durable, EncodeDurable)
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	if len(b) > MaxValueBytes {
		return nil, fmt.Errorf("%w: a value of %d bytes, want at most %d", ErrInput, len(b), MaxValueBytes)
	}
	return b, nil
}

// DecodeMap decodes a value of EncodeMap and accepts no other form. The error
// wraps ErrFormat for another version, otherwise ErrCorrupt.
func DecodeMap(b []byte) (*Map, error) {
	var e encodedMap
	return canonical(b, &e, &e.Map, EncodeMap)
}

// DecodeServer decodes a value of EncodeServer and accepts no other form. Its
// errors are those of DecodeMap.
func DecodeServer(b []byte) (*Server, error) {
	var e encodedServer
	return canonical(b, &e, &e.Server, EncodeServer)
}

// canonical decodes b into its envelope, which holds v. Each value has exactly
// one encoding: canonical refuses any other form, such as one with a repeated
// key, and a value that contradicts itself.
func canonical[T any](b []byte, into any, v *T, encode func(*T) ([]byte, error)) (*T, error) {
	if err := decodeFormat(b, into); err != nil {
		return nil, err
	}
	again, err := encode(v)
	if err != nil {
		return nil, damaged(err)
	}
	if !bytes.Equal(b, again) {
		return nil, fmt.Errorf("%w: the value is not in the canonical form", ErrCorrupt)
	}
	return v, nil
}

// decodeFormat decodes a value of the one format that this binary knows.
func decodeFormat(b []byte, into any) error {
	if len(b) > MaxValueBytes {
		return fmt.Errorf("%w: %d bytes, want at most %d", ErrCorrupt, len(b), MaxValueBytes)
	}
	var head struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	switch {
	case head.Format == nil:
		return fmt.Errorf("%w: it has no format", ErrCorrupt)
	case *head.Format != Format:
		return fmt.Errorf("%w: the value has format %d, this binary reads format %d", ErrFormat, *head.Format, Format)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return damaged(err)
	}
	return nil
}

// damaged turns an ErrInput into ErrCorrupt with the same text, because the
// stored value is wrong and not the caller's input.
func damaged(err error) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, strings.ReplaceAll(err.Error(), ErrInput.Error()+": ", ""))
}
