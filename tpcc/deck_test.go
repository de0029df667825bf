package tpcc

import (
	"errors"
	"slices"
	"testing"

	"drtmx/internal/rng"
)

func TestParseMix(t *testing.T) {
	m, err := ParseMix("order-status=90, new-order=10")
	if err != nil {
		t.Fatal(err)
	}
	if m.String() != "order-status=90,new-order=10" || m.Full() || !slices.Equal(m.Types(), []Type{OrderStatus, NewOrder}) {
		t.Errorf("mix %v, types %v", m, m.Types())
	}
	if of, all := m.Cards(OrderStatus); of != 9 || all != 10 {
		t.Errorf("%d of %d cards are ORDER-STATUS, want 9 of 10", of, all)
	}
	if m, err = ParseMix("new-order=0,order-status=100"); err != nil || len(m.Types()) != 1 {
		t.Errorf("a share of 0: %v, %v", m, err)
	}
	if m, err = ParseMix("full"); err != nil || !m.Full() || m.String() != "full" || len(m.Types()) != 5 {
		t.Errorf("full: %v, %v", m, err)
	}
	for _, bad := range []string{
		"", "new-order", "new-order=x", "new-order=-1", "new-order=110,payment=-10", "new-order=50,new-order=50",
		"payment=3", "tea=100", "new-order=0", "=100", "full,new-order=1", "new-order=100,full", "new-order=99.5,payment=0.5",
		"NEW_ORDER=100", "new-order=100,", "new-order=9223372036854775807,payment=9223372036854775807",
	} {
		if _, err := ParseMix(bad); !errors.Is(err, ErrMix) {
			t.Errorf("%q: error %v, want ErrMix", bad, err)
		}
	}
}

// After every deck the shares are exact, and within it no card is missing.
func TestDeckIsExact(t *testing.T) {
	for _, text := range []string{
		"full", "new-order=10,order-status=90", "new-order=45,payment=43,order-status=4,delivery=4,stock-level=4", "delivery=100",
	} {
		m, err := ParseMix(text)
		if err != nil {
			t.Fatal(err)
		}
		_, all := m.Cards(NewOrder)
		d := NewDeck(m, rng.New(1))
		for deck := range 50 {
			var n [typeCount]int
			for range all {
				n[d.Draw()]++
			}
			if n != m.cards {
				t.Fatalf("%s: deck %d has %v, want %v", text, deck, n, m.cards)
			}
		}
	}
}

// A run of the full mix keeps the minima of clause 5.2.3 wherever each
// terminal is cut, once it has drawn some decks.
func TestFullMixKeepsTheMinima(t *testing.T) {
	var n [typeCount]int
	total := 0
	for id := range 40 {
		d := NewDeck(FullMix(), rng.New(2).SplitN(uint64(id)))
		for range 1000 + id*7 {
			n[d.Draw()]++
			total++
		}
	}
	for _, ty := range Types {
		if share := 100 * float64(n[ty]) / float64(total); share < ty.Terms().MinShare {
			t.Errorf("%v: %.2f %%, want %v or more", ty, share, ty.Terms().MinShare)
		}
	}
}

// Each place of a deck holds each type as often as its share says (chi-square).
func TestDeckIsShuffled(t *testing.T) {
	const decks = 23 * 200
	var at [23][typeCount]float64
	d := NewDeck(FullMix(), rng.New(3))
	for range decks {
		for place := range at {
			at[place][d.Draw()]++
		}
	}
	chi := 0.0
	for _, seen := range at {
		for ty, n := range seen {
			want := float64(decks*fullCards[ty]) / 23
			chi += (n - want) * (n - want) / want
		}
	}
	// 22 × 4 degrees of freedom: mean 88, standard deviation 13.3.
	if chi > 88+5*13.3 {
		t.Errorf("chi-square %.0f, want about 88", chi)
	}
	// Terminals have orders of their own; a seed has one.
	a, b, c := NewDeck(FullMix(), rng.New(4).SplitN(0)), NewDeck(FullMix(), rng.New(4).SplitN(1)), NewDeck(FullMix(), rng.New(4).SplitN(0))
	same := 0
	for i := range 230 {
		x := a.Draw()
		if x == b.Draw() {
			same++
		}
		if x != c.Draw() {
			t.Fatalf("card %d of the same seed differs", i)
		}
	}
	if same > 150 {
		t.Errorf("two terminals agree in %d of 230 cards", same)
	}
}

func TestDrawAllocatesNothing(t *testing.T) {
	d := NewDeck(FullMix(), rng.New(1))
	if n := testing.AllocsPerRun(100, func() { d.Draw() }); n != 0 {
		t.Errorf("%v allocations a card", n)
	}
}

// Whatever it is given, ParseMix returns an error or a mix that can be drawn
// from and written back.
func FuzzParseMix(f *testing.F) {
	f.Add("new-order=10,order-status=90")
	f.Add("order-status=100, new-order=0")
	f.Add("full")
	f.Add("=,=")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMix(s)
		if err != nil {
			if !errors.Is(err, ErrMix) {
				t.Fatalf("%q: untyped error %v", s, err)
			}
			return
		}
		d := NewDeck(m, rng.New(1))
		for range 100 {
			if of, _ := m.Cards(d.Draw()); of == 0 {
				t.Fatalf("%q: drew a card that is not there", s)
			}
		}
		if again, err := ParseMix(m.String()); err != nil || again.String() != m.String() || again.cards != m.cards {
			t.Errorf("%q is %q, which is %v, %v", s, m, again, err)
		}
	})
}
