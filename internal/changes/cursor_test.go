package changes

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/testseed"
)

func randomCursor(r *rand.Rand) Cursor {
	c := Cursor{from: from(r.IntN(4))}
	if c.from >= fromTick {
		c.tick = clock.Tick(r.Uint64N(uint64(block.MaxTick)))
	}
	if c.from == fromPlace {
		c.n, c.cluster = []uint32{0, 1, 300, all}[r.IntN(4)], r.Uint32()
		for range r.IntN(5) {
			c.at = append(c.at, r.Uint64()>>r.IntN(64))
		}
	}
	return c
}

// TestCursors: a cursor is itself again, and one of which a letter was changed, added or
// left out is refused.
func TestCursors(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	for range 2000 {
		want := randomCursor(r)
		s := want.String()
		if got, err := ParseCursor(s); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v is %q, and that is %+v, %v", want, s, got, err)
		}
		if want.from != fromPlace {
			continue
		}
		i := 1 + r.IntN(len(s)-1)
		for _, bad := range []string{s[:i], s[:i] + s[i+1:], s[:i] + "0" + s[i:], s[:i] + string("AB"[r.IntN(2)]) + s[i+1:], s + "A"} {
			if _, err := ParseCursor(bad); bad != s && !errors.Is(err, ErrCursor) {
				t.Fatalf("%q, which was %q, is accepted: %v", bad, s, err)
			}
		}
	}
	for _, bad := range []string{"", "-1", "1.5", "18446744073709551616", "68719476736", "c", "cAAAA", "Now", " 1", strings.Repeat("9", 1000)} {
		if c, err := ParseCursor(bad); !errors.Is(err, ErrCursor) {
			t.Errorf("%.30q is %+v, %v", bad, c, err)
		}
	}
}

// FuzzParseCursor: what is accepted is the cursor of its own text.
func FuzzParseCursor(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		f.Add(randomCursor(r).String())
	}
	f.Add(Cursor{from: fromPlace, tick: block.MaxTick, n: all, at: []uint64{math.MaxUint64}}.String())
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if again, err := ParseCursor(c.String()); err != nil || !reflect.DeepEqual(c, again) {
			t.Errorf("%q is %+v, and that %+v, %v", s, c, again, err)
		}
	})
}
