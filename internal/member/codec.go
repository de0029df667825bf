package member

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Format is the version of the encoded values. It changes whenever they do.
const Format = 1

// MaxValueBytes bounds an encoded value; etcd takes no request above 1.5 MB.
const MaxValueBytes = 1 << 20

type encodedMap struct {
	Format int `json:"format"`
	Map
}

type encodedServer struct {
	Format int `json:"format"`
	Server
}

// EncodeMap is the value that DecodeMap takes; the error wraps ErrInput.
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

// EncodeServer is the value of a registration, which DecodeServer takes; the
// error wraps ErrInput.
func EncodeServer(s *Server) ([]byte, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return encode(encodedServer{Format, *s})
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

// DecodeMap takes exactly what EncodeMap makes. The error wraps ErrFormat for
// another version, else ErrCorrupt.
func DecodeMap(b []byte) (*Map, error) {
	var e encodedMap
	if err := decode(b, &e); err != nil {
		return nil, err
	}
	if err := same(b, func() ([]byte, error) { return EncodeMap(&e.Map) }); err != nil {
		return nil, err
	}
	return &e.Map, nil
}

// DecodeServer takes exactly what EncodeServer makes, with the same errors as DecodeMap.
func DecodeServer(b []byte) (*Server, error) {
	var e encodedServer
	if err := decode(b, &e); err != nil {
		return nil, err
	}
	if err := same(b, func() ([]byte, error) { return EncodeServer(&e.Server) }); err != nil {
		return nil, err
	}
	return &e.Server, nil
}

func decode(b []byte, into any) error {
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
		return fmt.Errorf("%w: the value has format %d, this binary speaks %d", ErrFormat, *head.Format, Format)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return damaged(err)
	}
	return nil
}

// same refuses what says the same in other words, such as a key twice, and
// what contradicts itself: there is one encoding of each value.
func same(b []byte, encode func() ([]byte, error)) error {
	again, err := encode()
	if err != nil {
		return damaged(err)
	}
	if !bytes.Equal(b, again) {
		return fmt.Errorf("%w: not the form in which values are written", ErrCorrupt)
	}
	return nil
}

// damaged keeps the text of an error and drops that it is ErrInput: the
// caller's input was fine.
func damaged(err error) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, strings.ReplaceAll(err.Error(), ErrInput.Error()+": ", ""))
}
