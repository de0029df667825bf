package learned

import (
	"fmt"
	"strconv"
	"strings"

	"drtmx/index/learned/model"
)

// Cache determines which part of the models of each ordered index and partition
// a client keeps. The zero value keeps everything.
type Cache struct {
	Budget Budget
	// TTBytes bounds the translation tables kept under PartTT, for each index and partition.
	TTBytes int
}

// budgetNames are what ParseCache takes and String returns; PartTT is followed
// by its bytes.
var budgetNames = [...]string{Full: "full", PartTT: "part", ModelsOnly: "models", RouterOnly: "router"}

// String returns the text that ParseCache parses.
func (c Cache) String() string {
	if c.Budget == PartTT {
		return budgetNames[PartTT] + "=" + strconv.Itoa(c.TTBytes)
	}
	if int(c.Budget) < len(budgetNames) {
		return budgetNames[c.Budget]
	}
	return fmt.Sprintf("Cache(%d)", c.Budget)
}

// ParseCache reads "full", "part=BYTES", "models" or "router". The empty string
// is "full".
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
				return Cache{}, fmt.Errorf("learned: cache %q: want a number of bytes after part=", s)
			}
		}
		return c, nil
	}
	if s == "" {
		return Cache{}, nil
	}
	return Cache{}, fmt.Errorf("learned: cache %q, want full, part=BYTES, models or router", s)
}

// ParseFamily reads "plr" or "rmi", in any case. The empty string is the
// default family.
func ParseFamily(s string) (Family, error) {
	for _, f := range []Family{model.PLR, model.RMI} {
		if s == "" || strings.EqualFold(s, f.String()) {
			return f, nil
		}
	}
	return 0, fmt.Errorf("learned: family of models %q, want plr or rmi", s)
}
