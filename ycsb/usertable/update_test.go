package usertable

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

func TestUpdateRoundTrip(t *testing.T) {
	for _, u := range []Update{
		{Table: []byte("usertable"), Key: []byte("user1"), Return: true, Fields: []FieldValue{{3, []byte("abc")}, {255, []byte{}}}},
		{Table: []byte{}, Key: bytes.Repeat([]byte("k"), 1024), Fields: []FieldValue{}},
	} {
		var got Update
		b := u.Append(nil)
		if got.Fields = []FieldValue{}; got.Decode(b) != nil || !reflect.DeepEqual(got, u) {
			t.Errorf("%+v, want %+v", got, u)
		}
		if err := got.Decode(b[:len(b)-1]); !errors.Is(err, ErrMessage) && len(u.Fields) > 0 {
			t.Errorf("a byte less: %v", err)
		}
	}
}

func FuzzUpdateDecode(f *testing.F) {
	u := Update{Table: []byte("usertable"), Key: []byte("user1"), Return: true, Fields: []FieldValue{{3, []byte("abc")}}}
	f.Add(u.Append(nil))
	f.Add([]byte{2, 0, 0, 0})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var u Update
		if u.Decode(b) == nil && !bytes.Equal(u.Append(nil), b) {
			t.Errorf("%x decodes to what encodes as %x", b, u.Append(nil))
		}
	})
}
