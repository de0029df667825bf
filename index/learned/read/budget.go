package read

import (
	"fmt"
	"strconv"
	"strings"
)

// Budget says which parts of the models a client keeps, XStore's trade-off of memory
// against rounds (§5.1). The client READs the other parts when it needs them.
type Budget uint8

// Budgets.
const (
	// Full keeps models and translation tables: a GET is one round.
	Full Budget = iota
	// PartTT keeps models and the translation tables that fit Options.TTBytes.
	PartTT
	// ModelsOnly keeps models; a lookup READs a few TT entries first: one round more.
	ModelsOnly
	// RouterOnly keeps the router; a lookup READs the sub-model first: one round
	// more, of more bytes.
	RouterOnly
	// Decoded keeps the same as Full, the translation tables decoded: eight bytes for each
	// leaf instead of about two. The READs are the same. A prediction takes less time while
	// the tables fit the caches of the processor, and more when they do not.
	Decoded

	budgets // their number
)

// Valid reports whether b is one of the budgets.
func (b Budget) Valid() bool { return b < budgets }

// Cache determines which part of the models of each ordered index and partition
// a client keeps. The zero value keeps everything.
type Cache struct {
	Budget Budget
	// TTBytes bounds the translation tables kept under PartTT, for each index and partition.
	TTBytes int
}

// budgetNames are the texts of ParseCache and String; PartTT is followed by its
// bytes.
var budgetNames = [...]string{Full: "full", PartTT: "part", ModelsOnly: "models", RouterOnly: "router", Decoded: "decoded"}

// String returns the text that ParseCache parses.
func (c Cache) String() string {
	if c.Budget == PartTT {
		return budgetNames[PartTT] + "=" + strconv.Itoa(c.TTBytes)
	}
	if c.Budget.Valid() {
		return budgetNames[c.Budget]
	}
	return fmt.Sprintf("Cache(%d)", c.Budget)
}

// ParseCache parses "full", "decoded", "part=BYTES", "models" or "router". The empty
// string is "full".
func ParseCache(s string) (Cache, error) {
	name, bytes, part := strings.Cut(s, "=")
	for b, n := range budgetNames {
		c := Cache{Budget: Budget(b)}
		switch {
		case n != name || part != (c.Budget == PartTT):
			continue
		case part:
			var err error
			if c.TTBytes, err = strconv.Atoi(bytes); err != nil || c.TTBytes < 0 {
				return Cache{}, fmt.Errorf("read: cache %q: want a number of bytes after part=", s)
			}
		}
		return c, nil
	}
	if s == "" {
		return Cache{}, nil
	}
	return Cache{}, fmt.Errorf("read: cache %q, want full, decoded, part=BYTES, models or router", s)
}
