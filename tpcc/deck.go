package tpcc

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"drtmx/internal/rng"
)

// ErrMix reports an invalid mix of transactions.
var ErrMix = errors.New("bad mix")

// MixFull names the mix of the specification.
const MixFull = "full"

// fullCards is the deck that clause 5.2.4.2 describes: 23 cards, which keep a
// run above all minimum percentages of clause 5.2.3 wherever it is cut.
var fullCards = [typeCount]int{NewOrder: 10, Payment: 10, OrderStatus: 1, Delivery: 1, StockLevel: 1}

// Mix says how often each transaction type runs, as a deck of cards. The zero value
// has no cards.
type Mix struct {
	cards  [typeCount]int // of one deck
	shares [typeCount]int // as given, in percent; zero for MixFull
	order  []Type         // as given
	full   bool
}

// FullMix is the specification's mix.
func FullMix() Mix { return Mix{cards: fullCards, order: Types[:], full: true} }

// ParseMix parses "full", or shares in percent such as
// "new-order=10,order-status=90". Its errors are ErrMix.
func ParseMix(s string) (Mix, error) {
	if s == MixFull {
		return FullMix(), nil
	}
	m, total, seen := Mix{}, 0, [typeCount]bool{}
	for part := range strings.SplitSeq(s, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return Mix{}, fmt.Errorf("%w: %q: want %s, or name=share as in new-order=10,order-status=90", ErrMix, part, MixFull)
		}
		t, err := parseType(name)
		if err != nil {
			return Mix{}, err
		}
		if seen[t] {
			return Mix{}, fmt.Errorf("%w: %s is named twice", ErrMix, name)
		}
		seen[t] = true
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 100 {
			return Mix{}, fmt.Errorf("%w: %s=%s: want a share from 0 to 100, a whole number", ErrMix, name, text)
		}
		total += n
		if n > 0 {
			m.shares[t], m.order = n, append(m.order, t)
		}
	}
	if total != 100 {
		return Mix{}, fmt.Errorf("%w: the shares add up to %d, want 100", ErrMix, total)
	}
	divisor := 0
	for _, n := range m.shares {
		divisor = gcd(divisor, n)
	}
	for t, n := range m.shares {
		m.cards[t] = n / divisor
	}
	return m, nil
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// flagName returns the name of a type on command lines, such as "new-order".
func (t Type) flagName() string {
	return strings.ReplaceAll(strings.ToLower(t.String()), "_", "-")
}

func parseType(name string) (Type, error) {
	var known []string
	for _, t := range Types {
		if t.flagName() == name {
			return t, nil
		}
		known = append(known, t.flagName())
	}
	return 0, fmt.Errorf("%w: unknown transaction %q, want %s", ErrMix, name, strings.Join(known, ", "))
}

// Full reports whether it is the specification's mix.
func (m Mix) Full() bool { return m.full }

// Types returns the types with cards, in the order in which they were given.
func (m Mix) Types() []Type { return slices.Clone(m.order) }

// Cards returns how many cards of one deck are of type t, and how many there are in
// all.
func (m Mix) Cards(t Type) (of, all int) {
	for _, n := range m.cards {
		all += n
	}
	return m.cards[t], all
}

// String returns the text that ParseMix parses.
func (m Mix) String() string {
	if m.full {
		return MixFull
	}
	var parts []string
	for _, t := range m.order {
		parts = append(parts, fmt.Sprintf("%s=%d", t.flagName(), m.shares[t]))
	}
	return strings.Join(parts, ",")
}

// Deck draws transaction types for one terminal: it shuffles every deck of cards and
// draws all its cards, so that after each deck all shares are exact (clause 5.2.4.2).
// It does not allocate. It is for one goroutine.
type Deck struct {
	rnd   *rng.Stream
	cards []Type
	next  int
}

// NewDeck makes a terminal's deck; s is its own stream. The mix must have
// cards.
func NewDeck(m Mix, s *rng.Stream) *Deck {
	d := &Deck{rnd: s}
	for _, t := range m.order {
		for range m.cards[t] {
			d.cards = append(d.cards, t)
		}
	}
	d.next = len(d.cards)
	return d
}

// Draw draws the next card.
func (d *Deck) Draw() Type {
	if d.next == len(d.cards) {
		rng.Shuffle(d.rnd, d.cards)
		d.next = 0
	}
	t := d.cards[d.next]
	d.next++
	return t
}
