package tables

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"drtmx/index"
	"drtmx/internal/mem"
)

// KeyKind is the kind of the keys of a table or index.
type KeyKind uint8

// Kinds of keys.
const (
	NumberKey KeyKind = iota // eight bytes, ordered as an unsigned number; see Num
	StringKey                // up to MaxKeyBytes bytes, ordered by them; see Str
)

func (k KeyKind) String() string {
	if k == StringKey {
		return "string"
	}
	return "number"
}

// Key is the key of a row, or of an entry of a secondary index. Num makes a number
// key, Str a string key; a table has keys of one kind (Def.Key). Every method that
// takes a key returns ErrKey for one that does not fit its table, and for the zero
// Key.
//
// Keys compare with == and serve as keys of maps. A Key is passed by value and may be
// a view of memory that is reused: Clone it to keep it.
type Key struct {
	num  uint64
	str  string
	kind keyKind
}

type keyKind uint8

const (
	none keyKind = iota
	first
	number
	text
	last
)

// First and Last are bounds of scans: below and above all keys of an index, of either
// kind. No row has them as its key.
var (
	First = Key{kind: first}
	Last  = Key{kind: last}
)

// Num returns a number key. Number keys are ordered as unsigned.
func Num(n uint64) Key { return Key{num: n, kind: number} }

// Str returns a string key, of a string or of bytes. String keys are ordered by
// their bytes. A key of a byte slice is a view of it, and changes with it; the
// slice may be reused once the methods that took the key have returned.
func Str[S ~string | ~[]byte](s S) Key { return Key{str: mem.String(s), kind: text} }

// Prefix returns the bounds of a scan of all string keys that begin with prefix.
func Prefix[S ~string | ~[]byte](prefix S) (lo, hi Key) {
	b := make([]byte, max(len(prefix), MaxKeyBytes))
	for i := copy(b, prefix); i < len(b); i++ {
		b[i] = 0xff
	}
	return Str(b[:len(prefix)]), Str(b)
}

// After returns the bound just above a key. As the lower bound of a scan it leaves out
// the key itself, so that a page can begin after the last row of the one before:
//
//	t.Scan(ix, tables.After(e.Key), tables.Last)
//
// It is Last if no key is higher. It shares no memory with k.
func After(k Key) Key {
	switch {
	case k.kind == number && k.num < math.MaxUint64:
		return Num(k.num + 1)
	case k.kind == text:
		if b, ok := index.AppendNext(nil, k.str); ok {
			return Str(b)
		}
	case k.kind != number:
		return k
	}
	return Last
}

// Before returns the bound just below a key. As the upper bound of a scan it leaves out
// the key itself. It is First if no key is lower. It shares no memory with k.
func Before(k Key) Key {
	switch {
	case k.kind == number && k.num > 0:
		return Num(k.num - 1)
	case k.kind == text:
		if b, ok := index.AppendPrevious(nil, k.str); ok {
			return Str(b)
		}
	case k.kind != number:
		return k
	}
	return First
}

// Is reports whether the key is of the kind. The zero Key, First and Last are of
// neither kind.
func (k Key) Is(kind KeyKind) bool {
	return k.kind == number && kind == NumberKey || k.kind == text && kind == StringKey
}

// Num returns the number of a number key, 0 for any other key.
func (k Key) Num() uint64 {
	if k.kind != number {
		return 0
	}
	return k.num
}

// Bytes returns the bytes of a string key, which must not be written; nil for
// any other key.
func (k Key) Bytes() []byte {
	if k.kind != text {
		return nil
	}
	return mem.StringBytes(k.str)
}

// Compare returns -1, 0 or 1: the order of two keys of one kind, with First
// below and Last above all others.
func (k Key) Compare(o Key) int {
	switch {
	case k.kind != o.kind:
		return cmp.Compare(k.kind, o.kind)
	case k.kind == text:
		return strings.Compare(k.str, o.str)
	}
	return cmp.Compare(k.num, o.num)
}

// Clone returns a key that shares no memory with k.
func (k Key) Clone() Key {
	k.str = strings.Clone(k.str)
	return k
}

// String returns the number, or the quoted string.
func (k Key) String() string {
	switch k.kind {
	case first:
		return "first"
	case number:
		return strconv.FormatUint(k.num, 10)
	case text:
		return strconv.Quote(k.str)
	case last:
		return "last"
	}
	return "none"
}

// Format implements fmt.Formatter: every verb formats a key like its number or
// its string, but %v quotes the string.
func (k Key) Format(f fmt.State, verb rune) {
	switch {
	case k.kind == number:
		fmt.Fprintf(f, fmt.FormatString(f, verb), k.num)
	case k.kind == text && verb != 'v':
		fmt.Fprintf(f, fmt.FormatString(f, verb), k.str)
	default:
		_, _ = io.WriteString(f, k.String())
	}
}

// MarshalJSON encodes a number, or a string in base64.
func (k Key) MarshalJSON() ([]byte, error) {
	switch k.kind {
	case number:
		return json.Marshal(k.num)
	case text:
		return json.Marshal([]byte(k.str))
	}
	return nil, fmt.Errorf("%w a definition: %v", ErrKey, k)
}

// UnmarshalJSON decodes the output of MarshalJSON.
func (k *Key) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var s []byte
		err := json.Unmarshal(b, &s)
		*k = Str(s)
		return err
	}
	*k = Key{}
	if string(b) == "null" {
		return nil
	}
	k.kind = number
	return json.Unmarshal(b, &k.num)
}

// CheckKey returns an ErrKey unless the key is valid for a row or entry of the index.
func (ix *Index) CheckKey(k Key) error {
	if ix.Key.fits(k) {
		return nil
	}
	return ix.keyError(k)
}

// fits reports whether the key is of the kind, and not too long.
func (kind KeyKind) fits(k Key) bool {
	if kind == StringKey {
		return k.kind == text && len(k.str) <= MaxKeyBytes
	}
	return k.kind == number
}

func (ix *Index) keyError(k Key) error {
	e := ix.Concerns(ErrKey, k)
	got := "a bound of a scan or no key (" + k.String() + ")"
	switch {
	case k.kind == text && ix.Key == StringKey:
		e.Detail, e.Limit, e.Max, e.Size = "bytes of a key", "MaxKeyBytes", MaxKeyBytes, int64(len(k.str))
		return e
	case k.kind == text:
		got = fmt.Sprintf("the string %.80q", k.str)
	case k.kind == number:
		got = "the number " + k.String()
	}
	e.Detail = fmt.Sprintf("it has %v keys, got %s", ix.Key, got)
	return e
}

// CheckBound returns an ErrKey unless the key is a valid bound of a scan of the
// index: First, Last, or any key that CheckKey accepts.
func (ix *Index) CheckBound(k Key) error {
	if k.kind == first || k.kind == last {
		return nil
	}
	return ix.CheckKey(k)
}

// AppendText appends a Sorted text part to the key of a secondary index, to
// build the bounds of a scan. A zero byte becomes 00 ff, and 00 01 ends the
// text, so that the parts that follow cannot change the order of texts. To scan
// all texts with a prefix, use the prefix's bytes alone as the lower bound
// (with zero bytes escaped in this way), and the same bytes followed by 0xff as
// the upper bound.
func AppendText(b, v []byte) []byte {
	for _, c := range v {
		if b = append(b, c); c == 0 {
			b = append(b, 0xff)
		}
	}
	return append(b, 0, 1)
}

// AppendInt appends a Sorted integer part to the key of a secondary index.
func AppendInt(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)^1<<63)
}
