package index

import (
	"cmp"
	"encoding/binary"
	"strconv"
	"strings"
)

// MaxKeyBytes bounds a string key.
const MaxKeyBytes = 1 << 10

// Key is a key of an index: a number in an index with the native key, ordered
// as unsigned, or a byte string, ordered by its bytes, in any other. The other
// field is zero. Keys compare with == and serve as keys of maps.
//
// A Key is passed by value and keeps its string alive. To keep a Key longer
// than the bytes of its string live, clone the string first.
type Key struct {
	Num uint64
	Str string
}

// Num is a native key.
func Num(n uint64) Key { return Key{Num: n} }

// Str is a string key.
func Str(s string) Key { return Key{Str: s} }

// Compare orders two keys of one index: -1, 0 or 1.
func (k Key) Compare(o Key) int {
	if k.Num != o.Num {
		return cmp.Compare(k.Num, o.Num)
	}
	return strings.Compare(k.Str, o.Str)
}

// Clone is a key that shares no memory with k.
func (k Key) Clone() Key {
	k.Str = strings.Clone(k.Str)
	return k
}

// AppendNum appends the string key that orders as the number does: for an
// index that has string keys because its rows vary in size.
func AppendNum(b []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(b, n) }

// NumOf is the number that AppendNum made a key of; false for any other key.
func NumOf(s string) (uint64, bool) {
	if len(s) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64([]byte(s)), true
}

// String is the number, or the quoted string.
func (k Key) String() string {
	if k.Str != "" {
		return strconv.Quote(k.Str)
	}
	return strconv.FormatUint(k.Num, 10)
}
