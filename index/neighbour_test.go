package index_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"drtmx/index"
	"drtmx/internal/testseed"
)

// TestNeighbours: no string key is between a key and its next or previous one. Keys that
// are as long as possible have neighbours, too.
func TestNeighbours(t *testing.T) {
	key := rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 'a', 0x7f}), 0, 4, -1).Draw(t, "s")
		fill := rapid.SampledFrom([]string{"", "\x00", "\xff", "a"}).Draw(t, "fill")
		s += strings.Repeat(fill, index.MaxKeyBytes-len(s)-rapid.IntRange(0, 1).Draw(t, "short"))
		if rapid.Bool().Draw(t, "last") && len(s) > 0 {
			s = s[:len(s)-1] + rapid.SampledFrom([]string{"\x00", "\x01", "\xff"}).Draw(t, "end")
		}
		return s
	})
	highest := strings.Repeat("\xff", index.MaxKeyBytes)
	testseed.Check(t, func(t *rapid.T) {
		s, o := key.Draw(t, "key"), key.Draw(t, "other")
		b, ok := index.AppendNext([]byte("x"), s)
		next := string(b[1:])
		if ok != (s != highest) || ok && (next <= s || len(next) > index.MaxKeyBytes || o > s && o < next) {
			t.Fatalf("after %q comes %q, %v; %q is between", s, next, ok, o)
		}
		p, there := index.AppendPrevious([]byte("x"), s)
		previous := string(p[1:])
		if there != (s != "") || there && (previous >= s || len(previous) > index.MaxKeyBytes || o < s && o > previous) {
			t.Fatalf("before %q comes %q, %v; %q is between", s, previous, there, o)
		}
		if back, _ := index.AppendPrevious(nil, next); ok && string(back) != s {
			t.Fatalf("%q, its next and the previous of that: %q", s, back)
		}
	})
}
