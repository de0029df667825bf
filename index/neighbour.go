package index

import "strings"

// Highest is the highest string key.
var Highest = Str(strings.Repeat("\xff", MaxKeyBytes))

// AppendNext appends the lowest string key above s, which is no longer than MaxKeyBytes,
// to b; false if there is none.
func AppendNext(b []byte, s string) ([]byte, bool) {
	from := len(b)
	if b = append(b, s...); len(s) < MaxKeyBytes {
		return append(b, 0), true
	}
	for ; len(b) > from; b = b[:len(b)-1] { // none is longer
		if b[len(b)-1]++; b[len(b)-1] != 0 {
			return b, true
		}
	}
	return b, false
}

// AppendPrevious appends the highest string key below s to b; false if there is none.
// Below a string that does not end in a zero byte, that is one of MaxKeyBytes.
func AppendPrevious(b []byte, s string) ([]byte, bool) {
	if s == "" {
		return b, false
	}
	from := len(b)
	b = append(b, s...)
	if b[len(b)-1] == 0 {
		return b[:len(b)-1], true
	}
	b[len(b)-1]--
	return append(b, Highest.Str[len(b)-from:]...), true
}
