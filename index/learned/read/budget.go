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
	// Tree keeps all inner nodes of the server's tree instead of models, which the server must
	// publish: see learned.Options. Keys must be native.
	Tree
	// PartTree keeps the inner nodes that fit Cache.TTBytes, and those above them. Each node that
	// is lacking costs a lookup one round more.
	PartTree

	budgets // their number
)

// Valid reports whether b is one of the budgets.
func (b Budget) Valid() bool { return b < budgets }

// Cache determines which part of the models of each ordered index and partition
// a client keeps. The zero value keeps everything.
type Cache struct {
	Budget Budget
	// TTBytes bounds, for each index and partition, the translation tables kept under PartTT, or
	// the inner nodes kept under PartTree.
	TTBytes int
}

// bounded reports whether Cache.TTBytes bounds what the budget keeps.
func (b Budget) bounded() bool { return b == PartTT || b == PartTree }

// Inner reports whether the budget keeps inner nodes instead of models.
func (b Budget) Inner() bool { return b == Tree || b == PartTree }

// budgetNames are the texts of ParseCache and String; those with a bound are
// followed by its bytes.
var budgetNames = [...]string{
	Full: "full", PartTT: "part", ModelsOnly: "models", RouterOnly: "router", Decoded: "decoded", Tree: "tree", PartTree: "tree",
}

// String returns the text that ParseCache parses.
func (c Cache) String() string {
	if c.Budget.bounded() {
		return budgetNames[c.Budget] + "=" + strconv.Itoa(c.TTBytes)
	}
	if c.Budget.Valid() {
		return budgetNames[c.Budget]
	}
	return fmt.Sprintf("Cache(%d)", c.Budget)
}

// ParseCache parses "full", "decoded", "part=BYTES", "models", "router", "tree" or
// "tree=BYTES". The empty string is "full".
func ParseCache(s string) (Cache, error) {
	name, bytes, part := strings.Cut(s, "=")
	for b, n := range budgetNames {
		c := Cache{Budget: Budget(b)}
		switch {
		case n != name || part != c.Budget.bounded():
			continue
		case part:
			var err error
			if c.TTBytes, err = strconv.Atoi(bytes); err != nil || c.TTBytes < 0 {
				return Cache{}, fmt.Errorf("read: cache %q: want a number of bytes after %s=", s, name)
			}
		}
		return c, nil
	}
	if s == "" {
		return Cache{}, nil
	}
	return Cache{}, fmt.Errorf("read: cache %q, want full, decoded, part=BYTES, models, router, tree or tree=BYTES", s)
}
