// Package testseed gives tests their seeds, the sizes that an environment variable
// sets, and how long they wait. It is for tests only.
//
// Seeds are fixed unless the environment asks for others, so that a tree passes or
// fails the same cases each time it is tested. Soaks ask for random ones.
package testseed

import (
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Variable is the environment variable that has the seed of a run to repeat, or
// Random for seeds from the clock.
const (
	Variable = "DRTMX_SEED"
	Random   = "random"
)

// Of returns the seed of a randomised test: that of the environment if there is
// one, a new one if the environment asks for random seeds, and otherwise one that
// follows from the test's name. It is logged, so that a failing run can be
// repeated. Random seeds differ from call to call, so a test calls it once.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed, err := choose(os.Getenv(Variable), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d", Variable, seed)
	return seed
}

// choose returns the seed that a value of the environment variable asks for.
func choose(value, name string) (uint64, error) {
	switch value {
	case "":
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // never fails
		return h.Sum64(), nil
	case Random:
		return uint64(time.Now().UnixNano()), nil
	}
	seed, err := strconv.ParseUint(value, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s=%q: want a number, or %s: %w", Variable, value, Random, err)
	}
	return seed, nil
}

// properties is the seed of properties if nothing else is asked for. Any number
// but 0 would do.
const properties = 1

// init fixes the seed of package rapid, which otherwise draws one. The flag
// -rapid.seed takes precedence, since flags are parsed later.
func init() {
	seed := uint64(properties)
	if v := os.Getenv(Variable); v != "" {
		var err error
		if seed, err = choose(v, ""); err != nil {
			return // Check reports it
		}
	}
	if err := flag.Set("rapid.seed", strconv.FormatUint(seed, 10)); err != nil {
		panic(err)
	}
}

// Check checks a property with package rapid. A failure names its seed, which the
// environment variable and the flag -rapid.seed accept.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	if _, err := choose(os.Getenv(Variable), ""); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, property)
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

// Soaking reports whether DRTMX_SOAK=1 asks for tests that need luck or long time,
// and for the full length of others. make soak does.
func Soaking() bool { return os.Getenv("DRTMX_SOAK") == "1" }

// Patience is how long a test waits for what must come: longer than a slow and busy
// machine may take. DRTMX_PATIENCE changes it, for runs that are to fail.
func Patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("DRTMX_PATIENCE")); err == nil {
		return d
	}
	return time.Minute
}

// SkipUnshared skips a test over shared memory whose server could not start because the
// race detector has all regions on Go's heap. The test runs without the detector.
func SkipUnshared(t testing.TB, err error) {
	t.Helper()
	if Race && err != nil && strings.Contains(err.Error(), "not shared memory") {
		t.Skip("regions are not shared memory under the race detector: ", err)
	}
}
