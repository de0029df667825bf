// Package testseed gives tests their seeds, the sizes that an environment variable
// sets, and how long they wait. It is for tests only.
package testseed

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// Variable is the environment variable that has the seed of a run to repeat.
const Variable = "DRTMX_SEED"

// Of returns the seed of a randomised test: that of the environment if there is
// one, else a new one. It is logged, so that a failing run can be repeated. It
// differs from call to call, so a test calls it once.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(Variable); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("%s=%q: want a number: %v", Variable, s, err)
		}
		seed = v
	}
	t.Logf("%s=%d", Variable, seed)
	return seed
}

// Number returns the number in an environment variable, or usual if there is none.
func Number(t testing.TB, variable string, usual int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s=%q: want a number: %v", variable, s, err)
	}
	return n
}

// Share returns which share of its work a test does, of how many: what an environment
// variable says, such as 0/8, or all of it.
func Share(t testing.TB, variable string) (i, n int) {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return 0, 1
	}
	if _, err := fmt.Sscanf(v, "%d/%d", &i, &n); err != nil || i < 0 || i >= n {
		t.Fatalf("%s=%q: want a share such as 0/2 or 1/2", variable, v)
	}
	return i, n
}

// Patience is how long a test waits for what must come: longer than a slow and busy
// machine may take. DRTMX_PATIENCE changes it, for runs that are to fail.
func Patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("DRTMX_PATIENCE")); err == nil {
		return d
	}
	return time.Minute
}
