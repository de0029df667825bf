package leaf

import (
	"testing"

	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// TestDigestsOrder: digests never fall as keys rise, whatever the prefix.
func TestDigestsOrder(t *testing.T) {
	testseed.Check(t, func(rt *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune{0, 'a', 'b'}), 0, 24, -1)
		p, a, b := s.Draw(rt, "prefix"), s.Draw(rt, "a"), s.Draw(rt, "b")
		if a > b {
			a, b = b, a
		}
		if DigestAfter(p, a) > DigestAfter(p, b) {
			rt.Fatalf("%q < %q, digests after %q: %#x, %#x", a, b, p, DigestAfter(p, a), DigestAfter(p, b))
		}
		if n := Common(a, b); a[:n] != b[:n] || n < min(len(a), len(b)) && a[n] == b[n] {
			rt.Fatalf("%q and %q share %d bytes", a, b, n)
		}
		if a != b {
			if f := Separator(a, b); f <= a || f > b {
				rt.Fatalf("%q does not separate %q from %q", f, a, b)
			}
		}
	})
}

// TestMetaAndShape: what is packed is unpacked, and what no leaf has is refused.
func TestMetaAndShape(t *testing.T) {
	testseed.Check(t, func(rt *rapid.T) {
		kind := Kind(rapid.IntRange(0, int(kinds)-1).Draw(rt, "kind"))
		slots := rapid.IntRange(MinSlots, MaxSlots).Draw(rt, "slots")
		l, err := NewLayout(rapid.Uint32().Draw(rt, "id"), kind, rapid.IntRange(0, 40).Draw(rt, "words"), slots)
		if err != nil {
			rt.Fatal(err)
		}
		m := Meta{rapid.Bool().Draw(rt, "last"), rapid.IntRange(0, 255).Draw(rt, "newest"), rapid.IntRange(0, slots).Draw(rt, "live"), rapid.IntRange(0, slots).Draw(rt, "count")}
		if w := l.Pack(m); Unpack(w) != m || IsLast(w) != m.Last || CountOf(w) != m.Count {
			rt.Fatalf("%+v is unpacked as %+v", m, Unpack(w))
		}
		low, high := rapid.IntRange(0, 1024).Draw(rt, "low"), rapid.IntRange(0, 1024).Draw(rt, "high")
		s := ShapeOf(rapid.IntRange(0, min(low, high)).Draw(rt, "prefix"), low, high)
		if got, ok := UnpackShape(s.Pack()); !ok || got != s || s.Apart != (s.Bytes() > InlineFenceBytes) {
			rt.Fatalf("%+v is unpacked as %+v, %v", s, got, ok)
		}
		w := rapid.Uint64().Draw(rt, "word")
		if s, ok := UnpackShape(w); ok && (s.Low > 1024 || s.High > 1024 || s.Prefix > min(s.Low, s.High)) {
			rt.Fatalf("%#x is taken for %+v", w, s)
		}
	})
	for _, bad := range []struct{ kind, words, slots int }{
		{int(kinds), 1, 8}, {0, -1, 8}, {0, MaxRowWords + 1, 8}, {0, 1, MinSlots - 1}, {0, 1, MaxSlots + 1}, {int(Inline), 1000, 128},
	} {
		if _, err := NewLayout(1, Kind(bad.kind), bad.words, bad.slots); err == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

// TestPresentComesFirst: a leaf of the default geometry has what lookups and scans of
// the present need in the lines that they READ, scans need at most one line more, and
// no words overlap.
func TestPresentComesFirst(t *testing.T) {
	for words := range inlineRowWordsMax + 1 {
		l, err := NewLayout(1, Inline, words, AutoSlots(Inline, words))
		if err != nil {
			t.Fatal(err)
		}
		end, order := l.RowsAt+l.Slots*words, l.OrderAt+l.OrderWords
		if end > l.LookupWords || end > l.OrderAt || order > l.PresentWords || order > l.GravesAt || l.GravesAt >= l.OldersAt {
			t.Errorf("rows of %d words end at word %d: %+v", words, end, l)
		}
		if l.OldersAt+l.Slots > l.LeafWords || l.LookupWords*8 > leafTargetBytes || l.PresentWords > l.LookupWords+lineWords {
			t.Errorf("rows of %d words: %+v", words, l)
		}
	}
}
