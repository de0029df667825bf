//go:build planted

package planted

import (
	"fmt"
	"os"
)

// Enabled reports whether bugs can be planted.
const Enabled = true

var current = fromEnv()

func fromEnv() Bug {
	name := os.Getenv(Env)
	if name == "" {
		return None
	}
	for b, n := range names {
		if n == name {
			return Bug(b)
		}
	}
	panic(fmt.Sprintf("planted: %s=%q is no bug", Env, name))
}

// Is reports whether b is planted in this process.
func Is(b Bug) bool { return b == current }
